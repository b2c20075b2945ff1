"""OTLP requests of metrics for tests, made by OpenTelemetry's own classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

TARGET = {"job": "service.name", "instance": "service.instance.id"}
CUMULATIVE, DELTA = 2, 1


def pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    """Attributes as messages, by the types of their values."""
    made = []
    for key, value in attributes.items():
        pair = KeyValue(key=key)
        kind = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value"}.get(type(value))
        if kind is not None:
            setattr(pair.value, kind, value)
        made.append(pair)
    return made


def request_of(
    points: Iterable[tuple[Mapping[str, Any], str, Mapping[str, Any], int, float]], temporality: int | None = None
) -> ExportMetricsServiceRequest:
    """A request of points: attributes of the resource, name, attributes, epoch milliseconds, value.

    Args:
        temporality: of sums; gauges unless given.
    """
    request = ExportMetricsServiceRequest()
    for resource, name, attributes, ts_ms, value in points:
        of_resource = request.resource_metrics.add()
        of_resource.resource.attributes.extend(pairs(resource))
        metric = of_resource.scope_metrics.add().metrics.add(name=name)
        if temporality is not None:
            metric.sum.aggregation_temporality = temporality
        held = metric.gauge if temporality is None else metric.sum
        point = held.data_points.add(time_unix_nano=ts_ms * 1_000_000, attributes=pairs(attributes))
        if isinstance(value, int):
            point.as_int = value
        else:
            point.as_double = value
    return request


def as_collector(labels: Mapping[str, str], ts_ms: int, value: float) -> tuple[Any, ...]:
    """A point as the collector's Prometheus receiver makes it of a series with its labels."""
    resource = {TARGET[label]: value for label, value in labels.items() if label in TARGET}
    rest = {label: value for label, value in labels.items() if label not in TARGET and label != "__name__"}
    return resource, labels["__name__"], rest, ts_ms, value
