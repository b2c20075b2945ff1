"""Forecasts of the coming days that take the place of the days that plans draw from the history.

A forecast gives quantiles per service, half hour and day ahead, learned from all earlier days as they were known then.
What came on these days, as a place among the quantiles (beyond the last: by how much), is replayed over the quantiles
of the coming days: a whole day of a service at a time, or jointly of all. For `bench/quality/forecast-study`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

import recommender.backtest as referee
from fleet.usage import Float32, History
from recommender import outlook
from recommender.harm.scenarios import POINTS_PER_DAY, draw_scenarios, type_means
from recommender.harm.surprise import HORIZON_DAYS, Surprises, classes_of
from recommender.planner import make_plans

Array = NDArray[Any]
Quantiles = Callable[[Array], Array]
"""Features (n, features) to quantiles (n, levels), in units of the record."""
Fit = Callable[[Array, Array], Quantiles]
"""From features (n, features) and what came (n,)."""
LEVELS = (0.1, 0.4, 0.7, 0.9, 0.97, 0.995)
SCALE_MIN = 0.02
"""Demand of services is in units of their record, and of this much of a card at least."""
ROWS_MAX = 6_000
"""Rows that a model is fitted on at most, of half of the services; it forecasts the other half."""
PRESENT = "present"


@dataclass(frozen=True, kw_only=True)
class Replay:
    """How errors of the past are replayed.

    Attributes:
        borrowed: share of days whose error is that of another service of the same class.
        half_life_days: after how many days an error is half as likely to come again.
    """

    borrowed: float
    half_life_days: float


def naive(column: int) -> Fit:
    """Demand of an earlier day at that time, a column of `features`, with the spread that services had around it."""

    def fit(rows: Array, came: Array) -> Quantiles:
        spread = np.quantile(came - rows[:, column], LEVELS)
        return lambda asked: asked[:, column, None] + spread

    return fit


def linear(rows: Array, came: Array) -> Quantiles:
    """Linear quantile regression by majorisation (Hunter and Lange 2000)."""
    centre, spread = rows.mean(axis=0), rows.std(axis=0) + 1e-6

    def plain(asked: Array) -> Array:
        return np.column_stack([(asked - centre) / spread, np.ones(len(asked))])

    known = plain(rows)
    slope: Array = np.zeros(known.shape[1])
    ridge, weights, found = 1e-3 * len(rows) * np.eye(known.shape[1]), np.ones(len(rows)), []
    for level in LEVELS:
        for _ in range(20):
            wanted = known.T @ (weights * came) + (2 * level - 1) * known.sum(axis=0)
            slope = np.linalg.solve((known.T * weights) @ known + ridge, wanted)
            weights = 1.0 / (0.005 + np.abs(came - known @ slope))
        found.append(slope)
    return lambda asked: plain(asked) @ np.array(found).T


def boosting(rows: Array, came: Array) -> Quantiles:
    """Gradient boosting of quantiles."""
    from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415 - only a run needs it, not the page

    how = {"learning_rate": 0.2, "max_iter": 25, "max_leaf_nodes": 15, "early_stopping": False}
    models = [HistGradientBoostingRegressor(loss="quantile", quantile=one, **how).fit(rows, came) for one in LEVELS]
    return lambda asked: np.column_stack([model.predict(asked) for model in models])


METHODS = {"last day": naive(0), "last week": naive(5), "linear": linear, "boosting": boosting}
NAMES = (*METHODS, *(f"{name} + {PRESENT}" for name in ("linear", "boosting")))


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What was learned of one card model.

    Attributes:
        coming: quantiles of the coming days, in units of `scale`, (types, horizons, points, levels).
        errors: places of what came among the quantiles of earlier days, (types, past days, points).
        ages: how long ago each of these days was, days, (past days,).
        scale: unit of each type, share of a card, (types,).
    """

    coming: Array
    errors: Array
    ages: Array
    scale: Array


def scale_of(known: Array) -> Array:
    scale: Array = np.maximum(known.max(axis=(1, 2)), SCALE_MIN)
    return scale


