"""Does a series repeat after a day, after a week, or not at all: an autocorrelation with checks against false friends.

The series is thinned to ten minutes, its outliers are clipped, and hours are correlated over the pairs of which both
were seen. Chance is bounded analytically, where others shuffle the series a hundred times (gocrane/crane:
pkg/prediction/dsp): Bartlett's bound widens the variance 1/n of white noise by the memory of the series. What fools an
autocorrelation is excluded one by one: trends, level shifts and random walks by taking the day's own level away, cycles
of other lengths by the lags between, a few bursts that happened at the same hour by leaving the strongest day out, and
days of differing height by asking that a week beats every whole day.

A day needs three days of history, a week two weeks. Compiled by numba and cached beside this file. Called by
`analyzer.facts`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from analyzer.presence import Timeline
from analyzer.rhythm import DAY_HISTORY_SECONDS_MIN, WEEK_HISTORY_SECONDS_MIN
from fleet.usage import Float32

SAMPLE_SECONDS = 600
"""Step to which series are thinned before outliers are clipped."""
OUTLIER_SHARE = 0.02
"""Share of the values at either end that is clipped: one spike must neither make nor hide a habit."""
NOISE_SIGMAS = 3.5
"""How many standard deviations of a memoryless series' autocorrelation count as chance."""
CORRELATION_MIN = 0.2
"""Autocorrelation below this is too weak a habit to go by, however sure it is."""
CHANCE_MAX = 0.5
"""Bartlett's bound holds for a series without habits; a habit itself has memory, so the bound is capped."""
OTHER_LAG_LEAD = 0.10
"""How much better a habit must repeat than at lags between."""
WEEK_LEAD = 0.005
"""How much better a week must repeat than any whole number of days (a day repeats in a week too)."""
STEP_SECONDS_MAX = 3600
"""Longest step in which hours can be distinguished."""
_DAY, _WEEK = 24, 168


