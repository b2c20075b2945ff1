"""The inner loops of the rollup: merging partial rows, dropping what was seen before, adding up windows.

All of them walk rows that are sorted by identity and time, once. Called by `rollup_duckdb` (and the last one by the
warehouse's history); compiled by numba and cached beside this file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray


class SampleRows(NamedTuple):
    """Samples of one partition, sorted by identity and time, each (identity, time) once.

    Attributes:
        identity: (samples,) place in the identities.
        ts_ms: (samples,) end of each sample's step.
        values: (measures, samples), NaN = missing.
        mask: (samples,) which measures are new, bit i for row i of `values`.
        was_seen: (samples,) whether the sample was counted before.
    """

    identity: NDArray[np.int32]
    ts_ms: NDArray[np.int64]
    values: NDArray[np.float64]
    mask: NDArray[np.uint32]
    was_seen: NDArray[np.bool_]


class Windows(NamedTuple):
    """Windows of one level, sorted by identity and time.

    Attributes:
        identity: (windows,) place in the identities.
        start: (windows,) epoch milliseconds.
        samples: (windows,) samples counted for the first time.
        counts: (measures, windows) values.
        totals: (measures, windows) their sum, as stored integers.
        maxima: (measures, windows) their maximum, likewise.
        offsets: (histograms, windows + 1) where each window's entries begin.
        bins: (histograms, entries) bin of each entry, ascending within a window.
        bin_counts: (histograms, entries) count of each entry.
    """

    identity: NDArray[np.int32]
    start: NDArray[np.int64]
    samples: NDArray[np.int64]
    counts: NDArray[np.int64]
    totals: NDArray[np.int64]
    maxima: NDArray[np.int64]
    offsets: NDArray[np.int64]
    bins: NDArray[np.int32]
    bin_counts: NDArray[np.int64]


class Sums(NamedTuple):
    """How many samples, their sum and their maximum; of one shape."""

    counts: NDArray[Any]
    totals: NDArray[Any]
    maxima: NDArray[Any]


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
    rows = len(order)
    at_of = np.empty(rows, dtype=np.int32)
    at = -1
    for place in range(rows):
        row = order[place]
        if place == 0 or identity[row] != identity[order[place - 1]] or ts_ms[row] != ts_ms[order[place - 1]]:
            at += 1
        at_of[place] = at
    count = at + 1
    out_identity = np.empty(count, dtype=np.int32)
    out_ts = np.empty(count, dtype=np.int64)
    for place in range(rows):
        out_identity[at_of[place]] = identity[order[place]]
        out_ts[at_of[place]] = ts_ms[order[place]]
    out = np.empty((len(values), count))
    mask = np.zeros(count, dtype=np.uint32)
    # One measure after the other: what is read out of order then fits the cache.
    for measure in range(len(values)):
        bit = np.uint32(1) << np.uint32(measure)
        before = -1
        for place in range(rows):
            at = at_of[place]
            value = values[measure, order[place]]
            if at != before:
                out[measure, at] = value
                before = at
            elif not (out[measure, at] >= value) and not np.isnan(value):
                out[measure, at] = value
            if not np.isnan(value):
                mask[at] |= bit
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
def add_windows(rows: Any, level_ms: int, scales: Any, histogram_of: Any, windows: Any) -> None:
    """Adds rows up by identity and window.

    Args:
        scales: (measures,) float64; a stored integer is floor(value × scale).
        histogram_of: (measures,) which histogram a measure has, -1 for none.
        windows: output, `Windows` with room for as many as `count_windows` says.
    """
    samples, mask = len(rows.identity), rows.mask
    group_of = np.empty(samples, dtype=np.int32)
    _number_windows(rows, level_ms, windows, group_of)
    out_count, out_sum, out_max = windows.counts, windows.totals, windows.maxima
    offsets, bins, counts = windows.offsets, windows.bins, windows.bin_counts
    dense = np.zeros(101, dtype=np.int64)
    for measure in range(len(rows.values)):
        out_count[measure, :] = 0
        out_sum[measure, :] = 0
        out_max[measure, :] = np.iinfo(np.int64).min
        histogram = histogram_of[measure]
        scale = scales[measure]
        bit = np.uint32(1) << np.uint32(measure)
        entries = 0
        last = -1
        # Only the bins between the lowest and the highest one touched are looked at: most windows hold few samples.
        low, high = 101, -1
        for row in range(samples):
            if mask[row] & bit == 0:
                continue
            group = group_of[row]
            value = rows.values[measure, row]
            stored = np.int64(np.floor(value * scale))
            out_count[measure, group] += 1
            out_sum[measure, group] += stored
            out_max[measure, group] = max(out_max[measure, group], stored)
            if histogram < 0:
                continue
            if group != last:
                entries = _put_bins(dense, low, high, entries, bins[histogram], counts[histogram])
                for following in range(last + 1, group + 1):
                    offsets[histogram, following] = entries
                low, high, last = 101, -1, group
            place: Any = min(max(np.int64(np.floor(100.0 * value)), 0), 100)
            dense[place] += 1
            low, high = min(low, place), max(high, place)
        if histogram >= 0:
            entries = _put_bins(dense, low, high, entries, bins[histogram], counts[histogram])
            for following in range(last + 1, len(windows.identity) + 1):
                offsets[histogram, following] = entries


@njit(cache=True, nogil=True)
def _number_windows(rows: Any, level_ms: int, windows: Any, group_of: Any) -> None:
    """Fills in identity and start of each window, and the window of each row, -1 for rows that bring nothing new."""
    identity, ts_ms = rows.identity, rows.ts_ms
    out_identity, out_window, out_samples = windows.identity, windows.start, windows.samples
    group = -1
    end = np.int64(0)
    for row in range(len(identity)):
        if rows.mask[row] == 0:
            group_of[row] = -1
            continue
        # Rows come sorted by time: only one that lies beyond the window, or is another's, needs the division.
        if group < 0 or identity[row] != out_identity[group] or ts_ms[row] > end:
            group += 1
            out_identity[group] = identity[row]
            out_window[group] = (ts_ms[row] - 1) // level_ms * level_ms
            end = out_window[group] + level_ms
            out_samples[group] = 0
        if not rows.was_seen[row]:
            out_samples[group] += 1
        group_of[row] = group


@njit(cache=True, nogil=True)
def merge_windows(windows: Any, level_ms: int) -> Any:
    """Makes coarser windows of finer ones, which lie wholly inside them.

    Args:
        windows: the finer ones, `Windows`, sorted by identity and time.

    Returns:
        The coarser windows, in the same order.
    """
    identity, bins = windows.identity, windows.bins
    fine, measures = len(identity), len(windows.counts)
    group_of = np.empty(fine, dtype=np.int32)
    out_identity, out_window = np.empty(fine, dtype=np.int32), np.empty(fine, dtype=np.int64)
    out_samples = np.zeros(fine, dtype=np.int64)
    group = -1
    for place in range(fine):
        start = windows.start[place] // level_ms * level_ms
        if group < 0 or identity[place] != out_identity[group] or start != out_window[group]:
            group += 1
            out_identity[group], out_window[group] = identity[place], start
        out_samples[group] += windows.samples[place]
        group_of[place] = group
    groups = group + 1
    out_count = np.zeros((measures, groups), dtype=np.int64)
    out_total = np.zeros((measures, groups), dtype=np.int64)
    out_maximum = np.full((measures, groups), np.iinfo(np.int64).min)
    for measure in range(measures):
        for place in range(fine):
            group = group_of[place]
            out_count[measure, group] += windows.counts[measure, place]
            out_total[measure, group] += windows.totals[measure, place]
            out_maximum[measure, group] = max(out_maximum[measure, group], windows.maxima[measure, place])
    offsets = windows.offsets
    out_offsets = np.zeros((len(offsets), groups + 1), dtype=np.int64)
    out_bins, out_counts = np.empty_like(bins), np.empty_like(windows.bin_counts)
    dense = np.zeros(101, dtype=np.int64)
    for histogram in range(len(offsets)):
        entries = place = 0
        for group in range(groups):
            low, high = 101, -1
            while place < fine and group_of[place] == group:
                for entry in range(offsets[histogram, place], offsets[histogram, place + 1]):
                    at = bins[histogram, entry]
                    dense[at] += windows.bin_counts[histogram, entry]
                    low, high = min(low, at), max(high, at)
                place += 1
            entries = _put_bins(dense, low, high, entries, out_bins[histogram], out_counts[histogram])
            out_offsets[histogram, group + 1] = entries
    return Windows(
        out_identity[:groups],
        out_window[:groups],
        out_samples[:groups],
        out_count,
        out_total,
        out_maximum,
        out_offsets,
        out_bins,
        out_counts,
    )


@njit(cache=True, nogil=True, inline="always")
def _put_bins(dense: Any, low: int, high: int, entries: int, bins: Any, counts: Any) -> Any:
    """Moves the bins that were touched to a window's entries; where the next window's begin."""
    for place in range(low, high + 1):
        if dense[place]:
            bins[entries] = place
            counts[entries] = dense[place]
            dense[place] = 0
            entries += 1
    return entries


@njit(cache=True, nogil=True)
def order_rows(bucket: Any, buckets: int, ts_ms: Any) -> Any:
    """Rows by bucket, in the order of their times where they come in it: most senders' do.

    Args:
        bucket: (rows,) bucket of each, 0 to `buckets` - 1.

    Returns:
        The order; whether the rows of every bucket are sorted by time in it.
    """
    starts = np.zeros(buckets + 1, dtype=np.int64)
    for row in range(len(bucket)):
        starts[bucket[row] + 1] += 1
    for place in range(buckets):
        starts[place + 1] += starts[place]
    order = np.empty(len(bucket), dtype=np.int64)
    newest = np.full(buckets, np.iinfo(np.int64).min)
    is_sorted = True
    for row in range(len(bucket)):
        place = bucket[row]
        order[starts[place]] = row
        starts[place] += 1
        is_sorted &= ts_ms[row] >= newest[place]
        newest[place] = ts_ms[row]
    return order, is_sorted


@njit(cache=True, nogil=True)
def add_to_grid(row: Any, step: Any, windows: Any, grid: Any) -> None:
    """Adds windows into a grid of steps.

    Args:
        row: (windows,) grid row, -1 to leave a window out.
        step: (windows,) grid column.
        windows: (windows,) of one measure, `Sums`.
        grid: (rows, steps), `Sums`, changed in place; the maximum is -inf where nothing was added.
    """
    for index in range(len(row)):
        if row[index] < 0 or windows.counts[index] == 0:
            continue
        at, column = row[index], step[index]
        grid.counts[at, column] += windows.counts[index]
        grid.totals[at, column] += windows.totals[index]
        grid.maxima[at, column] = max(grid.maxima[at, column], windows.maxima[index])