def features(known: Array, ahead: int, weekday: int) -> Array:
    """What is known of the day `ahead` of the last known one: lags and calendar, (types, points, features).

    Args:
        known: demand of each type, (types, days, points).
        weekday: that of the coming day, 0 is Monday.
    """
    scale = scale_of(known)[:, None]
    last, target = known[:, -1], known.shape[1] + ahead - 1
    whole, mean = last.mean(axis=1, keepdims=True), known.mean(axis=1)
    around = sum(np.roll(last, shift, axis=1) for shift in range(-2, 3)) / 5
    lags = [last, around, mean, known.max(axis=1), known.min(axis=1), known[:, target - 7] if target >= 7 else mean]
    lags += [whole, last.max(axis=1, keepdims=True), last[:, -6:].mean(axis=1, keepdims=True)]
    lags += [whole - mean.mean(axis=1, keepdims=True)]
    angle = 2 * np.pi * np.arange(POINTS_PER_DAY) / POINTS_PER_DAY
    calendar = [np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)]
    days = [weekday >= 5, (weekday - ahead) % 7 >= 5, ahead]
    columns = (
        [lag / scale for lag in lags]
        + [np.log(scale)]
        + [np.atleast_2d(np.asarray(one, float)) for one in [*calendar, *days]]
    )
    return np.stack([np.broadcast_to(column, last.shape) for column in columns], axis=2)


def learn(fit: Fit, blocks: Array, type_of: Array, weekday: int) -> Learned:
    """Learns from demand of one card model, (rows, days, steps per day); the first coming day is a `weekday`."""
    random = np.random.default_rng(0)
    means = type_means(blocks, type_of)
    types, days, per_day = means.shape
    with np.errstate(invalid="ignore"):
        parts = means.reshape(types, days, POINTS_PER_DAY, -1)
        halves = np.nan_to_num(parts).sum(axis=3) / np.where(np.isfinite(parts), 1.0, 0.0).sum(axis=3)
    # Gaps are taken to be as other days at that time.
    there = np.isfinite(halves)
    usual = np.nan_to_num(halves).sum(axis=1) / np.maximum(1, there.sum(axis=1))
    known = np.where(there, np.nan_to_num(halves), usual[:, None])
    # One replica a day stands for its type, at one step of each half hour.
    order, counts = np.argsort(type_of, kind="stable"), np.bincount(type_of, minlength=types)
    replica = order[
        (np.cumsum(counts) - counts)[:, None] + (random.random((types, days)) * counts[:, None]).astype(int)
    ]
    width = per_day // POINTS_PER_DAY
    steps = np.arange(POINTS_PER_DAY) * width + random.integers(width, size=(days, POINTS_PER_DAY))
    shown = blocks[replica[:, :, None], np.arange(days)[None, :, None], steps[None]]
    aheads = range(1, HORIZON_DAYS + 1)
    pairs = [(at, ahead) for at in range(1, days) for ahead in aheads if at + ahead <= days]
    rows = np.stack([features(known[:, :at], h, (weekday - days + at + h - 1) % 7) for at, h in pairs], axis=1)
    came = np.stack([shown[:, at + h - 1] / scale_of(known[:, :at])[:, None] for at, h in pairs], axis=1)
    # A day before which nothing was collected teaches nothing.
    came[~np.stack([np.isfinite(means[:, at - 1]).any(axis=1) for at, _ in pairs], axis=1)] = np.nan
    asked = np.stack([features(known, h, (weekday + h - 1) % 7) for h in aheads], axis=1)
    is_first = random.permutation(types) < types / 2
    past, coming = np.zeros((*came.shape, len(LEVELS))), np.zeros((*asked.shape[:3], len(LEVELS)))
    # Services of each half are forecast by a model of the other half.
    for mine in (is_first, ~is_first) if types > 1 else (np.array([True]),):
        others = ~mine if types > 1 else mine
        usable = random.permutation(np.flatnonzero(np.isfinite(came[others]).ravel()))[:ROWS_MAX]
        if not len(usable):
            usable, others = np.flatnonzero(np.isfinite(came).ravel())[:ROWS_MAX], np.ones(types, bool)
        model = fit(rows[others].reshape(-1, rows.shape[-1])[usable], came[others].ravel()[usable])
        for target, source in ((past, rows), (coming, asked)):
            target[mine] = model(source[mine].reshape(-1, source.shape[-1])).reshape(target[mine].shape)
    rising = 1e-4 * np.arange(1, len(LEVELS) + 1)
    past, coming = (np.sort(np.maximum(one, 0.0), axis=-1) + rising for one in (past, coming))
    errors = place_of(came, past).reshape(-1, POINTS_PER_DAY)
    whole = errors[np.isfinite(errors).all(axis=1)]
    if not len(whole):
        whole = np.full((1, POINTS_PER_DAY), len(LEVELS) / 2)
    errors = np.where(np.isfinite(errors), errors, whole[random.integers(len(whole), size=len(errors))])
    ages = np.array([days - at - ahead for at, ahead in pairs], float)
    return Learned(coming=coming, errors=errors.reshape(came.shape), ages=ages, scale=scale_of(known))


