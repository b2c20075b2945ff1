"""The receiver's own metrics: counted in memory that all its processes share, so that one scrape sees all of them.

`Receiver` counts, and prometheus-client writes the exposition. Every process adds to a row of its own; a scrape sums
the rows. Counts outlive a process that is started anew. `OWN_METRICS` is the one list of names, from which the
documentation is made as well. The memory is ours because the client's own for several processes is a folder of files,
named by an environment variable before the import, that grows by a file with every process that is started anew.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

import numpy as np
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX = "gputide_receiver_"
"""How all names begin."""
STATUSES = (200, 204, 400, 401, 403, 404, 405, 411, 413, 415, 417, 429, 431, 500, 503, 505)
"""Statuses that the receiver answers with; 0 counts TLS handshakes that failed."""
SECONDS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the latency histogram's buckets."""

_NANOSECONDS = 1_000_000_000


class MetricKind(StrEnum):
    """Kinds of metrics, in the exposition format's words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMetric:
    """One metric of the receiver.

    Attributes:
        name: without `PREFIX`.
        per: label that splits it; empty for none.
        divisor: what the stored integer is divided by to give the metric's unit.
    """

    name: str
    kind: MetricKind
    meaning: str
    per: str = ""
    divisor: int = 1


def _counter(name: str, meaning: str, per: str = "", divisor: int = 1) -> OwnMetric:
    return OwnMetric(name=name, kind=MetricKind.COUNTER, meaning=meaning, per=per, divisor=divisor)


def _gauge(name: str, meaning: str) -> OwnMetric:
    return OwnMetric(name=name, kind=MetricKind.GAUGE, meaning=meaning)


OWN_METRICS = (
    _counter("requests_total", "Requests by the status of their answer.", "code"),
    OwnMetric(
        name="request_seconds",
        kind=MetricKind.HISTOGRAM,
        meaning="Time from the last byte of a body to its answer.",
        divisor=_NANOSECONDS,
    ),
    _counter("body_bytes_total", "Bytes of bodies as they came over the wire."),
    _counter("bodies_total", "Bodies that were understood."),
    _counter("repeats_total", "Bodies that came again and were answered as before."),
    _counter("corrupt_bodies_total", "Bodies that could not be decoded (400)."),
    _counter("samples_total", "Samples that are on the bus."),
    _counter("samples_unwanted_total", "Samples of series that nobody asked for."),
    _counter("samples_of_dropped_series_total", "Samples of series beyond the limits on labels, or not readable."),
    _counter("samples_out_of_range_total", "Samples with a value that the measure can't have."),
    _counter(
        "samples_out_of_time_total",
        "Samples with a time before 2000, or more than a day ahead of the receiver's clock.",
    ),
    _counter("samples_beyond_series_max_total", "Samples of new series beyond `receiver.series_max` (400)."),
    _counter("samples_invalid_total", "Samples of series that break a rule (400)."),
    _counter("samples_delta_total", "Samples over an interval each, which OTLP alone may bring; they are refused."),
    _counter("exemplars_total", "Exemplars, which are accepted and not kept."),
    _counter("histograms_total", "Native histograms and those of OTLP, which are accepted and not kept."),
    _counter("metadata_total", "Metadata entries, which are accepted and not kept."),
    _counter("refused_full_total", "Bodies refused because the bus is full (429)."),
    _counter("refused_large_total", "Bodies refused because one may not cost so much (413)."),
    _counter("refused_unavailable_total", "Bodies refused because storage does not let us (503)."),
    _counter("refused_rate_total", "Requests refused because their sender sends too much (429)."),
    _counter("refused_busy_total", "Requests refused because too many are under way (429)."),
    _counter("appends_total", "Appends to the bus."),
    _counter("append_bytes_total", "Bytes that were appended to the bus."),
    _counter("append_seconds_total", "Time that appends to the bus took.", divisor=_NANOSECONDS),
    _counter("tls_failures_total", "TLS handshakes that failed."),
    _counter("cluster_claims_overridden_total", "Series whose label claimed another cluster than their sender's."),
    _counter("series_untrusted_total", "New series of targets that may not speak for others (`provenance`)."),
    _counter("sender_requests_total", "Requests by sender.", "sender"),
    _counter("sender_samples_total", "Samples by sender, whatever became of them.", "sender"),
    _gauge("series", "Distinct wanted series that are remembered."),
    _gauge("connections", "Open connections."),
    _gauge("pending_requests", "Requests under way."),
    _gauge("pending_bytes", "Bytes that requests under way hold."),
    _gauge("processes", "Processes that serve."),
)
"""Every metric that the receiver exports about itself."""

_BY_NAME = {metric.name: metric for metric in OWN_METRICS}


class SharedCounts(Collector):
    """Numbers that several processes count and one scrape sums; made before the processes are forked.

    Args:
        senders: names of the senders that are counted apart; others are counted together under an empty name.
        processes: rows.
    """

    def __init__(self, senders: Sequence[str] = (), processes: int = 1) -> None:
        keys: list[tuple[str, str]] = []
        for metric in OWN_METRICS:
            if metric.kind is MetricKind.HISTOGRAM:
                keys += [(metric.name, f"{bound:g}") for bound in (*SECONDS_BOUNDS, np.inf)] + [(metric.name, "sum")]
            elif metric.per == "code":
                keys += [(metric.name, str(status)) for status in STATUSES]
            elif metric.per == "sender":
                keys += [(metric.name, sender) for sender in ("", *senders)]
            else:
                keys.append((metric.name, ""))
        self._places = {key: place for place, key in enumerate(keys)}
        memory = mmap.mmap(-1, processes * len(keys) * 8)
        self._rows = np.frombuffer(memory, dtype=np.int64).reshape(processes, len(keys))

    def of_process(self, process: int) -> ProcessCounts:
        """The counts of one process, from 0."""
        return ProcessCounts(self._rows[process], self._places, self.text)

    def text(self) -> bytes:
        """All metrics of all processes together, in the Prometheus text format 0.0.4."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """All metrics of all processes together; a status or sender that was never counted has no series."""
        sums = dict(zip(self._places, self._rows.sum(axis=0).tolist(), strict=True))
        for metric in OWN_METRICS:
            counts = {label: count for (name, label), count in sums.items() if name == metric.name}
            yield _histogram(metric, counts) if metric.kind is MetricKind.HISTOGRAM else _family(metric, counts)


class ProcessCounts:
    """What one process counts; its threads may count at once."""

    def __init__(
        self,
        row: np.ndarray[tuple[int], np.dtype[np.int64]],
        places: Mapping[tuple[str, str], int],
        text: Callable[[], bytes],
    ) -> None:
        self._row = row
        self._places = places
        self.text = text
        """All metrics of all processes together, see `SharedCounts.text`."""
        self._lock = threading.Lock()

    def add(self, name: str, count: int = 1, label: str = "") -> None:
        """Add to a counter; an unknown sender is counted under the empty name."""
        place = self._places.get((name, label))
        if place is None:
            place = self._places[name, "500" if _BY_NAME[name].per == "code" else ""]
        with self._lock:
            self._row[place] += count

    def set(self, name: str, value: int) -> None:
        """Set a gauge, or a counter that is kept elsewhere."""
        self._row[self._places[name, ""]] = value

    def observe(self, name: str, nanoseconds: int) -> None:
        """Add a duration to a histogram."""
        seconds = nanoseconds / _NANOSECONDS
        bound = next((bound for bound in SECONDS_BOUNDS if seconds <= bound), np.inf)
        with self._lock:
            self._row[self._places[name, f"{bound:g}"]] += 1
            self._row[self._places[name, "sum"]] += nanoseconds


def _family(metric: OwnMetric, counts: Mapping[str, int]) -> Metric:
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = kind(PREFIX + metric.name, metric.meaning, labels=[metric.per] if metric.per else [])
    for label, count in counts.items():
        if count or not metric.per:
            family.add_metric([label] if metric.per else [], count / metric.divisor)
    return family


def _histogram(metric: OwnMetric, counts: Mapping[str, int]) -> Metric:
    bounds = [*(f"{bound:g}" for bound in SECONDS_BOUNDS), "+Inf"]
    below = accumulate(counts[f"{bound:g}"] for bound in (*SECONDS_BOUNDS, np.inf))
    buckets = list(zip(bounds, map(float, below), strict=True))
    return HistogramMetricFamily(
        PREFIX + metric.name, metric.meaning, buckets=buckets, sum_value=counts["sum"] / metric.divisor
    )
