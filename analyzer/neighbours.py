"""How fast a service was beside each workload that it shared a card with, against alone: measured on the own fleet.

A service's speed is the first of these that its server shows: tokens per second of each running request, 1 / P99
latency. Both depend on load too, so speeds are compared within bands of the same load (and of as many replicas of its
own at work on the card), in the life of one slice, and day by day: median speed of a day's hours beside a neighbour
with that of the hours in which nobody else worked on the card, of the same day or the nearest ones. The interval is
taken over days, because the hours of one day resemble each other, as do the replicas of a workload on one day: of both
there is one value, and no more values count than there are days alone. Hours beside several working neighbours say
nothing of any of them. MIG instances share a card, but not its compute: they are no neighbours here.

What this can't tell apart: a neighbour, and whatever else only came with it (longer requests at its hours, a node that
throttles). Called by `analyzer.profile`; the recommender keeps apart who was slowed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from analyzer.presence import Bools
from analyzer.survey import Survey
from fleet.inventory import CardId, WorkloadId
from fleet.profiles import NeighbourEffect
from fleet.schema import Measure

DAYS_MIN: Final = 4
"""Fewest days beside a neighbour, and alone, from which something is said."""
DAYS_APART_MAX: Final = 3
"""How far the day of the hours alone may be from the day beside."""
STEPS_MIN: Final = 6
"""Fewest steps of a day that must have found their like; an hour's where that is more."""
LOAD_BAND: Final = 1.25
"""Loads resemble each other up to this factor."""
SPEED_FACTOR_MAX: Final = 100.0
"""A day's speed beside / alone counts as within this factor: what a server reports of itself has no bounds."""
NEIGHBOURS_MAX: Final = 20
"""Most neighbours that are named of a service, those first that slow it most."""

