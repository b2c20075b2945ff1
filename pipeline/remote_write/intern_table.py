"""Numbers byte strings and sequences: the same content always gets the same number, verified element by element.

`series_table` keeps three of these: the label regions of version 1, the symbols of version 2, and the symbol numbers of
version 2's series. Senders repeat their series in much the same order, so every entry remembers which one came after it
last time; a guess that holds costs one comparison and no hash. Behind it: open addressing over flat arrays, the content
in an arena.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.remote_write.byte_words import address, hash_bytes, load8, load32, same_bytes

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

BAD_REFERENCE = -2
"""What stands for a sequence that refers to what is not there."""

_SLOTS_MIN = 1024
_GROWTH = 1.25


class _Entries:
    """What both tables share: flat arrays that grow.

    Args:
        seed: what hashing begins with; unknown to senders, so that they can't craft content that collides.
        element: type of the arena's elements.
    """

    def __init__(self, seed: int, element: type[np.generic]) -> None:
        self._seed = np.uint64(seed)
        self._count = 0
        self._last = -1
        self._slots = np.full(_SLOTS_MIN, -1, dtype=np.int32)
        self._hashes = np.empty(_SLOTS_MIN, dtype=np.uint64)
        self._starts = np.zeros(_SLOTS_MIN + 1, dtype=np.int64)
        self._next = np.zeros(_SLOTS_MIN, dtype=np.int32)
        self._arena: NDArray[Any] = np.empty(1 << 14, dtype=element)

    def __len__(self) -> int:
        return self._count

    @property
    def arena_bytes(self) -> int:
        """Bytes of all content together."""
        return int(self._starts[self._count]) * self._arena.itemsize

    @property
    def memory_bytes(self) -> int:
        """Bytes that the table takes, reserves included."""
        return sum(part.nbytes for part in (self._slots, self._hashes, self._starts, self._next, self._arena))

    @property
    def arena(self) -> NDArray[Any]:
        """The content of all entries one after another."""
        return self._arena

    def part(self, number: int) -> NDArray[Any]:
        """The content with this number."""
        return self._arena[self._starts[number] : self._starts[number + 1]]

    @property
    def starts(self) -> Int64:
        """First element of each entry, and the end of the last, shape (entries + 1,)."""
        return self._starts[: self._count + 1]

    def _reserve(self, more: int, more_elements: int) -> None:
        count = self._count + more
        if count > len(self._hashes):
            capacity = max(count, int(_GROWTH * len(self._hashes)))
            self._hashes = _grown(self._hashes, capacity, self._count)
            self._next = _grown(self._next, capacity, self._count)
            self._starts = _grown(self._starts, capacity + 1, self._count + 1)
        used = int(self._starts[self._count])
        if used + more_elements > len(self._arena):
            self._arena = _grown(self._arena, max(used + more_elements, int(_GROWTH * len(self._arena))), used)
        if 3 * count > 2 * len(self._slots):
            self._slots = np.full(1 << int(3 * count // 2).bit_length(), -1, dtype=np.int32)
            _fill_slots(self._slots, self._hashes, self._count)


class InternTable(_Entries):
    """A growing set of byte strings.

    Args:
        seed: what hashing begins with; unknown to senders, so that they can't craft strings that collide.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed, np.uint8)

    def bytes_of(self, number: int) -> bytes:
        """The string with this number."""
        return self.part(number).tobytes()

    def find(self, data: NDArray[np.uint8], starts: Int32, ends: Int32) -> tuple[Int32, int, int]:
        """Looks strings up without adding any.

        Args:
            data: where the strings lie.
            starts: first byte of each, shape (strings,).
            ends: byte after the last of each, shape (strings,).

        Returns:
            Number of each, -1 where it was never seen; how many were not seen; their bytes (repeats counted).
        """
        numbers, missing, missing_bytes = self._run(data, starts, ends, False)
        return numbers, missing, missing_bytes

    def intern(self, data: NDArray[np.uint8], starts: Int32, ends: Int32) -> Int32:
        """Looks strings up and adds those never seen; new ones get the next numbers in the order of their first place.

        Args:
            data: where the strings lie.
            starts: first byte of each, shape (strings,).
            ends: byte after the last of each, shape (strings,).

        Returns:
            Number of each.
        """
        numbers, missing, missing_bytes = self._run(data, starts, ends, False)
        if missing:
            self._reserve(missing, missing_bytes)
            numbers, _, _ = self._run(data, starts, ends, True)
        return numbers

    def _run(self, data: NDArray[np.uint8], starts: Int32, ends: Int32, add: bool) -> tuple[Int32, int, int]:
        numbers = np.empty(len(starts), dtype=np.int32)
        missing, missing_bytes, self._count, self._last = _find_strings(
            data, starts, ends, self._seed, add, self._count, self._last, self._slots, self._hashes, self._starts,
            self._next, self._arena, numbers,
        )  # fmt: skip
        return numbers, missing, missing_bytes


