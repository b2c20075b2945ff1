"""Days that may come: the history's days replayed and recombined, with surges mixed in as often as history saw them.

A scenario is a matrix of demand, one row per type of replica and one column per point (a sampled step of some day).
The first draw replays the history's days as they were, jointly; later draws pick each service's day on its own (the
hour of day is kept, recent days come more often), from days on which the fleet as a whole was about as busy, so that
nobody's Sunday stands beside the Monday of another, and let services rise above their record by the learned hazard. A
search works on one set, and its answer is judged on a fresh one with another seed. Called by `consolidate`.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from fleet.usage import Float32
from recommender.demand import Demand
from recommender.harm.surprise import Surprises

POINTS_PER_DAY = 48
"""Steps that are sampled of every day."""
DAY_HALF_LIFE = 7.0
"""After how many days a day is half as likely to come again as the last one."""
ALIKE_RATIO = 1.1
"""A day on which the fleet is this many times as busy as on another stands half as often beside it as one alike."""
ALIKE_RATIO = 1.1
"""Days on which the fleet is this many times as busy are half as likely to stand beside each other as days alike."""


_HALVINGS_MAX = 50.0


def daily_blocks(demand: Demand, rows: NDArray[np.int64]) -> Float32:
    """The last days of some rows; a history shorter than a day is one day with gaps.

    Of the first day at least half must be there; what is missing is taken to have been as on the day after it.

    Returns:
        (rows, days, steps per day), NaN where nothing was collected.
    """
    per_day = demand.steps_per_day
    days = max(1, int(demand.steps / per_day + 0.5))
    blocks = np.full((len(rows), days * per_day), np.nan, np.float32)
    width = min(demand.steps, days * per_day)
    if width:
        blocks[:, days * per_day - width :] = demand.compute[rows][:, demand.steps - width :]
    if days > 1:
        missing = days * per_day - width
        blocks[:, :missing] = blocks[:, per_day : per_day + missing]
    return blocks.reshape(len(rows), days, per_day)


def type_means(blocks: Float32, type_of: NDArray[np.int32]) -> Float32:
    """Mean over the replicas of each type, (types, days, steps); NaN where none was seen."""
    types = int(type_of.max()) + 1 if len(type_of) else 0
    means = np.full((types, *blocks.shape[1:]), np.nan, np.float32)
    _mean_by_type(blocks.reshape(len(blocks), -1), type_of, means.reshape(types, -1))
    return means


def replica_noise(blocks: Float32, means: Float32, type_of: NDArray[np.int32]) -> float:
    """Spread of single replicas around their type, as the standard deviation of the log ratio (0 without replicas)."""
    busy = means[type_of] > 0.02
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(blocks / means[type_of])
    shown = ratio[busy & np.isfinite(ratio)]
    shown = shown[shown != 0.0]
    return float(min(0.5, np.std(shown))) if len(shown) > 100 else 0.0


def draw_scenarios(
    blocks: Float32,
    type_of: NDArray[np.int32],
    surprises: Surprises,
    *,
    draws: int,
    seed: int,
    hazard_factor: float = 1.0,
    replays: int = 1,
) -> Float32:
    """Draws scenarios for every type.

    Args:
        blocks: demand of every row, (rows, days, steps per day).
        type_of: type of each row, (rows,).
        draws: how many times the days are drawn.
        hazard_factor: multiplies the hazards (a plan for a longer time meets more surprises).
        replays: how many of the draws are joint replays, evenly spread; the first is one. `draws` is a multiple.

    Returns:
        Demand of one replica of each type, share of a card 0-1, (types, draws × days × points per day).
    """
    types = len(surprises.record)
    rows, days, per_day = blocks.shape
    points = min(POINTS_PER_DAY, per_day)
    if not rows:
        return np.zeros((0, draws * days * points), np.float32)
    generator = np.random.default_rng(seed)
    means = type_means(blocks, type_of)
    noise = replica_noise(blocks, means, type_of)
    usual = _usual_day(means)
    starts, counts, members = _members(type_of, types)
    load = np.empty((types, draws, days, points), np.float32)
    picked_steps = _sampled_steps(generator, draws, days, points, per_day)
    weights = _day_weights(means, counts)
    recency = _recency(days)
    slots = _quantile(recency / recency.sum(), _even(generator, draws * days, 1)[:, 0]).reshape(draws, days)
    every = np.arange(types)
    chances, places, surging = (_even(generator, draws * days, types).reshape(draws, days, types) for _ in range(3))
    hazard = np.minimum(1.0, surprises.hazard[surprises.type_class] * hazard_factor)
    is_replay = np.arange(draws) % (draws // replays) == 0
    for draw in range(draws):
        for day in range(days):
            steps = picked_steps[draw, day]
            chance = chances[draw, day]
            weight = weights[slots[draw, day]]
            day_of = (
                np.full(types, day) if is_replay[draw] else (weight < chance[:, None]).sum(axis=1).clip(0, days - 1)
            )
            replica = members[starts + (places[draw, day] * counts).astype(np.int64)]
            series = blocks[replica[:, None], day_of[:, None], steps[None, :]]
            for stand_in in (means[every[:, None], day_of[:, None], steps[None, :]], usual[:, steps]):
                series = np.where(np.isfinite(series), series, stand_in)
            if not is_replay[draw] or days == 1:
                rising = np.flatnonzero(surging[draw, day] < hazard)
                _surge(series, rising, surging[draw, day, rising] / hazard[rising], steps, surprises, generator, noise)
            load[:, draw, day] = series
    return np.minimum(load, 1.0).reshape(types, -1)


def _even(generator: np.random.Generator, count: int, types: int) -> NDArray[np.float64]:
    """Numbers in [0, 1), (count, types): one of each type in every count-th part, in an order of its own.

    Latin hypercube sampling (McKay, Beckman and Conover 1979): rare surges come about as often as they should in every
    set of scenarios, so that two sets differ less than two of independent numbers.
    """
    order = generator.random((count, types)).argsort(axis=0)
    return np.asarray((order + generator.random((count, types))) / count, np.float64)


def _quantile(weights: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.int64]:
    """Which of some weighted things (weights add up to 1) lies at each share of the whole."""
    return np.searchsorted(np.cumsum(weights), at, side="right").clip(0, len(weights) - 1)


def _recency(days: int) -> NDArray[np.float64]:
    """Weight of each day to come again, (days,): the latest are the likeliest."""
    return np.asarray(0.5 ** (np.arange(days - 1, -1, -1) / DAY_HALF_LIFE), np.float64)


def _day_weights(means: Float32, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cumulated chance of each day to come again beside each other day, (days beside, types, days).

    Days on which a type was not seen never come again, unless none was seen.

    Args:
        counts: replicas of each type.
    """
    seen: NDArray[np.bool_] = np.asarray(np.isfinite(means).any(axis=2), bool)
    daily = np.where(seen, np.nan_to_num(means).sum(axis=2) / np.maximum(1, np.isfinite(means).sum(axis=2)), 0.0)
    usual = daily.sum(axis=1) / np.maximum(1, seen.sum(axis=1))
    fleet = np.log(np.maximum(counts @ np.where(seen, daily, usual[:, None]), 1e-9))
    alike = 0.5 ** np.minimum(_HALVINGS_MAX, np.abs(fleet[:, None] - fleet) / np.log(ALIKE_RATIO))
    seen[~seen.any(axis=1)] = True
    weight = seen * (_recency(means.shape[1]) * alike)[:, None, :]
    return np.cumsum(weight / weight.sum(axis=2, keepdims=True), axis=2)