def _between(number: Array, quantiles: Array) -> tuple[Array, Array]:
    """Lower end and width of the numbered gap between quantiles; beyond the last the width is one record."""
    edges = np.concatenate([np.zeros((*quantiles.shape[:-1], 1)), quantiles], axis=-1)
    ends = [np.minimum(one, len(LEVELS))[..., None] for one in (number, number + 1)]
    low, high = (np.take_along_axis(edges, end, axis=-1)[..., 0] for end in ends)
    return low, np.where(number < len(LEVELS), high - low, 1.0)


def place_of(came: Array, quantiles: Array) -> Array:
    """Where a demand lies among quantiles: their count below it, and how far into the next gap."""
    number: Array = (came[..., None] >= quantiles).sum(axis=-1)
    low, width = _between(number, quantiles)
    return number + (came - low) / width


def demand_at(place: Array, quantiles: Array) -> Array:
    """The inverse of `place_of`."""
    number = np.clip(np.floor(place), 0, len(LEVELS)).astype(int)
    low, width = _between(number, quantiles)
    demand: Array = low + (place - number) * width
    return demand


def days_of(learned: Learned, how: Replay, *, draws: int, days: int, replays: int, seed: int) -> Array:
    """Days that may come, share of a card, (types, draws, days, points); arguments as of `draw_scenarios`."""
    random = np.random.default_rng(seed)
    types, past, _ = learned.errors.shape
    chance = 0.5 ** (learned.ages / how.half_life_days)
    kind = classes_of(learned.scale)
    order, counts = np.argsort(kind, kind="stable"), np.bincount(kind)
    starts = np.cumsum(counts) - counts
    found = np.empty((types, draws, days, POINTS_PER_DAY), np.float32)
    for draw, day in product(range(draws), range(days)):
        is_joint = draw % (draws // replays) == 0
        pair = random.choice(past, 1 if is_joint else types, p=chance / chance.sum())
        whose = order[starts[kind] + (random.random(types) * counts[kind]).astype(int)]
        whose = np.where((random.random(types) < how.borrowed) & (not is_joint), whose, np.arange(types))
        quantiles = learned.coming[:, (draw * days + day) % HORIZON_DAYS]
        found[:, draw, day] = demand_at(learned.errors[whose, pair], quantiles) * learned.scale[:, None]
    return np.clip(found, 0.0, 1.0)


Known = dict[tuple[str, int, bytes], Learned]
"""What was learned: several forecasts draw from the same."""


@contextmanager
def planning_by(name: str, how: Replay | None, known: Known) -> Iterator[None]:
    """Plans made within see the coming days by a forecast of `NAMES`; as always where no replay is given."""
    method, _, blend = name.partition(" + ")
    weekday = 0

    def planned(history: History, *args: Any, **named: Any) -> Any:
        nonlocal weekday
        weekday = history.slices.until.weekday()
        return make_plans(history, *args, **named)

    def drawn(blocks: Float32, type_of: NDArray[np.int32], surprises: Surprises, **named: Any) -> Float32:
        if how is None or blocks.shape[1] < 2 or not len(blocks):
            return draw_scenarios(blocks, type_of, surprises, **named)
        key = method, weekday, hashlib.sha256(blocks.tobytes()).digest()
        if key not in known:
            known[key] = learn(METHODS[method], blocks, type_of, weekday)
        plain = {word: named[word] for word in ("draws", "seed", "replays")}
        found = days_of(known[key], how, days=blocks.shape[1], **plain)
        if blend:
            found[:, ::2] = draw_scenarios(blocks, type_of, surprises, **named).reshape(found.shape)[:, ::2]
        return found.reshape(len(found), -1)

    vars(outlook)["draw_scenarios"], vars(referee)["make_plans"] = drawn, planned
    try:
        yield
    finally:
        vars(outlook)["draw_scenarios"], vars(referee)["make_plans"] = draw_scenarios, make_plans
