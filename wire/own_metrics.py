"""What a process counts of itself, by prometheus-client, and the port where a scraper reads it.

One way for every process of ours that runs on. Each declares its metrics in a class of its own package, on an
`OwnMetrics` that its verb hands in; the documentation lists them from there. The receiver counts in memory that its
processes share (`pipeline.receiver.counts`); the exporters of cards and pods have a faster writer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fleet.errors import GputideError
from wire.http_connection import ServerLimits
from wire.http_head import Refusal
from wire.http_server import Exchange, HttpServer, TlsContexts, listen
from wire.port_guard import PortGuard

PATH = "/metrics"
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
PASS_SECONDS = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0)
"""Upper bounds of the buckets of one pass: from a look at a node to a step of the roll-up."""

_LIMITS = ServerLimits(connections_max=16, idle_seconds=75.0, request_seconds=5.0)
_STOP_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMetric:
    """One metric, as the documentation lists it; `kind` is in the exposition format's words."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


class OwnMetrics(Collector):
    """The metrics of one process; their names begin with `gputide_` and the process.

    No label may take what a tenant wrote: label values are words of ours, or names from the settings.

    Args:
        process: such as `relief`.
    """

    def __init__(self, process: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._prefix = f"gputide_{process}_"
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._listed: list[OwnMetric] = []

    @property
    def listed(self) -> tuple[OwnMetric, ...]:
        """All metrics, in the order in which they were made."""
        return tuple(self._listed)

    def text(self) -> bytes:
        """All metrics in the Prometheus text format 0.0.4, with `process_…` of CPU, memory and open files (Linux)."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metrics, as `text` has them."""
        yield from self._registry.collect()

    def counter(self, name: str, meaning: str, *labels: str) -> Counter:
        """A counter; its name ends in `_total`."""
        return Counter(self._list("counter", name, meaning, labels), meaning, labels, registry=self._registry)

    def gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        """A gauge."""
        return Gauge(self._list("gauge", name, meaning, labels), meaning, labels, registry=self._registry)

    def histogram(self, name: str, meaning: str, *labels: str, buckets: tuple[float, ...] = PASS_SECONDS) -> Histogram:
        """A histogram of seconds; `buckets` are upper bounds."""
        full = self._list("histogram", name, meaning, labels)
        return Histogram(full, meaning, labels, registry=self._registry, buckets=buckets)

    def followed_counter(self, name: str, meaning: str) -> Followed:
        """A counter that other objects keep."""
        return self._followed(CounterMetricFamily, "counter", name, meaning)

    def followed_gauge(self, name: str, meaning: str) -> Followed:
        """A gauge that other objects keep."""
        return self._followed(GaugeMetricFamily, "gauge", name, meaning)

    def passes(self, name: str, what: str) -> Passes:
        """The passes of the process' loop.

        Args:
            name: one pass, such as `look`.
            what: what a pass is, for the documentation, such as `look at the overloaded cards`.
        """
        return Passes(
            seconds=self.histogram(f"{name}_seconds", f"Time of one {what}, seconds."),
            failures=self.counter(
                f"{name}_failures_total", f"Times that a {what} failed, by the kind of error.", "error"
            ),
            succeeded=self.gauge(
                "last_success_timestamp_seconds",
                f"When a {what} last succeeded, Unix seconds; when the process started, until one has.",
            ),
        )

    def _followed(self, kind: Callable[..., Metric], word: str, name: str, meaning: str) -> Followed:
        found = Followed(kind, self._list(word, name, meaning, ()), meaning)
        self._registry.register(found)
        return found

    def _list(self, kind: str, name: str, meaning: str, labels: tuple[str, ...]) -> str:
        full = self._prefix + name
        self._listed.append(OwnMetric(name=full, kind=kind, labels=labels, meaning=meaning))
        return full


class Passes:
    """How long passes of a loop take, how many fail and why, and when one last succeeded."""

    def __init__(self, *, seconds: Histogram, failures: Counter, succeeded: Gauge) -> None:
        self._seconds, self._failures, self._succeeded = seconds, failures, succeeded
        succeeded.set(time.time())

    @contextmanager
    def one(self) -> Iterator[None]:
        """Counts what is done within; an error goes on to the caller."""
        with self._seconds.time():
            try:
                yield
            except GputideError as exc:
                self._failures.labels(type(exc).__name__.lower()).inc()
                raise
        self._succeeded.set(time.time())


class Followed(Collector):
    """A number that objects keep which come and go: at a scrape all that are there are asked.

    A counter keeps what those counted that are gone; a gauge without any object, or that can't be read, has no sample.
    """

    def __init__(self, kind: Callable[..., Metric], name: str, meaning: str) -> None:
        self._kind, self._name, self._meaning = kind, name, meaning
        self._keeps = kind is CounterMetricFamily
        self._lock = threading.Lock()
        self._reads: list[Callable[[], float]] = []
        self._kept = 0.0

    @contextmanager
    def following(self, read: Callable[[], float]) -> Iterator[None]:
        """Has an object's number be read until the end; `read` is called by the threads that answer scrapes."""
        with self._lock:
            self._reads.append(read)
        try:
            yield
        finally:
            with self._lock:
                self._reads.remove(read)
                self._kept += read() if self._keeps else 0.0

    def collect(self) -> Iterator[Metric]:
        """The sum over all objects."""
        value = None
        with self._lock, suppress(GputideError):
            if self._keeps or self._reads:
                value = self._kept + sum(read() for read in self._reads)
        yield self._kind(self._name, self._meaning, value=value)


@contextmanager
def own_port(
    text: Callable[[], bytes],
    host: str,
    port: int,
    *,
    setting: str,
    tls: TlsContexts | None = None,
    guard: PortGuard | None = None,
) -> Iterator[tuple[str, int]]:
    """Serves `/metrics`, and `/healthz` for a kubelet, until the end; gives host and port that it listens on.

    Args:
        text: see `OwnMetrics.text`.
        port: port; 0 picks a free one.
        setting: what the user changes where the address can't be used.
        tls: gives the context for a new connection; None for plain HTTP.
        guard: says who may see figures; None for everybody.

    Raises:
        Misconfigured: the address can't be used.
        Unavailable: another process listens there.
    """

    def answer(exchange: Exchange) -> None:
        exchange.check_method("GET", "HEAD")
        if exchange.head.path == PATH:
            if guard is not None:
                guard.check(exchange)
            exchange.connection.answer(200, text(), kind=CONTENT_TYPE)
        elif exchange.head.path == "/healthz":
            exchange.connection.answer(200, b"ok\n")
        else:
            raise Refusal(404, f"try {PATH} or /healthz")

    server = HttpServer(listen(host, port, setting=setting), answer, limits=_LIMITS, tls=tls)
    server.start()
    try:
        yield server.address
    finally:
        server.stop(grace_seconds=_STOP_SECONDS)
