"""The exporter's HTTP side: `/metrics` for a scraper, `/healthz` for a kubelet.

Called by `gputide run export`. A request takes the collector's snapshot as it is and never touches a device, so a
scraper's time-out (`X-Prometheus-Scrape-Timeout-Seconds`) has nothing to cut short. `text_format_of` and `accepts_gzip`
read which format and encoding a scraper asks for. Grammar: RFC 9110 §12.5.1 and §12.5.3 (lists with weights); what
Prometheus sends: prometheus/prometheus:scrape/scrape.go.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from http import HTTPStatus

from exporter.collector import Collector
from exporter.compat.translation import Compat
from exporter.exposition.rendering import Exposition, TextFormat
from wire.http_connection import ServerLimits
from wire.http_head import Refusal
from wire.http_server import Exchange, HttpServer, TlsContexts, listen
from wire.port_guard import PortGuard

CONNECTIONS_MAX = 32
"""Connections that are open at once; a few scrapers and a kubelet keep one each."""
REQUEST_SECONDS_MAX = 5.0
"""Longest time from a request's first byte to its last."""
IDLE_SECONDS_MAX = 75.0
"""How long a connection may stay open without a request: scrapers come back on it every 15 to 60 s."""
ANSWER_SECONDS_MAX = 10.0
"""Longest time in which a client must have taken its answer."""

_STOP_SECONDS = 1.0
_ITEMS_MAX = 32


class MetricsServer:
    """Serves one collector.

    Args:
        port: port; 0 picks a free one.
        age_seconds_max: `/healthz` answers 503 once the figures are older.
        compat: other exporters under whose names the figures are shown too.
        tls: gives the context for a new connection; None for plain HTTP.
        guard: says who may see figures; None for everybody.

    Raises:
        Misconfigured: the address can't be used.
        Unavailable: another process listens there.
    """

    def __init__(
        self,
        collector: Collector,
        *,
        host: str,
        port: int,
        age_seconds_max: float,
        compat: Iterable[Compat] = (),
        tls: TlsContexts | None = None,
        guard: PortGuard | None = None,
    ) -> None:
        self._guard = guard
        self._collector = collector
        self._age_seconds_max = age_seconds_max
        self._exposition = Exposition(compat)
        self._lock = threading.Lock()
        limits = ServerLimits(
            connections_max=CONNECTIONS_MAX,
            idle_seconds=IDLE_SECONDS_MAX,
            request_seconds=REQUEST_SECONDS_MAX,
            answer_seconds=ANSWER_SECONDS_MAX,
        )
        self._server = HttpServer(listen(host, port, setting="--listen"), self._answer, limits=limits, tls=tls)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        return self._server.address

    def serve(self) -> None:
        """Answers requests until `stop` is called from another thread."""
        self._server.serve()

    def stop(self) -> None:
        """Ends `serve`."""
        self._server.stop(grace_seconds=_STOP_SECONDS)

    def metrics(self, text_format: TextFormat, *, is_packed: bool = False) -> tuple[bytes, ...]:
        """The answer to a scrape, in pieces that follow each other.

        Args:
            is_packed: True for gzip.
        """
        with self._lock:
            return self._exposition.scrape(self._collector.state(), text_format, is_packed=is_packed)

    def health(self) -> tuple[bool, str]:
        """Whether the figures are fresh, and a line that says so."""
        state = self._collector.state()
        if state.snapshot is None:
            return False, f"no reading yet, {state.failures} failed"
        line = f"figures are {state.age_seconds:.1f} s old, limit {self._age_seconds_max:.1f} s"
        return state.age_seconds <= self._age_seconds_max, line

    def _answer(self, exchange: Exchange) -> None:
        exchange.check_method("GET", "HEAD")
        fields = exchange.head.fields
        if exchange.head.path == "/metrics":
            if self._guard is not None:
                self._guard.check(exchange)
            text_format = text_format_of(fields.get("accept", ""))
            is_packed = accepts_gzip(fields.get("accept-encoding", ""))
            exchange.connection.answer(
                HTTPStatus.OK,
                *self.metrics(text_format, is_packed=is_packed),
                kind=text_format.value,
                fields=(("Content-Encoding", "gzip"),) if is_packed else (),
            )
        elif exchange.head.path == "/healthz":
            is_fresh, line = self.health()
            status = HTTPStatus.OK if is_fresh else HTTPStatus.SERVICE_UNAVAILABLE
            exchange.connection.answer(status, f"{line}\n".encode())
        else:
            raise Refusal(HTTPStatus.NOT_FOUND, "try /metrics or /healthz")


def text_format_of(accept: str) -> TextFormat:
    """The format to answer in: OpenMetrics where the scraper wants it at least as much as the older one.

    Args:
        accept: the `Accept` header; empty for none.
    """
    open_weight = plain_weight = 0.0
    for name, parameters, weight in _items(accept):
        if name == "application/openmetrics-text" and parameters.get("version", "1.0.0") == "1.0.0":
            open_weight = max(open_weight, weight)
        elif name in ("text/plain", "text/*", "*/*") and parameters.get("version", "0.0.4") == "0.0.4":
            plain_weight = max(plain_weight, weight)
    is_open = open_weight > 0.0 and open_weight >= plain_weight
    return TextFormat.OPENMETRICS if is_open else TextFormat.PROMETHEUS


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the answer may be compressed.

    Args:
        accept_encoding: the `Accept-Encoding` header; empty for none.
    """
    return any(name == "gzip" and weight > 0.0 for name, _, weight in _items(accept_encoding))


def _items(header: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for item in header.split(",", _ITEMS_MAX)[:_ITEMS_MAX]:
        name, *rest = (part.strip() for part in item.split(";", _ITEMS_MAX))
        pairs = (part.partition("=") for part in rest)
        parameters = {key.strip().lower(): value.strip(' "') for key, _, value in pairs}
        yield name.lower(), parameters, _weight(parameters.pop("q", "1"))


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0
