"""The exporter's HTTP side: `/metrics` for a scraper, `/healthz` for a kubelet.

Called by the front door's `export`. A request takes the collector's snapshot as it is and never touches a device.
"""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from exporter.collector import Collector
from exporter.exposition import Exposition, TextFormat
from fleet.errors import Misconfigured

REQUEST_SECONDS = 10.0
"""Time-out of a connection: a client that sends nothing is let go."""


class MetricsServer:
    """Serves one collector.

    Args:
        collector: whose figures are served.
        host: address to listen on.
        port: port; 0 picks a free one.
        age_seconds_max: `/healthz` answers 503 once the figures are older.

    Raises:
        Misconfigured: the address can't be used.
    """

    def __init__(self, collector: Collector, *, host: str, port: int, age_seconds_max: float) -> None:
        self._collector = collector
        self._age_seconds_max = age_seconds_max
        self._exposition = Exposition()
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

    def metrics(self, text_format: TextFormat) -> bytes:
        """The answer to a scrape."""
        with self._lock:
            return self._exposition.render(self._collector.state(), text_format)

    def health(self) -> tuple[bool, str]:
        """Whether the figures are fresh, and a line that says so."""
        state = self._collector.state()
        if state.snapshot is None:
            return False, f"no reading yet, {state.failures} failed"
        line = f"figures are {state.age_seconds:.1f} s old, limit {self._age_seconds_max:.1f} s"
        return state.age_seconds <= self._age_seconds_max, line


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    app: MetricsServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "gputide"
    sys_version = ""
    timeout = REQUEST_SECONDS
    server: _Server

    def do_GET(self) -> None:
        """Answers the two paths, and 404 for others."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            accepts_openmetrics = "application/openmetrics-text" in self.headers.get("Accept", "")
            text_format = TextFormat.OPENMETRICS if accepts_openmetrics else TextFormat.PROMETHEUS
            self._answer(200, self.server.app.metrics(text_format), text_format.value)
        elif path == "/healthz":
            is_fresh, line = self.server.app.health()
            self._answer(200 if is_fresh else 503, f"{line}\n".encode(), "text/plain; charset=utf-8")
        else:
            self._answer(404, b"try /metrics or /healthz\n", "text/plain; charset=utf-8")

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: a scrape is no event."""

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        if "gzip" in self.headers.get("Accept-Encoding", "") and len(body) > 1000:
            body = gzip.compress(body, compresslevel=1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
