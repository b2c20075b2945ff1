"""Reads remote-write bodies the plain way, byte by byte in Python: the judge of what the fast decoder said was written.

Nothing of the product is used here, and no library: snappy after google/snappy:format_description.txt, protobuf after
protobuf.dev/programming-guides/encoding, messages after prometheus/prometheus:prompb.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

Labels = tuple[tuple[bytes, bytes], ...]
LENGTH_MAX = 1 << 24


class BrokenBody(Exception):
    """The body is not what it says."""


@dataclass(frozen=True)
class ReferenceSample:
    """One sample of a body."""

    labels: Labels
    ts_ms: int
    value: float


def samples_of(body: bytes, version: int) -> list[ReferenceSample]:
    """All samples of a body.

    Raises:
        BrokenBody: it is no snappy block of such a message.
    """
    message = unpacked(body)
    return list(_samples_of_v1(message) if version == 1 else _samples_of_v2(message))


def unpacked(body: bytes) -> bytes:
    """What a snappy block holds."""
    length, at = _varint(body, 0)
    if length > LENGTH_MAX:
        raise BrokenBody("too long")
    out = bytearray()
    while at < len(body):
        tag = body[at]
        at += 1
        if tag & 3 == 0:
            size = tag >> 2
            if size >= 60:
                extra = size - 59
                size = int.from_bytes(_cut(body, at, extra), "little")
                at += extra
            out += _cut(body, at, size + 1)
            at += size + 1
            continue
        if tag & 3 == 1:
            size, offset = 4 + (tag >> 2 & 7), (tag >> 5) << 8 | _cut(body, at, 1)[0]
            at += 1
        else:
            width = 2 if tag & 3 == 2 else 4
            size, offset = 1 + (tag >> 2), int.from_bytes(_cut(body, at, width), "little")
            at += width
        if not 0 < offset <= len(out):
            raise BrokenBody("a copy from before the start")
        for _ in range(size):
            out.append(out[-offset])
        if len(out) > length:
            raise BrokenBody("longer than said")
    if len(out) != length:
        raise BrokenBody("another length than said")
    return bytes(out)


def _samples_of_v1(message: bytes) -> Iterator[ReferenceSample]:
    for number, series in _fields(message):
        if number != 1:
            continue
        labels: list[bytes] = []
        times = []
        for part, data in _fields(_message(series)):
            if part == 1:
                labels.append(_message(data))
            elif part == 2:
                times.append(_sample(_message(data)))
        if not times:
            continue  # nobody reads the labels of nothing
        fields = [dict(_fields(label)) for label in labels]
        pairs = tuple((_message(label.get(1, b"")), _message(label.get(2, b""))) for label in fields)
        yield from (ReferenceSample(pairs, ts_ms, value) for ts_ms, value in times)


def _samples_of_v2(message: bytes) -> Iterator[ReferenceSample]:
    fields = list(_fields(message))
    symbols = [_message(data) for number, data in fields if number == 4]
    for number, series in fields:
        if number != 5:
            continue
        refs: list[int] = []
        times = []
        for part, data in _fields(_message(series)):
            if part == 1:
                refs += _packed(data) if isinstance(data, bytes) else [data]
            elif part == 2:
                times.append(_sample(_message(data)))
        if not times:
            continue
        if len(refs) % 2 or any(ref >= len(symbols) for ref in refs):
            raise BrokenBody("a reference to nothing")
        labels = tuple((symbols[name], symbols[value]) for name, value in zip(refs[::2], refs[1::2], strict=False))
        yield from (ReferenceSample(labels, ts_ms, value) for ts_ms, value in times)


def _sample(data: bytes) -> tuple[int, float]:
    ts_ms, value = 0, 0.0
    for number, part in _fields(data):
        if number == 1:
            value = struct.unpack("<d", part)[0] if isinstance(part, bytes) and len(part) == 8 else _broken("a value")
        elif number == 2:
            if not isinstance(part, int):
                raise BrokenBody("a time that is no number")
            ts_ms = part - (1 << 64) if part >= 1 << 63 else part
    return ts_ms, value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            yield tag >> 3, _cut(data, at, size)
            at += size
        elif wire == 2:
            size, at = _varint(data, at)
            yield tag >> 3, _cut(data, at, size)
            at += size
        else:
            raise BrokenBody("an unknown wire type")


def _packed(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value & 0xFFFFFFFF)
    return found


def _message(data: int | bytes) -> bytes:
    if not isinstance(data, bytes):
        raise BrokenBody("a number where a message should be")
    return data


def _broken(what: str) -> float:
    raise BrokenBody(f"{what} of another type")


def _cut(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise BrokenBody("cut")
    return data[at : at + size]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise BrokenBody("a cut number")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise BrokenBody("a number too long")
