"""Inputs as nobody should send them, made from good ones: an endless row, the same for the same seed.

Two layers: what is JSON is taken apart and one of its values becomes another kind of value (or one that is too large,
too deep, or no Unicode); any text or message has bytes cut, doubled, swapped, overwritten and joined with another's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

BYTES_MAX = 1 << 16
"""Longest input that is made, apart from what stands in for a deep one."""

_DEEP = "@deep@"
_DEPTHS = (50, 400, 990, 3000, 20_000)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, 2**31, 2**53, 2**63, -(2**63) - 1, 10**30, 10**400, float("nan"),
    float("inf"), "", " ", "0", "-1", "1e9", "1e999999999", "-1e-999999999", "9" * 5000, "NaN", "inf", "1_000", "١٢",
    "\x00", "\ud800", "\udfff\ud800", "a\nb", "\u202eabc", "x" * 5000, "../../etc/passwd", "{{7*7}}", "=cmd()", "%s",
    [], {}, [[]], [None], [{}], {"": {}}, {"a": None}, [0] * 3000, _DEEP,
)  # fmt: skip
_WORDS = (
    b"\x00", b"\n", b"\r\n", b"\xff\xfe", b"\xed\xa0\x80", b"\xe2\x80\xae", b"-", b",", b";", b":", b"=", b"/", b"..",
    b"[", b"]", b"{", b"}", b'"', b"'", b"null", b"true", b"1e999999999", b"-1e-999999999", b"9" * 5000, b"NaN",
    b"inf",
    b"-0", b"0x10", b"1_0", b"%", b"#", b"\\", b"\\u0000", b"\\ud800", b"*a", b"&a", b"<<",
    b"!!python/object:os.system",
    b"2026-01-12T08:30:00Z", b"9999-12-31T23:59:59+23:59", b"0001-01-01T00:00:00-23:59",
)  # fmt: skip


class Mutations:
    """Inputs made from seeds.

    Args:
        seeds: good inputs, at least one.
        seed: of the random numbers.
    """

    def __init__(self, seeds: Sequence[bytes], seed: int) -> None:
        self._random = random.Random(seed)
        self._seeds = tuple(seeds)
        self._documents = [found for found in map(_document, seeds) if found is not None]

    def next(self) -> bytes:
        """The next input."""
        chosen = self._random
        if self._documents and chosen.random() < 0.6:
            document = chosen.choice(self._documents)
            for _ in range(chosen.choice((1, 1, 1, 2, 3))):
                document = self._altered(document)
            data = json.dumps(document).encode()
            if b"@deep@" in data:
                depth = chosen.choice(_DEPTHS)
                opening, closing = chosen.choice(((b"[", b"]"), (b'{"a":', b"}")))
                inside = b"" if opening == b"[" else b"1"
                data = data.replace(b'"@deep@"', opening * depth + inside + closing * depth, 1)
            return data if chosen.random() < 0.9 else self._broken(data)
        data = chosen.choice(self._seeds)
        return data if chosen.random() < 0.02 else self._broken(data)

    def _altered(self, value: Any) -> Any:
        """The value with one of its parts, at any depth, become another."""
        chosen = self._random
        if isinstance(value, dict) and value and chosen.random() < 0.85:
            name = chosen.choice(list(value))
            way = chosen.random()
            if way < 0.06:
                return {key: held for key, held in value.items() if key != name}
            if way < 0.1:
                return {**value, str(chosen.choice(_VALUES)): value[name]}
            return {**value, name: self._altered(value[name])}
        if isinstance(value, list) and value and chosen.random() < 0.85:
            place = chosen.randrange(len(value))
            if chosen.random() < 0.1:
                return [*value, value[place]]
            return [*value[:place], self._altered(value[place]), *value[place + 1 :]]
        if isinstance(value, str) and value and chosen.random() < 0.6:
            return self._broken(value.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogateescape")
        return chosen.choice(_VALUES)

    def _broken(self, data: bytes) -> bytes:
        chosen = self._random
        found = bytearray(data)
        for _ in range(chosen.choice((1, 1, 1, 2, 4, 12))):
            at, end = sorted(chosen.randrange(len(found) + 1) for _ in range(2))
            end = min(end, at + 64)
            kind = chosen.randrange(10)
            if kind == 0 and at < len(found):
                found[at] ^= 1 << chosen.randrange(8)
            elif kind == 1 and at < len(found):
                found[at] = chosen.choice((0, 1, 9, 10, 32, 127, 128, 255, chosen.randrange(256)))
            elif kind == 2:
                del found[at:end]
            elif kind == 3:
                found[at:at] = found[at:end] * chosen.choice((1, 1, 2, 300))
            elif kind == 4:
                found[at:at] = chosen.randbytes(chosen.randrange(1, 12))
            elif kind in (5, 6):
                found[at : at if kind == 5 else end] = chosen.choice(_WORDS)
            elif kind == 7:
                other = chosen.choice(self._seeds)
                cut = chosen.randrange(len(other) + 1)
                found[at:end] = other[cut : cut + 200]
            elif kind == 8 and chosen.random() < 0.05:
                found[at:at] = chosen.choice((b"[", b"{", b'{"a":', b"(", b"- ")) * chosen.choice(_DEPTHS)
            else:
                del found[at:]
        return bytes(found[:BYTES_MAX])


def _document(data: bytes) -> Any:
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict | list) else None
