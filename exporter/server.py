"""The exporter's HTTP side: `/metrics` for a scraper, `/healthz` for a kubelet.

Called by the front door's `run export node`. A request takes the collector's snapshot as it is and never touches a
device, so a scraper's time-out (`X-Prometheus-Scrape-Timeout-Seconds`) has nothing to cut short. What clients may cost
is bounded in `exporter.server_connections`.
"""

from __future__ import annotations

import io
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from exporter.collector import Collector
from exporter.compat.translation import Compat
from exporter.exposition.rendering import Exposition, TextFormat
from exporter.server_connections import HANDSHAKE_SECONDS_MAX, SEND_SECONDS_MAX, Admission, Connections, HeadReader
from exporter.server_request import Request, accepts_gzip, read_request, text_format_of
from fleet.errors import Corrupt, Misconfigured
from wire.port_guard import PortGuard
from wire.tokens import CHALLENGE

if TYPE_CHECKING:
    import ssl  # loaded by who hands contexts in: it takes megabytes that a plain port does without


class MetricsServer:
    """Serves one collector.

    Args:
        collector: whose figures are served.
        host: address to listen on.
        port: port; 0 picks a free one.
        age_seconds_max: `/healthz` answers 503 once the figures are older.
        compat: other exporters under whose names the figures are shown too.
        tls: gives the context for a new connection; None for plain HTTP.
        guard: says who may see figures; None for everybody.

    Raises:
        Misconfigured: the address can't be used.
    """

    def __init__(
        self,
        collector: Collector,
        *,
        host: str,
        port: int,
        age_seconds_max: float,
        compat: Iterable[Compat] = (),
        tls: Callable[[], ssl.SSLContext] | None = None,
        guard: PortGuard | None = None,
    ) -> None:
        self.tls = tls
        self._guard = guard
        self._collector = collector
        self._age_seconds_max = age_seconds_max
        self._exposition = Exposition(compat)
        self._lock = threading.Lock()
        try:
            self._server = _Server((host, port), _Handler)
        except (OSError, OverflowError) as exc:
            raise Misconfigured(f"cannot listen on {host}:{port}: {exc}; choose another with --listen") from exc
        self._server.app = self

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def serve(self) -> None:
        """Answers requests until `stop` is called from another thread."""
        self._server.serve_forever(poll_interval=0.1)
        self._server.server_close()

    def stop(self) -> None:
        """Ends `serve`."""
        self._server.shutdown()

    def metrics(self, text_format: TextFormat, *, is_packed: bool = False) -> tuple[bytes, ...]:
        """The answer to a scrape, in pieces that follow each other.

        Args:
            text_format: the format asked for.
            is_packed: True for gzip.
        """
        with self._lock:
            return self._exposition.scrape(self._collector.state(), text_format, is_packed=is_packed)

    def may_see(self, authorization: str | None, certificate: Mapping[str, object] | None) -> bool:
        """Whether whoever asks may see figures; see `PortGuard.may`."""
        return self._guard is None or self._guard.may(authorization, certificate)

    def health(self) -> tuple[bool, str]:
        """Whether the figures are fresh, and a line that says so."""
        state = self._collector.state()
        if state.snapshot is None:
            return False, f"no reading yet, {state.failures} failed"
        line = f"figures are {state.age_seconds:.1f} s old, limit {self._age_seconds_max:.1f} s"
        return state.age_seconds <= self._age_seconds_max, line


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64
    app: MetricsServer

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self.connections = Connections()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Gives the connection a thread, unless there are too many."""
        if self.connections.admit(request) is Admission.CLOSED:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves one connection; the handshake is its thread's business, and holds nobody else up."""
        tls = self.app.tls
        if tls is not None:
            request.settimeout(HANDSHAKE_SECONDS_MAX)
            try:
                encrypted = tls().wrap_socket(request, server_side=True, do_handshake_on_connect=False)
            except OSError:
                self.shutdown_request(request)
                return
            self.connections.exchange(request, encrypted)
            request = encrypted
            try:
                encrypted.do_handshake()
            except OSError:
                self.shutdown_request(request)
                return
        super().process_request_thread(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Closes the connection and frees its place."""
        self.connections.leave(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a client that went away or was too slow; anything else is a bug and is told."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: HTTPStatus
    pieces: tuple[bytes, ...]
    headers: tuple[str, ...] = ("Content-Type: text/plain; charset=utf-8",)


_NOT_FOUND = _Answer(status=HTTPStatus.NOT_FOUND, pieces=(b"try /metrics or /healthz\n",))
_NOT_ALLOWED = _Answer(
    status=HTTPStatus.METHOD_NOT_ALLOWED, pieces=(b"only GET and HEAD\n",), headers=("Allow: GET, HEAD",)
)
_NO_REQUEST = _Answer(status=HTTPStatus.BAD_REQUEST, pieces=(b"not a request\n",))
_UNKNOWN = _Answer(
    status=HTTPStatus.UNAUTHORIZED,
    pieces=(b"show a token or a certificate that is known\n",),
    headers=tuple(f"{name}: {value}" for name, value in CHALLENGE),
)
_TOO_LONG = _Answer(
    status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, pieces=(b"the head of the request is too long\n",)
)
_TOO_MANY = _Answer(
    status=HTTPStatus.SERVICE_UNAVAILABLE, pieces=(b"too many connections\n",), headers=("Retry-After: 1",)
)


class _Handler(socketserver.BaseRequestHandler):
    server: _Server
    request: socket.socket

    def handle(self) -> None:
        """Answers the requests of one connection, until it ends or takes too long."""
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections, head = self.server.connections, HeadReader(self.request)
        lines = io.BufferedReader(head)
        stays_open = True
        while stays_open:
            connections.turn(self.request, is_answering=False)
            head.begin()
            try:
                request = read_request(lines)
            except Corrupt:
                self._send(_TOO_LONG if head.is_exceeded else _NO_REQUEST, stays_open=False)
                return
            if request is None:
                return
            connections.turn(self.request, is_answering=True)
            is_served = connections.is_served(self.request)
            stays_open = request.stays_open and is_served
            answer = self._answer(request) if is_served else _TOO_MANY
            self._send(answer, stays_open=stays_open, has_body=request.method != "HEAD")

    def _answer(self, request: Request) -> _Answer:
        """Answers the two paths, and 404 for others."""
        app = self.server.app
        if request.method not in ("GET", "HEAD"):
            return _NOT_ALLOWED
        if request.path == "/metrics" and not app.may_see(request.headers.get("authorization"), self._certificate()):
            return _UNKNOWN
        if request.path == "/metrics":
            text_format = text_format_of(request.headers.get("accept", ""))
            is_packed = accepts_gzip(request.headers.get("accept-encoding", ""))
            encoding = ("Content-Encoding: gzip",) if is_packed else ()
            pieces = app.metrics(text_format, is_packed=is_packed)
            return _Answer(
                status=HTTPStatus.OK, pieces=pieces, headers=(f"Content-Type: {text_format.value}", *encoding)
            )
        if request.path == "/healthz":
            is_fresh, line = app.health()
            status = HTTPStatus.OK if is_fresh else HTTPStatus.SERVICE_UNAVAILABLE
            return _Answer(status=status, pieces=(f"{line}\n".encode(),))
        return _NOT_FOUND

    def _certificate(self) -> Mapping[str, object] | None:
        """What the client showed and TLS has verified."""
        shown = getattr(self.request, "getpeercert", None)
        found: Mapping[str, object] | None = None if shown is None else shown()
        return found or None

    def _send(self, answer: _Answer, *, stays_open: bool, has_body: bool = True) -> None:
        lines = (
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
            "Server: gputide",
            f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S GMT', time.gmtime())}",
            *answer.headers,
            f"Content-Length: {sum(map(len, answer.pieces))}",
            *(() if stays_open else ("Connection: close",)),
        )
        head = "".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii")
        until = time.monotonic() + SEND_SECONDS_MAX
        for piece in (head, *answer.pieces) if has_body else (head,):
            # A time-out holds for one piece, and the client has this long for all of them.
            left = until - time.monotonic()
            if left <= 0.0:
                raise TimeoutError(f"an answer was not taken within {SEND_SECONDS_MAX} s")
            self.request.settimeout(left)
            self.request.sendall(piece)
