"""A collector of OTLP over HTTP in tests: keeps what it was sent, as OpenTelemetry's own classes read it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collected:
    """What came; mutable: threads of the server add."""

    def __init__(self) -> None:
        self.url = ""
        self.headers: list[dict[str, str]] = []
        self._traces: list[ExportTraceServiceRequest] = []
        self._metrics: list[ExportMetricsServiceRequest] = []

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        """One request."""
        self.headers.append(headers)
        message = gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body
        if path == "/v1/traces":
            self._traces.append(ExportTraceServiceRequest.FromString(message))
        elif path == "/v1/metrics":
            self._metrics.append(ExportMetricsServiceRequest.FromString(message))

    @property
    def spans(self) -> list[Any]:
        """Every span that came, in the order of their ends."""
        return [
            span
            for request in self._traces
            for of_resource in request.resource_spans
            for scope in of_resource.scope_spans
            for span in scope.spans
        ]

    @property
    def services(self) -> set[str]:
        """Names of the services that sent spans or metrics."""
        resources = [one.resource for request in self._traces for one in request.resource_spans]
        resources += [one.resource for request in self._metrics for one in request.resource_metrics]
        pairs = [pair for resource in resources for pair in resource.attributes]
        return {pair.value.string_value for pair in pairs if pair.key == "service.name"}

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the last request by name."""
        last = self._metrics[-1:]
        return {
            metric.name: metric
            for request in last
            for of_resource in request.resource_metrics
            for scope in of_resource.scope_metrics
            for metric in scope.metrics
        }


@contextmanager
def collecting(*, status: int = 200, location: str | None = None) -> Iterator[Collected]:
    """A collector that answers everything with one status, and names another place where one is given."""
    collected = Collected()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collected.take(self.path, dict(self.headers), body)
            self.send_response(status)
            if location is not None:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collected.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collected
        finally:
            server.shutdown()
            thread.join()


def attributes(span: Any) -> dict[str, Any]:
    """Attributes of a span by name."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}
