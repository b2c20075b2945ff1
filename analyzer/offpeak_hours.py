"""Off-peak promises: the hours of the week in which a workload will stay low, as far as its past lets anybody say so.

That an hour was always low is no promise yet: on 205 inference services over ten days 91 % of such hours were low again
on the next three days. An hour is promised when it was always low *and* its chance to stay so is high, by two things
that can be seen beforehand: how low the hours before and after it stayed, as far as the days are alike at all (habits
start a little earlier on some days), and whether the last day was busier than those before it.

Called by `analyzer.facts` on chunks of workloads and by `analyzer.confidence`, which makes the same promises on earlier
days and looks at what became of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.rhythm import DAY_HISTORY_SECONDS_MIN, HOUR_COVERAGE_MIN, HOURS_PER_WEEK, cycle_hours, is_folded
from fleet.settings.settings import AnalyzerSettings
from fleet.usage import Float32

PROMISE_CHANCE_MIN = 0.975
"""Least chance at which an hour is promised. Of such promises of services whose days had no part in the weights 99 %
were kept over three days and 0.4-0.9 % passed half of p95, by which services are left out together; at 0.96 there are
2.6 times as many, of which 96.8 % are kept and 1.6 % pass it."""
CHANCE_INTERCEPT, CHANCE_MARGIN, CHANCE_RECENT = 3.36, -0.39, -0.83
"""Log odds that an hour which was always low stays low for three days: intercept, weights of habit × logarithm of the
hours around and of the last day's level. Logistic regression on 205 inference services over ten days (cuts after days
3-7); `bench/quality/quiet-study` learns them again and judges each service by weights learned without it. A workload's
own record of kept promises adds nothing to them."""
DAYS_SEEN_MIN = 3
"""Fewest times a folded hour of the day must have been seen low."""
WEEKS_SEEN_MIN = 2
"""Fewest times an hour of the week must have been seen low."""
AROUND_MIN, AROUND_MAX = 0.01, 5.0
"""Levels of the hours around, as shares of p95, beyond which nothing more is learned."""
RECENT_MAX = 3.0
"""Level of the last day, as a share of the mean day, beyond which nothing more is learned."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseEvidence:
    """What speaks for the hours of a cycle, 24 or 168.

    Attributes:
        times: how often each hour was seen well and low, (workloads, cycle).
        always_low: nothing that was seen of the hour passed the limit, (workloads, cycle).
        around: highest demand of the hours before and after, as a share of p95, (workloads, cycle).
        habit: mean correlation between the days (weeks) of the history, 0-1, (workloads,).
        recent: level of the last day (week) / mean level, (workloads,).
    """

    times: NDArray[np.int64]
    always_low: NDArray[np.bool_]
    around: Floats
    habit: Floats
    recent: Floats

    def signals(self) -> Floats:
        """What the chance is made of: habit × logarithm of the hours around, recent level, (workloads, cycle, 2)."""
        around = np.log(np.clip(self.around, AROUND_MIN, AROUND_MAX))
        recent = np.broadcast_to(np.minimum(self.recent, RECENT_MAX)[:, None], around.shape)
        return np.stack([self.habit[:, None] * around, recent], axis=2)

    def chance(self) -> Floats:
        """Chance that each hour stays low for three days, provided that it always was, (workloads, cycle)."""
        odds = CHANCE_INTERCEPT + self.signals() @ np.array([CHANCE_MARGIN, CHANCE_RECENT])
        return np.asarray(1.0 / (1.0 + np.exp(-odds)), np.float64)


