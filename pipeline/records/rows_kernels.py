"""The inner loops from samples to wide rows. Called by `rows`; compiled by numba and cached beside this file."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def check_samples(  # noqa: PLR0913, PLR0917 - a kernel takes flat arrays
    series: Any,
    sample_starts: Any,
    sample_ends: Any,
    histograms: Any,
    verdicts: Any,
    unit: Any,
    measure: Any,
    factor: Any,
    clamp_max: Any,
    low: Any,
    high: Any,
    ts_ms: Any,
    values: Any,
    ts_min: int,
    ts_max: int,
    usage: int,
    invalid: int,
    counts: Any,
    cell_series: Any,
    cell_measure: Any,
    cell_ts: Any,
    cell_value: Any,
) -> Any:
    """Brings samples to the unit of their measure and keeps those that may be stored.

    Args:
        series: (runs,) number of each run's series, -1 where it has none.
        sample_starts: (runs,) first sample of each run.
        sample_ends: (runs,) sample after the last of each run.
        histograms: (runs,) native histograms of each run; they don't stand beside samples.
        verdicts: (series,) what becomes of a series' samples.
        unit: (series,) unit of a usage series.
        measure: (units,) measure of each unit.
        factor: (units,) multiplier.
        clamp_max: (units,) values above it are taken as it.
        low: (measures,) lowest valid value.
        high: (measures,) highest valid value.
        ts_ms: (samples,).
        values: (samples,) float64.
        ts_min: earliest valid time.
        ts_max: latest valid time.
        usage: the verdict of a usage series.
        invalid: the verdict of an invalid series.
        counts: (verdicts,) int64, samples of each verdict are added to it.
        cell_series: (samples,) int32, output: series of each sample that is kept.
        cell_measure: (samples,) int32, output: its measure.
        cell_ts: (samples,) int64, output: its time.
        cell_value: (samples,) float64, output: its value.

    Returns:
        Samples kept, samples with a value out of range, samples with a time out of range, the first invalid run or -1.
    """
    kept = bad_values = bad_times = 0
    first_invalid = -1
    for run in range(len(series)):
        number = series[run]
        start, end = sample_starts[run], sample_ends[run]
        verdict = np.int64(verdicts[number]) if number >= 0 else invalid
        if histograms[run] > 0 and end > start:
            verdict = invalid
        counts[verdict] += end - start
        if verdict == invalid and first_invalid < 0:
            first_invalid = run
        if verdict != usage:
            continue
        kind = unit[number]
        lowest, highest = low[measure[kind]], high[measure[kind]]
        for index in range(start, end):
            ts = ts_ms[index]
            value = values[index] * factor[kind]
            if ts < ts_min or ts > ts_max:
                bad_times += 1
                continue
            if np.isnan(value):
                continue
            if value > clamp_max[kind] and value < np.inf:
                value = clamp_max[kind]
            if not (lowest <= value <= highest):
                bad_values += 1
                continue
            cell_series[kept] = number
            cell_measure[kept] = measure[kind]
            cell_ts[kept] = ts
            cell_value[kept] = value
            kept += 1
    return kept, bad_values, bad_times, first_invalid


@njit(cache=True, nogil=True)
def pivot(  # noqa: PLR0915 - two passes over the same cells, and what both need
    cell_series: Any,
    cell_measure: Any,
    cell_ts: Any,
    cell_value: Any,
    identity: Any,
    measure_count: int,
    serial: int,
    stamp: Any,
    place: Any,
) -> Any:
    """Lays samples out as one row per identity and time; of several values for one place the largest stays.

    Args:
        cell_series: (cells,) series of each sample.
        cell_measure: (cells,) its measure.
        cell_ts: (cells,) its time.
        cell_value: (cells,) its value, never NaN.
        identity: (series,) identity of each series, -1 where it has none.
        measure_count: number of measures there are.
        serial: a number that no call before had.
        stamp: (identities,) int32 scratch: the last call that met each identity.
        place: (identities,) int32 scratch: its place among those of that call.

    Returns:
        Identities met, in order of first occurrence; place of each row's identity among them; time per row; measures
        met, ascending; values (measures met, rows) with NaN where nothing was said.
    """
    cells = len(cell_series)
    size = 16
    while size < 2 * cells:
        size *= 2
    mask = np.uint64(size - 1)
    slots = np.full(size, -1, dtype=np.int32)
    named = np.empty(cells, dtype=np.int32)
    newest = np.empty(cells, dtype=np.int32)
    row_place = np.empty(cells, dtype=np.int32)
    row_ts = np.empty(cells, dtype=np.int64)
    row_of = np.empty(cells, dtype=np.int32)
    column_of = np.full(measure_count, -1, dtype=np.int64)
    rows = met = 0
    for cell in range(cells):
        owner = identity[cell_series[cell]]
        if owner < 0:
            row_of[cell] = -1
            continue
        column_of[cell_measure[cell]] = 0
        ts = cell_ts[cell]
        if stamp[owner] != serial:
            stamp[owner] = serial
            place[owner] = met
            named[met] = owner
            newest[met] = -1
            met += 1
        at = place[owner]
        row = newest[at]
        if row < 0 or row_ts[row] != ts:
            code = (np.uint64(ts) + np.uint64(at) * np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xFF51AFD7ED558CCD)
            slot = (code ^ (code >> np.uint64(32))) & mask
            row = slots[slot]
            while row >= 0 and (row_place[row] != at or row_ts[row] != ts):
                slot = (slot + np.uint64(1)) & mask
                row = slots[slot]
            if row < 0:
                row = np.int32(rows)
                slots[slot] = row
                row_place[row] = at
                row_ts[row] = ts
                rows += 1
            newest[at] = row
        row_of[cell] = row
    present = np.flatnonzero(column_of == 0)
    for column in range(len(present)):
        column_of[present[column]] = column
    wide = np.full((len(present), rows), np.nan)
    for cell in range(cells):
        row = row_of[cell]
        if row < 0:
            continue
        column = column_of[cell_measure[cell]]
        if not (wide[column, row] >= cell_value[cell]):
            wide[column, row] = cell_value[cell]
    return named[:met], row_place[:rows], row_ts[:rows], present, wide
