"""The inner loops of a bus record: columns of rows to bytes and back.

Called by `rows`, which knows the record's frame. A section's rows are blocks, one after another; each begins with its
length (u32). A length with the highest bit set says: as the block of the same name in the section before, and nothing
follows. Blocks of a section, in order:

- places of the rows' identities: one byte of width (0: the identities in order; 1, 2 or 4), then the numbers;
- times: width (0, 1, 2, 4 or 8), the earliest (i64), then what each adds to it;
- per column of values, two blocks: who has one (nothing where all have, else a bit per row, lowest first), and the
  values that there are: width, then for width 0 the doubles as they are, else two doubles `per` and `factor`, the
  smallest numerator (i64), and the numerators without it, `width` planes of one byte each, lowest bytes first. A value
  is `numerator / per * factor`, and a column is written this way only where that gives each of them to the last bit: as
  most sources print decimals, it mostly does.

Numbers are little-endian. Compiled by numba and cached beside this file. The compiled functions are handed plain tuples
of the arrays: numba takes 3 µs longer to tell the type of a named one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.remote_write.byte_words import (
    address,
    bits_of,
    float_of,
    load8,
    load32,
    load64,
    same_bytes,
    store8,
    store32,
    store64,
)

SAME = 1 << 31
"""Bit of a block's length: as in the section before."""
BLOCK_BYTES_MAX = 64
"""Most bytes of a block beside eight per row."""
PER = np.array([1.0, 10.0, 100.0, 1e3, 1e4, 1e6])
"""Denominators that are tried."""

_NUMERATOR_SPAN_MAX = 2.0**31
_PLACES, _TIMES, _COLUMNS = 0, 1, 2
"""Where the blocks of a section are remembered; those of measure m at `_COLUMNS` + 2 m and behind it."""


class SectionRows(NamedTuple):
    """Rows of one section.

    Attributes:
        places: (rows,) int32, place of each row's identity.
        ts_ms: (rows,) int64.
        measures: (columns,) int64, what the columns are.
        values: (columns, rows) float64, NaN = missing.
    """

    places: NDArray[np.int32]
    ts_ms: NDArray[np.int64]
    measures: NDArray[np.int64]
    values: NDArray[np.float64]


class Written(NamedTuple):
    """What the sections before had, of every record, so that a section refers to it instead of repeating it.

    Attributes:
        blocks: (records, ...) where the blocks of the section before lie, as `no_blocks` makes it.
        present: (measures, rows) float64, values of each measure.
        starts: (records,) where those of a record begin in `present`, with room for its largest section.
        counts: (records, measures) int64, how many values that was, -1 for none yet.
    """

    blocks: NDArray[np.int64]
    present: NDArray[np.float64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]


def no_blocks(measures: int) -> NDArray[np.int64]:
    """What `blocks` is before the first section: no place has a block."""
    return np.full((_COLUMNS + 2 * measures, 2), -1, dtype=np.int64)


def nothing_written(measures: int, rows: NDArray[np.int64]) -> Written:
    """What there is before the first section.

    Args:
        rows: (records,) rows of each record's largest section.
    """
    return Written(
        blocks=np.full((len(rows), _COLUMNS + 2 * measures, 2), -1, dtype=np.int64),
        present=np.empty((measures, int(rows.sum()))),
        starts=np.cumsum(rows) - rows,
        counts=np.full((len(rows), measures), -1, dtype=np.int64),
    )


@njit(cache=True, nogil=True)
def write_sections(out: Any, ends: Any, identities: Any, starts: Any, rows: Any, factors: Any, before: Any) -> None:
    """Writes the blocks of one section of each record; a record without rows has none.

    Args:
        out: uint8, with room for each record's rows: 9 bytes per row and column, and `BLOCK_BYTES_MAX` for each block.
        ends: (records,) int64, where the next byte of each record goes; changed.
        identities: (records,) how many each has in this section.
        starts: (records + 1,) int64, first row of each record, and the end of the last one.
        rows: `SectionRows`, those of a record together.
        factors: (measures, factors) float64: by what the values of each measure may have been multiplied.
        before: what the sections before had, `Written`; changed.
    """
    places, ts_ms, measures, values = rows
    blocks, present, present_starts, counts = before
    most = 0
    for record in range(len(ends)):
        most = max(most, starts[record + 1] - starts[record])
    fresh = np.empty(most + 1, dtype=np.float64)
    numerators = np.empty(most, dtype=np.int64)
    base = address(out)
    for record in range(len(ends)):
        first, end = starts[record], starts[record + 1]
        if first == end:
            continue
        own = blocks[record]
        start = ends[record] + 4
        size = _write_places(base + start, identities[record], places[first:end])
        at = _close(base, start, start + size, own, _PLACES)
        start = at + 4
        at = _close(base, start, start + _write_times(base + start, ts_ms[first:end]), own, _TIMES)
        for column in range(len(measures)):
            measure = measures[column]
            at, count = _write_present(base, at, values[column, first:end], fresh, own, _COLUMNS + 2 * measure)
            start = at + 4
            known = present[measure, present_starts[record] :]
            if counts[record, measure] == count and same_bytes(address(known), address(fresh), 8 * count):
                store32(base + at, np.uint32(SAME))
                at = start
                continue
            size = _write_values(base + start, fresh[:count], factors[measure], numerators)
            at = _close(base, start, start + size, own, _COLUMNS + 2 * measure + 1)
            known[:count] = fresh[:count]
            counts[record, measure] = count
        ends[record] = at


