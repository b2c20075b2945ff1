"""Numbers byte strings: the same bytes always get the same number, found by hash and verified byte by byte.

`series_table` keeps three of these: the label regions of version 1, the symbols of version 2, and the symbol numbers of
version 2's series. Open addressing over flat arrays; the strings lie one after another in an arena.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_SLOTS_MIN = 1024


class InternTable:
    """A growing set of byte strings.

    Args:
        seed: what hashing begins with; unknown to senders, so that they can't craft strings that collide.
    """

    def __init__(self, seed: int) -> None:
        self._seed = np.uint64(seed)
        self._count = 0
        self._slots = np.full(_SLOTS_MIN, -1, dtype=np.int32)
        self._hashes = np.empty(_SLOTS_MIN, dtype=np.uint64)
        self._starts = np.zeros(_SLOTS_MIN + 1, dtype=np.int64)
        self._arena = np.empty(1 << 16, dtype=np.uint8)

    def __len__(self) -> int:
        return self._count

    @property
    def arena_bytes(self) -> int:
        """Bytes of all strings together."""
        return int(self._starts[self._count])

    def bytes_of(self, number: int) -> bytes:
        """The string with this number."""
        return self._arena[self._starts[number] : self._starts[number + 1]].tobytes()

    def find(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], int, int]:
        """Looks strings up without adding any.

        Args:
            data: where the strings lie.
            starts: first byte of each, shape (strings,).
            ends: byte after the last of each, shape (strings,).

        Returns:
            Number of each, -1 where it was never seen; how many were not seen; their bytes (repeats counted).
        """
        numbers = np.empty(len(starts), dtype=np.int32)
        missing, missing_bytes, _ = _intern(
            data, starts, ends, self._seed, False, self._count, self._slots, self._hashes, self._starts, self._arena,
            numbers,
        )  # fmt: skip
        return numbers, int(missing), int(missing_bytes)

    def intern(self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int32]:
        """Looks strings up and adds those never seen; new ones get the next numbers in the order of their first place.

        Args:
            data: where the strings lie.
            starts: first byte of each, shape (strings,).
            ends: byte after the last of each, shape (strings,).

        Returns:
            Number of each.
        """
        numbers, missing, missing_bytes = self.find(data, starts, ends)
        if missing:
            self._reserve(missing, missing_bytes)
            _, _, self._count = _intern(
                data, starts, ends, self._seed, True, self._count, self._slots, self._hashes, self._starts, self._arena,
                numbers,
            )  # fmt: skip
        return numbers

    def _reserve(self, more: int, more_bytes: int) -> None:
        count = self._count + more
        if count > len(self._hashes):
            capacity = max(count, 2 * len(self._hashes))
            self._hashes = np.resize(self._hashes, capacity)
            self._starts = np.resize(self._starts, capacity + 1)
        if self.arena_bytes + more_bytes > len(self._arena):
            arena = np.empty(max(self.arena_bytes + more_bytes, 2 * len(self._arena)), dtype=np.uint8)
            arena[: self.arena_bytes] = self._arena[: self.arena_bytes]
            self._arena = arena
        if 2 * count > len(self._slots):
            self._slots = np.full(1 << int(4 * count - 1).bit_length(), -1, dtype=np.int32)
            _fill_slots(self._slots, self._hashes, self._count)


@njit(cache=True, nogil=True)
def _hash(data: Any, start: int, end: int, seed: Any) -> Any:
    """Multiply-and-shift over words of eight bytes; equality is never taken from it alone."""
    value = seed ^ (np.uint64(end - start) * np.uint64(0x9E3779B97F4A7C15))
    at = start
    while at + 8 <= end:
        word = np.uint64(0)
        for byte in range(8):
            word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
        value = (value ^ word) * np.uint64(0xFF51AFD7ED558CCD)
        value ^= value >> np.uint64(32)
        at += 8
    word = np.uint64(0)
    while at < end:
        word = (word << np.uint64(8)) | np.uint64(data[at])
        at += 1
    value = (value ^ word) * np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(29))


@njit(cache=True, nogil=True)
def _intern(  # noqa: PLR0913, PLR0917 - a kernel takes flat arrays
    data: Any,
    starts: Any,
    ends: Any,
    seed: Any,
    add: bool,
    count: int,
    slots: Any,
    hashes: Any,
    known_starts: Any,
    arena: Any,
    numbers: Any,
) -> Any:
    mask = len(slots) - 1
    missing = missing_bytes = 0
    for index in range(len(starts)):
        start, end = starts[index], ends[index]
        code = _hash(data, start, end, seed)
        slot = np.int64(code & np.uint64(mask))
        number = slots[slot]
        while number >= 0:
            if hashes[number] == code and known_starts[number + 1] - known_starts[number] == end - start:
                at = known_starts[number]
                same = True
                for offset in range(end - start):
                    if arena[at + offset] != data[start + offset]:
                        same = False
                        break
                if same:
                    break
            slot = (slot + 1) & mask
            number = slots[slot]
        if number < 0 and add:
            number = count
            slots[slot] = number
            hashes[number] = code
            at = known_starts[number]
            for offset in range(end - start):
                arena[at + offset] = data[start + offset]
            known_starts[number + 1] = at + end - start
            count += 1
        if number < 0:
            missing += 1
            missing_bytes += end - start
        numbers[index] = number
    return missing, missing_bytes, count


@njit(cache=True, nogil=True)
def _fill_slots(slots: Any, hashes: Any, count: int) -> Any:
    mask = len(slots) - 1
    for number in range(count):
        slot = np.int64(hashes[number] & np.uint64(mask))
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = number
