"""Habits: a workload's demand by the hours of the week.

Hours are local to the cluster's time zone, so a change of the clock moves no habit and half-hour zones fit. Below two
weeks an hour of the week was seen once, which is no habit; then days are folded, and an hour of the day speaks for all
seven. Whether anything repeats at all is for `analyzer.period` to say.

`week_summary` counts demand by hour of the week into 101 fixed bins, in one pass. A histogram per hour replaces
sorting: quantiles are exact to one point, the rows of a workload merge by adding, and its 168
histograms stay in the processor's cache while the weeks of its rows pass by. Compiled by numba and cached beside this
file.

Called by `analyzer.facts` on chunks of workloads, and by `analyzer.offpeak_hours`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from numba import njit
from numpy.typing import NDArray

from analyzer.presence import Timeline
from fleet.usage import Float32

BINS = 101
"""Bins of every histogram: one per point of a percentage, and one for 100 % and more."""
HOURS_PER_WEEK = 168
DAY_HISTORY_SECONDS_MIN = 3 * 86400
"""Below this a day profile is a guess."""
WEEK_HISTORY_SECONDS_MIN = 14 * 86400
"""Below this a week profile is a guess: every hour of the week must have come twice."""
HOUR_COVERAGE_MIN = 0.8
"""Share of an hour's steps that must have been seen before the hour counts as evidence."""
_STUDENT_90 = (
    np.nan,
    3.078,
    1.886,
    1.638,
    1.533,
    1.476,
    1.440,
    1.415,
    1.397,
    1.383,
    1.372,
    1.363,
    1.356,
    1.350,
    1.345,
    1.282,
)
"""Student's t at 0.9 by degrees of freedom; the last stands for all larger ones."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalHours:
    """Local hours of a timeline.

    Attributes:
        of_step: hour of the week of every step, 0-167, Monday 00:00 first, (steps,).
        starts: first step of every local hour in a row, (hours,).
        hour: hour of the week of each of them, (hours,).
        lengths: steps in each, (hours,).
        steps_per_hour: steps in a whole hour.
    """

    of_step: NDArray[np.int64]
    starts: NDArray[np.int64]
    hour: NDArray[np.int64]
    lengths: NDArray[np.int64]
    steps_per_hour: float


def local_hours(line: Timeline, time_zone: str) -> LocalHours:
    """Counts hours of the week in a time zone; a step belongs to the hour that holds its end less one millisecond."""
    zone = ZoneInfo(time_zone)
    within = line.ends_ms() - 1
    quarters, which = np.unique(within // 900_000, return_inverse=True)
    offsets = [
        datetime.fromtimestamp(int(quarter) * 900, UTC).astimezone(zone).utcoffset() for quarter in quarters.tolist()
    ]
    shift = np.array([0 if offset is None else offset.total_seconds() * 1000 for offset in offsets], np.int64)
    absolute = (within + shift[which]) // 3_600_000
    # 1970-01-01 was a Thursday, three days after a Monday.
    of_step = (absolute + 72) % HOURS_PER_WEEK
    starts = np.flatnonzero(np.r_[True, absolute[1:] != absolute[:-1]])
    return LocalHours(
        of_step=of_step,
        starts=starts,
        hour=of_step[starts],
        lengths=np.diff(np.r_[starts, len(of_step)]),
        steps_per_hour=3600 / line.step_seconds,
    )


def hourly_peaks(tops: Float32, hours: LocalHours, stride: NDArray[np.int64]) -> tuple[Float32, NDArray[np.float32]]:
    """Largest demand of every local hour, and how much of the hour was seen.

    Args:
        tops: demand of the busiest replica, (workloads, steps), NaN where not collected.
        stride: own step of each workload's source, in steps, (workloads,).

    Returns:
        Peaks (workloads, hours), NaN where nothing was seen, and shares of a whole hour 0-1 of the same shape.
    """
    peaks: Float32 = np.fmax.reduceat(tops, hours.starts, axis=1)
    seen = np.add.reduceat(~np.isnan(tops), hours.starts, axis=1, dtype=np.float32)
    whole = np.maximum(1.0, np.minimum(hours.steps_per_hour, hours.lengths.max()))
    return peaks, np.minimum(1.0, seen * stride[:, None] / whole).astype(np.float32)


def hourly_means(means: Float32, hours: LocalHours) -> Float32:
    """Mean demand of every local hour, (workloads, hours), NaN where nothing was seen.

    Args:
        means: mean demand over replicas, (workloads, steps).
    """
    there = ~np.isnan(means)
    count = np.add.reduceat(there, hours.starts, axis=1, dtype=np.int32)
    total = np.add.reduceat(np.where(there, means, 0), hours.starts, axis=1)
    return np.where(count > 0, total / np.maximum(1, count), np.nan).astype(np.float32)


def is_folded(history_seconds: float) -> bool:
    """True where the history is too short to distinguish the days of a week."""
    return history_seconds < WEEK_HISTORY_SECONDS_MIN


def cycle_hours(history_seconds: float) -> int:
    """Hours after which a profile repeats: 24 where days are folded, else 168."""
    return 24 if DAY_HISTORY_SECONDS_MIN <= history_seconds < WEEK_HISTORY_SECONDS_MIN else HOURS_PER_WEEK


def whole_week(figures: NDArray[np.float32]) -> Floats:
    """Figures by hour of the cycle, (workloads, 168 or 24), by hour of the week; folded days are repeated."""
    return np.tile(figures.astype(np.float64), (1, HOURS_PER_WEEK // figures.shape[1]))


def week_upper(peaks: Float32, seen: NDArray[np.float32], hour: NDArray[np.int64], *, history_seconds: float) -> Floats:
    """What an hour's peak stays below the next time, nine times in ten, (workloads, 168); NaN where it came once.

    Student's bound for one more observation: mean + t · deviation · √(1 + 1/n) over the n times that the hour came, so
    that two sights of an hour say little and twenty say much. Folded like the histograms.

    Args:
        peaks: largest demand of every local hour, (workloads, hours).
        seen: share of the hour that was seen, the same shape.
    """
    cycle = cycle_hours(history_seconds)
    upper = np.full((len(peaks), cycle), np.nan)
    for number in range(cycle):
        columns = hour % cycle == number
        there = (seen[:, columns] >= HOUR_COVERAGE_MIN) & ~np.isnan(peaks[:, columns])
        count = there.sum(axis=1)
        values = np.where(there, peaks[:, columns], 0.0).astype(np.float64)
        mean = values.sum(axis=1) / np.maximum(1, count)
        spread = np.where(there, values - mean[:, None], 0.0)
        deviation = np.sqrt((spread * spread).sum(axis=1) / np.maximum(1, count - 1))
        degrees = np.clip(count - 1, 0, len(_STUDENT_90) - 1)
        bound = mean + np.array(_STUDENT_90)[degrees] * deviation * np.sqrt(1.0 + 1.0 / np.maximum(1, count))
        upper[:, number] = np.where(count >= 2, np.clip(bound, 0.0, 1.0), np.nan)
    return np.tile(upper, (1, HOURS_PER_WEEK // cycle))


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
