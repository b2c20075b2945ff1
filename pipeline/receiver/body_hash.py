"""A name of 16 bytes for a body, by which a body that comes again is recognised.

The body's bytes, seven to a number, are the coefficients of a polynomial, which is evaluated at two secret points
modulo the prime 2⁶¹ - 1 (the polynomial hash of Wegman and Carter, New hash functions and their use in authentication
and set equality, 1981). Two bodies of n bytes that were chosen without knowing the points have one name with a
probability of at most (n / 7 / 2⁶¹)², below 10⁻²³ for bodies of 32 MiB: nobody can craft a body that is taken for
another. It costs a third of SHA-256 on processors that have instructions for that one. Called by `intake`; the points
differ from process to process, and so do names.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, njit, types

from pipeline.remote_write.byte_words import address, load8, store8

BODY_HASH_BYTES = 16

_PRIME = (1 << 61) - 1
_NUMBER_BYTES = 7
_BLOCK_NUMBERS = 8
_BLOCK_BYTES = _NUMBER_BYTES * _BLOCK_NUMBERS
_LOADED_BYTES = _BLOCK_BYTES + 1
"""Numbers are loaded eight bytes at a time, so a block is loaded with the byte behind it."""

# Numba's own type for what this makes has the compiler's context among a caller's arguments.
_intrinsic: Any = extending.intrinsic


class BodyHash:
    """Names bodies; two objects name the same body differently.

    Args:
        points: the secret points, 0 to 2⁶¹ - 2; drawn unless given.
    """

    def __init__(self, points: tuple[int, int] | None = None) -> None:
        first, second = points or (secrets.randbelow(_PRIME), secrets.randbelow(_PRIME))
        self._powers = np.array(
            [[pow(point, _BLOCK_NUMBERS - place, _PRIME) for place in range(_BLOCK_NUMBERS + 1)]
             for point in (first, second)], dtype=np.uint64,
        )  # fmt: skip

    def name(self, body: bytes, kind: int) -> bytes:
        """`BODY_HASH_BYTES` bytes that name a body of a kind.

        Args:
            body: the body.
            kind: 0 to 255; the same bytes of another kind are another body.
        """
        first, second = _evaluate(np.frombuffer(body, dtype=np.uint8), len(body) << 8 | kind, self._powers)
        return int(first).to_bytes(8, "little") + int(second).to_bytes(8, "little")


@_intrinsic
def _with_block(typing: Any, value: Any, at: Any, powers: Any) -> Any:
    """The polynomial's value with the eight coefficients at an address behind it; below 2⁶¹ + 4, not yet reduced."""
    word, wide = ir.IntType(64), ir.IntType(128)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def loaded(base: Any, offset: int) -> Any:
            place = builder.add(base, ir.Constant(word, offset))
            return builder.load(builder.inttoptr(place, word.as_pointer()), align=1)

        def product(left: Any, right: Any) -> Any:
            return builder.mul(builder.zext(left, wide), builder.zext(right, wide))

        # Each product of a coefficient is below 2¹¹⁷ and that of the value below 2¹²³: the sum stays within 128 bits.
        total = product(arguments[0], loaded(arguments[2], 0))
        for place in range(_BLOCK_NUMBERS):
            number = builder.and_(
                loaded(arguments[1], place * _NUMBER_BYTES), ir.Constant(word, (1 << 8 * _NUMBER_BYTES) - 1)
            )
            total = builder.add(total, product(number, loaded(arguments[2], 8 * (place + 1))))
        low = builder.and_(builder.trunc(total, word), ir.Constant(word, _PRIME))
        high = builder.trunc(builder.lshr(total, ir.Constant(wide, 61)), word)
        once = builder.add(low, high)
        return builder.add(builder.and_(once, ir.Constant(word, _PRIME)), builder.lshr(once, ir.Constant(word, 61)))

    return types.uint64(types.uint64, types.int64, types.int64), generate


@njit(cache=True, nogil=True)
def _evaluate(data: Any, start: Any, powers: Any) -> Any:
    """The polynomial whose first coefficient is `start`, at both points."""
    first = second = np.uint64(start)
    at, size = address(data), np.int64(len(data))
    to_first, to_second = address(powers[0]), address(powers[1])
    while size >= _LOADED_BYTES:
        first, second = _with_block(first, at, to_first), _with_block(second, at, to_second)
        at += _BLOCK_BYTES
        size -= _BLOCK_BYTES
    rest = np.zeros(_LOADED_BYTES, dtype=np.uint8)
    for place in range(size):
        store8(address(rest) + place, load8(at + place))
    first, second = _with_block(first, address(rest), to_first), _with_block(second, address(rest), to_second)
    return first % np.uint64(_PRIME), second % np.uint64(_PRIME)
