"""The way to a real API server, over which answers are refused, lost, cut, or dated wrongly, as long as it is told to.

A small proxy on loopback: plain HTTP to whoever asks, TLS to the server, bodies passed on as they are, watches as they
come. Only the way is bad; what the server does it really does. Shared by the bar of faults and its tests.

Source: kubernetes/website:content/en/docs/reference/using-api/api-concepts.md (statuses, Retry-After, watches).
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from tests.control_plane import ControlPlane

_SECONDS_MAX = 300.0
_PASSED = ("Authorization", "Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_TOLD = ("Content-Type", "Content-Encoding", "Retry-After")
_REASONS = {
    HTTPStatus.CONFLICT: "Conflict",
    HTTPStatus.TOO_MANY_REQUESTS: "TooManyRequests",
    HTTPStatus.INTERNAL_SERVER_ERROR: "InternalError",
}


class FaultyWay:
    """A proxy before an API server; safe for several threads.

    Args:
        plane: the control plane.

    Attributes:
        refused: status of each of the next writes, the first first; they do not reach the server.
        is_broken: every write is refused with 500.
        lost_answers: how many further writes reach the server without their answers' coming back.
        cut_reads: how many further reads are cut.
        is_away: nothing is answered.
        skew: what the server's clock seems to be off by.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._lock = threading.Lock()
        self._watching: set[http.client.HTTPSConnection] = set()
        self._place = urlsplit(plane.url)
        self._context = ssl.create_default_context(cafile=str(plane.ca))
        self.refused: list[int] = []
        self.is_broken = False
        self.lost_answers = 0
        self.cut_reads = 0
        self.is_away = False
        self.skew = timedelta(0)
        way = self

        class Handler(_Handler):
            faulty = way

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def kubeconfig(self, folder: Path, like: Path) -> Path:
        """Write another kubeconfig's twin that goes this way."""
        document = json.loads(like.read_text(encoding="utf-8"))
        document["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self._server.server_address[1]}"}
        path = folder / "faulty.kubeconfig"
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    def cure(self) -> None:
        """The way is good again; the clock stays as it is."""
        with self._lock:
            self.refused, self.is_broken = [], False
            self.lost_answers, self.cut_reads, self.is_away = 0, 0, False

    def cut_watches(self) -> None:
        """End every watch that is under way, in the middle of whatever it tells."""
        with self._lock:
            watching = list(self._watching)
        for connection in watching:
            if connection.sock is not None:
                connection.sock.close()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self.cut_watches()
        self._thread.join(10)

    def fault_of(self, method: str, path: str) -> int | None:
        """What becomes of a request: a status to refuse it with, 0 to break it off, None to pass it on."""
        with self._lock:
            if self.is_away:
                return 0
            if method == "GET":
                self.cut_reads -= (is_cut := self.cut_reads > 0)
                return 0 if is_cut else None
            if "/leases" in path:
                return None
            if self.is_broken:
                return HTTPStatus.INTERNAL_SERVER_ERROR
            return self.refused.pop(0) if self.refused else None

    def is_lost(self, method: str, path: str) -> bool:
        """Whether the answer to a write gets lost."""
        with self._lock:
            is_lost = method != "GET" and "/leases" not in path and self.lost_answers > 0
            self.lost_answers -= is_lost
            return is_lost

    @contextmanager
    def passed_on(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        """The server's own answer."""
        port = self._place.port or 443
        connection = http.client.HTTPSConnection(
            self._place.hostname or "", port, context=self._context, timeout=_SECONDS_MAX
        )
        is_watch = "watch=1" in path
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            if is_watch:
                with self._lock:
                    self._watching.add(connection)
            yield answer
        finally:
            with self._lock:
                self._watching.discard(connection)
            connection.close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of those who have gone."""


class _Handler(BaseHTTPRequestHandler):
    faulty: FaultyWay
    protocol_version = "HTTP/1.1"

    def handle_one(self) -> None:
        """Pass a request on, or do to it what is due."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        status = self.faulty.fault_of(self.command, self.path)
        if status is not None:
            self._refuse(status)
            return
        headers = {name: self.headers[name] for name in _PASSED if name in self.headers}
        try:
            with self.faulty.passed_on(self.command, self.path, body, headers) as answer:
                if self.faulty.is_lost(self.command, self.path):
                    answer.read()
                    self.close_connection = True
                    return
                self._answer(answer)
        except (OSError, http.client.HTTPException, ValueError):
            # A watch that was cut, or whoever asked has gone.
            self.close_connection = True

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_one  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _answer(self, answer: http.client.HTTPResponse) -> None:
        self.send_response_only(answer.status)
        for name in _TOLD:
            if (value := answer.getheader(name)) is not None:
                self.send_header(name, value)
        if (date := answer.getheader("Date")) is not None:
            self.send_header("Date", format_datetime(parsedate_to_datetime(date) + self.faulty.skew, usegmt=True))
        if "watch=1" not in self.path:
            content = answer.read()
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        while part := answer.read1(65536):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _refuse(self, status: int) -> None:
        if not status:
            self.close_connection = True
            return
        reason = _REASONS.get(HTTPStatus(status), "")
        told = {
            "kind": "Status",
            "status": "Failure",
            "code": status,
            "reason": reason,
            "message": "refused on the way",
        }
        content = json.dumps(told).encode()
        self.send_response(status)
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
