"""The inner loop that walks the raw protobuf bytes of an OTLP request of metrics.

Compiled by numba and cached beside this file. Called by `otlp.decode`, which reads names and labels; this finds where
they stand. Wire numbers: open-telemetry/opentelemetry-proto:opentelemetry/proto/collector/metrics/v1/
metrics_service.proto, metrics/v1/metrics.proto, resource/v1/resource.proto.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.remote_write.byte_words import address, bits_of, load64
from pipeline.remote_write.kernels import BAD_WIRE, CUT, NO_ROOM, OK, payload_of, small_number, varint_of

SPLIT = 6
"""A scan ends with it, beside `remote_write.kernels.OK` …: parts that belong together stand apart."""

NUMBERS, DELTA_SUM, HISTOGRAM = 1, 2, 3
"""What a metric holds: numbers of gauges and of cumulative sums, of sums over an interval, or distributions, which are
counted only (histograms, exponential histograms, summaries)."""

RESOURCE, NAME_START, NAME_END, KIND, POINTS_START, POINTS_END = range(6)
"""Columns of the per-metric output."""
METRIC_COLUMNS = 6
ATTRIBUTES_START, ATTRIBUTES_END = range(2)

_GAUGE, _SUM, _HISTOGRAM, _EXPONENTIAL, _SUMMARY = 5, 7, 9, 10, 11
_CUMULATIVE = 2
_NO_VALUE = np.uint64(1)
_STALE_BITS = np.uint64(0x7FF0000000000002)
_NANOSECONDS = np.uint64(1_000_000)


class Room(NamedTuple):
    """Output arrays of a walk.

    Attributes:
        resources: (room, 2) int32, start and end of each Resource message.
        metrics: (room, METRIC_COLUMNS) int32; -1 as the resource's end where a request has none.
        attributes: (room, 2) int32, start and end of the attribute fields of each point.
        ts_ms: (room,) int64, epoch milliseconds.
        value_bits: (room,) uint64, bits of the doubles; Prometheus' stale marker for a point without a value.
    """

    resources: NDArray[np.int32]
    metrics: NDArray[np.int32]
    attributes: NDArray[np.int32]
    ts_ms: NDArray[np.int64]
    value_bits: NDArray[np.uint64]


@njit(cache=True, nogil=True, forceinline=True)
def _next(at: Any, end: Any) -> Any:
    """Tag, start and end of the payload of the next field; a start below 0 is a status with its sign turned."""
    tag, at = small_number(at, end)
    if at < 0:
        return tag, np.int64(-CUT), at
    if tag < 8:
        return tag, np.int64(-BAD_WIRE), at
    start, stop = payload_of(at, end, np.int64(tag & np.uint64(7)))
    return tag, np.int64(start), stop


@njit(cache=True, nogil=True)
def _point(base: Any, at: Any, end: Any, room: Any, points: Any) -> Any:
    """Reads a NumberDataPoint into its row; its status."""
    attributes_start: Any = base
    attributes_end: Any = base
    nanoseconds = bits = flags = np.uint64(0)
    while at < end:
        begin = at
        tag, start, stop = _next(at, end)
        if start < 0:
            return -start
        if tag == 58:
            if attributes_end not in (base, begin):
                return SPLIT
            attributes_start = begin if attributes_end == base else attributes_start
            attributes_end = stop
        elif tag == 25:
            nanoseconds = load64(start)
        elif tag == 33:
            bits = load64(start)
        elif tag == 49:
            bits = bits_of(np.float64(np.int64(load64(start))))
        elif tag == 64:
            flags, _ = varint_of(start, stop)
        elif np.int64(tag >> np.uint64(3)) in (3, 4, 6, 7, 8):
            return BAD_WIRE
        at = stop
    room.attributes[points, ATTRIBUTES_START] = attributes_start - base
    room.attributes[points, ATTRIBUTES_END] = attributes_end - base
    room.ts_ms[points] = np.int64(nanoseconds // _NANOSECONDS)
    room.value_bits[points] = _STALE_BITS if flags & _NO_VALUE else bits
    return OK


@njit(cache=True, nogil=True)
def _metric(  # noqa: C901, PLR0912 - one branch per field of the message
    base: Any, at: Any, end: Any, room: Any, metric: Any, points: Any, points_max: int
) -> Any:
    """Reads a Metric into its row; status, points behind it, and how many distributions it holds."""
    kind: Any = 0
    histograms = 0
    temporality = np.uint64(0)
    name_start: Any = base
    name_end: Any = base
    first = points
    while at < end:
        tag, start, stop = _next(at, end)
        if start < 0:
            return -start, points, histograms
        number = np.int64(tag >> np.uint64(3))
        if tag == 10:
            name_start, name_end = start, stop
        elif number in (_GAUGE, _SUM, _HISTOGRAM, _EXPONENTIAL, _SUMMARY):
            if np.int64(tag & np.uint64(7)) != 2:
                return BAD_WIRE, points, histograms
            if kind:
                return SPLIT, points, histograms
            kind = number
            inner: Any = start
            while inner < stop:
                inner_tag, inner_start, inner_stop = _next(inner, stop)
                if inner_start < 0:
                    return -inner_start, points, histograms
                if inner_tag == 10 and kind not in (_GAUGE, _SUM):
                    histograms += 1
                elif inner_tag == 10:
                    if points == points_max:
                        return NO_ROOM, points, histograms
                    status = _point(base, inner_start, inner_stop, room, points)
                    if status != OK:
                        return status, points, histograms
                    points += 1
                elif inner_tag == 16 and kind == _SUM:
                    temporality, _ = varint_of(inner_start, inner_stop)
                inner = inner_stop
        at = stop
    is_delta = kind == _SUM and temporality != _CUMULATIVE
    room.metrics[metric, NAME_START], room.metrics[metric, NAME_END] = name_start - base, name_end - base
    room.metrics[metric, KIND] = DELTA_SUM if is_delta else NUMBERS if kind in (_GAUGE, _SUM) else HISTOGRAM
    room.metrics[metric, POINTS_START], room.metrics[metric, POINTS_END] = first, points
    return OK, points, histograms


@njit(cache=True, nogil=True)
def walk(data: Any, size: int, room: Any) -> Any:  # noqa: C901 - one branch per field of the messages
    """Walks one ExportMetricsServiceRequest.

    Args:
        data: the message, uint8; a byte is behind it at least.
        room: `Room`.

    Returns:
        status, position of the resource where it ended, resources, metrics, points of numbers, distributions.
    """
    base = address(data)
    at: Any = base
    end: Any = base + size
    resources = metrics = points = histograms = 0
    points_max = len(room.ts_ms)
    while at < end:
        begin = at
        tag, start, stop = _next(at, end)
        status = np.int64(OK) if start >= 0 else -start
        if start >= 0 and tag == 10:
            if resources == len(room.resources):
                return NO_ROOM, begin - base, resources, metrics, points, histograms
            room.resources[resources] = 0
            has_resource = False
            inner: Any = start
            while inner < stop and status == OK:
                inner_tag, inner_start, inner_stop = _next(inner, stop)
                if inner_start < 0:
                    status = -inner_start
                elif inner_tag == 10:
                    status = np.int64(SPLIT if has_resource else OK)
                    has_resource = True
                    room.resources[resources, 0] = inner_start - base
                    room.resources[resources, 1] = inner_stop - base
                elif inner_tag == 18:
                    scope: Any = inner_start
                    while scope < inner_stop and status == OK:
                        scope_tag, scope_start, scope_stop = _next(scope, inner_stop)
                        if scope_start < 0:
                            status = -scope_start
                        elif scope_tag == 18:
                            if metrics == len(room.metrics):
                                return NO_ROOM, begin - base, resources, metrics, points, histograms
                            room.metrics[metrics, RESOURCE] = resources
                            status, points, more = _metric(
                                base, scope_start, scope_stop, room, metrics, points, points_max
                            )
                            histograms += more
                            metrics += 1
                        scope = scope_stop
                inner = inner_stop
            resources += 1
        if status != OK:
            return status, begin - base, resources, metrics, points, histograms
        at = stop
    return OK, at - base, resources, metrics, points, histograms
