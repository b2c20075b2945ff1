"""Words of eight bytes at any place of memory, for the compiled loops over untrusted bytes.

Numba indexes arrays one element at a time, and counts references whenever an array is handed to a function: both cost
more than the work itself where a loop reads varints, hashes or compares. So these loops walk over addresses: the
caller asks for an array's `address` and holds the array until they return. Nothing here checks a bound: callers do,
before they load. Called by `remote_write.kernels`, `intern_table` and `rows_kernels`. Little-endian machines only, as
every platform of the product is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import extending, njit, types
from numpy.typing import NDArray

# Numba's own type for what this makes has the compiler's context among a caller's arguments.
_intrinsic: Any = extending.intrinsic


class Texts(NamedTuple):
    """Byte strings, one after another.

    Attributes:
        data: (bytes,) uint8.
        starts: (strings + 1,) int64, where each begins and the last one ends.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]


def joined_texts(parts: Sequence[bytes]) -> Texts:
    """Byte strings put one after another, with eight bytes behind the last one, so that loops may read words."""
    starts = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    return Texts(data=np.frombuffer(b"".join((*parts, bytes(8))), dtype=np.uint8), starts=starts)


@_intrinsic
def address(typing: Any, array: Any) -> Any:
    """Where the first element of a contiguous array lies, as an integer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), generate


def _load(bits: int, kind: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()), align=1)

    return kind(types.int64), generate


@_intrinsic
def load64(typing: Any, at: Any) -> Any:
    """The eight bytes at an address, as uint64."""
    return _load(64, types.uint64)


@_intrinsic
def load32(typing: Any, at: Any) -> Any:
    """The four bytes at an address, as uint32."""
    return _load(32, types.uint32)


@_intrinsic
def load8(typing: Any, at: Any) -> Any:
    """The byte at an address, as uint8."""
    return _load(8, types.uint8)


def _store(bits: int, kind: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, kind), generate


@_intrinsic
def store64(typing: Any, at: Any, value: Any) -> Any:
    """Writes a uint64 to the eight bytes at an address."""
    return _store(64, types.uint64)


@_intrinsic
def store32(typing: Any, at: Any, value: Any) -> Any:
    """Writes a uint32 to the four bytes at an address."""
    return _store(32, types.uint32)


@_intrinsic
def store8(typing: Any, at: Any, value: Any) -> Any:
    """Writes a uint8 to the byte at an address."""
    return _store(8, types.uint8)


@_intrinsic
def bits_of(typing: Any, value: Any) -> Any:
    """The bits of a float64, as uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.uint64(types.float64), generate


@_intrinsic
def float_of(typing: Any, bits: Any) -> Any:
    """The float64 with the bits of a uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.uint64), generate


@_intrinsic
def trailing_zeros(typing: Any, word: Any) -> Any:
    """Number of zero bits below the lowest set one of a uint64, 64 for zero."""
    signature = types.uint64(types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return signature, generate


@njit(cache=True, nogil=True)
def same_bytes(left: Any, right: Any, size: Any) -> Any:
    """Whether two runs of `size` bytes, given by their addresses, are equal."""
    at = np.int64(0)
    while at + 8 <= size:
        if load64(left + at) != load64(right + at):
            return False
        at += 8
    if at == size:
        return True
    if size >= 8:
        return load64(left + size - 8) == load64(right + size - 8)
    if size >= 4:
        return load32(left) == load32(right) and load32(left + size - 4) == load32(right + size - 4)
    while at < size:
        if load8(left + at) != load8(right + at):
            return False
        at += 1
    return True


@njit(cache=True, nogil=True)
def hash_bytes(start: Any, size: Any, seed: Any) -> Any:
    """A 64-bit hash by multiplying and shifting words; equality is never taken from it alone."""
    value = np.uint64(seed) ^ (np.uint64(size) * np.uint64(0x9E3779B97F4A7C15))
    word = np.uint64(0)
    if size >= 8:
        place = np.int64(0)
        while place + 8 <= size:
            value = (value ^ load64(start + place)) * np.uint64(0xFF51AFD7ED558CCD)
            value ^= value >> np.uint64(32)
            place += 8
        word = load64(start + size - 8)
    else:
        for at in range(size):
            word = (word << np.uint64(8)) | np.uint64(load8(start + at))
    value = (value ^ word) * np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(29))
