"""The inner loop that writes rows as JSON. Compiled by numba, cached beside this file."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def write_rows(  # noqa: PLR0913, PLR0917 - a kernel takes flat arrays
    out: Any,
    at: int,
    starts: Any,
    start_offsets: Any,
    identity: Any,
    ts_ms: Any,
    values: Any,
    names: Any,
    name_offsets: Any,
    scales: Any,
    has_bin: Any,
) -> int:
    """Writes JSON objects, a comma between them.

    Args:
        out: (bytes,) uint8, large enough.
        at: first byte to write.
        starts: (bytes,) what a row of each identity begins with, up to its time.
        start_offsets: (identities + 1,) where each start lies.
        identity: (rows,) place of each row's identity.
        ts_ms: (rows,).
        values: (columns, rows), NaN = missing.
        names: (bytes,) `,"name":` of each column and of its bin.
        name_offsets: (2 × columns + 1,) where each name lies.
        scales: (columns,) what is written is floor(value × scale).
        has_bin: (columns,) whether min(100, floor(100 × value)) follows.

    Returns:
        The byte after the last one written.
    """
    for row in range(len(identity)):
        if row > 0:
            out[at] = 44  # ,
            at += 1
        at = _copy(out, at, starts, start_offsets[identity[row]], start_offsets[identity[row] + 1])
        at = _write_integer(out, at, ts_ms[row])
        for column in range(len(values)):
            value = values[column, row]
            if np.isnan(value):
                continue
            at = _copy(out, at, names, name_offsets[2 * column], name_offsets[2 * column + 1])
            at = _write_integer(out, at, np.int64(np.floor(value * scales[column])))
            if has_bin[column]:
                at = _copy(out, at, names, name_offsets[2 * column + 1], name_offsets[2 * column + 2])
                at = _write_integer(out, at, min(np.int64(100), np.int64(np.floor(100.0 * value))))
        out[at] = 125  # }
        at += 1
    return at


@njit(cache=True, nogil=True)
def _copy(out: Any, at: int, source: Any, start: int, end: int) -> int:
    for place in range(start, end):
        out[at] = source[place]
        at += 1
    return at


@njit(cache=True, nogil=True)
def _write_integer(out: Any, at: int, value: Any) -> int:
    left = np.uint64(value)
    if value < 0:
        out[at] = 45  # -
        at += 1
        left = np.uint64(-value)
    digits = 1
    bound = np.uint64(10)
    while digits < 19 and left >= bound:
        digits += 1
        bound *= np.uint64(10)
    for place in range(at + digits - 1, at - 1, -1):
        rest = left // np.uint64(10)
        out[place] = 48 + np.uint8(left - rest * np.uint64(10))
        left = rest
    return at + digits
