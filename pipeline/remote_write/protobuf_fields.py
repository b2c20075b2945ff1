"""Fields of Protocol Buffers messages as bytes: what encoders and the readers of single messages are made of.

Format: protobuf.dev/programming-guides/encoding. Called by
`remote_write.encode`, `remote_write.label_sets`, `adapter_messages` and `pipeline.otlp`.
"""

from __future__ import annotations

from fleet.errors import Corrupt

_SMALL = tuple(bytes((value,)) for value in range(128))


def bytes_field(number: int, payload: bytes) -> bytes:
    """A field that holds text, bytes or a message; its number is below 16."""
    return _SMALL[number << 3 | 2] + varint(len(payload)) + payload


def varint(value: int) -> bytes:
    """A 64-bit number in seven bits per byte, the lowest first; negative ones as their two's complement."""
    if 0 <= value < 128:
        return _SMALL[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_field(data: bytes, at: int, end: int | None = None) -> tuple[int, int, int]:
    """The field at a place: its tag, and start and end of its payload.

    Args:
        end: end of the message that it stands in; that of the data unless given.

    Raises:
        Corrupt: it is cut, or of an unknown wire type.
    """
    end = len(data) if end is None else end
    tag, at = read_varint(data, at, end)
    wire = tag & 7
    if wire == 0:
        _, stop = read_varint(data, at, end)
        return tag, at, stop
    if wire == 2:
        length, at = read_varint(data, at, end)
    elif wire in (1, 5):
        length = 8 if wire == 1 else 4
    else:
        raise Corrupt(f"cannot read field {tag >> 3}: it has wire type {wire}")
    if length > end - at:
        raise Corrupt(f"cannot read field {tag >> 3}: it reaches beyond the end of its message")
    return tag, at, at + length


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at a place, and the place behind it.

    Raises:
        Corrupt: it is cut or longer than 10 bytes.
    """
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise Corrupt("cannot read a field: a number is cut or too long")