_SPEEDS = frozenset({Measure.GENERATED_TOKEN_RATE, Measure.LATENCY_P99})
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Company:
    """Who worked on one card, one entry per step.

    Attributes:
        hidden: how many slices lived of which nobody knows what they did.
        owners: how many workloads worked.
        number_sum: sum of their places among the names, counted from 1; where only one worked, that is who.
        names: all workloads of the card.
        of_owner: how many slices of a workload worked; of workloads that live.
    """

    hidden: Int64
    owners: Int64
    number_sum: Int64
    names: tuple[WorkloadId, ...]
    of_owner: Mapping[WorkloadId, Int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Met:
    """What is known of a service beside one neighbour.

    Attributes:
        of_days: per day the sum of logarithms of speed beside / alone by its steps, and these steps.
        alone: days whose hours alone were compared with.
    """

    of_days: dict[int, tuple[float, float]] = field(default_factory=dict)
    alone: set[int] = field(default_factory=set)


def effects_of_neighbours(look: Survey) -> dict[WorkloadId, tuple[NeighbourEffect, ...]]:
    """How each live workload was slowed by its neighbours; nothing of those whose speed or neighbours nobody saw.

    Returns:
        Per workload its neighbours, the one first beside which it was slowest.
    """
    on_card: dict[CardId, list[int]] = defaultdict(list)
    for number, life in enumerate(look.lives):
        if life.latest.mig_profile is None:
            on_card[life.latest.card].append(number)
    days = (look.line.ends_ms() - 1) // 86_400_000
    shown = [values for measure, values in look.grid.mean.items() if measure in _SPEEDS]
    speaks = np.any([np.isfinite(values).any(axis=1) for values in shown], axis=0) if shown else np.zeros(0, bool)
    victims = {
        number: workload
        for workload, members in look.members.items()
        for number in members
        if shown and (row := look.lives[number].row) is not None and speaks[row]
    }
    met: dict[WorkloadId, dict[tuple[WorkloadId, Measure], _Met]] = defaultdict(lambda: defaultdict(_Met))
    for numbers in on_card.values():
        judged = [number for number in numbers if number in victims]
        if not judged or len({_owner(look, number) for number in numbers}) < 2:
            continue
        company = _company(look, numbers, look.members)
        for number in judged:
            _meet(look, number, company, days, met[victims[number]])
    found = {workload: _effects(of_workload) for workload, of_workload in met.items()}
    return {workload: effects for workload, effects in found.items() if effects}


def _owner(look: Survey, number: int) -> WorkloadId:
    return look.lives[number].workload_id


def _company(look: Survey, numbers: Sequence[int], kept: Mapping[WorkloadId, object]) -> _Company:
    by_owner: dict[WorkloadId, list[int]] = defaultdict(list)
    for number in numbers:
        by_owner[_owner(look, number)].append(number)
    hidden, owners, number_sum = (np.zeros(look.line.steps, np.int64) for _ in range(3))
    of_owner: dict[WorkloadId, Int64] = {}
    for place, (owner, lives) in enumerate(by_owner.items(), 1):
        works = np.zeros(look.line.steps, np.int64)
        for number in lives:
            works += _works(look, number)
            hidden += _hides(look, number)
        owners += works > 0
        number_sum += place * (works > 0)
        if owner in kept:
            of_owner[owner] = works
    return _Company(hidden=hidden, owners=owners, number_sum=number_sum, names=tuple(by_owner), of_owner=of_owner)


def _works(look: Survey, number: int) -> Bools:
    works: Bools = look.lived[number] & look.used[number]
    return works


def _hides(look: Survey, number: int) -> Bools:
    hides: Bools = look.lived[number] & ~(look.known[number] | look.gave_way[number])
    return hides


def _meet(
    look: Survey, number: int, company: _Company, days: Int64, met: dict[tuple[WorkloadId, Measure], _Met]
) -> None:
    """Adds what the hours of one slice say of its neighbours."""
    of_own = company.of_owner[_owner(look, number)]
    others = company.owners - (of_own > 0)
    clear = look.lived[number] & (others <= 1) & (company.hidden - _hides(look, number) == 0)
    steps = np.flatnonzero(clear)
    if not (others[steps] == 1).any():
        return
    pace = _pace(look, number, steps)
    if pace is None:
        return
    measure, speed, band, known = pace
    steps, own_place = steps[known], company.names.index(_owner(look, number)) + 1
    beside = np.where(others[steps] == 1, company.number_sum[steps] - own_place * (of_own[steps] > 0), 0)
    band += 2048 * (of_own[steps] - _works(look, number)[steps])
    needed = max(STEPS_MIN, math.ceil(3600 / look.line.step_seconds))
    for neighbour, day, ratio, weight, alone in _ratios(speed, band, beside, days[steps], needed):
        entry = met[company.names[neighbour - 1], measure]
        ratios, weights = entry.of_days.get(day, (0.0, 0.0))
        entry.of_days[day] = ratios + weight * ratio, weights + weight
        entry.alone.update(alone)


def _pace(look: Survey, number: int, steps: Int64) -> tuple[Measure, Float64, Int64, Bools] | None:
    """What speed is read from, its logarithm, the band of load, and of which of the steps these two are."""

    def of(measure: Measure) -> Float64 | None:
        values = look.grid.mean.get(measure)
        return None if values is None else _log(values[look.lives[number].row, steps])

    tokens, running = of(Measure.GENERATED_TOKEN_RATE), of(Measure.REQUESTS_RUNNING)
    latency, rate = of(Measure.LATENCY_P99), of(Measure.REQUEST_RATE)
    for measure, load, speed in (
        (Measure.GENERATED_TOKEN_RATE, running, None if tokens is None or running is None else tokens - running),
        (Measure.LATENCY_P99, rate, None if latency is None else -latency),
    ):
        if load is None or speed is None:
            continue
        known = np.isfinite(speed) & np.isfinite(load)
        if known.any():
            return measure, speed[known], np.floor(load[known] / math.log(LOAD_BAND)).astype(np.int64), known
    return None


def _log(values: NDArray[np.float32]) -> Float64:
    """Logarithm; NaN of what is not positive."""
    positive = np.where(values > 0.0, values, np.nan).astype(np.float64)
    return np.log(positive)


def _ratios(
    speed: Float64, band: Int64, beside: Int64, days: Int64, needed: int
) -> Iterator[tuple[int, int, float, float, list[int]]]:
    """What the hours of one slice say, one entry per neighbour and day on which enough hours found their like.

    The ratio is the mean over bands of the median speed beside less that alone, by the steps of the rarer of the two.

    Args:
        speed: logarithm of speed, (steps,), all finite.
        beside: who worked beside it, 0 for nobody, (steps,).

    Yields:
        Neighbour, day, logarithm of speed beside / alone, steps that this stands on, days alone.
    """
    first = int(days.min())
    day, (_, band) = days - first, np.unique(band, return_inverse=True)
    bands, count = int(band.max()) + 1, int(day.max()) + 1
    cell, steps, median = _medians((beside * count + day) * bands + band, speed)
    who, cell_day, cell_band = cell // (bands * count), cell // bands % count, cell % bands
    by_day = np.zeros((2, bands, count + 1))
    rests = who == 0
    by_day[0, cell_band[rests], cell_day[rests] + 1] = steps[rests]
    by_day[1, cell_band[rests], cell_day[rests] + 1] = (steps * median)[rests]
    until = by_day.cumsum(axis=2)
    alone_days = np.unique(cell_day[rests]).tolist()
    who, day, band, steps, median = (
        values[~rests] for values in (who, cell_day, cell_band, steps.astype(np.float64), median)
    )
    pairs, group = np.unique(who * count + day, return_inverse=True)
    open_pairs = np.ones(len(pairs), bool)
    for reach in range(DAYS_APART_MAX + 1):
        since, stop = np.maximum(day - reach, 0), np.minimum(day + reach + 1, count)
        near, near_sum = until[:, band, stop] - until[:, band, since]
        weight = np.minimum(steps, near)
        more = weight * (median - near_sum / np.maximum(near, 1.0))
        weights, sums = (np.bincount(group, values, len(pairs)) for values in (weight, more))
        ready = open_pairs & (weights >= needed)
        for pair, ratios, steps_alike in zip(*(one[ready].tolist() for one in (pairs, sums, weights)), strict=True):
            at = pair % count
            alone = [first + one for one in alone_days if abs(one - at) <= reach] if reach else [first + at]
            yield pair // count, first + at, ratios / steps_alike, steps_alike, alone
        open_pairs &= weights < needed
        if not open_pairs.any():
            return


def _medians(cell: Int64, values: Float64) -> tuple[Int64, Int64, Float64]:
    """Every cell that occurs, ascending, how often, and the median of its values."""
    rising = np.argsort(values)
    # Numbers of 16 bits are sorted ten times faster.
    order = rising[np.argsort(cell[rising].astype(np.min_scalar_type(cell.max())), kind="stable")]
    cell, values = cell[order], values[order]
    starts = np.flatnonzero(np.diff(cell, prepend=-1))
    counts = np.diff(starts, append=len(cell))
    return cell[starts], counts, (values[starts + (counts - 1) // 2] + values[starts + counts // 2]) / 2.0


def _effects(met: Mapping[tuple[WorkloadId, Measure], _Met]) -> tuple[NeighbourEffect, ...]:
    # Of a server that came to report more on the way, what was measured on most days counts.
    best: dict[WorkloadId, NeighbourEffect] = {}
    for (neighbour, measure), seen in met.items():
        effect = _effect(neighbour, measure, seen)
        if effect is not None and (neighbour not in best or effect.days > best[neighbour].days):
            best[neighbour] = effect
    return tuple(sorted(best.values(), key=lambda one: (one.speed_ratio, one.neighbour)))[:NEIGHBOURS_MAX]


def _effect(neighbour: WorkloadId, measure: Measure, seen: _Met) -> NeighbourEffect | None:
    count = min(len(seen.of_days), len(seen.alone))
    if count < DAYS_MIN:
        return None
    limit = math.log(SPEED_FACTOR_MAX)
    ratios, weights = np.array(list(seen.of_days.values())).T
    of_days = np.clip(ratios / weights, -limit, limit)
    mean = float(of_days.mean())
    around = _student(count - 1) * float(of_days.std(ddof=1)) / math.sqrt(count)
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
