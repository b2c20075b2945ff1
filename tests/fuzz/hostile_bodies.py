"""Bodies as nobody should send them: valid ones of both versions, broken at every layer.

Three layers: the message is built from parts that may be wrong in themselves (wire types, references, lengths, doubled
fields), its bytes are cut, doubled, swapped and overwritten below snappy, and so are those of the snappy block.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable

import cramjam

START_MS = 1_767_571_200_000
NAMES = (
    "gputide_slice_duty_cycle_ratio",
    "gputide_card_duty_cycle_ratio",
    "gputide_slice_info",
    "up",
    "",
    "DCGM_FI_DEV_GPU_UTIL",
)
VALUES = (0.0, 0.25, 0.5, 1.0, 2.0, -1.0, math.nan, math.inf, -math.inf, 1e300, 5e-324)
TIMES = (0, -1, START_MS, START_MS + 15_000, START_MS + 30_000, 2**62, -(2**63), 2**63 - 1)
ODD_TEXTS = (b"", b"x" * 3000, b"\xff\xfe", '\u00fc\n"'.encode(), b"\x00", b"a" * 64)


class HostileBodies:
    """An endless row of bodies, the same for the same seed.

    Args:
        seed: of the random numbers.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._kept: list[bytes] = []

    def next(self) -> tuple[bytes, int]:
        """A body and the version it is sent as."""
        chosen = self._random
        version = chosen.choice((1, 2))
        message = self._message_v1() if version == 1 else self._message_v2()
        if chosen.random() < 0.4:
            message = self._mutated(message)
        self._kept = [*self._kept[-20:], message]
        body = bytes(cramjam.snappy.compress_raw(message))
        if chosen.random() < 0.15:
            body = self._mutated(body)
        elif chosen.random() < 0.05:
            body = varint(chosen.choice((0, len(message) + 1, 2**31, 2**32 - 1, 2**35))) + body[1:]
        if chosen.random() < 0.03:
            version = 3 - version
        return body, version

    def _mutated(self, data: bytes) -> bytes:
        chosen = self._random
        found = bytearray(data)
        for _ in range(chosen.choice((1, 1, 1, 2, 4, 16))):
            at, end = (chosen.randrange(len(found) + 1) for _ in range(2))
            at, end = min(at, end), min(max(at, end), min(at, end) + 64)
            kind = chosen.randrange(8)
            if kind == 0 and at < len(found):
                found[at] ^= 1 << chosen.randrange(8)
            elif kind == 1 and at < len(found):
                found[at] = chosen.choice((0, 1, 127, 128, 255, chosen.randrange(256)))
            elif kind == 2:
                del found[at:end]
            elif kind == 3:
                found[at:at] = found[at:end]
            elif kind == 4:
                found[at:at] = chosen.randbytes(chosen.randrange(1, 12))
            elif kind == 5:
                found[at:end] = varint(chosen.choice((0, 127, 128, 2**31, 2**32, 2**63, 2**64 - 1)))
            elif kind == 6 and self._kept:
                other = chosen.choice(self._kept)
                cut = chosen.randrange(len(other) + 1)
                found[at:end] = other[cut : cut + 64]
            else:
                del found[at:]
        return bytes(found)

    def _labels(self) -> list[tuple[bytes, bytes]]:
        chosen = self._random
        number = chosen.randrange(4)
        labels = {
            "__name__": chosen.choice(NAMES[:2]) if chosen.random() < 0.8 else chosen.choice(NAMES),
            "card": f"GPU-{number}",
            "cluster": "c1",
            "container": "server",
            "namespace": "team",
            "node": "n1",
            "pod": f"pod-{number}",
        }
        found = [(name.encode(), value.encode()) for name, value in sorted(labels.items())]
        if chosen.random() < 0.15:
            place = chosen.randrange(len(found))
            odd = chosen.choice(ODD_TEXTS)
            found[place] = (odd, found[place][1]) if chosen.random() < 0.5 else (found[place][0], odd)
        if chosen.random() < 0.05:
            chosen.shuffle(found)
        if chosen.random() < 0.05:
            found.append(chosen.choice(found))
        if chosen.random() < 0.03:
            found += [(b"l%d" % place, b"v") for place in range(80)]
        return found

    def _times(self) -> list[tuple[int, float]]:
        chosen = self._random
        count = chosen.choice((0, 1, 1, 1, 1, 2, 5))
        good = chosen.random() < 0.7
        return [
            (START_MS + 15_000 * step, chosen.random()) if good else (chosen.choice(TIMES), chosen.choice(VALUES))
            for step in range(count)
        ]

    def _sample(self, ts_ms: int, value: float, start_field: int) -> bytes:
        parts = [b"\x09" + struct.pack("<d", value), b"\x10" + varint(ts_ms)]
        chosen = self._random
        if start_field:
            parts.append(bytes([start_field << 3]) + varint(START_MS))
        if chosen.random() < 0.05:
            chosen.shuffle(parts)
        if chosen.random() < 0.03:
            parts.append(chosen.choice((b"\x0d\x00\x00\x00\x00", b"\x12\x01\x05", b"\x11" + bytes(8), b"\x98\x06\x01")))
        return b"".join(parts)

    def _message_v1(self) -> bytes:
        chosen = self._random
        series = []
        for _ in range(chosen.choice((0, 1, 2, 3, 8))):
            parts = [field(1, field(1, name) + field(2, value)) for name, value in self._labels()]
            parts += [field(2, self._sample(*sample, 0)) for sample in self._times()]
            parts += self._rarely(lambda: field(3, b"\x11" + bytes(8)), lambda: field(4, b"\x08\x03"))
            if chosen.random() < 0.05:
                chosen.shuffle(parts)
            series.append(field(1, b"".join(parts)))
        series += self._rarely(lambda: field(3, b"\x08\x01\x12\x02up"), lambda: field(7, b"unknown"))
        return b"".join(series)

    def _message_v2(self) -> bytes:
        chosen = self._random
        symbols: dict[bytes, int] = {b"": 0}
        series = []
        start_field = chosen.choice((0, 0, 3))
        for _ in range(chosen.choice((0, 1, 2, 3, 8))):
            refs = [symbols.setdefault(text, len(symbols)) for pair in self._labels() for text in pair]
            if chosen.random() < 0.05:
                refs[chosen.randrange(len(refs))] = chosen.choice((len(symbols), 2**31, 2**32 - 1))
            if chosen.random() < 0.03:
                refs.pop()
            packed = b"".join(varint(ref) for ref in refs)
            parts = [field(1, packed)]
            if chosen.random() < 0.05:
                parts = [b"\x08" + varint(ref) for ref in refs]
            elif chosen.random() < 0.05:
                parts = [field(1, varint(ref)) for ref in refs]
            parts += [field(2, self._sample(*sample, start_field)) for sample in self._times()]
            parts += self._rarely(
                lambda: field(3, b"\x08\x03"), lambda: field(4, b"\x0a\x02\x00\x00"), lambda: b"\x30" + varint(START_MS)
            )
            parts += [field(5, b"\x08\x01")] if chosen.random() < 0.3 else []
            if chosen.random() < 0.05:
                chosen.shuffle(parts)
            series.append(field(5, b"".join(parts)))
        heads = [field(4, text) for text in symbols]
        if chosen.random() < 0.03:
            chosen.shuffle(heads)
        whole = [*series, *heads] if chosen.random() < 0.05 else [*heads, *series]
        return b"".join(whole + self._rarely(lambda: field(1, b""), lambda: field(9, b"unknown")))

    def _rarely(self, *parts: Callable[[], bytes]) -> list[bytes]:
        return [part() for part in parts if self._random.random() < 0.05]


def field(number: int, data: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """A number as protobuf writes it; negative ones as 64 bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