def periods(series: Float32, line: Timeline) -> list[int | None]:
    """Period of every series: 24, 168 or None, in hours.

    Args:
        series: demand, (workloads, steps), NaN where not collected; infinities count as not collected.
    """
    seconds = line.steps * line.step_seconds
    if seconds < DAY_HISTORY_SECONDS_MIN or line.step_seconds > STEP_SECONDS_MAX or not len(series):
        return [None] * len(series)
    per_sample = max(1, SAMPLE_SECONDS // line.step_seconds)
    per_hour = max(1, 3600 // (line.step_seconds * per_sample))
    found = np.zeros(len(series), np.int64)
    _periods(np.ascontiguousarray(series), per_sample, per_hour, seconds >= WEEK_HISTORY_SECONDS_MIN, found)
    return [hours or None for hours in found.tolist()]


@njit(cache=True, nogil=True)
def _periods(series: Any, per_sample: Any, per_hour: Any, tries_week: Any, found: Any) -> None:
    for row in range(series.shape[0]):
        hours = _hours(series[row], per_sample, per_hour)
        if tries_week and _is_weekly(hours):
            found[row] = _WEEK
        elif _is_daily(hours):
            found[row] = _DAY


@njit(cache=True, nogil=True)
def _hours(values: Any, per_sample: Any, per_hour: Any) -> Any:
    """Hourly means of ten-minute means less their outliers, the last hour whole; NaN where nothing was collected."""
    count = len(values) // (per_sample * per_hour)
    offset = len(values) - count * per_sample * per_hour
    samples = np.full(count * per_hour, np.nan)
    low, high = np.inf, -np.inf
    for place in range(len(samples)):
        total, seen = 0.0, 0
        for step in range(offset + place * per_sample, offset + (place + 1) * per_sample):
            if np.isfinite(values[step]):
                total += values[step]
                seen += 1
        if seen:
            samples[place] = total / seen
            low, high = min(low, samples[place]), max(high, samples[place])
    low, high = _fences(samples, low, high)
    hours = np.full(count, np.nan)
    for hour in range(count):
        total, seen = 0.0, 0
        for place in range(hour * per_hour, (hour + 1) * per_hour):
            if not np.isnan(samples[place]):
                total += min(max(samples[place], low), high)
                seen += 1
        if seen:
            hours[hour] = total / seen
    return hours


@njit(cache=True, nogil=True)
def _fences(samples: Any, low: Any, high: Any) -> Any:
    """Where outliers begin, to a five-hundredth of the span."""
    if not high > low:
        return low, high
    bins = np.zeros(512, np.int64)
    seen = 0
    for value in samples:
        if not np.isnan(value):
            bins[min(511, int(512 * (value - low) / (high - low)))] += 1
            seen += 1
    bottom, passed = 0, bins[0]
    while passed <= OUTLIER_SHARE * seen:
        bottom += 1
        passed += bins[bottom]
    top, passed = 511, bins[511]
    while passed <= OUTLIER_SHARE * seen:
        top -= 1
        passed += bins[top]
    step = (high - low) / 512
    return low + bottom * step, low + (top + 1) * step


@njit(cache=True, nogil=True)
def _is_daily(hours: Any) -> Any:
    own = _less_day_level(hours)
    day, without_best, pairs = _correlation(own, _DAY)
    needed = _needed(own, pairs)
    if day <= needed or without_best <= 0.75 * needed:
        return False
    between = -1.0
    for lag in range(14, 35):
        if abs(lag - _DAY) > 3:
            between = max(between, _correlation(own, lag)[0])
    return between <= day - OTHER_LAG_LEAD


@njit(cache=True, nogil=True)
def _is_weekly(hours: Any) -> Any:
    own = _less_trend(hours)
    week, without_best, pairs = _correlation(own, _WEEK)
    needed = _needed(own, pairs)
    if week <= needed or without_best <= 0.75 * needed:
        return False
    if _correlation(_less_day_level(hours), _WEEK)[0] < CORRELATION_MIN:
        # Slow walks repeat by accident; that their days have no shape in common shows when the level is gone.
        return False
    # Two correlations of one noisy series differ by chance by about (1 - r²) / √n each.
    lead = WEEK_LEAD + NOISE_SIGMAS * (1.0 - week * week) / np.sqrt(max(1.0, pairs))
    for day in range(1, 7):
        if _correlation(own, day * _DAY)[0] > week - lead:
            return False
    for lag in range(14, _WEEK - 4):
        if min(lag % _DAY, _DAY - lag % _DAY) > 3 and _correlation(own, lag)[0] > week - OTHER_LAG_LEAD:
            return False
    return True


@njit(cache=True, nogil=True)
def _needed(own: Any, pairs: Any) -> Any:
    memory = 0.0
    for lag in range(1, 7):
        memory += _correlation(own, lag)[0] ** 2
    chance = NOISE_SIGMAS * np.sqrt((1.0 + 2.0 * memory) / max(1.0, pairs))
    return max(CORRELATION_MIN, min(chance, CHANCE_MAX))


@njit(cache=True, nogil=True)
def _less_day_level(hours: Any) -> Any:
    """Hours less the mean of the 24 around them: growth, shifts and slow walks go, the shape of the day stays."""
    count = len(hours)
    sums, seen = np.zeros(count + 1), np.zeros(count + 1)
    for hour in range(count):
        there = not np.isnan(hours[hour])
        sums[hour + 1] = sums[hour] + (hours[hour] if there else 0.0)
        seen[hour + 1] = seen[hour] + (1.0 if there else 0.0)
    own = np.full(count, np.nan)
    for hour in range(count):
        # At the ends the window slides instead of shrinking, so that it always spans one day.
        first = min(max(0, hour - 12), max(0, count - _DAY))
        last = min(count, first + _DAY)
        if seen[last] - seen[first] >= 12:
            own[hour] = hours[hour] - (sums[last] - sums[first]) / (seen[last] - seen[first])
    return own


@njit(cache=True, nogil=True)
def _less_trend(hours: Any) -> Any:
    """Hours less the straight line through them."""
    seen, time, level = 0, 0.0, 0.0
    for hour in range(len(hours)):
        if not np.isnan(hours[hour]):
            seen += 1
            time += hour
            level += hours[hour]
    time, level = time / max(1, seen), level / max(1, seen)
    slope, spread = 0.0, 0.0
    for hour in range(len(hours)):
        if not np.isnan(hours[hour]):
            slope += (hour - time) * (hours[hour] - level)
            spread += (hour - time) ** 2
    own = hours.copy()
    for hour in range(len(hours)):
        own[hour] -= level + (slope / max(1.0, spread)) * (hour - time)
    return own


@njit(cache=True, nogil=True)
def _correlation(own: Any, lag: Any) -> Any:
    """Autocorrelation at a lag over pairs of which both were seen, the same less its strongest day, and the pairs."""
    product, one, two, pairs = 0.0, 0.0, 0.0, 0
    best, of_day = 0.0, 0.0
    for hour in range(lag, len(own)):
        if (hour - lag) % _DAY == 0:
            best, of_day = max(best, of_day), 0.0
        first, second = own[hour - lag], own[hour]
        if not np.isnan(first) and not np.isnan(second):
            product += first * second
            of_day += first * second
            one += first * first
            two += second * second
            pairs += 1
    scale = np.sqrt(one * two)
    if scale <= 1e-12:
        return 0.0, 0.0, float(pairs)
    return product / scale, (product - max(best, of_day)) / scale, float(pairs)
