"""The inner loop of every hour-of-week figure: one pass that counts demand by hour of the week into 101 fixed bins.

A histogram per hour replaces sorting: quantiles are exact to one point (`fleet.histogram`), the rows of a workload
merge by adding, and its 168 histograms stay in the processor's cache while the weeks of its rows pass by. Compiled by
numba and cached beside this file. Called by `analyzer.facts`.
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
    """Figures by hour of the week, each (owners, cycle), 0-1; NaN where nothing was collected.

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


def week_summary(
    ratios: Float32, borders: NDArray[np.int64], hour_of_step: NDArray[np.int64], cycle: int
) -> WeekSummary:
    """Mean, median, p95, p99 and maximum by hour of the cycle, over all rows of an owner, in one pass.

    Args:
        ratios: (rows, steps), 0-1, NaN where not collected; what lies outside is counted at the border.
        borders: rows `borders[i]` up to `borders[i + 1]` belong to owner i, (owners + 1,).
        hour_of_step: hour of the week of every step, (steps,).
        cycle: 168, or 24 where days are folded.
    """
    found = np.full((5, len(borders) - 1, cycle), np.nan, np.float32)
    phases = hour_of_step % cycle
    # Steps of one hour lie together, so that an hour's sums stay in registers.
    starts = np.flatnonzero(np.r_[True, phases[1:] != phases[:-1]]) if len(phases) else np.zeros(0, np.int64)
    stops = np.append(starts[1:], len(phases)).astype(np.int64)
    if len(starts):
        _summarise(np.ascontiguousarray(ratios), borders, starts, stops, phases[starts], found)
    return WeekSummary(mean=found[0], p50=found[1], p95=found[2], p99=found[3], max=found[4])


@njit(cache=True, nogil=True)
def _summarise(ratios: Any, borders: Any, starts: Any, stops: Any, phase_of: Any, found: Any) -> None:
    cycle = found.shape[2]
    counts = np.empty((cycle, BINS), np.uint32)
    seen = np.empty(cycle, np.int64)
    total = np.empty(cycle, np.float64)
    top = np.empty(cycle, np.float32)
    for owner in range(found.shape[1]):
        counts[:] = 0
        seen[:] = 0
        total[:] = 0.0
        top[:] = -np.inf
        for row in range(borders[owner], borders[owner + 1]):
            values = ratios[row]
            for run in range(starts.shape[0]):
                phase = phase_of[run]
                bins = counts[phase]
                number, added, highest = 0, 0.0, np.float32(-np.inf)
                for step in range(starts[run], stops[run]):
                    value = values[step]
                    if np.isnan(value):
                        continue
                    # Clipped before the cast: what infinity becomes as a whole number is nobody's promise.
                    bins[int(100.0 * min(max(value, 0.0), 1.0))] += 1
                    number += 1
                    added += value
                    highest = max(highest, value)
                seen[phase] += number
                total[phase] += added
                top[phase] = max(top[phase], highest)
        _figures(counts, seen, total, top, found[:, owner])


@njit(cache=True, nogil=True)
def _figures(counts: Any, seen: Any, total: Any, top: Any, found: Any) -> None:
    """Figures of one owner from its histograms, (5, cycle): the middle of the bin that holds each quantile."""
    for phase in range(counts.shape[0]):
        if seen[phase] == 0:
            continue
        found[0, phase] = total[phase] / seen[phase]
        found[4, phase] = top[phase]
        passed, place = 0, 0
        for number, share in enumerate((0.5, 0.95, 0.99)):
            # The product of a share and a count can fall just beside a whole number.
            rank = np.ceil(share * seen[phase] - 1e-6)
            while passed < rank:
                passed += counts[phase, place]
                place += 1
            found[1 + number, phase] = min((place - 0.5) / 100.0, 1.0)
