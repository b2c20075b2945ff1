"""The hazard of surprise: how often, and how far, a service rises above everything it did before.

Packing is not what limits a plan, surprise is: most harm comes from pods that do what they never did in the history.
So the history itself is asked, by rolling over its days: of all services of a class (how busy they had been at
most), what share rose above their record within the next days, and what did such a day look like? The answers shape
surges in the scenarios (`harm.scenarios`) and the head-room of grants (`footprint_grants`).

Two corrections make one fold's answer fit the next. The longer a record stands, the rarer it falls: of n + 1 days alike
each is the highest with chance 1 / (n + 1) (Rényi's law of records), so what was seen against a record of n days counts
(n + 1) / (N + 1) against one of N. And fleets change: what happened yesterday weighs more than what happened last week.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.usage import Float32

CLASS_EDGES = (0.02, 0.15, 0.4)
"""Records (largest demand of a replica so far) that part the classes: quiet, low, middle, high."""
CLASSES = len(CLASS_EDGES) + 1
RISE_RATIO_MIN = 1.10
"""A day counts as a surprise when its peak is this many times the record …"""
RISE_MIN = 0.01
"""… and this much of a card above it."""
HORIZON_DAYS = 3
"""How many days ahead of an origin surprises are counted."""
HALF_LIFE_DAYS = 1.0
"""After how many days a surprise counts half."""
SHAPES_MAX = 256
"""Days of surprise kept per class, the latest."""
SHIFT_RATIO_MIN = 1.3
"""How many times as busy as ever a whole fleet may get within days: what launches of one company made of others."""
_WEEK_DAYS = 7
_SEEN_MIN = 0.5
"""Share of a day that must have been seen for its mean to say how busy it was."""
_PRIOR_HAZARD = (0.03, 0.10, 0.10, 0.08)
"""Daily hazard per class before anything was seen: the order of what public inference traces show."""
_PRIOR_DAYS = 2.0
"""Weight of that prior, in service-days of the last day."""
_PLAIN_WEIGHT = 0.05
"""Weight of the plain surge beside those that were seen, in surprises of the last day."""
_QUIET = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surprises:
    """What was learned.

    Attributes:
        hazard: chance per day and class that a service rises above its record, (classes,).
        shapes: per class, days of surprise, (days, steps per day): in units of the record, for the quiet class in
            shares of a card.
        weights: per class, weight of each of these days, adding up to 1, (days,).
        record: largest demand of a replica of each type, share of a card, (types,).
        type_class: class of each type, (types,).
    """

    hazard: NDArray[np.float64]
    shapes: tuple[Float32, ...]
    weights: tuple[NDArray[np.float64], ...]
    record: NDArray[np.float64]
    type_class: NDArray[np.int64]


def learn_surprises(daily: Float32) -> Surprises:
    """Learns from whole days.

    Args:
        daily: mean demand of the replicas of each type, share of a card, (types, days, steps per day); NaN = not
            collected.

    Returns:
        Hazards and shapes; with fewer than two days, the prior and a plain shape.
    """
    types, days, steps = daily.shape
    filled = np.nan_to_num(daily)
    there: NDArray[np.bool_] = np.asarray(np.isfinite(daily).any(axis=2), bool)
    peak = filled.max(axis=2) if steps else np.zeros((types, days), np.float32)
    best = np.maximum.accumulate(peak, axis=1) if days else peak
    # How many days a record was in the making, per type and day.
    age = np.cumsum(there, axis=1)
    record = best[:, -1].astype(float) if days else np.zeros(types)
    seen = np.zeros(CLASSES)
    rose = np.zeros(CLASSES)
    pools: list[list[tuple[Float32, NDArray[np.float64]]]] = [[] for _ in range(CLASSES)]
    for day in range(days - 1, 0, -1):
        recency = 0.5 ** ((days - 1 - day) / HALF_LIFE_DAYS)
        for origin in range(day, max(0, day - HORIZON_DAYS), -1):
            base = best[:, origin - 1]
            counts = there[:, day] & (age[:, origin - 1] > 0)
            weight = recency * (age[:, origin - 1] + 1.0) / (age[:, -1] + 1.0) * counts
            classes = classes_of(base)
            risen = (peak[:, day] > base * RISE_RATIO_MIN) & (peak[:, day] > base + RISE_MIN) & counts
            seen += np.bincount(classes, weights=recency * counts, minlength=CLASSES)
            rose += np.bincount(classes[risen], weights=weight[risen], minlength=CLASSES)
            for kind in range(CLASSES):
                rows = np.flatnonzero(risen & (classes == kind))
                unit = np.ones(len(rows)) if kind == _QUIET else np.maximum(base[rows].astype(float), 1e-6)
                pools[kind].append(((filled[rows, day] / unit[:, None]).astype(np.float32), weight[rows]))
    hazard = (rose + np.array(_PRIOR_HAZARD) * _PRIOR_DAYS) / (seen + _PRIOR_DAYS)
    shapes, weights = zip(*(_pool(pool, steps, kind) for kind, pool in enumerate(pools)), strict=True)
    return Surprises(hazard=hazard, shapes=shapes, weights=weights, record=record, type_class=classes_of(record))


def shift_ratio(compute: Float32, per_day: int) -> float:
    """How many times as busy as on any day before the fleet got on a day of its history, `SHIFT_RATIO_MIN` at least.

    Days count from the second week on: a Monday is no launch. Rows that were not seen on every day are left out: who
    comes makes nobody else busier.

    Args:
        compute: demand of every row, share of a card, (rows, steps), NaN = not collected.
        per_day: steps of a day.
    """
    steps = compute.shape[1]
    days = [compute[:, max(0, end - per_day) : end] for end in range(steps % per_day or per_day, steps + 1, per_day)]
    seen = np.array([np.isfinite(day).mean(axis=1) for day in days])
    totals = np.array([np.nansum(day, axis=1) for day in days]) / np.maximum(seen, _SEEN_MIN)
    daily = totals[:, (seen >= _SEEN_MIN).all(axis=0)].sum(axis=1)
    before = np.maximum.accumulate(daily)[_WEEK_DAYS - 1 : -1]
    risen = daily[_WEEK_DAYS:][before > 0] / before[before > 0]
    return max(SHIFT_RATIO_MIN, float(risen.max(initial=0.0)))


def classes_of(record: NDArray[np.floating]) -> NDArray[np.int64]:
    """Class of each record, see `CLASS_EDGES`."""
    return np.searchsorted(np.array(CLASS_EDGES), record, side="right").astype(np.int64)


def _pool(
    seen: list[tuple[Float32, NDArray[np.float64]]], steps: int, kind: int
) -> tuple[Float32, NDArray[np.float64]]:
    """The latest days of surprise and one plain surge of six hours, so that no class is without a shape."""
    plain = np.zeros((1, steps), np.float32)
    plain[0, int(0.4 * steps) : max(int(0.65 * steps), int(0.4 * steps) + 1)] = 0.5 if kind == _QUIET else 1.5
    shapes = np.concatenate([plain, *(shape for shape, _ in seen)])[: SHAPES_MAX + 1]
    weights = np.concatenate([[_PLAIN_WEIGHT], *(weight for _, weight in seen)])[: SHAPES_MAX + 1]
    return shapes, weights / weights.sum()
