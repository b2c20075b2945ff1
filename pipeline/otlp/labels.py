"""Labels of points and resources: attributes as they stand in a body become label fields of remote write 1.0.

Called by `otlp.decode`, once for each resource and for each point whose attributes were not met a short while ago.
Whatever an attribute says is a claim: labels that can't be are left for `remote_write.label_sets` to refuse, which
judges all labels. Source: open-telemetry/opentelemetry-proto:opentelemetry/proto/common/v1/common.proto.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from fleet.errors import Corrupt
from fleet.opentelemetry import (
    PUSHED,
    RESOURCE_LABELS,
    SERVICE_NAME,
    SERVICE_NAMESPACE,
    TARGET_LABELS,
    WEAK_LABELS,
    label_name,
)
from pipeline.remote_write.protobuf_fields import bytes_field, read_field

BYTES_MAX = 8 << 20
"""Bytes of labels that are remembered by all decoders together."""
_ENTRY_BYTES = 256
_TARGET_LABELS, _WEAK_LABELS = ({label.encode() for label in labels} for labels in (TARGET_LABELS, WEAK_LABELS))
_RESOURCE_LABELS = {key.encode(): label.encode() for key, label in RESOURCE_LABELS.items()}
_SERVICE_NAME, _SERVICE_NAMESPACE = SERVICE_NAME.encode(), SERVICE_NAMESPACE.encode()
_ATTRIBUTES_OF_RESOURCE, _ATTRIBUTES_OF_POINT = 1, 7
_STRING, _BOOL, _INT, _DOUBLE = 1, 2, 3, 4
_LENGTH, _FIXED64 = 2, 1
_KEY, _VALUE = 1, 2


@dataclass(frozen=True, slots=True)
class Target:
    """What a resource says of all its points, as labels.

    Attributes:
        number: no other resource that is remembered has it.
    """

    number: int
    labels: dict[bytes, bytes]


class LabelFields:
    """Makes label fields; mutable: remembers within `BYTES_MAX` what it made, and forgets all of it beyond.

    Threads may ask at once. A number is given once, so that a target outlives being forgotten.
    """

    def __init__(self) -> None:
        self._targets: dict[bytes, Target] = {}
        self._fields: dict[tuple[int, bytes, bytes], bytes] = {}
        self._lock = threading.Lock()
        self._count = 0
        self.held_bytes = 0
        """What is remembered, at most `BYTES_MAX`."""

    def known_target(self, resource: bytes) -> Target | None:
        """What a Resource message says that was read a short while ago; None for others."""
        return self._targets.get(resource)

    def target(self, resource: bytes) -> Target:
        """What a Resource message says.

        Raises:
            Corrupt: it is no such message.
        """
        labels = _target_labels(resource)
        with self._lock:
            self._count += 1
            made = Target(self._count, labels)
            self._hold(2 * len(resource))
            return self._targets.setdefault(resource, made)

    def known(self, target: Target, name: bytes, attributes: bytes) -> bytes | None:
        """The label fields of a point that were made a short while ago; None for others."""
        return self._fields.get((target.number, name, attributes))

    def make(self, target: Target, name: bytes, attributes: bytes) -> bytes:
        """The label fields of a point: version 1's, sorted by name.

        Args:
            name: of the metric, as Prometheus has it.
            attributes: attribute fields of the point, one after another.

        Raises:
            Corrupt: they are no such fields.
        """
        made = _label_fields(target.labels, name, attributes)
        with self._lock:
            self._hold(len(attributes) + len(made))
            self._fields[target.number, name, attributes] = made
        return made

    def _hold(self, count: int) -> None:
        self.held_bytes += count + _ENTRY_BYTES
        if self.held_bytes > BYTES_MAX:
            self._targets.clear()
            self._fields.clear()
            self.held_bytes = count + _ENTRY_BYTES


def _target_labels(resource: bytes) -> dict[bytes, bytes]:
    said = dict(_pairs(resource, _ATTRIBUTES_OF_RESOURCE))
    labels = {label: said[key] for key, label in _RESOURCE_LABELS.items() if said.get(key)}
    if said.get(_SERVICE_NAME):
        names = (said.get(_SERVICE_NAMESPACE, b""), said[_SERVICE_NAME])
        labels[b"job"] = b"/".join(name for name in names if name)
    elif b"instance" not in labels:
        labels[b"instance"] = PUSHED.encode()
    return labels


def _label_fields(of_target: dict[bytes, bytes], name: bytes, attributes: bytes) -> bytes:
    labels = [(b"__name__", name)]
    met = set()
    for key, value in _pairs(attributes, _ATTRIBUTES_OF_POINT):
        label = label_name(key)
        if not value:
            continue  # an empty label is as good as none
        met.add(label)
        is_taken = label in _TARGET_LABELS or (label in of_target and label not in _WEAK_LABELS)
        labels.append((b"exported_" + label if is_taken else label, value))
    labels += [pair for pair in of_target.items() if pair[0] not in met or pair[0] not in _WEAK_LABELS]
    labels.sort()
    return b"".join(bytes_field(1, bytes_field(1, label) + bytes_field(2, value)) for label, value in labels)


def _pairs(message: bytes, number: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the attributes that stand in a message under a field's number; those without text left out."""
    at = 0
    while at < len(message):
        tag, start, at = read_field(message, at)
        if tag != number << 3 | _LENGTH:
            continue
        key = value = b""
        inner, end = start, at
        while inner < end:
            inner_tag, inner_start, inner = read_field(message, inner, end)
            if inner_tag == _KEY << 3 | _LENGTH:
                key = message[inner_start:inner]
            elif inner_tag == _VALUE << 3 | _LENGTH:
                value = _text(message, inner_start, inner)
        yield key, value


def _text(message: bytes, at: int, end: int) -> bytes:
    """An AnyValue as a label has it; empty for lists, maps and bytes, which no label of ours holds."""
    text = b""
    while at < end:
        tag, start, at = read_field(message, at, end)
        number, wire = tag >> 3, tag & 7
        if number == _STRING and wire == _LENGTH:
            text = message[start:at]
        elif number in (_BOOL, _INT) and wire == 0:
            value = _varint_of(message[start:at])
            text = (b"false", b"true")[value > 0] if number == _BOOL else b"%d" % (value - (value >> 63 << 64))
        elif number == _DOUBLE and wire == _FIXED64:
            (double,) = struct.unpack_from("<d", message, start)
            text = (f"{double:.0f}" if abs(double) < 1 << 53 and double.is_integer() else repr(double)).encode()
        elif number in (_STRING, _BOOL, _INT, _DOUBLE):
            raise Corrupt(f"cannot read an attribute: its value {number} has wire type {wire}")
    return text


def _varint_of(data: bytes) -> int:
    return sum((byte & 127) << 7 * place for place, byte in enumerate(data)) & (1 << 64) - 1
