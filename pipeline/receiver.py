"""The remote-write receiver: HTTP around `intake`.

`POST /api/v1/write` takes bodies of both versions, `GET /healthz` says that it listens, `GET /metrics` gives its own
counters. Started by the front door (`gputide receive`) and by a replay, which sends real bodies through it.

Answers: 204 written and durable; 400 corrupt, or part of it invalid (the valid part is written); 411, 413 no or too
long a body; 415 another content type or encoding; 429 with Retry-After when the bus or the queue of requests is full
(let Prometheus set `retry_on_http_429: true`, its default drops them); 503 with Retry-After when storage or bounds
don't let us. Protocol: prometheus.io/docs/specs/prw/remote_write_spec_2_0.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase

from pipeline.intake import RETRY_AFTER_SECONDS, Answer, Intake
from pipeline.remote_write import Version

WRITE_PATH = "/api/v1/write"
IDLE_SECONDS = 60
"""How long a connection may be silent."""

_CHUNK_LINE_BYTES_MAX = 1024
_PROTOS = {"": Version.V1, "prometheus.WriteRequest": Version.V1, "io.prometheus.write.v2.Request": Version.V2}


class Receiver:
    """A listening receiver.

    Args:
        intake: where bodies go.
        host: address to listen on.
        port: port to listen on; 0 lets the system choose.
        body_bytes_max: largest body of one request (`receiver.body_bytes_max`).
        pending_requests_max: requests that may be under way at once (`receiver.pending_requests_max`).

    Raises:
        OSError: the address can't be listened on.
    """

    def __init__(self, intake: Intake, *, host: str, port: int, body_bytes_max: int, pending_requests_max: int) -> None:
        self._server = _Server((host, port), intake, body_bytes_max, pending_requests_max)
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def start(self) -> None:
        """Serves in threads of its own until `stop`."""
        self._thread = threading.Thread(target=self.serve, name="receiver", daemon=True)
        self._thread.start()

    def serve(self) -> None:
        """Serves in this thread until `stop` is called from another."""
        self._server.serve_forever(poll_interval=0.1)

    def stop(self) -> None:
        """Takes no further connection and closes the port."""
        self._server.shutdown()
        self._server.server_close()
        if self._thread is not None:
            self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], intake: Intake, body_bytes_max: int, pending_max: int) -> None:
        self.intake = intake
        self.body_bytes_max = body_bytes_max
        self.pending_max = pending_max
        self.slots = threading.BoundedSemaphore(pending_max)
        self.answers: Counter[int] = Counter()
        self.answers_lock = threading.Lock()
        super().__init__(address, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A sender that hangs up is no news; anything else is shown as it is."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Refusal(Exception):
    """A request that can't even be read; the connection is closed, since its rest is still in it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "gputide"
    sys_version = ""
    timeout = IDLE_SECONDS
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def do_POST(self) -> None:
        """Takes one body."""
        if self.path.partition("?")[0] != WRITE_PATH:
            self.close_connection = True
            self._answer(Answer(status=404, text=f"cannot write to {self.path!r}: bodies go to {WRITE_PATH}"))
            return
        if not self.server.slots.acquire(blocking=False):
            self.close_connection = True
            text = f"cannot take a request: receiver.pending_requests_max={self.server.pending_max} are under way"
            self._answer(Answer(status=429, text=text, retry_after_seconds=RETRY_AFTER_SECONDS))
            return
        try:
            version = version_of(self.headers)
            body = _body(self.rfile, self.headers, self.server.body_bytes_max)
            answer = self.server.intake.take(body, version)
        except _Refusal as exc:
            self.close_connection = True
            self._answer(Answer(status=exc.status, text=str(exc)))
            return
        finally:
            self.server.slots.release()
        self._answer(answer, version)

    def do_GET(self) -> None:
        """Health and own counters."""
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._send(200, "ok\n", "text/plain; charset=utf-8", {})
        elif path == "/metrics":
            self._send(200, self._metrics(), "text/plain; version=0.0.4; charset=utf-8", {})
        else:
            self._send(404, f"there is no {path!r} here\n", "text/plain; charset=utf-8", {})

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: requests are counted, not logged."""

    def _answer(self, answer: Answer, version: Version | None = None) -> None:
        headers = {}
        if answer.retry_after_seconds is not None:
            headers["Retry-After"] = str(answer.retry_after_seconds)
        if version is Version.V2 and answer.is_counted:
            headers["X-Prometheus-Remote-Write-Samples-Written"] = str(answer.samples)
            headers["X-Prometheus-Remote-Write-Histograms-Written"] = "0"
            headers["X-Prometheus-Remote-Write-Exemplars-Written"] = "0"
        text = f"{answer.text}\n" if answer.text else ""
        self._send(answer.status, text, "text/plain; charset=utf-8", headers)

    def _send(self, status: int, text: str, content_type: str, headers: dict[str, str]) -> None:
        with self.server.answers_lock:
            self.server.answers[status] += 1
        data = text.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if status != 204:
            self.wfile.write(data)
        self.wfile.flush()

    def _metrics(self) -> str:
        with self.server.answers_lock:
            answers = sorted(self.server.answers.items())
        lines = ["# TYPE gputide_receiver_requests_total counter"]
        lines += [f'gputide_receiver_requests_total{{code="{status}"}} {count}' for status, count in answers]
        for name, count in sorted(dict(self.server.intake.counts).items()):
            lines += [f"# TYPE gputide_receiver_{name}_total counter", f"gputide_receiver_{name}_total {count}"]
        lines += ["# TYPE gputide_receiver_series gauge", f"gputide_receiver_series {self.server.intake.series}"]
        return "\n".join(lines) + "\n"


def version_of(headers: Message) -> Version:
    """Which message the headers announce.

    Raises:
        _Refusal: 415, for another content type, another message or another encoding.
    """
    content_type = headers.get("Content-Type", "")
    media, _, parameters = content_type.partition(";")
    found = {}
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        found[name.strip().lower()] = value.strip().strip('"')
    version = _PROTOS.get(found.get("proto", ""))
    if media.strip().lower() != "application/x-protobuf" or version is None:
        raise _Refusal(415, f"cannot take content type {content_type[:200]!r}: expected application/x-protobuf")
    encoding = headers.get("Content-Encoding", "snappy")
    if encoding.strip().lower() != "snappy":
        raise _Refusal(415, f"cannot take content encoding {encoding[:200]!r}: expected snappy")
    return version


def _body(source: BufferedIOBase, headers: Message, bytes_max: int) -> bytes:
    """The body, by its length or its chunks."""
    coding = headers.get("Transfer-Encoding", "").strip().lower()
    length_text = headers.get("Content-Length")
    if coding and (coding != "chunked" or length_text is not None):
        raise _Refusal(400, f"cannot read a body with transfer encoding {coding[:200]!r} beside a length")
    if coding:
        return _chunked_body(source, bytes_max)
    if length_text is None:
        raise _Refusal(411, "cannot read a body without Content-Length that is not chunked")
    if not (length_text.isascii() and length_text.isdigit()):
        raise _Refusal(400, f"cannot read a body of Content-Length {length_text[:200]!r}")
    length = int(length_text[:19])
    _check_length(length, bytes_max)
    body = source.read(length)
    if len(body) < length:
        raise _Refusal(400, f"cannot read a body of {length} bytes: it ends after {len(body)}")
    return body


def _chunked_body(source: BufferedIOBase, bytes_max: int) -> bytes:
    parts, total = [], 0
    while True:
        line = source.readline(_CHUNK_LINE_BYTES_MAX)
        digits = line.partition(b";")[0].strip()
        if not line.endswith(b"\n") or not digits or len(digits) > 15 or digits.strip(b"0123456789abcdefABCDEF"):
            raise _Refusal(400, f"cannot read a chunked body: {line[:50]!r} is no chunk size")
        size = int(digits, 16)
        if not size:
            break
        total += size
        _check_length(total, bytes_max)
        part = source.read(size)
        if len(part) < size or source.readline(_CHUNK_LINE_BYTES_MAX).strip():
            raise _Refusal(400, f"cannot read a chunked body: a chunk of {size} bytes is cut")
        parts.append(part)
    trailer_bytes = 0
    while (line := source.readline(_CHUNK_LINE_BYTES_MAX)).strip():
        trailer_bytes += len(line)
        if trailer_bytes > bytes_max:
            raise _Refusal(400, "cannot read a chunked body: its trailer does not end")
    return b"".join(parts)


def _check_length(length: int, bytes_max: int) -> None:
    if length > bytes_max:
        raise _Refusal(
            413, f"cannot take a remote-write body of {length} bytes: larger than receiver.body_bytes_max={bytes_max}"
        )