@njit(cache=True, nogil=True)
def _write_present(base: Any, at: Any, values: Any, fresh: Any, blocks: Any, block: int) -> Any:
    """Writes which rows have a value; the position after it, and how many of `fresh` are now the values there are."""
    rows = len(values)
    start = at + 4
    count = 0
    bits: Any = np.int64(0)
    for row in range(rows):
        value = values[row]
        is_present = not np.isnan(value)
        bits |= np.int64(is_present) << (row & 7)
        fresh[count] = value
        count += is_present
        if row & 7 == 7 or row == rows - 1:
            store8(base + start + (row >> 3), np.uint8(bits))
            bits = np.int64(0)
    return _close(base, start, start if count == rows else start + (rows + 7) // 8, blocks, block), count


@njit(cache=True, nogil=True)
def _close(base: Any, start: Any, end: Any, blocks: Any, block: int) -> Any:
    """Writes a block's length before it, or takes the block back where the section before has the same; the end."""
    size = end - start
    if size > 0 and blocks[block, 1] == size and same_bytes(base + blocks[block, 0], base + start, size):
        store32(base + start - 4, np.uint32(SAME))
        return start
    blocks[block, 0], blocks[block, 1] = start, size
    store32(base + start - 4, np.uint32(size))
    return end


@njit(cache=True, nogil=True)
def _write_places(to: Any, identities: int, places: Any) -> Any:
    rows = len(places)
    is_ordered = identities == rows
    for row in range(rows):
        is_ordered &= places[row] == row
    if is_ordered:
        store8(to, np.uint8(0))
        return 1
    width = 1 if identities <= 1 << 8 else 2 if identities <= 1 << 16 else 4
    store8(to, np.uint8(width))
    for row in range(rows):
        _put(to + 1 + row * width, np.uint64(places[row]), width)
    return 1 + rows * width


@njit(cache=True, nogil=True)
def _write_times(to: Any, ts_ms: Any) -> Any:
    rows = len(ts_ms)
    low = high = ts_ms[0] if rows > 0 else np.int64(0)
    for row in range(rows):
        low, high = min(low, ts_ms[row]), max(high, ts_ms[row])
    span = np.uint64(high) - np.uint64(low)
    width = 8
    for narrow in (4, 2, 1):
        if span >> np.uint64(8 * narrow) == 0:
            width = narrow
    if span == 0:
        width = 0
    store8(to, np.uint8(width))
    store64(to + 1, np.uint64(low))
    for row in range(rows if width > 0 else 0):
        _put(to + 9 + row * width, np.uint64(ts_ms[row]) - np.uint64(low), width)
    return 9 + rows * width


@njit(cache=True, nogil=True)
def _write_values(to: Any, values: Any, factors: Any, numerators: Any) -> Any:
    count = len(values)
    if count > 0:
        for factor in factors:
            for per in PER:
                span = _numerators(values, per, factor, numerators)
                if span < 0:
                    continue
                low = numerators[0]
                for index in range(count):
                    low = min(low, numerators[index])
                width = 1 if span < 1 << 8 else 2 if span < 1 << 16 else 3 if span < 1 << 24 else 4
                store8(to, np.uint8(width))
                store64(to + 1, bits_of(per))
                store64(to + 9, bits_of(factor))
                store64(to + 17, np.uint64(low))
                for plane in range(width):
                    at = to + 25 + plane * count
                    for index in range(count):
                        store8(at + index, np.uint8(((numerators[index] - low) >> (8 * plane)) & 255))
                return 25 + width * count
    store8(to, np.uint8(0))
    for index in range(count):
        store64(to + 1 + 8 * index, bits_of(values[index]))
    return 1 + 8 * count


@njit(cache=True, nogil=True)
def _numerators(values: Any, per: float, factor: float, numerators: Any) -> Any:
    """Fills in what over `per` times `factor` gives every value to the last bit; their span, -1 where nothing does."""
    smallest, largest = np.inf, -np.inf
    for index in range(len(values)):
        value = values[index]
        numerator = np.rint(value / factor * per)
        if not abs(numerator) < 2.0**53:
            return -1
        # By the integer, and by the bits: -0.0 and 0.0 compare alike.
        if bits_of((np.float64(np.int64(numerator)) / per) * factor) != bits_of(value):
            return -1
        smallest, largest = min(smallest, numerator), max(largest, numerator)
        if not largest - smallest < _NUMERATOR_SPAN_MAX:
            return -1
        numerators[index] = np.int64(numerator)
    return np.int64(largest - smallest)


@njit(cache=True, nogil=True)
def _put(to: Any, value: Any, width: Any) -> Any:
    if width == 1:
        store8(to, np.uint8(value))
    elif width == 4:
        store32(to, np.uint32(value))
    elif width == 8:
        store64(to, value)
    else:
        store8(to, np.uint8(value & np.uint64(255)))
        store8(to + 1, np.uint8((value >> np.uint64(8)) & np.uint64(255)))


@njit(cache=True, nogil=True)
def read_section(data: Any, at: Any, identities: int, rows: Any, blocks: Any) -> Any:
    """Reads the blocks of one section; returns the position after it, -1 where the bytes are no such section.

    Args:
        data: uint8, all sections.
        rows: output, `SectionRows`; its `measures` say what the columns are.
        blocks: where the blocks of the section before lie (`no_blocks`); changed.
    """
    places, ts_ms, measures, values = rows
    base, end = address(data), len(data)
    at = _open(base, at, end, blocks, _PLACES)
    if at < 0 or not _read_places(base + blocks[_PLACES, 0], blocks[_PLACES, 1], identities, places):
        return -1
    at = _open(base, at, end, blocks, _TIMES)
    if at < 0 or not _read_times(base + blocks[_TIMES, 0], blocks[_TIMES, 1], ts_ms):
        return -1
    count_of_rows = len(places)
    for column in range(len(measures)):
        block = _COLUMNS + 2 * measures[column]
        at = _open(base, at, end, blocks, block)
        if at < 0:
            return -1
        bits, size = base + blocks[block, 0], blocks[block, 1]
        if size not in (0, (count_of_rows + 7) // 8):
            return -1
        count = 0 if size > 0 else count_of_rows
        for row in range(count_of_rows if size > 0 else 0):
            count += (load8(bits + (row >> 3)) >> (row & 7)) & 1
        at = _open(base, at, end, blocks, block + 1)
        if at < 0 or not _read_values(
            base + blocks[block + 1, 0], blocks[block + 1, 1], bits, size > 0, count, values[column]
        ):
            return -1
    return at


@njit(cache=True, nogil=True)
def _open(base: Any, at: Any, end: Any, blocks: Any, block: int) -> Any:
    """Notes where a block lies; the position after it, -1 where it is cut or refers to none."""
    if at + 4 > end:
        return -1
    size = np.int64(load32(base + at))
    if size == SAME:
        return at + 4 if blocks[block, 0] >= 0 else -1
    if size > end - at - 4:
        return -1
    blocks[block, 0], blocks[block, 1] = at + 4, size
    return at + 4 + size


@njit(cache=True, nogil=True)
def _read_places(at: Any, size: Any, identities: int, places: Any) -> Any:
    rows = len(places)
    width = np.int64(load8(at)) if size > 0 else -1
    if width == 0:
        for row in range(rows):
            places[row] = row
        return size == 1 and identities == rows
    if width not in (1, 2, 4) or size != 1 + rows * width:
        return False
    for row in range(rows):
        place = _taken(at + 1 + row * width, width)
        if place >= np.uint64(identities):
            return False
        places[row] = np.int32(place)
    return True


@njit(cache=True, nogil=True)
def _read_times(at: Any, size: Any, ts_ms: Any) -> Any:
    rows = len(ts_ms)
    width = np.int64(load8(at)) if size > 0 else -1
    if width not in (0, 1, 2, 4, 8) or size != 9 + rows * width:
        return False
    low = load64(at + 1)
    for row in range(rows):
        ts_ms[row] = np.int64(low + (_taken(at + 9 + row * width, width) if width > 0 else np.uint64(0)))
    return True


@njit(cache=True, nogil=True)
def _read_values(at: Any, size: Any, bits: Any, has_bits: bool, count: int, out: Any) -> Any:
    width = np.int64(load8(at)) if size > 0 else -1
    if not 0 <= width <= 4 or size != (1 + 8 * count if width == 0 else 25 + width * count):
        return False
    per = factor = 1.0
    low = np.int64(0)
    if width > 0:
        per, factor, low = float_of(load64(at + 1)), float_of(load64(at + 9)), np.int64(load64(at + 17))
        if not (per > 0.0 and factor > 0.0):
            return False
    index = 0
    for row in range(len(out)):
        if has_bits and not (load8(bits + (row >> 3)) >> (row & 7)) & 1:
            out[row] = np.nan
            continue
        if width == 0:
            out[row] = float_of(load64(at + 1 + 8 * index))
        else:
            number = np.int64(0)
            for plane in range(width):
                number |= np.int64(load8(at + 25 + plane * count + index)) << (8 * plane)
            out[row] = (np.float64(low + number) / per) * factor
        index += 1
    return True


@njit(cache=True, nogil=True)
def _taken(at: Any, width: Any) -> Any:
    if width == 1:
        return np.uint64(load8(at))
    if width == 2:
        return np.uint64(load8(at)) | (np.uint64(load8(at + 1)) << np.uint64(8))
    return np.uint64(load32(at)) if width == 4 else load64(at)
