"""Which new series have plain labels: all rules hold, and nothing about them needs a closer look.

Called by `series_table` for all series of a request that it has never seen, at once: reading labels one series after
another in Python would make the first minutes of a receiver long. Plain is: the usual layout, names sorted and not
repeated, ASCII, within the limits, with a metric name. Others are read in Python, which can also say what is wrong.
Compiled by numba and cached beside this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from pipeline.remote_write.byte_words import Texts, address, load8, load64, same_bytes
from pipeline.remote_write.intern_table import InternTable, SequenceTable
from pipeline.remote_write.label_sets import LabelLimits

_METRIC_NAME = np.frombuffer(b"__name__", dtype=np.uint8)


def plain_names(
    table: InternTable | SequenceTable, before: int, symbols: InternTable | None, limits: LabelLimits
) -> tuple[list[bytes | None], Callable[[int], bytes]]:
    """The metric's name of each new label set, None where it needs a closer look; and its other labels' bytes.

    Args:
        table: version 1's label fields, or version 2's symbols.
        before: the first new entry.
        symbols: version 2's symbols; None for version 1.
    """
    starts, arena = table.starts[before:], table.arena
    if symbols is None:
        spans = np.empty((len(starts) - 1, 2), dtype=np.int64)
        pairs = np.empty_like(spans)
        plain_regions(arena, starts, limits.labels_max, limits.label_bytes_max, spans, pairs)
        names = [None if at < 0 else arena[at:end].tobytes() for at, end in spans.tolist()]
        bounds = np.column_stack((starts[:-1], pairs, starts[1:])).tolist()
    else:
        numbers = np.empty(len(starts) - 1, dtype=np.int64)
        places = np.empty_like(numbers)
        known = Texts(data=symbols.arena, starts=symbols.starts)
        plain_sequences(arena, starts, known, limits.labels_max, limits.label_bytes_max, numbers, places)
        texts = {symbol: symbols.bytes_of(symbol) for symbol in set(numbers.tolist()) if symbol >= 0}
        names = [texts.get(symbol) for symbol in numbers.tolist()]
        bounds = np.column_stack((starts[:-1], places, places + 2, starts[1:])).tolist()

    def rest_of(place: int) -> bytes:
        start, pair, pair_end, end = bounds[place]
        return arena[start:pair].tobytes() + arena[pair_end:end].tobytes()

    return names, rest_of


@njit(cache=True, nogil=True)
def plain_regions(
    arena: Any, starts: Any, labels_max: int, label_bytes_max: int, names: Any, pairs: Any
) -> Any:  # fmt: skip
    """Looks at version 1's label fields.

    Args:
        starts: (series + 1,) int64, where each series' label fields begin and the last one's end.
        names: (series, 2) int64, output: start and end of the metric's name; -1 where the labels are not plain.
        pairs: (series, 2) int64, output: start and end of the label that holds it.
    """
    base, metric_name = address(arena), address(_METRIC_NAME)
    for series in range(len(starts) - 1):
        at, end = base + starts[series], base + starts[series + 1]
        names[series] = -1
        name = pair = name_end = pair_end = np.int64(0)
        before = before_size = np.int64(0)
        labels = 0
        while at < end:
            begin = at
            size, at = _field(at, end, 10)
            stop = at + size
            if size < 0 or stop > end:
                break
            key_size, key = _field(at, stop, 10)
            if key_size <= 0 or key + key_size > stop:
                break
            value_size, value = _field(key + key_size, stop, 18)
            if value_size < 0 or value + value_size != stop or max(key_size, value_size) > label_bytes_max:
                break
            if not (_is_ascii(key, key_size) and _is_ascii(value, value_size)):
                break
            if labels > 0 and not _is_less(before, before_size, key, key_size):
                break
            before, before_size = key, key_size
            labels += 1
            if key_size == 8 and same_bytes(key, metric_name, 8):
                name, name_end, pair, pair_end = value, value + value_size, begin, stop
            at = stop
        if at == end and name_end > name and labels <= labels_max:
            names[series, 0], names[series, 1] = name - base, name_end - base
            pairs[series, 0], pairs[series, 1] = pair - base, pair_end - base


@njit(cache=True, nogil=True)
def plain_sequences(
    words: Any, starts: Any, symbols: Any, labels_max: int, label_bytes_max: int, names: Any, pairs: Any
) -> Any:
    """Looks at version 2's symbols.

    Args:
        words: int32, symbols of all series, names and values in turn.
        starts: (series + 1,) int64, where each series' symbols begin and the last one's end.
        symbols: the symbols, `Texts`.
        names: (series,) int64, output: symbol of the metric's name; -1 where the labels are not plain.
        pairs: (series,) int64, output: place in `words` of the label that holds it.
    """
    base, symbol_starts, metric_name = address(symbols.data), symbols.starts, address(_METRIC_NAME)
    for series in range(len(starts) - 1):
        names[series] = -1
        start, end = starts[series], starts[series + 1]
        if (end - start) % 2 or end - start > 2 * labels_max:
            continue
        name: Any = np.int64(-1)
        pair: Any = np.int64(-1)
        before = before_size = np.int64(0)
        is_plain = True
        for place in range(start, end, 2):
            key = base + symbol_starts[words[place]]
            key_size = base + symbol_starts[words[place] + 1] - key
            value = base + symbol_starts[words[place + 1]]
            value_size = base + symbol_starts[words[place + 1] + 1] - value
            is_plain = (
                0 < key_size <= label_bytes_max
                and value_size <= label_bytes_max
                and _is_ascii(key, key_size)
                and _is_ascii(value, value_size)
                and (place == start or _is_less(before, before_size, key, key_size))
            )
            if not is_plain:
                break
            before, before_size = key, key_size
            if key_size == 8 and value_size > 0 and same_bytes(key, metric_name, 8):
                name, pair = np.int64(words[place + 1]), np.int64(place)
        if is_plain and name >= 0:
            names[series], pairs[series] = name, pair


@njit(cache=True, nogil=True, forceinline=True)
def _field(at: Any, end: Any, tag: int) -> Any:
    """Length and start of a length-delimited field of one tag; length -1 where it is none, or longer than 16383."""
    if at + 2 > end or load8(at) != tag:
        return np.int64(-1), at
    low = np.int64(load8(at + 1))
    if low < 128:
        return low, at + 2
    if at + 3 > end or load8(at + 2) > 127:
        return np.int64(-1), at
    return (low & 127) | (np.int64(load8(at + 2)) << 7), at + 3


@njit(cache=True, nogil=True, forceinline=True)
def _is_ascii(at: Any, size: Any) -> Any:
    bits = np.uint64(0)
    place = 0
    while place + 8 <= size:
        bits |= load64(at + place)
        place += 8
    while place < size:
        bits |= np.uint64(load8(at + place))
        place += 1
    return bits & np.uint64(0x8080808080808080) == 0


@njit(cache=True, nogil=True, forceinline=True)
def _is_less(left: Any, left_size: Any, right: Any, right_size: Any) -> Any:
    for place in range(min(left_size, right_size)):
        a, b = load8(left + place), load8(right + place)
        if a != b:
            return a < b
    return left_size < right_size
