"""Numbers byte strings and sequences: the same content always gets the same number, verified element by element.

`series_table` keeps three of these: the label regions of version 1, the symbols of version 2, and the symbol numbers of
version 2's series. Senders repeat their series in much the same order, so every entry remembers which one came after it
last time; a guess that holds costs one comparison and no hash. Behind it: open addressing over flat arrays, the content
in an arena.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.remote_write.byte_words import address, hash_bytes, load8, load32, same_bytes

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

BAD_REFERENCE = -2
"""What stands for a sequence that refers to what is not there."""

_SLOTS_MIN = 1024
_GROWTH = 1.125


class _Table(NamedTuple):
    """A table's arrays.

    Compiled functions are handed a plain tuple of them: numba takes 3 µs longer to tell the type of a named one.

    Attributes:
        seed: what hashing begins with.
        slots: number of the entry that each slot holds, -1 for none; a power of two of them.
        starts: first element of each entry, and the end of the last.
        following: which entry came after each one the last time.
        arena: the content of all entries one after another.
    """

    seed: np.uint64
    slots: Int32
    hashes: NDArray[np.uint64]
    starts: Int64
    following: Int32
    arena: NDArray[Any]


class _Entries:
    """What both tables share: flat arrays that grow.

    Args:
        seed: what hashing begins with; unknown to senders, so that they can't craft content that collides.
        element: type of the arena's elements.
    """

    def __init__(self, seed: int, element: type[np.generic]) -> None:
        self._count = 0
        self._last = -1
        self._table = _Table(
            seed=np.uint64(seed),
            slots=np.full(_SLOTS_MIN, -1, dtype=np.int32),
            hashes=np.empty(_SLOTS_MIN, dtype=np.uint64),
            starts=np.zeros(_SLOTS_MIN + 1, dtype=np.int64),
            following=np.zeros(_SLOTS_MIN, dtype=np.int32),
            arena=np.empty(1 << 14, dtype=element),
        )

    def __len__(self) -> int:
        return self._count

    @property
    def arena_bytes(self) -> int:
        return int(self._table.starts[self._count]) * self._table.arena.itemsize

    @property
    def memory_bytes(self) -> int:
        """Bytes that the table takes, reserves included."""
        return sum(part.nbytes for part in self._table[1:])

    @property
    def arena(self) -> NDArray[Any]:
        return self._table.arena

    def part(self, number: int) -> NDArray[Any]:
        return self._table.arena[self._table.starts[number] : self._table.starts[number + 1]]

    @property
    def starts(self) -> Int64:
        """First element of each entry, and the end of the last, shape (entries + 1,)."""
        return self._table.starts[: self._count + 1]

    def _reserve(self, more: int, more_elements: int) -> None:
        table, count = self._table, self._count + more
        # In place: the system moves pages of large arrays, so that there are never two copies. Nobody holds a view.
        if count > len(table.hashes):
            capacity = max(count, int(_GROWTH * len(table.hashes)))
            table.hashes.resize(capacity, refcheck=False)
            table.following.resize(capacity, refcheck=False)
            table.starts.resize(capacity + 1, refcheck=False)
        used = int(table.starts[self._count])
        if used + more_elements > len(table.arena):
            table.arena.resize(max(used + more_elements, int(_GROWTH * len(table.arena))), refcheck=False)
        if 3 * count > 2 * len(table.slots):
            table = table._replace(slots=np.full(1 << int(3 * count // 2).bit_length(), -1, dtype=np.int32))
            _fill_slots(table.slots, table.hashes, self._count)
        self._table = table

    def keep(self, is_kept: NDArray[np.bool_]) -> Int32:
        """Forgets all other entries; the ones that stay move up, in their order, and so do their bytes.

        Args:
            is_kept: of each entry.

        Returns:
            New number of each entry, -1 for one that is forgotten.
        """
        table, numbers = self._table, np.empty(self._count, dtype=np.int32)
        self._count = int(_keep(is_kept, numbers, table.hashes, table.starts, table.following, table.arena))
        self._last = -1
        self._fill(table)
        return numbers

    def _fill(self, table: _Table) -> None:
        table.slots[:] = -1
        _fill_slots(table.slots, table.hashes, self._count)


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
            starts: first byte of each, shape (strings,).
            ends: byte after the last of each, shape (strings,).

        Returns:
            Number of each, -1 where it was never seen; how many were not seen; their bytes (repeats counted).
        """
        return self._run(data, starts, ends, 0)

    def intern(self, data: NDArray[np.uint8], starts: Int32, ends: Int32, more_max: int | None = None) -> Int32:
        """Looks strings up and adds those never seen; new ones get the next numbers in the order of their first place.

        Args:
            more_max: how many are added at most; None for all.

        Returns:
            Number of each, -1 for one that was not added.
        """
        numbers, missing, missing_bytes = self.find(data, starts, ends)
        more = missing if more_max is None else min(missing, more_max)
        if more > 0:
            self._reserve(more, missing_bytes)
            numbers, _, _ = self._run(data, starts, ends, self._count + more)
        return numbers

    def _run(self, data: NDArray[np.uint8], starts: Int32, ends: Int32, count_max: int) -> tuple[Int32, int, int]:
        numbers, missing, missing_bytes, self._count, self._last = _find_strings(
            (data, starts, ends), tuple(self._table), count_max, self._count, self._last
        )
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
            data: where the references lie; each run of them ends with a byte below 128.
            starts: first byte of each sequence's references, shape (sequences,).
            ends: byte after the last of each, shape (sequences,).

        Returns:
            Number of each, -1 where it was never seen or refers to what has no number (-1 in `words`), `BAD_REFERENCE`
            where a reference is out of range; how many could be added; their bytes (repeats counted).
        """
        numbers, missing, elements = self._run(words, data, starts, ends, 0)
        return numbers, missing, elements * self._table.arena.itemsize

    def intern(
        self, words: Int32, data: NDArray[np.uint8], starts: Int32, ends: Int32, more_max: int | None = None
    ) -> Int32:
        """Looks sequences up and adds those never seen; see `find` and `InternTable.intern`."""
        numbers, missing, elements = self._run(words, data, starts, ends, 0)
        more = missing if more_max is None else min(missing, more_max)
        if more > 0:
            self._reserve(more, elements)
            numbers, _, _ = self._run(words, data, starts, ends, self._count + more)
        return numbers

    def renumber(self, numbers: Int32) -> None:
        """Gives the elements of all sequences new numbers.

        Args:
            numbers: new number of each.
        """
        table = self._table
        _renumber(numbers, table.seed, table.hashes, table.starts[: self._count + 1], table.arena)
        self._fill(table)

    def _run(
        self, words: Int32, data: NDArray[np.uint8], starts: Int32, ends: Int32, count_max: int
    ) -> tuple[Int32, int, int]:
        numbers, missing, elements, self._count, self._last = _find_sequences(
            words, (data, starts, ends), tuple(self._table), count_max, self._count, self._last
        )
        return numbers, missing, elements


@njit(cache=True, nogil=True)
def _find_strings(looked: Any, table: Any, count_max: int, count: Any, last: Any) -> Any:
    data, starts, ends = looked
    seed, _, _, known_starts, following, arena = table
    base, known = address(data), address(arena)
    numbers = np.empty(len(starts), dtype=np.int32)
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
        number, slot = _known(table, known, code, base + start, size, 1)
        if number < 0 and count < count_max:
            number = _added(table, count, code, slot, size)
            arena[known_starts[number] : known_starts[number + 1]] = data[start:end]
            count += 1
        if number < 0:
            missing += 1
            missing_bytes += size
        elif last >= 0:
            following[last] = number
        last = np.int64(number)
        numbers[index] = number
    return numbers, missing, missing_bytes, count, last


@njit(cache=True, nogil=True)
def _find_sequences(words: Any, looked: Any, table: Any, count_max: int, count: Any, last: Any) -> Any:
    data, starts, ends = looked
    seed, _, _, known_starts, following, arena = table
    base, first, known = address(data), address(words), address(arena)
    numbers = np.empty(len(starts), dtype=np.int32)
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
            numbers[index] = size
            last = -1
            continue
        code = _hash_of(sequence, 0, size, seed)
        number, slot = _known(table, known, code, address(sequence), size, 4)
        if number < 0 and count < count_max:
            number = _added(table, count, code, slot, size)
            arena[known_starts[number] : known_starts[number + 1]] = sequence[:size]
            count += 1
        if number < 0:
            missing += 1
            missing_elements += size
        elif last >= 0:
            following[last] = number
        last = np.int64(number)
        numbers[index] = number
    return numbers, missing, missing_elements, count, last


@njit(cache=True, nogil=True, forceinline=True)
def _hash_of(words: Any, start: Any, size: Any, seed: Any) -> Any:
    code = np.uint64(seed) ^ (np.uint64(size) * np.uint64(0x9E3779B97F4A7C15))
    for place in range(start, start + size):
        code = (code ^ np.uint64(words[place])) * np.uint64(0xFF51AFD7ED558CCD)
        code ^= code >> np.uint64(32)
    return code


@njit(cache=True, nogil=True)
def _keep(is_kept: Any, numbers: Any, hashes: Any, starts: Any, following: Any, arena: Any) -> Any:
    """Moves entries that stay over those that don't; fills in new numbers, returns how many stay."""
    kept = 0
    used = np.int64(0)
    for number in range(len(is_kept)):
        numbers[number] = -1
        if not is_kept[number]:
            continue
        start, end = starts[number], starts[number + 1]
        for at in range(start, end):
            arena[used + at - start] = arena[at]
        numbers[number] = kept
        hashes[kept], following[kept], starts[kept] = hashes[number], following[number], used
        used += end - start
        kept += 1
    starts[kept] = used
    for number in range(kept):
        following[number] = max(numbers[following[number]], 0)
    return kept


@njit(cache=True, nogil=True)
def _renumber(numbers: Any, seed: Any, hashes: Any, starts: Any, arena: Any) -> Any:
    for place in range(starts[-1]):
        arena[place] = numbers[arena[place]]
    for number in range(len(starts) - 1):
        hashes[number] = _hash_of(arena, starts[number], starts[number + 1] - starts[number], seed)


@njit(cache=True, nogil=True, forceinline=True)
def _known(table: Any, known: Any, code: Any, content: Any, size: Any, width: int) -> Any:
    """Number of a known entry of `size` elements of `width` bytes, -1 where there is none; and the slot it ends at."""
    _, slots, hashes, known_starts, _, _ = table
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
def _added(table: Any, number: Any, code: Any, slot: Any, size: Any) -> Any:
    """Makes room for a new entry behind all others; its number."""
    _, slots, hashes, known_starts, following, _ = table
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
    """Fills in what references lead to; how many there are, `BAD_REFERENCE`, or -1 where one leads to no number."""
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
            return BAD_REFERENCE
        if words[index] < 0:
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
