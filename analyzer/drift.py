"""Does a workload's level move: a step that stays (level shift), or steady growth, by its days.

A day is the unit, because within days habits move the level anyway; from three weeks on each day is taken less what its
weekday adds, so that weekends are no shifts. A step must part the days on either side, and stand out from how much they
differ; a trend must keep its direction (Mann 1945, Kendall 1975; slope after Theil 1950 and Sen 1968). What is seen
before a shift says little of what comes after it.

Called by `analyzer.facts` per workload.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.usage import Float32

SIDE_DAYS_MIN = 3
"""Fewest days on either side of a shift: a weekend is shorter."""
SHIFT_RATIO_MIN = 1.25
"""How many times the lower level the higher one must be."""
SHIFT_SIGMAS = 4.0
"""How far the levels lie apart, in deviations of a day from its side's level."""
OUTLIER_SHARE = 0.1
"""Share of a side's days that may lie anywhere."""
LINE_RATIO_MAX = 0.75
"""How much closer a step must fit than a straight line: steady growth is no shift."""
TREND_DAYS_MIN = 7
"""Fewest days in which growth shows."""
TREND_SIGMAS = 3.5
"""How sure the direction must be: the best of many days was picked."""
LEVEL_MIN = 0.002
"""Levels below this share of a card are noise, whatever their ratio."""
WEEKDAYS_SINCE_DAYS = 21
"""From here on it is known what a weekday adds to its week."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayDrift:
    """How the level of one workload moved.

    Attributes:
        shift_day: first day of the new level, counted from the first day; None where no step stands out.
        shift_ratio: new level / old level; None without a shift.
        growth_per_week_ratio: change per week / level, since the shift; None where no direction is sure.
    """

    shift_day: int | None
    shift_ratio: float | None
    growth_per_week_ratio: float | None


def drift(days: NDArray[np.float64]) -> DayDrift:
    """How the level of one workload moved over its days.

    Args:
        days: mean demand of each whole day, oldest first, (days,); NaN where too little was seen.
    """
    shift = _shift(days)
    since = days if shift is None else days[shift:]
    ratio = None
    if shift is not None:
        ratio = round(float(np.nanmedian(days[shift:]) / max(LEVEL_MIN, float(np.nanmedian(days[:shift])))), 3)
    return DayDrift(shift_day=shift, shift_ratio=ratio, growth_per_week_ratio=_growth(since))


def day_levels(means: Float32, starts: NDArray[np.int64], seen_min: float) -> NDArray[np.float64]:
    """Mean of every whole day, (rows, days); NaN where less than `seen_min` of it was seen.

    Args:
        means: mean demand over replicas, (rows, steps).
        starts: first step of every whole day, (days,), see `analyzer.confidence.day_starts`.
        seen_min: share, 0-1.
    """
    if not len(starts):
        return np.full((len(means), 0), np.nan)
    there = ~np.isnan(means)
    count = np.add.reduceat(there, starts, axis=1, dtype=np.int64)
    total = np.add.reduceat(np.where(there, means, 0), starts, axis=1, dtype=np.float64)
    lengths = np.diff(np.r_[starts, means.shape[1]])
    return np.where(count >= seen_min * lengths, total / np.maximum(1, count), np.nan)


def _shift(days: NDArray[np.float64]) -> int | None:
    level = _less_weekday(days)
    best, found = SHIFT_SIGMAS, None
    for day in range(SIDE_DAYS_MIN, len(days) - SIDE_DAYS_MIN + 1):
        before, after = level[:day], level[day:]
        if np.isfinite(before).sum() < SIDE_DAYS_MIN or np.isfinite(after).sum() < SIDE_DAYS_MIN:
            continue
        low, high = sorted((float(np.nanmedian(days[:day])), float(np.nanmedian(days[day:]))))
        if high < LEVEL_MIN or high < SHIFT_RATIO_MIN * low:
            continue
        if _overlap(before, after):
            continue
        apart = abs(float(np.nanmean(after) - np.nanmean(before)))
        spread = float(np.nanstd(np.r_[before - np.nanmean(before), after - np.nanmean(after)]))
        if spread > LINE_RATIO_MAX * _line_spread(level):
            continue
        # A fiftieth of the level keeps a series that hardly moves from making a shift of nothing.
        strength = apart / max(spread, 0.02 * high)
        if strength > best:
            best, found = strength, day
    return found


def _line_spread(level: NDArray[np.float64]) -> float:
    """Deviation of the days from the straight line through them."""
    places = np.flatnonzero(np.isfinite(level))
    time, values = places - places.mean(), level[places] - level[places].mean()
    slope = float((time * values).sum() / max(1.0, float((time * time).sum())))
    return float((values - slope * time).std())


def _overlap(before: NDArray[np.float64], after: NDArray[np.float64]) -> bool:
    """True where more than a tenth of the days of one side lie among those of the other."""
    one, two = (np.sort(side[np.isfinite(side)]) for side in (before, after))
    low, high = (one, two) if one.mean() < two.mean() else (two, one)
    return bool(low[-1 - int(OUTLIER_SHARE * len(low))] >= high[int(OUTLIER_SHARE * len(high))])


def _less_weekday(days: NDArray[np.float64]) -> NDArray[np.float64]:
    """Days less what their weekday adds to its week: taken within weeks, so that no shift or trend is taken along."""
    weeks = len(days) // 7
    if len(days) < WEEKDAYS_SINCE_DAYS:
        return days
    first = len(days) - 7 * weeks
    table = days[first:].reshape(weeks, 7)
    whole = np.isfinite(table).all(axis=1)
    if whole.sum() < 2:
        return days
    effect: NDArray[np.float64] = np.median(table[whole] - table[whole].mean(axis=1, keepdims=True), axis=0)
    level: NDArray[np.float64] = days - effect[(np.arange(len(days)) - first) % 7]
    return level


def _growth(days: NDArray[np.float64]) -> float | None:
    places = np.flatnonzero(np.isfinite(days))
    level = float(np.nanmean(days)) if len(places) else 0.0
    if len(places) < TREND_DAYS_MIN or level < LEVEL_MIN:
        return None
    first, second = np.triu_indices(len(places), 1)
    gaps = places[second] - places[first]
    values = _less_weekday(days)[places]
    changes = values[second] - values[first]
    score = float(np.sign(changes).sum())
    count = len(places)
    variance = count * (count - 1) * (2 * count + 5) / 18
    if abs(score) - 1 < TREND_SIGMAS * np.sqrt(variance):
        return None
    return round(float(np.median(changes / gaps)) * 7 / level, 3)