class SequenceTable(_Entries):
    """A growing set of sequences of numbers, each given by references (protobuf varints) into an array of numbers.

    Args:
        seed: what hashing begins with; unknown to senders.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed, np.int32)

    def find(self, words: Int32, data: NDArray[np.uint8], starts: Int32, ends: Int32) -> tuple[Int32, int, int]:
        """Looks sequences up without adding any.

        Args:
            words: the numbers that are referred to.
            data: where the references lie; each run of them ends with a byte below 128.
            starts: first byte of each sequence's references, shape (sequences,).
            ends: byte after the last of each, shape (sequences,).

        Returns:
            Number of each, -1 where it was never seen, `BAD_REFERENCE` where a reference is out of range; how many were
            not seen; their bytes (repeats counted).
        """
        numbers, missing, elements = self._run(words, data, starts, ends, False)
        return numbers, missing, elements * self._arena.itemsize

    def intern(self, words: Int32, data: NDArray[np.uint8], starts: Int32, ends: Int32) -> Int32:
        """Looks sequences up and adds those never seen; see `find` and `InternTable.intern`."""
        numbers, missing, elements = self._run(words, data, starts, ends, False)
        if missing:
            self._reserve(missing, elements)
            numbers, _, _ = self._run(words, data, starts, ends, True)
        return numbers

    def _run(
        self, words: Int32, data: NDArray[np.uint8], starts: Int32, ends: Int32, add: bool
    ) -> tuple[Int32, int, int]:
        numbers = np.empty(len(starts), dtype=np.int32)
        missing, elements, self._count, self._last = _find_sequences(
            words, data, starts, ends, self._seed, add, self._count, self._last, self._slots, self._hashes,
            self._starts, self._next, self._arena, numbers,
        )  # fmt: skip
        return numbers, missing, elements


def _grown(array: NDArray[Any], capacity: int, used: int) -> NDArray[Any]:
    grown = np.empty(capacity, dtype=array.dtype)
    grown[:used] = array[:used]
    return grown


@njit(cache=True, nogil=True)
def _find_strings(  # noqa: PLR0913, PLR0917 - a kernel takes flat arrays
    data: Any,
    starts: Any,
    ends: Any,
    seed: Any,
    add: bool,
    count: Any,
    last: Any,
    slots: Any,
    hashes: Any,
    known_starts: Any,
    following: Any,
    arena: Any,
    numbers: Any,
) -> Any:
    base, known = address(data), address(arena)
    missing = 0
    missing_bytes: Any = np.int64(0)
    for index in range(len(starts)):
        start, end = np.int64(starts[index]), np.int64(ends[index])
        size = end - start
        if last >= 0:
            guess = following[last]
            at = known_starts[guess]
            if known_starts[guess + 1] - at == size and same_bytes(known + at, base + start, size):
                numbers[index] = last = guess
                continue
        code = hash_bytes(base + start, size, seed)
        number, slot = _known(code, base + start, size, 1, slots, hashes, known_starts, known)
        if number < 0 and add:
            number = _added(count, code, slot, size, slots, hashes, known_starts, following)
            arena[known_starts[number] : known_starts[number + 1]] = data[start:end]
            count += 1
        if number < 0:
            missing += 1
            missing_bytes += size
        elif last >= 0:
            following[last] = number
        last = np.int64(number)
        numbers[index] = number
    return missing, missing_bytes, count, last


@njit(cache=True, nogil=True)
def _find_sequences(  # noqa: PLR0913, PLR0917 - a kernel takes flat arrays
    words: Any,
    data: Any,
    starts: Any,
    ends: Any,
    seed: Any,
    add: bool,
    count: Any,
    last: Any,
    slots: Any,
    hashes: Any,
    known_starts: Any,
    following: Any,
    arena: Any,
    numbers: Any,
) -> Any:
    base, first, known = address(data), address(words), address(arena)
    limit = np.uint64(len(words))
    sequence = np.empty(0, dtype=np.int32)
    missing = 0
    missing_elements: Any = np.int64(0)
    for index in range(len(starts)):
        start, end = base + np.int64(starts[index]), base + np.int64(ends[index])
        if last >= 0:
            guess = following[last]
            if _is_same(start, end, first, limit, known + 4 * known_starts[guess], known + 4 * known_starts[guess + 1]):
                numbers[index] = last = guess
                continue
        if len(sequence) < end - start:
            sequence = np.empty(2 * (end - start), dtype=np.int32)
        size = _read_references(start, end, words, sequence)
        if size < 0:
            numbers[index] = BAD_REFERENCE
            last = -1
            continue
        code = np.uint64(seed) ^ (np.uint64(size) * np.uint64(0x9E3779B97F4A7C15))
        for place in range(size):
            code = (code ^ np.uint64(sequence[place])) * np.uint64(0xFF51AFD7ED558CCD)
            code ^= code >> np.uint64(32)
        number, slot = _known(code, address(sequence), size, 4, slots, hashes, known_starts, known)
        if number < 0 and add:
            number = _added(count, code, slot, size, slots, hashes, known_starts, following)
            arena[known_starts[number] : known_starts[number + 1]] = sequence[:size]
            count += 1
        if number < 0:
            missing += 1
            missing_elements += size
        elif last >= 0:
            following[last] = number
        last = np.int64(number)
        numbers[index] = number
    return missing, missing_elements, count, last


@njit(cache=True, nogil=True, forceinline=True)
def _known(
    code: Any, content: Any, size: Any, width: int, slots: Any, hashes: Any, known_starts: Any, known: Any
) -> Any:
    """Number of a known entry of `size` elements of `width` bytes, -1 where there is none; and the slot it ends at."""
    mask = np.uint64(len(slots) - 1)
    slot = code & mask
    number = slots[slot]
    while number >= 0:
        at = known_starts[number]
        if (
            hashes[number] == code
            and known_starts[number + 1] - at == size
            and same_bytes(known + width * at, content, width * size)
        ):
            break
        slot = (slot + np.uint64(1)) & mask
        number = slots[slot]
    return number, slot


@njit(cache=True, nogil=True, forceinline=True)
def _added(
    number: Any, code: Any, slot: Any, size: Any, slots: Any, hashes: Any, known_starts: Any, following: Any
) -> Any:
    """Makes room for a new entry behind all others; its number."""
    slots[slot] = number
    hashes[number] = code
    following[number] = 0
    known_starts[number + 1] = known_starts[number] + size
    return np.int32(number)


@njit(cache=True, nogil=True, forceinline=True)
def _is_same(at: Any, end: Any, words: Any, limit: Any, known: Any, known_end: Any) -> Any:
    """Whether references lead to a known sequence; in its order, and only by numbers of one or two bytes."""
    while at < end and known < known_end:
        index = np.uint64(load8(at))
        at += 1
        if index >= 128:
            if at == end or load8(at) >= 128:
                return False
            index = (index & np.uint64(127)) | (np.uint64(load8(at)) << np.uint64(7))
            at += 1
        if index >= limit or load32(words + 4 * np.int64(index)) != load32(known):
            return False
        known += 4
    return at == end and known == known_end


@njit(cache=True, nogil=True)
def _read_references(at: Any, end: Any, words: Any, sequence: Any) -> Any:
    """Fills in what references lead to; how many there are, -1 where one is out of range."""
    size = 0
    while at < end:
        index = np.uint64(0)
        shift = 0
        while shift < 35:
            byte = np.uint64(load8(at))
            at += 1
            index |= (byte & np.uint64(127)) << np.uint64(shift)
            if byte < 128:
                break
            shift += 7
        if shift >= 35 or index >= np.uint64(len(words)):
            return -1
        sequence[size] = words[index]
        size += 1
    return size


@njit(cache=True, nogil=True)
def _fill_slots(slots: Any, hashes: Any, count: Any) -> Any:
    mask = np.uint64(len(slots) - 1)
    for number in range(count):
        slot = hashes[number] & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = number
