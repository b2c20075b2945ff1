"""Decodes the messages of a remote-write-to-Kafka adapter: one JSON object per sample.

The format is that of prometheus-kafka-adapter (github.com/Telefonica/prometheus-kafka-adapter, `serializers.go`):
`{"timestamp": "2026-01-05T00:00:00Z", "value": "0.5", "name": "up", "labels": {"__name__": "up", …}}`, `NaN` and `+Inf`
as text. Seconds or milliseconds since 1970, values as numbers and labels without `__name__` are taken as well, as other
adapters write them. The messages of one poll become one remote-write body, so that everything behind it is the same as
for a Prometheus that sends to us. Called by `bridge_kafka`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import cramjam

from pipeline.remote_write.label_sets import fault_of
from pipeline.remote_write.protobuf_fields import bytes_field, varint

REMEMBERED_BYTES_MAX = 256 << 20
"""Memory for label sets whose encoded form is kept, some 200,000; beyond it all are forgotten and learnt again."""
SECONDS_MAX = 100_000_000_000
"""Numbers below are seconds since 1970 (year 5138), others milliseconds (from March 1973 on)."""
_NAME = "__name__"
_ENTRY_BYTES = 500
"""What a label set takes beside its texts and their encoded form."""
_MILLISECONDS_MAX = 1 << 62
_VALUE = struct.Struct("<Bd")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterBatch:
    """What some messages held.

    Attributes:
        body: their samples as a remote-write 1.0 body, a snappy block; empty where there is no sample.
        bad: place of each message that can't be read, with the reason.
    """

    body: bytes
    samples: int
    bad: tuple[tuple[int, str], ...]


class AdapterDecoder:
    """Decodes messages; remembers the label sets it has met, so that a series is encoded once."""

    def __init__(self) -> None:
        self._labels: dict[tuple[Any, ...], bytes] = {}
        self._remembered_bytes = 0
        self._times: dict[str, int] = {}

    def decode(self, messages: Sequence[bytes]) -> AdapterBatch:
        """The samples of some messages."""
        if self._remembered_bytes > REMEMBERED_BYTES_MAX:
            self._labels.clear()
            self._remembered_bytes = 0
        self._times.clear()
        series: dict[bytes, list[bytes]] = {}
        bad: list[tuple[int, str]] = []
        for place, message in enumerate(messages):
            try:
                labels, sample = self._sample(message)
            except (ValueError, OverflowError, RecursionError) as exc:
                # JSON, codecs and times say ValueError in many forms; numbers and nesting have bounds of their own.
                bad.append((place, f"cannot read adapter message of {len(message)} bytes: {exc}"))
                continue
            series.setdefault(labels, []).append(sample)
        parts = []
        for labels, samples in series.items():
            together = b"".join((labels, *samples))
            parts.append(bytes_field(1, together))
        body = bytes(cramjam.snappy.compress_raw(b"".join(parts))) if parts else b""
        return AdapterBatch(body=body, samples=len(messages) - len(bad), bad=tuple(bad))

    def _sample(self, message: bytes) -> tuple[bytes, bytes]:
        """Labels and sample of a message, as fields of a `prometheus.TimeSeries`."""
        found = json.loads(message.decode())
        if type(found) is not dict:
            raise ValueError("it is no JSON object")
        labels = found.get("labels")
        if type(labels) is not dict:
            raise ValueError("its labels are no JSON object")
        key = (found.get("name"), *labels.items())
        try:
            encoded = self._labels.get(key)
        except TypeError as exc:
            raise ValueError("a label is no text") from exc
        if encoded is None:
            encoded = self._labels[key] = _labels_field(found.get("name"), labels)
            self._remembered_bytes += _ENTRY_BYTES + 2 * len(encoded)
        ts_ms = self._time(found.get("timestamp"))
        sample = _VALUE.pack(0x09, _value(found.get("value"))) + b"\x10" + varint(ts_ms)
        return encoded, bytes_field(2, sample)

    def _time(self, given: object) -> int:
        if isinstance(given, str):
            known = self._times.get(given)
            if known is None:
                known = self._times[given] = _time_of_text(given)
            return known
        return _time_of_number(given)


def _time_of_text(given: str) -> int:
    try:
        return _time_of_number(float(given))
    except ValueError:
        pass
    moment = datetime.fromisoformat(given)
    if moment.tzinfo is None:
        raise ValueError(f"its timestamp {given[:40]!r} has no time zone")
    return _checked((moment - _EPOCH) // _MILLISECOND)


def _time_of_number(given: object) -> int:
    if type(given) not in (int, float) or not isinstance(given, int | float) or not math.isfinite(given):
        raise ValueError(f"its timestamp {str(given)[:40]!r} is neither RFC 3339 nor a number")
    return _checked(round(given * 1000) if abs(given) < SECONDS_MAX else round(given))


def _checked(ts_ms: int) -> int:
    if not -_MILLISECONDS_MAX < ts_ms < _MILLISECONDS_MAX:
        raise ValueError(f"its timestamp of {ts_ms} ms is out of range")
    return ts_ms


def _value(given: object) -> float:
    if type(given) in (int, float) and isinstance(given, int | float):
        try:
            return float(given)
        except OverflowError as exc:
            raise ValueError("its value is too large for a number") from exc
    # Python reads "1_0" and " 1" as numbers, Go's adapters never write them.
    if not isinstance(given, str) or not given or not _VALUE_LETTERS.issuperset(given):
        raise ValueError(f"its value {str(given)[:40]!r} is no number")
    return float(given)


def _labels_field(name: object, labels: dict[str, object]) -> bytes:
    """Labels sorted by name, as the protocol wants them."""
    if name is None:
        name = labels.get(_NAME)
    if not isinstance(name, str) or not name:
        raise ValueError("it has no name")
    if labels.get(_NAME, name) != name:
        raise ValueError(f"its name {name[:40]!r} is not its label {_NAME}")
    together = {_NAME: name, **labels}
    pairs = []
    for label, value in sorted(together.items()):
        if not isinstance(value, str):
            raise ValueError(f"its label {label[:40]!r} is no text")
        # Prometheus treats an empty label as one that is not there.
        if value:
            pairs.append((label, value))
    fault = fault_of(tuple(pairs), must_be_sorted=False)
    if fault is not None:
        raise ValueError(fault)
    texts = ((bytes_field(1, label.encode()), bytes_field(2, value.encode())) for label, value in pairs)
    return b"".join(bytes_field(1, name + value) for name, value in texts)


_VALUE_LETTERS = frozenset("0123456789+-.eE") | frozenset("naNifIty")
_MILLISECOND = datetime.resolution * 1000
