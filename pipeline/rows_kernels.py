"""The inner loops from samples to wide rows. Called by `rows`; compiled by numba and cached beside this file."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def check_values(  # noqa: PLR0913, PLR0917 - a kernel takes flat arrays
    series: Any,
    sample_starts: Any,
    sample_ends: Any,
    wanted: Any,
    factor: Any,
    clamp_max: Any,
    low: Any,
    high: Any,
    ts_ms: Any,
    ts_min: int,
    ts_max: int,
    out: Any,
) -> Any:
    """Brings samples to the unit of their measure; what may not be stored becomes NaN.

    Args:
        series: (runs,) number of each run's series.
        sample_starts: (runs,) first sample of each run.
        sample_ends: (runs,) sample after the last of each run.
        wanted: (series,) whether the series is a usage series.
        factor: (series,) multiplier.
        clamp_max: (series,) values above it are taken as it.
        low: (series,) lowest valid value.
        high: (series,) highest valid value.
        ts_ms: (samples,).
        ts_min: earliest valid time.
        ts_max: latest valid time.
        out: (samples,) float64, changed in place.

    Returns:
        Samples that are NaN (missing or stale), samples with a value out of range, samples with a time out of range.
    """
    missing = bad_values = bad_times = 0
    for run in range(len(series)):
        number = series[run]
        if number < 0 or not wanted[number]:
            continue
        for index in range(sample_starts[run], sample_ends[run]):
            value = out[index] * factor[number]
            if ts_ms[index] < ts_min or ts_ms[index] > ts_max:
                bad_times += 1
                value = np.nan
            elif np.isnan(value):
                missing += 1
            else:
                if value > clamp_max[number] and value < np.inf:
                    value = clamp_max[number]
                if not (low[number] <= value <= high[number]):
                    bad_values += 1
                    value = np.nan
            out[index] = value
    return missing, bad_values, bad_times


@njit(cache=True, nogil=True)
def pivot(  # noqa: C901, PLR0912 - four short passes over the same runs
    series: Any,
    sample_starts: Any,
    sample_ends: Any,
    identity: Any,
    place: Any,
    place_count: int,
    ts_ms: Any,
    values: Any,
) -> Any:
    """Lays samples out as one row per identity and time; of several values for one place the largest stays.

    Args:
        series: (runs,) number of each run's series.
        sample_starts: (runs,) first sample of each run.
        sample_ends: (runs,) sample after the last of each run.
        identity: (series,) identity of each series, -1 where it has none.
        place: (series,) which value column the series fills.
        place_count: number of value columns.
        ts_ms: (samples,).
        values: (samples,), NaN is left out.

    Returns:
        Identity per row, time per row, values (place_count, rows) with NaN where nothing was said.
    """
    total = 0
    for run in range(len(series)):
        if series[run] >= 0 and identity[series[run]] >= 0:
            total += sample_ends[run] - sample_starts[run]
    size = 16
    while size < 2 * total:
        size *= 2
    mask = size - 1
    slots = np.full(size, -1, dtype=np.int32)
    row_identity = np.empty(total, dtype=np.int32)
    row_ts = np.empty(total, dtype=np.int64)
    row_of = np.empty(len(ts_ms), dtype=np.int32)
    rows = 0
    for run in range(len(series)):
        if series[run] < 0:
            continue
        owner = identity[series[run]]
        if owner < 0:
            continue
        for index in range(sample_starts[run], sample_ends[run]):
            if np.isnan(values[index]):
                continue
            code = (np.uint64(ts_ms[index]) + np.uint64(owner) * np.uint64(0x9E3779B97F4A7C15)) * np.uint64(
                0xFF51AFD7ED558CCD
            )
            slot = np.int64((code ^ (code >> np.uint64(32))) & np.uint64(mask))
            row = slots[slot]
            while row >= 0 and (row_identity[row] != owner or row_ts[row] != ts_ms[index]):
                slot = (slot + 1) & mask
                row = slots[slot]
            if row < 0:
                row = rows
                slots[slot] = row
                row_identity[row] = owner
                row_ts[row] = ts_ms[index]
                rows += 1
            row_of[index] = row
    wide = np.full((place_count, rows), np.nan)
    for run in range(len(series)):
        if series[run] < 0 or identity[series[run]] < 0:
            continue
        column = place[series[run]]
        for index in range(sample_starts[run], sample_ends[run]):
            value = values[index]
            if np.isnan(value):
                continue
            row = row_of[index]
            if not (wide[column, row] >= value):
                wide[column, row] = value
    return row_identity[:rows], row_ts[:rows], wide
