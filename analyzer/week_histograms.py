"""The inner loop of every hour-of-week figure: one pass that counts demand by hour of the week into 101 fixed bins.

A histogram per hour replaces sorting: quantiles are exact to one point (`fleet.histogram`), any rows merge by adding,
and a row's 168 histograms stay in the processor's cache while its weeks pass by. Compiled by numba and cached beside
this file. Called by `analyzer.facts` for workloads, and by whoever profiles cards in bulk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fleet.histogram import BINS
from fleet.usage import Float32

Floats32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekSummary:
    """Figures by hour of the week, each (rows, cycle), 0-1; NaN where nothing was collected.

    Attributes:
        mean: exact mean of what was collected.
        p50: median, exact to one point.
        p95: 95th percentile, exact to one point.
        p99: 99th percentile, exact to one point.
        max: exact maximum.
    """

    mean: Floats32
    p50: Floats32
    p95: Floats32
    p99: Floats32
    max: Floats32


def week_counts(
    ratios: Float32, owner_of_row: NDArray[np.int64], owners: int, hour_of_step: NDArray[np.int64], cycle: int
) -> NDArray[np.int64]:
    """Histograms by owner and hour of the cycle.

    Args:
        ratios: (rows, steps), 0-1, NaN where not collected; what lies outside is counted at the border.
        owner_of_row: owner of each row, 0 … owners - 1, (rows,).
        owners: how many there are.
        hour_of_step: hour of the week of every step, (steps,).
        cycle: 168, or 24 where days are folded.

    Returns:
        Counts, (owners, cycle, 101).
    """
    counts = np.zeros((owners, cycle, BINS), np.int64)
    phases = (hour_of_step % cycle).astype(np.uint8)
    _count(ratios, owner_of_row, phases, counts)
    return counts


def week_summary(ratios: Float32, hour_of_step: NDArray[np.int64], cycle: int) -> WeekSummary:
    """Mean, median, p95, p99 and maximum of every row by hour of the cycle, in one pass.

    Args:
        ratios: (rows, steps), 0-1, NaN where not collected.
        hour_of_step: hour of the week of every step, (steps,).
        cycle: 168, or 24 where days are folded.
    """
    found = np.empty((5, len(ratios), cycle), np.float32)
    phases = (hour_of_step % cycle).astype(np.uint8)
    _of_grid(ratios, phases, found)
    return _summary(found)


def week_summary_of_samples(
    ratios: NDArray[np.float32],
    row_of_sample: NDArray[np.int32],
    ends_ms: NDArray[np.int64],
    *,
    rows: int,
    since_ms: int,
    step_ms: int,
    hour_of_step: NDArray[np.int64],
    cycle: int,
) -> WeekSummary:
    """The same from samples in long form, without a grid between; quickest where a row's samples lie together.

    Args:
        ratios: (samples,), 0-1, NaN counts as not collected.
        row_of_sample: 0 … rows - 1, (samples,).
        ends_ms: end of each sample's step, epoch milliseconds, (samples,); outside the steps it is left out.
        rows: how many rows there are; they share one buffer of `rows` × `cycle` × 101 counts.
        since_ms: start of the first step, epoch milliseconds.
        step_ms: length of a step.
        hour_of_step: hour of the week of every step, (steps,).
        cycle: 168, or 24 where days are folded.
    """
    found = np.empty((5, rows, cycle), np.float32)
    phases = (hour_of_step % cycle).astype(np.uint8)
    counts = np.zeros((rows, cycle, BINS), np.uint32)
    if not found.size or not phases.size:
        found[:] = np.nan
        return _summary(found)
    _of_samples(ratios, row_of_sample, ends_ms, since_ms, step_ms, phases, counts, found)
    return _summary(found)


def _summary(found: NDArray[np.float32]) -> WeekSummary:
    return WeekSummary(mean=found[0], p50=found[1], p95=found[2], p99=found[3], max=found[4])


@njit(cache=True, nogil=True)
def _count(ratios: Any, owner_of_row: Any, phases: Any, counts: Any) -> None:
    for row in range(ratios.shape[0]):
        owner = owner_of_row[row]
        for step in range(ratios.shape[1]):
            value = ratios[row, step]
            if np.isnan(value):
                continue
            # Clipped before the cast: what infinity becomes as a whole number is nobody's promise.
            place = int(100.0 * min(max(value, 0.0), 1.0))
            counts[owner, phases[step], place] += 1


@njit(cache=True, nogil=True)
def _of_grid(ratios: Any, phases: Any, found: Any) -> None:
    cycle = found.shape[2]
    counts = np.empty((cycle, 101), np.uint32)
    total = np.empty(cycle, np.float64)
    top = np.empty(cycle, np.float32)
    for row in range(ratios.shape[0]):
        counts[:] = 0
        total[:] = 0.0
        top[:] = -np.inf
        for step in range(ratios.shape[1]):
            value = ratios[row, step]
            if np.isnan(value):
                continue
            phase = phases[step]
            counts[phase, int(100.0 * min(max(value, 0.0), 1.0))] += 1
            total[phase] += value
            top[phase] = max(top[phase], value)
        _figures(counts, total, top, found[:, row])


@njit(cache=True, nogil=True)
def _of_samples(
    ratios: Any, row_of_sample: Any, ends_ms: Any, since_ms: Any, step_ms: Any, phases: Any, counts: Any, found: Any
) -> None:
    rows, cycle = counts.shape[:2]
    total = np.zeros((rows, cycle), np.float64)
    top = np.full((rows, cycle), np.float32(-np.inf), np.float32)
    last_ms = since_ms + step_ms * len(phases)
    run_stop = np.empty(len(phases), np.int64)
    stop = len(phases)
    for step in range(len(phases) - 1, -1, -1):
        if step + 1 < len(phases) and phases[step] != phases[step + 1]:
            stop = step + 1
        run_stop[step] = stop
    # Samples come in order of time, so one division and one addition to memory serve a whole run of one hour.
    begin_ms, end_ms, phase, current = since_ms, since_ms, 0, 0
    sum_of_run, top_of_run = 0.0, np.float32(-np.inf)
    for sample in range(len(ratios)):
        value, row, end = ratios[sample], row_of_sample[sample], ends_ms[sample]
        if np.isnan(value):
            continue
        if row != current or end <= begin_ms or end > end_ms:
            if end <= since_ms or end > last_ms or row < 0 or row >= rows:
                continue
            total[current, phase] += sum_of_run
            top[current, phase] = max(top[current, phase], top_of_run)
            sum_of_run, top_of_run = 0.0, np.float32(-np.inf)
            # A sample belongs to the step that holds its end less one millisecond.
            at = (end - 1 - since_ms) // step_ms
            begin_ms, end_ms = since_ms + at * step_ms, since_ms + run_stop[at] * step_ms
            phase, current = phases[at], row
        counts[current, phase, int(np.float32(100.0) * min(max(value, np.float32(0.0)), np.float32(1.0)))] += 1
        sum_of_run += value
        top_of_run = max(top_of_run, value)
    total[current, phase] += sum_of_run
    top[current, phase] = max(top[current, phase], top_of_run)
    for row in range(rows):
        _figures(counts[row], total[row], top[row], found[:, row])


@njit(cache=True, nogil=True)
def _figures(counts: Any, total: Any, top: Any, found: Any) -> None:
    """Figures of one row from its histograms, (5, cycle): the middle of the bin that holds each quantile."""
    for phase in range(counts.shape[0]):
        seen = 0
        for place in range(counts.shape[1]):
            seen += counts[phase, place]
        if seen == 0:
            found[:, phase] = np.nan
            continue
        found[0, phase] = total[phase] / seen
        found[4, phase] = top[phase]
        # The product of a share and a count can fall just beside a whole number.
        ranks = (np.ceil(0.5 * seen - 1e-6), np.ceil(0.95 * seen - 1e-6), np.ceil(0.99 * seen - 1e-6))
        passed, place = 0, 0
        for number in range(3):
            while passed < ranks[number]:
                passed += counts[phase, place]
                place += 1
            found[1 + number, phase] = min((place - 0.5) / 100.0, 1.0)
