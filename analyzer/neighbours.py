"""How fast a service was beside each workload that it shared a card with, against alone: measured on the own fleet.

A service's speed is the first of these that its server shows: tokens per second of each running request, 1 / P99
latency, requests per SM active. Each depends on load too, so speeds are compared within bands of the same load, in the
life of one slice (the same card, grant and image), and day by day: hours of a day beside a neighbour with the hours in
which nobody else worked on the card, of the same day or the nearest ones. Days are what the interval is taken over,
because the hours of one day resemble each other. Hours beside several working neighbours say nothing of any of them.

What this can't tell apart: a neighbour, and whatever else only came with it (longer requests at its hours, a node that
throttles). Called by `analyzer.profile`; the recommender keeps apart who was slowed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import NormalDist, fmean, stdev
from typing import Final

import numpy as np
from numpy.typing import NDArray

from analyzer.presence import Bools
from analyzer.survey import Survey
from fleet.inventory import CardId, WorkloadId
from fleet.profiles import NeighbourEffect
from fleet.schema import Measure

DAYS_MIN: Final = 4
"""Fewest days beside a neighbour from which something is said."""
DAYS_APART_MAX: Final = 3
"""How far the day of the hours alone may be from the day beside."""
STEPS_MIN: Final = 6
"""Fewest steps of a day that must have found their like; an hour's where that is more."""
LOAD_BAND: Final = 1.25
"""Loads resemble each other up to this factor."""
NEIGHBOURS_MAX: Final = 20
"""Most neighbours that are named of a service, those first that slow it most."""

Float64 = NDArray[np.float64]
_Pace = tuple[Measure, Float64, NDArray[np.int64]]
"""What speed is read from, its logarithm by step (NaN where not known), and the band of load of each step."""


def effects_of_neighbours(look: Survey) -> dict[WorkloadId, tuple[NeighbourEffect, ...]]:
    """How each live workload was slowed by its neighbours; nothing of those whose speed or neighbours nobody saw.

    Returns:
        Per workload its neighbours, the one first beside which it was slowest.
    """
    on_card: dict[CardId, list[int]] = defaultdict(list)
    for number, life in enumerate(look.lives):
        on_card[life.latest.card].append(number)
    days = (look.line.ends_ms() - 1) // 86_400_000
    found: dict[WorkloadId, tuple[NeighbourEffect, ...]] = {}
    for workload, members in look.members.items():
        ratios: dict[tuple[WorkloadId, Measure], list[float]] = defaultdict(list)
        for number in members:
            others = [other for other in on_card[look.lives[number].latest.card] if _owner(look, other) != workload]
            pace = _pace(look, number) if others else None
            if pace is not None:
                for neighbour, of_days in _beside(look, number, others, pace, days):
                    ratios[neighbour, pace[0]] += of_days
        effects = [
            _effect(neighbour, measure, of_days)
            for (neighbour, measure), of_days in ratios.items()
            if len(of_days) >= DAYS_MIN
        ]
        if effects:
            found[workload] = tuple(sorted(effects, key=lambda one: (one.speed_ratio, one.neighbour)))[:NEIGHBOURS_MAX]
    return found


def _owner(look: Survey, number: int) -> WorkloadId:
    return look.lives[number].workload_id


def _pace(look: Survey, number: int) -> _Pace | None:
    row = look.lives[number].row
    if row is None:
        return None

    def of(measure: Measure) -> Float64 | None:
        values = look.grid.mean.get(measure)
        return None if values is None else values[row, : look.line.steps].astype(np.float64)

    rate, running = of(Measure.REQUEST_RATE), of(Measure.REQUESTS_RUNNING)
    for measure, load, top, bottom in (
        (Measure.GENERATED_TOKEN_RATE, running, of(Measure.GENERATED_TOKEN_RATE), running),
        (Measure.LATENCY_P99, rate, np.ones(look.line.steps), of(Measure.LATENCY_P99)),
        (Measure.SM_ACTIVE, rate, rate, of(Measure.SM_ACTIVE)),
    ):
        if load is None or top is None or bottom is None:
            continue
        speed = _log(top) - _log(bottom)
        band = _log(load) / math.log(LOAD_BAND)
        known = ~np.isnan(speed) & ~np.isnan(band)
        if known.any():
            return measure, np.where(known, speed, np.nan), np.floor(np.nan_to_num(band)).astype(np.int64)
    return None


def _log(values: Float64) -> Float64:
    """Logarithm; NaN of what is not positive."""
    return np.log(values, out=np.full_like(values, np.nan), where=values > 0.0)


def _beside(
    look: Survey, number: int, others: Sequence[int], pace: _Pace, days: NDArray[np.int64]
) -> Iterator[tuple[WorkloadId, list[float]]]:
    """Per neighbour the logarithms of speed beside it / alone, one per day on which both were seen."""
    working: dict[WorkloadId, Bools] = {}
    unclear = ~look.lived[number] | np.isnan(pace[1])
    for other in others:
        lived = look.lived[other]
        works = lived & look.used[other]
        owner = _owner(look, other)
        working[owner] = works if owner not in working else working[owner] | works
        unclear |= lived & ~(look.known[other] | look.gave_way[other])
    at_once = np.sum(list(working.values()), axis=0)
    alone = np.flatnonzero(~unclear & (at_once == 0))
    if not len(alone):
        return
    needed = max(STEPS_MIN, math.ceil(3600 / look.line.step_seconds))
    for neighbour, works in working.items():
        beside = np.flatnonzero(~unclear & works & (at_once == 1))
        found = [
            _of_day(beside[days[beside] == day], alone, np.abs(days[alone] - day), pace, needed)
            for day in np.unique(days[beside])
        ]
        yield neighbour, [ratio for ratio in found if ratio is not None]


def _of_day(
    beside: NDArray[np.int64], alone: NDArray[np.int64], apart: NDArray[np.int64], pace: _Pace, needed: int
) -> float | None:
    """Mean over bands of load of what the median speed beside is above that alone, counted by the steps of both."""
    _, speed, band = pace
    for reach in range(DAYS_APART_MAX + 1):
        near = alone[apart <= reach]
        weights, differences = [], []
        for load in np.intersect1d(band[beside], band[near]):
            with_it, without = beside[band[beside] == load], near[band[near] == load]
            weights.append(min(len(with_it), len(without)))
            differences.append(float(np.median(speed[with_it]) - np.median(speed[without])))
        if sum(weights) >= needed:
            return float(np.average(differences, weights=weights))
    return None


def _effect(neighbour: WorkloadId, measure: Measure, of_days: Sequence[float]) -> NeighbourEffect:
    mean = fmean(of_days)
    around = _student(len(of_days) - 1) * stdev(of_days) / math.sqrt(len(of_days))
    return NeighbourEffect(
        neighbour=neighbour,
        measured_by=measure.value,
        days=len(of_days),
        speed_ratio=round(math.exp(mean), 4),
        speed_ratio_min=round(math.exp(mean - around), 4),
        speed_ratio_max=round(math.exp(mean + around), 4),
    )


def _student(freedom: int) -> float:
    """What Student's t stays below with a chance of 97.5 %, to 1 % from 3 degrees of freedom on.

    Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.5.
    """
    z, v = NormalDist().inv_cdf(0.975), float(freedom)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
