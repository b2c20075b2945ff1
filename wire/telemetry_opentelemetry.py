"""Spans and own metrics by OpenTelemetry's SDK, over OTLP with HTTP and protobuf.

An adapter of `telemetry.Telemetry`, imported only where an endpoint is set. Spans wait in a queue of the SDK's, and one
thread sends them; another sends metrics: the very families that `/metrics` shows, under the same names. A collector
that is away costs what is lost, one line in the log, and at the end at most `STOP_SECONDS`.

Sources: opentelemetry.io/docs/specs/otel/trace/sdk (batching, samplers),
opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics (families as metrics).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from requests.auth import AuthBase

from fleet.logs import logger
from fleet.settings.telemetry import TelemetrySettings
from wire.header_lines import checked_headers, header_lines
from wire.replaced_files import ReplacedFiles
from wire.telemetry import TRACEPARENT, Attribute, Shown

VERBS = "gputide "
"""Beginning of the names of spans that are traced in any case: what a person typed."""
QUEUE_SPANS = 2048
"""Spans that wait at most; the oldest are lost first."""
TIMEOUT_SECONDS = 10.0
STOP_SECONDS = 2.0
"""How long the end of the program waits until what is left was sent."""

_SCOPE = "gputide"
_log = logger(__name__)


class OpenTelemetry:
    """Sends spans and metrics; mutable: metrics are added as processes begin to show them.

    Args:
        process: what this process is, such as `rollup`.

    Raises:
        Misconfigured: the file of headers can't be used.
    """

    def __init__(self, settings: TelemetrySettings, *, process: str, version: str) -> None:
        base = (settings.endpoint or "").rstrip("/")
        options: dict[str, Any] = {
            "certificate_file": None if settings.ca_file is None else str(settings.ca_file),
            "headers": {}, "timeout": TIMEOUT_SECONDS, "compression": Compression.Gzip,
        }  # fmt: skip
        headers = None if settings.headers_file is None else _Headers(settings.headers_file)
        self._heard = logging.getLogger("opentelemetry")
        self._failures = _Once()
        self._heard.addHandler(self._failures)
        self._heard.propagate = False
        self._resource = Resource.create({"service.name": f"gputide-{process}", "service.version": version})
        self._spans = BatchSpanProcessor(
            OTLPSpanExporter(f"{base}/v1/traces", session=_session(headers), **options), max_queue_size=QUEUE_SPANS
        )
        provider = TracerProvider(
            resource=self._resource, sampler=ParentBased(_VerbsAndShare(settings.sample_ratio)), shutdown_on_exit=False
        )
        provider.add_span_processor(self._spans)
        self._tracer = provider.get_tracer(_SCOPE, version)
        self._propagator = TraceContextTextMapPropagator()
        self._metrics = OTLPMetricExporter(f"{base}/v1/metrics", session=_session(headers), **options)
        self._scope = InstrumentationScope(_SCOPE, version)
        self._began_ns = time.time_ns()
        self._shown: list[Shown] = []
        self._every_seconds = settings.metrics_seconds
        self._stopped = threading.Event()
        self._sender: threading.Thread | None = None

    @contextmanager
    def span(self, name: str, attributes: dict[str, Attribute], parent: str | None) -> Iterator[object]:
        """A span around what is done within; see `telemetry.span`."""
        context = None if parent is None else self._propagator.extract({TRACEPARENT: parent})
        with self._tracer.start_as_current_span(
            name, context, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as made:
            try:
                yield made
            except BaseException as exc:
                # The kind alone: what an error says may name what is a tenant's.
                made.set_attribute("error.type", type(exc).__name__)
                made.set_status(Status(StatusCode.ERROR))
                raise

    def record(self, name: str, began_ns: int, attributes: dict[str, Attribute], parent: str | None) -> None:
        """A span that ends now; see `telemetry.record`."""
        context = None if parent is None else self._propagator.extract({TRACEPARENT: parent})
        self._tracer.start_span(name, context, attributes=attributes, start_time=began_ns).end()

    def show(self, metrics: Shown) -> None:
        """Have metrics be sent every `telemetry.metrics_seconds`, and once at the end."""
        self._shown.append(metrics)
        if self._sender is None:
            self._sender = threading.Thread(target=self._send, name="telemetry-metrics", daemon=True)
            self._sender.start()

    def stop(self) -> None:
        """Sends what is left, within `STOP_SECONDS`."""
        until = time.monotonic() + STOP_SECONDS
        self._stopped.set()
        last = threading.Thread(target=self._spans.shutdown, name="telemetry-end", daemon=True)
        last.start()
        for thread in (last, self._sender):
            if thread is not None:
                thread.join(max(0.0, until - time.monotonic()))
        self._heard.removeHandler(self._failures)

    def _send(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopped.wait(self._every_seconds)
            self._metrics.export(self._data())

    def _data(self) -> MetricsData:
        now_ns = time.time_ns()
        metrics = [
            metric
            for shown in self._shown
            for family in shown.collect()
            for metric in metrics_of(family, self._began_ns, now_ns)
        ]
        scopes = [ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")]
        return MetricsData([ResourceMetrics(resource=self._resource, scope_metrics=scopes, schema_url="")])


def metrics_of(family: Any, began_ns: int, now_ns: int) -> Iterator[Metric]:
    """The metrics of one family, under the names that a scrape shows: counters as sums, histograms with their buckets.

    Args:
        family: of prometheus-client.
        began_ns: since when counters count, nanoseconds since 1970.
        now_ns: when they were read.
    """
    if family.type == "histogram":
        points = [_histogram_point(samples, began_ns, now_ns) for samples in _by_labels(family.samples)]
        data: Any = Histogram(data_points=points, aggregation_temporality=AggregationTemporality.CUMULATIVE)
        yield Metric(name=family.name, description=family.documentation, unit="", data=data)
        return
    for name in dict.fromkeys(sample.name for sample in family.samples):
        numbers = [
            NumberDataPoint(
                attributes=sample.labels, start_time_unix_nano=began_ns, time_unix_nano=now_ns, value=sample.value
            )
            for sample in family.samples
            if sample.name == name
        ]
        is_counter = family.type == "counter"
        data = (
            Sum(data_points=numbers, aggregation_temporality=AggregationTemporality.CUMULATIVE, is_monotonic=True)
            if is_counter
            else Gauge(data_points=numbers)
        )
        yield Metric(name=name, description=family.documentation, unit="", data=data)


def _by_labels(samples: Iterable[Any]) -> Iterator[list[Any]]:
    found: dict[tuple[tuple[str, str], ...], list[Any]] = {}
    for sample in samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        found.setdefault(labels, []).append(sample)
    yield from found.values()


def _histogram_point(samples: list[Any], began_ns: int, now_ns: int) -> HistogramDataPoint:
    buckets = sorted((float(one.labels["le"]), int(one.value)) for one in samples if one.name.endswith("_bucket"))
    below = [count for _, count in buckets]
    total = next((one.value for one in samples if one.name.endswith("_sum")), 0.0)
    return HistogramDataPoint(
        attributes={name: value for name, value in samples[0].labels.items() if name != "le"},
        start_time_unix_nano=began_ns, time_unix_nano=now_ns, count=below[-1], sum=total,
        bucket_counts=[count - before for before, count in zip([0, *below], below, strict=False)],
        explicit_bounds=[bound for bound, _ in buckets[:-1]], min=float("inf"), max=float("-inf"),
    )  # fmt: skip


class _VerbsAndShare(Sampler):
    """Samples all verbs, and a share of everything else."""

    def __init__(self, ratio: float) -> None:
        self._share = TraceIdRatioBased(ratio)

    def should_sample(self, parent_context: Any, trace_id: int, name: str, *args: Any, **more: Any) -> SamplingResult:
        """Whether a trace that begins here is kept."""
        chosen = ALWAYS_ON if name.startswith(VERBS) else self._share
        return chosen.should_sample(parent_context, trace_id, name, *args, **more)

    def get_description(self) -> str:
        """As the SDK's samplers call themselves."""
        return f"Verbs,{self._share.get_description()}"


class _Headers(AuthBase):
    """Header fields of a file, as it is now."""

    def __init__(self, path: Path) -> None:
        setting = "telemetry.headers_file"
        self._fields = ReplacedFiles(
            (path,), lambda: dict(checked_headers(header_lines(path, setting=setting), setting=setting)),
            keeps_last=True,
        )  # fmt: skip
        self._fields.now()

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers.update(self._fields.now())
        return request


def _session(headers: _Headers | None) -> requests.Session:
    session = requests.Session()
    session.auth = headers
    return session


class _Once(logging.Handler):
    """Passes on to our log that something could not be sent: the first time, and then once in ten minutes."""

    EVERY_SECONDS = 600.0

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next_at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Says it, where it is time to."""
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + self.EVERY_SECONDS
            _log.warning("telemetry could not be sent: see telemetry.endpoint", why=record.getMessage()[:300])
