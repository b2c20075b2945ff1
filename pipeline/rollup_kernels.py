"""The inner loops of the rollup: merging partial rows, dropping what was seen before, adding up windows.

All of them walk rows that are sorted by identity and time, once. Called by `rollup_duckdb` (and the last one by the
warehouse's history); compiled by numba and cached beside this file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def merge_rows(order: Any, identity: Any, ts_ms: Any, values: Any) -> Any:
    """Makes one row of all partial rows with the same identity and time: per measure the largest value.

    Args:
        order: (rows,) rows sorted by day, identity and time.
        identity: (rows,).
        ts_ms: (rows,).
        values: (measures, rows), NaN = missing.

    Returns:
        identity, time, values (measures, merged rows), mask of the measures present, in the given order.
    """
    count = 0
    for place in range(len(order)):
        row = order[place]
        if place == 0 or identity[row] != identity[order[place - 1]] or ts_ms[row] != ts_ms[order[place - 1]]:
            count += 1
    out_identity = np.empty(count, dtype=np.int32)
    out_ts = np.empty(count, dtype=np.int64)
    out = np.full((len(values), count), np.nan)
    mask = np.zeros(count, dtype=np.uint32)
    at = -1
    for place in range(len(order)):
        row = order[place]
        if at < 0 or identity[row] != out_identity[at] or ts_ms[row] != out_ts[at]:
            at += 1
            out_identity[at] = identity[row]
            out_ts[at] = ts_ms[row]
        for measure in range(len(values)):
            value = values[measure, row]
            if np.isnan(value):
                continue
            mask[at] |= np.uint32(1) << np.uint32(measure)
            if not (out[measure, at] >= value):
                out[measure, at] = value
    return out_identity, out_ts, out, mask


@njit(cache=True, nogil=True)
def drop_seen(hashes: Any, ts_ms: Any, mask: Any, was_seen: Any, seen_hashes: Any, seen_ts: Any, seen_mask: Any) -> Any:
    """Takes away measures that were rolled up before; both sides are sorted by hash and time.

    Args:
        hashes: (rows,) uint64, hash of each row's identity.
        ts_ms: (rows,).
        mask: (rows,) uint32, changed in place.
        was_seen: (rows,) bool, set where the identity and time were there before, with any measure.
        seen_hashes: (seen,) uint64.
        seen_ts: (seen,).
        seen_mask: (seen,) uint32.
    """
    at = 0
    for row in range(len(hashes)):
        while at < len(seen_hashes) and (
            seen_hashes[at] < hashes[row] or (seen_hashes[at] == hashes[row] and seen_ts[at] < ts_ms[row])
        ):
            at += 1
        if at == len(seen_hashes):
            return
        if seen_hashes[at] == hashes[row] and seen_ts[at] == ts_ms[row]:
            was_seen[row] = True
            mask[row] &= ~seen_mask[at]


@njit(cache=True, nogil=True)
def count_windows(identity: Any, ts_ms: Any, mask: Any, level_ms: int) -> Any:
    """How many (identity, window) groups the rows that bring something new make."""
    groups = 0
    last_identity = -1
    last_window = np.int64(-1)
    for row in range(len(identity)):
        if mask[row] == 0:
            continue
        window = (ts_ms[row] - 1) // level_ms
        if identity[row] != last_identity or window != last_window:
            groups += 1
            last_identity, last_window = identity[row], window
    return groups


@njit(cache=True, nogil=True)
def add_windows(  # noqa: PLR0913, PLR0917 - a kernel takes flat arrays
    identity: Any,
    ts_ms: Any,
    values: Any,
    mask: Any,
    was_seen: Any,
    level_ms: int,
    scales: Any,
    histogram_of: Any,
    out_identity: Any,
    out_window: Any,
    out_samples: Any,
    out_count: Any,
    out_sum: Any,
    out_max: Any,
    offsets: Any,
    bins: Any,
    counts: Any,
) -> Any:
    """Adds rows up by identity and window.

    Args:
        identity: (rows,).
        ts_ms: (rows,), sorted within an identity.
        values: (measures, rows).
        mask: (rows,) measures that are new.
        was_seen: (rows,) the sample was counted before.
        level_ms: length of a window.
        scales: (measures,) float64; a stored integer is floor(value × scale).
        histogram_of: (measures,) which histogram a measure has, -1 for none.
        out_identity: (windows,) and the further outputs of the same length.
        out_window: window start, epoch milliseconds.
        out_samples: samples counted for the first time.
        out_count: (measures, windows).
        out_sum: (measures, windows).
        out_max: (measures, windows).
        offsets: (histograms, windows + 1) where each window's entries begin.
        bins: (histograms, rows) bin of each entry, ascending within a window.
        counts: (histograms, rows) count of each entry.
    """  # fmt: skip
    histograms = len(offsets)
    dense = np.zeros((histograms, 101), dtype=np.int64)
    entries = np.zeros(histograms, dtype=np.int64)
    # Only the bins between the lowest and the highest one touched are looked at: most windows hold few samples.
    low = np.full(histograms, 101, dtype=np.int64)
    high = np.full(histograms, -1, dtype=np.int64)
    group = -1
    for row in range(len(identity)):
        if mask[row] == 0:
            continue
        window = (ts_ms[row] - 1) // level_ms * level_ms
        if group < 0 or identity[row] != out_identity[group] or window != out_window[group]:
            if group >= 0:
                _put_histograms(dense, low, high, entries, bins, counts)
            group += 1
            out_identity[group] = identity[row]
            out_window[group] = window
            out_samples[group] = 0
            out_count[:, group] = 0
            out_sum[:, group] = 0
            out_max[:, group] = np.iinfo(np.int64).min
            offsets[:, group] = entries
        if not was_seen[row]:
            out_samples[group] += 1
        for measure in range(len(values)):
            if not (mask[row] >> np.uint32(measure)) & np.uint32(1):
                continue
            value = values[measure, row]
            stored = np.int64(np.floor(value * scales[measure]))
            out_count[measure, group] += 1
            out_sum[measure, group] += stored
            out_max[measure, group] = max(out_max[measure, group], stored)
            histogram = histogram_of[measure]
            if histogram >= 0:
                place: Any = min(max(np.int64(np.floor(100.0 * value)), 0), 100)
                dense[histogram, place] += 1
                low[histogram] = min(low[histogram], place)
                high[histogram] = max(high[histogram], place)
    if group >= 0:
        _put_histograms(dense, low, high, entries, bins, counts)
    offsets[:, group + 1] = entries


@njit(cache=True, nogil=True)
def _put_histograms(dense: Any, low: Any, high: Any, entries: Any, bins: Any, counts: Any) -> Any:
    for histogram in range(len(dense)):
        for place in range(low[histogram], high[histogram] + 1):
            if dense[histogram, place]:
                bins[histogram, entries[histogram]] = place
                counts[histogram, entries[histogram]] = dense[histogram, place]
                dense[histogram, place] = 0
                entries[histogram] += 1
        low[histogram], high[histogram] = 101, -1


@njit(cache=True, nogil=True)
def add_to_grid(
    row: Any, step: Any, counts: Any, sums: Any, maxima: Any, grid_count: Any, grid_sum: Any, grid_max: Any
) -> Any:
    """Adds windows into a grid of steps.

    Args:
        row: (windows,) grid row, -1 to leave a window out.
        step: (windows,) grid column.
        counts: (windows,) samples of the measure in the window.
        sums: (windows,) their sum.
        maxima: (windows,) their maximum.
        grid_count: (rows, steps) int32, changed in place.
        grid_sum: (rows, steps) float64, changed in place.
        grid_max: (rows, steps) float64, changed in place; -inf where nothing was added.
    """
    for index in range(len(row)):
        if row[index] < 0 or counts[index] == 0:
            continue
        at, column = row[index], step[index]
        grid_count[at, column] += counts[index]
        grid_sum[at, column] += sums[index]
        grid_max[at, column] = max(grid_max[at, column], maxima[index])
