"""The stand-in receiver: what a straightforward Python receiver spends per sample, the baseline of the receiver's bars.

It parses a body with protobuf's own C parser and writes one JSON message per sample, as adapters from remote write to
Kafka do, and neither validates anything nor waits for a bus. Its messages look like those of
prometheus-kafka-adapter: `timestamp`, `value`, `name`, `labels`.
"""

from __future__ import annotations

from typing import Any

import cramjam
import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "text": _FIELD.TYPE_STRING,
    "double": _FIELD.TYPE_DOUBLE,
    "int64": _FIELD.TYPE_INT64,
    "uint32": _FIELD.TYPE_UINT32,
}
# Message → fields: number, name, type or message, whether repeated; prometheus/prometheus:prompb/types.proto and
# prompb/io/prometheus/write/v2/types.proto, without what a sample does not need.
_MESSAGES: dict[str, tuple[tuple[int, str, str, bool], ...]] = {
    "Label": ((1, "name", "text", False), (2, "value", "text", False)),
    "Sample": ((1, "value", "double", False), (2, "timestamp", "int64", False)),
    "LabelledSeries": ((1, "labels", "Label", True), (2, "samples", "Sample", True)),
    "WriteRequest": ((1, "timeseries", "LabelledSeries", True),),
    "ReferringSeries": ((1, "labels_refs", "uint32", True), (2, "samples", "Sample", True)),
    "Request": ((4, "symbols", "text", True), (5, "timeseries", "ReferringSeries", True)),
}


def messages_of(body: bytes, version: int) -> list[bytes]:
    """One JSON message per sample of a body.

    Args:
        body: snappy block.
        version: 1 for `prometheus.WriteRequest`, 2 for `io.prometheus.write.v2.Request`.
    """
    raw = bytes(cramjam.snappy.decompress_raw(body))
    return _messages_v1(raw) if version == 1 else _messages_v2(raw)


def _messages_v1(raw: bytes) -> list[bytes]:
    messages = []
    for series in _WRITE_REQUEST.FromString(raw).timeseries:
        labels = {label.name: label.value for label in series.labels}
        name = labels["__name__"]
        messages += [
            orjson.dumps({"timestamp": sample.timestamp, "value": sample.value, "name": name, "labels": labels})
            for sample in series.samples
        ]
    return messages


def _messages_v2(raw: bytes) -> list[bytes]:
    request = _REQUEST.FromString(raw)
    symbols = list(request.symbols)
    messages = []
    for series in request.timeseries:
        references = list(series.labels_refs)
        labels = {symbols[references[at]]: symbols[references[at + 1]] for at in range(0, len(references), 2)}
        name = labels["__name__"]
        messages += [
            orjson.dumps({"timestamp": sample.timestamp, "value": sample.value, "name": name, "labels": labels})
            for sample in series.samples
        ]
    return messages


def _message_classes() -> tuple[Any, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="standin.proto", package="standin", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind, is_repeated in fields:
            message.field.add(
                name=field,
                number=number,
                type=_TYPES.get(kind, _FIELD.TYPE_MESSAGE),
                type_name=None if kind in _TYPES else f".standin.{kind}",
                label=_FIELD.LABEL_REPEATED if is_repeated else _FIELD.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"standin.{name}") for name in ("WriteRequest", "Request"))
    write_request, request = (message_factory.GetMessageClass(descriptor) for descriptor in found)
    return write_request, request


_WRITE_REQUEST, _REQUEST = _message_classes()
