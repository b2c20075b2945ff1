"""Habits: the hours of the week of a workload, and those in which it promises to stay low.

Hours are local to the cluster's time zone, so a change of the clock moves no habit and half-hour zones fit. Below two
weeks an hour of the week was seen once, which is no habit; then days are folded, and an hour of the day speaks for all
seven. Whether anything repeats at all is `analyzer.period`'s to say.

Called by `analyzer.profile` on chunks of workloads and by `analyzer.confidence`, which makes the same promises on
earlier days and looks at what became of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from analyzer.presence import Timeline
from fleet.histogram import quantile
from fleet.settings import AnalyzerSettings
from fleet.usage import Float32

HOURS_PER_WEEK = 168
DAY_HISTORY_SECONDS_MIN = 3 * 86400
"""Below this a day profile is a guess."""
WEEK_HISTORY_SECONDS_MIN = 14 * 86400
"""Below this a week profile is a guess: every hour of the week must have come twice."""
HOUR_COVERAGE_MIN = 0.8
"""Share of an hour's steps that must have been seen before the hour counts as evidence."""
DAYS_SEEN_MIN = 3
"""Fewest times a folded hour of the day must have been seen low."""
NEIGHBOUR_LIMITS = 2.0
"""How many times the limit the hours around a promised one may reach."""
WEEKS_SEEN_MIN = 2
"""Fewest times an hour of the week must have been seen low."""
BUSY_RATIO_MIN = 0.5
"""A day counts as busy when its peak passes this share of the workload's p95."""
BUSY_DAYS_MIN = 0.6
"""Share of the days (of the weekdays that are ever busy, where weeks are told apart) that must be busy: what works
once in a while has no quiet hours, only quiet days, and nobody knows when they end. On 205 inference services, promises
of others were broken one and a half times as often."""
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
    """Counts hours of the week in a time zone; a step belongs to the hour that holds its end less one millisecond.

    Args:
        line: the steps.
        time_zone: IANA name.
    """
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
        hours: local hours.
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
        hours: local hours.
    """
    there = ~np.isnan(means)
    count = np.add.reduceat(there, hours.starts, axis=1, dtype=np.int32)
    total = np.add.reduceat(np.where(there, means, 0), hours.starts, axis=1)
    return np.where(count > 0, total / np.maximum(1, count), np.nan).astype(np.float32)


def is_folded(history_seconds: float) -> bool:
    """True where the history is too short to tell the days of a week apart."""
    return history_seconds < WEEK_HISTORY_SECONDS_MIN


def promised_hours(
    peaks: Float32,
    seen: NDArray[np.float32],
    hour: NDArray[np.int64],
    p95: Floats,
    *,
    history_seconds: float,
    settings: AnalyzerSettings,
) -> NDArray[np.bool_]:
    """Hours of the week that are promised to stay low, because they always did.

    An hour is promised when nothing that was seen of it ever passed the limit, enough of its occurrences were seen
    well, and the hours before and after never passed `NEIGHBOUR_LIMITS` times the limit: habits start a little earlier
    on some days. On ten days of 205 inference services 94 % of such promises were kept, 89 % without the neighbours.

    Args:
        peaks: largest demand of every local hour of the history, maximum over replicas, (workloads, hours).
        seen: share of the hour that was seen, the same shape.
        hour: hour of the week of each column, (hours,).
        p95: 95th percentile of each workload's demand, (workloads,), NaN where unknown.
        history_seconds: length of the history.
        settings: `off_peak_ratio`, `idle_ratio_max`.

    Returns:
        (workloads, 168).
    """
    rows = len(peaks)
    if history_seconds < DAY_HISTORY_SECONDS_MIN or not peaks.size:
        return np.zeros((rows, HOURS_PER_WEEK), bool)
    folded = is_folded(history_seconds)
    cycle = 24 if folded else HOURS_PER_WEEK
    # What hardly ever does anything has no peak that a fifth of could be below.
    has_peak = np.nan_to_num(p95) > settings.idle_ratio_max
    limit = np.where(has_peak, settings.off_peak_ratio * np.nan_to_num(p95), -1.0)[:, None]
    phase = hour % cycle
    good = seen >= HOUR_COVERAGE_MIN
    low = np.nan_to_num(peaks, nan=np.inf) <= limit
    highest = np.nan_to_num(peaks, nan=-np.inf)
    times = np.zeros((rows, cycle), np.int64)
    broken = np.zeros((rows, cycle), bool)
    restless = np.zeros((rows, cycle), bool)
    for number in range(cycle):
        columns = phase == number
        times[:, number] = (low & good)[:, columns].sum(axis=1)
        broken[:, number] = (highest > limit)[:, columns].any(axis=1)
        restless[:, number] = (highest > NEIGHBOUR_LIMITS * limit)[:, columns].any(axis=1)
    near = np.roll(restless, 1, axis=1) | np.roll(restless, -1, axis=1)
    habitual = _is_habitual(peaks, np.nan_to_num(p95), folded=folded)[:, None]
    holds = habitual & ~broken & ~near & (times >= (DAYS_SEEN_MIN if folded else WEEKS_SEEN_MIN))
    return np.tile(holds, (1, HOURS_PER_WEEK // cycle))


def _is_habitual(peaks: Float32, p95: Floats, *, folded: bool) -> NDArray[np.bool_]:
    """Whether each workload is busy on most of the days on which it is ever busy, (workloads,)."""
    days = peaks.shape[1] // 24
    if not days:
        return np.zeros(len(peaks), bool)
    of_day = np.fmax.reduce(peaks[:, peaks.shape[1] - 24 * days :].reshape(len(peaks), days, 24), axis=2)
    seen = ~np.isnan(of_day)
    busy = seen & (np.nan_to_num(of_day) > BUSY_RATIO_MIN * p95[:, None])
    counted = np.zeros(len(peaks), np.int64)
    phases = 1 if folded else 7
    for phase in range(phases):
        own = slice(phase, None, phases)
        counted += np.where(busy[:, own].any(axis=1), seen[:, own].sum(axis=1), 0)
    return np.asarray(busy.sum(axis=1) >= BUSY_DAYS_MIN * np.maximum(1, counted), bool)


def cycle_hours(history_seconds: float) -> int:
    """Hours after which a profile repeats: 24 where days are folded, else 168."""
    return 24 if DAY_HISTORY_SECONDS_MIN <= history_seconds < WEEK_HISTORY_SECONDS_MIN else HOURS_PER_WEEK


def week_quantiles(histograms: NDArray[np.int64], probability: float) -> Floats:
    """Quantile by hour of the week, (…, 168), NaN where nothing was seen; folded days are repeated.

    Args:
        histograms: (…, 168 or 24, 101) counts.
        probability: 0-1.
    """
    values = quantile(histograms, probability)
    repeats = HOURS_PER_WEEK // values.shape[-1]
    return np.tile(values, (*(1,) * (values.ndim - 1), repeats)) if repeats > 1 else values


def week_peaks(peaks: Float32, hour: NDArray[np.int64], *, history_seconds: float) -> Floats:
    """Largest demand by hour of the week, (workloads, 168), NaN where nothing was seen; folded like the histograms."""
    cycle = cycle_hours(history_seconds)
    top = np.full((len(peaks), cycle), np.nan)
    for number in range(cycle):
        columns = hour % cycle == number
        if columns.any():
            top[:, number] = np.fmax.reduce(peaks[:, columns], axis=1)
    return np.tile(top, (1, HOURS_PER_WEEK // cycle))


def week_upper(peaks: Float32, seen: NDArray[np.float32], hour: NDArray[np.int64], *, history_seconds: float) -> Floats:
    """What an hour's peak stays below the next time, nine times in ten, (workloads, 168); NaN where it came once.

    Student's bound for one more observation: mean + t · deviation · √(1 + 1/n) over the n times that the hour came, so
    that two sights of an hour say little and twenty say much. Folded like the histograms.

    Args:
        peaks: largest demand of every local hour, (workloads, hours).
        seen: share of the hour that was seen, the same shape.
        hour: hour of the week of each column.
        history_seconds: length of the history.
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