def promise_evidence(
    peaks: Float32,
    seen: NDArray[np.float32],
    hour: NDArray[np.int64],
    p95: Floats,
    *,
    cycle: int,
    settings: AnalyzerSettings,
) -> PromiseEvidence:
    """Lays the history's hours out by cycle and looks at them.

    Args:
        peaks: largest demand of every local hour of the history, maximum over replicas, (workloads, hours).
        seen: share of the hour that was seen, the same shape.
        hour: hour of the week of each column, (hours,).
        p95: 95th percentile of each workload's demand, (workloads,), NaN where unknown.
        cycle: 24 where days are folded, else 168.
        settings: `off_peak_ratio`, `idle_ratio_max`.
    """
    rows = len(peaks)
    known = np.nan_to_num(p95)
    # What hardly ever does anything has no peak that a fifth of could be below.
    limit = np.where(known > settings.idle_ratio_max, settings.off_peak_ratio * known, -1.0)[:, None]
    good = seen >= HOUR_COVERAGE_MIN
    low = np.nan_to_num(peaks, nan=np.inf) <= limit
    highest = np.nan_to_num(peaks, nan=-np.inf)
    phase = hour % cycle
    turns = max(1, len(hour) // cycle)
    laid_out = np.full((rows, turns, cycle), np.nan, np.float32)
    times = np.zeros((rows, cycle), np.int64)
    top = np.zeros((rows, cycle))
    for number in range(cycle):
        columns = np.flatnonzero(phase == number)
        times[:, number] = (low & good)[:, columns].sum(axis=1)
        top[:, number] = highest[:, columns].max(axis=1, initial=-np.inf)
        last = columns[-turns:]
        laid_out[:, turns - len(last) :, number] = peaks[:, last]
    # An hour that was never seen is no quiet neighbour.
    beside = np.where(np.isneginf(top), np.inf, top)
    around = np.maximum(np.roll(beside, 1, axis=1), np.roll(beside, -1, axis=1)) / np.maximum(known, 1e-9)[:, None]
    return PromiseEvidence(
        times=times, always_low=top <= limit, around=around, habit=_habit(laid_out), recent=_recent(laid_out)
    )


def _habit(laid_out: Float32) -> Floats:
    """Mean correlation between the turns of the cycle, 0-1; a turn without any movement resembles none.

    Taken from the variance of their sum: with n turns of variance 1 it is n + n(n - 1) times the mean correlation.
    """
    turns = laid_out.shape[1]
    there = ~np.isnan(laid_out)
    count = np.maximum(1, there.sum(axis=2, keepdims=True))
    mean = np.where(there, laid_out, 0.0).sum(axis=2, keepdims=True, dtype=np.float64) / count
    centred = np.where(there, laid_out - mean, 0.0)
    spread = np.sqrt((centred * centred).sum(axis=2, keepdims=True) / count)
    standard = np.where(spread > 1e-6, centred / np.maximum(spread, 1e-6), 0.0)
    total = standard.sum(axis=1)
    of_sum, of_each = (total * total).mean(axis=1), (standard * standard).sum(axis=1).mean(axis=1)
    mean_correlation: Floats = np.clip((of_sum - of_each) / max(1, turns * (turns - 1)), 0.0, 1.0)
    return mean_correlation


def _recent(laid_out: Float32) -> Floats:
    """Mean of the last turn / mean of all turns; 1 where nothing was seen of one."""
    there = ~np.isnan(laid_out)
    values = np.where(there, laid_out, 0.0).astype(np.float64)
    count, last = there.sum(axis=(1, 2)), there[:, -1].sum(axis=1)
    mean = values.sum(axis=(1, 2)) / np.maximum(1, count)
    of_last = values[:, -1].sum(axis=1) / np.maximum(1, last)
    return np.where((last > 0) & (mean > 1e-9), of_last / np.maximum(mean, 1e-9), 1.0)


def promised_hours(
    peaks: Float32,
    seen: NDArray[np.float32],
    hour: NDArray[np.int64],
    p95: Floats,
    *,
    history_seconds: float,
    settings: AnalyzerSettings,
) -> NDArray[np.bool_]:
    """Hours of the week that are promised to stay low, (workloads, 168).

    Args:
        peaks: largest demand of every local hour of the history, maximum over replicas, (workloads, hours).
        seen: share of the hour that was seen, the same shape.
        hour: hour of the week of each column, (hours,).
        p95: 95th percentile of each workload's demand, (workloads,), NaN where unknown.
        settings: `off_peak_ratio`, `idle_ratio_max`.
    """
    if history_seconds < DAY_HISTORY_SECONDS_MIN or not peaks.size:
        return np.zeros((len(peaks), HOURS_PER_WEEK), bool)
    cycle = cycle_hours(history_seconds)
    evidence = promise_evidence(peaks, seen, hour, p95, cycle=cycle, settings=settings)
    enough = evidence.times >= (DAYS_SEEN_MIN if is_folded(history_seconds) else WEEKS_SEEN_MIN)
    holds = evidence.always_low & enough & (evidence.chance() >= PROMISE_CHANCE_MIN)
    return np.tile(holds, (1, HOURS_PER_WEEK // cycle))
