"""Fields of Protocol Buffers messages as bytes: what encoders of remote-write bodies are made of.

Format: protobuf.dev/programming-guides/encoding. Called by `remote_write.encode` and `adapter_messages`.
"""

from __future__ import annotations

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
