"""The inner loops from samples to wide rows. Called by `rows`; compiled by numba and cached beside this file.

They are handed plain tuples of the arrays: numba takes 3 µs longer to tell the type of a named one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.remote_write.series_columns import NO_ROOM, OVERSIZED, Verdict

_USAGE, _INVALID = int(Verdict.USAGE), int(Verdict.INVALID)
_NOT_KEPT = np.full(4, _INVALID, dtype=np.int64)
_NOT_KEPT[-OVERSIZED], _NOT_KEPT[-NO_ROOM] = Verdict.DROPPED, Verdict.BEYOND
"""Verdicts of series that have no number, by what they have in its place."""


class SampleRuns(NamedTuple):
    """Samples of a body, and runs of them that belong to one series each.

    Attributes:
        series: (runs,) number of each run's series; negative ones are those of `series_columns`.
        starts: (runs,) first sample of each run.
        ends: (runs,) sample after the last of each run.
        histograms: (runs,) native histograms of each run; they don't stand beside samples.
        ts_ms: (samples,).
        values: (samples,) float64.
    """

    series: NDArray[np.int32]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    histograms: NDArray[np.int32]
    ts_ms: NDArray[np.int64]
    values: NDArray[np.float64]


class Cells(NamedTuple):
    """Samples in the units of their measures: (samples,) each.

    Attributes:
        series: number of the series.
        measure: place in `fleet.schema.MEASURES`.
        ts_ms: time.
        value: value, never NaN.
    """

    series: NDArray[np.int32]
    measure: NDArray[np.int32]
    ts_ms: NDArray[np.int64]
    value: NDArray[np.float64]


@njit(cache=True, nogil=True)
def check_samples(
    runs: Any, verdicts: Any, unit: Any, units: Any, valid: Any, counts: Any, cells: Any, seen: Any, tick: int
) -> Any:
    """Brings samples to the unit of their measure and keeps those that may be stored.

    Args:
        verdicts: (series,) `Verdict` of each series.
        unit: (series,) unit of a usage series.
        units: how samples of a unit become values, `series_columns.Units`.
        valid: lowest and highest valid value of each measure, (measures,) each, earliest and latest valid time.
        counts: (verdicts,) int64, samples of each verdict are added to it.
        cells: output, `Cells` with room for all samples.
        seen: (series,) output, `tick` of each series that came.

    Returns:
        Samples kept, samples with a value out of range, samples with a time out of range, the first invalid run or -1.
    """
    kept = bad_values = bad_times = 0
    first_invalid = -1
    series, starts, ends, histograms, ts_ms, values = runs
    measures, factors, clamps = units
    low, high, ts_min, ts_max = valid
    cell_series, cell_measure, cell_ts, cell_value = cells
    for run in range(len(series)):
        number = series[run]
        start, end = starts[run], ends[run]
        verdict = _NOT_KEPT[-number] if number < 0 else np.int64(verdicts[number])
        if verdict != _INVALID:
            seen[number] = tick  # without a number, of a row that means nothing or is the last one's
        if histograms[run] > 0 and end > start:
            verdict = _INVALID
        counts[verdict] += end - start
        if verdict == _INVALID and first_invalid < 0:
            first_invalid = run
        if verdict != _USAGE:
            continue
        kind = unit[number]
        measure, factor, clamp_max = measures[kind], factors[kind], clamps[kind]
        lowest, highest = low[measure], high[measure]
        for index in range(start, end):
            ts = ts_ms[index]
            value = values[index] * factor
            if ts < ts_min or ts > ts_max:
                bad_times += 1
                continue
            if np.isnan(value):
                continue
            if value > clamp_max and value < np.inf:
                value = clamp_max
            if not (lowest <= value <= highest):
                bad_values += 1
                continue
            cell_series[kept] = number
            cell_measure[kept] = measure
            cell_ts[kept] = ts
            cell_value[kept] = value
            kept += 1
    return kept, bad_values, bad_times, first_invalid


@njit(cache=True, nogil=True)
def pivot(  # noqa: PLR0915 - two passes over the same cells, and what both need
    cells: Any, identity: Any, measure_count: int, serial: int, stamp: Any, place: Any
) -> Any:
    """Lays samples out as one row per identity and time; of several values for one place the largest stays.

    Args:
        identity: (series,) identity of each series, -1 where it has none.
        serial: a number that no call before had.
        stamp: (identities,) int32 scratch: the last call that met each identity.
        place: (identities,) int32 scratch: its place among those of that call.

    Returns:
        Identities met, in order of first occurrence; place of each row's identity among them; time per row; measures
        met, ascending; values (measures met, rows) with NaN where nothing was said.
    """
    cell_series, cell_measure, cell_ts, cell_value = cells
    samples = len(cell_series)
    size = 16
    while size < 2 * samples:
        size *= 2
    mask = np.uint64(size - 1)
    slots = np.full(size, -1, dtype=np.int32)
    named = np.empty(samples, dtype=np.int32)
    newest = np.empty(samples, dtype=np.int32)
    row_place = np.empty(samples, dtype=np.int32)
    row_ts = np.empty(samples, dtype=np.int64)
    row_of = np.empty(samples, dtype=np.int32)
    column_of = np.full(measure_count, -1, dtype=np.int64)
    rows = met = 0
    for cell in range(samples):
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
    for cell in range(samples):
        row = row_of[cell]
        if row < 0:
            continue
        column = column_of[cell_measure[cell]]
        if not (wide[column, row] >= cell_value[cell]):
            wide[column, row] = cell_value[cell]
    return named[:met], row_place[:rows], row_ts[:rows], present, wide