def _usual_day(means: Float32) -> Float32:
    """What stands in for steps that nobody collected: the type's largest demand at that time of day, else at all."""
    known = np.where(np.isfinite(means), means, -1.0)
    by_time = known.max(axis=1)
    at_all = np.maximum(known.max(axis=(1, 2)), 0.0)[:, None]
    return np.asarray(np.where(by_time >= 0, by_time, at_all), np.float32)


def _surge(
    series: Float32,
    rising: NDArray[np.int64],
    chosen: NDArray[np.float64],
    steps: NDArray[np.int64],
    surprises: Surprises,
    generator: np.random.Generator,
    noise: float,
) -> None:
    """Lays surges over the rising types' series, in place; which shape each takes is chosen by a number in [0, 1)."""
    for kind, shapes in enumerate(surprises.shapes):
        is_here = surprises.type_class[rising] == kind
        here = rising[is_here]
        if not len(here):
            continue
        shape = shapes[_quantile(surprises.weights[kind], chosen[is_here])][:, steps]
        unit = np.ones(len(here)) if kind == 0 else surprises.record[here]
        jitter = np.exp(generator.normal(0.0, noise, shape.shape)) if noise else 1.0
        series[here] = np.maximum(series[here], shape * unit[:, None] * jitter)


def _members(type_of: NDArray[np.int32], types: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    order = np.argsort(type_of, kind="stable").astype(np.int64)
    counts = np.bincount(type_of, minlength=types).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    return starts, counts, order


def _sampled_steps(
    generator: np.random.Generator, draws: int, days: int, points: int, per_day: int
) -> NDArray[np.int64]:
    """One step out of every `per_day / points`, (draws, days, points)."""
    edges = np.linspace(0, per_day, points + 1)
    width = np.diff(edges)
    offset = generator.random((draws, days, points))
    return np.minimum(per_day - 1, (edges[:-1] + offset * width).astype(np.int64))


@numba.njit(cache=True, nogil=True)
def _mean_by_type(rows: Any, type_of: Any, means: Any) -> None:
    """Writes the mean of the rows of each type, one type at a time, so that sums stay in cache."""
    types, steps = means.shape
    first = np.full(types, -1, np.int64)
    following = np.full(len(rows), -1, np.int64)
    for row in range(len(rows) - 1, -1, -1):
        following[row] = first[type_of[row]]
        first[type_of[row]] = row
    total = np.empty(steps, np.float64)
    count = np.empty(steps, np.int64)
    for number in range(types):
        total[:] = 0
        count[:] = 0
        row = first[number]
        while row >= 0:
            for step in range(steps):
                value = rows[row, step]
                if not np.isnan(value):
                    total[step] += value
                    count[step] += 1
            row = following[row]
        for step in range(steps):
            if count[step]:
                means[number, step] = total[step] / count[step]
