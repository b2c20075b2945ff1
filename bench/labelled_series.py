"""Series whose period is known, with gaps and outliers: what the period bars are judged on.

Daily and weekly habits of several shapes, and seven kinds of series without a habit that fool a careless test: white
and red noise, random walks, bursts, trends, level shifts, and cycles of other lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STEP_SECONDS = 600
PER_DAY = 86400 // STEP_SECONDS
GAPS_MAX = 0.20
OUTLIERS_MAX = 0.05
KINDS_WITHOUT = ("white", "red", "walk", "bursts", "trend", "shift", "other cycle")
SHAPES = ("office", "sine", "night batch", "two peaks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """Series and their labels.

    Attributes:
        values: demand 0-1, (series, steps), NaN in gaps.
        periods: 24, 168 or None, one per series.
        kinds: shape or kind of each.
    """

    values: NDArray[np.float32]
    periods: tuple[int | None, ...]
    kinds: tuple[str, ...]


def labelled_series(seed: int, *, days: int, per_kind: int = 25) -> Labelled:
    """Some series of every kind.

    Args:
        seed: of everything random.
        days: length; weekly habits are made from two weeks on only.
        per_kind: series per shape and period.
    """
    random = np.random.default_rng(seed)
    rows: list[NDArray[np.float64]] = []
    periods: list[int | None] = []
    kinds: list[str] = []
    for shape in SHAPES:
        for period in (24, 168) if days >= 14 else (24,):
            for _ in range(per_kind):
                rows.append(_habit(shape, period, days, random))
                periods.append(period)
                kinds.append(shape)
    for kind in KINDS_WITHOUT:
        for _ in range(per_kind):
            rows.append(_without(kind, days, random))
            periods.append(None)
            kinds.append(kind)
    values = np.array([_spoiled(row, random) for row in rows], np.float32)
    return Labelled(values=values, periods=tuple(periods), kinds=tuple(kinds))


def _habit(shape: str, period: int, days: int, random: np.random.Generator) -> NDArray[np.float64]:
    minute = np.arange(days * PER_DAY) * (STEP_SECONDS // 60)
    hour = minute / 60 % 24
    day = minute // 1440
    start, length = random.uniform(6, 11), random.uniform(6, 12)
    # Every shape is drawn, so that the same seed gives the same numbers whichever is asked for.
    shapes: dict[str, NDArray[np.float64]] = {
        "office": ((hour - start) % 24 < length).astype(float),
        "sine": 0.5 + 0.5 * np.sin((hour - start) * np.pi / 12),
        "night batch": ((hour - start - 14) % 24 < random.uniform(2, 4)).astype(float),
        "two peaks": np.exp(-(((hour - start) / 1.5) ** 2)) + np.exp(-(((hour - start - 9) / 2) ** 2)),
    }
    level = shapes[shape]
    if period == 168:
        off = random.choice(7, 2, replace=False)
        level = level * np.where(np.isin(day % 7, off), random.uniform(0.0, 0.3), 1.0)
    # Days differ in height, and noise goes with the level.
    level = level * random.uniform(0.85, 1.15, days)[day]
    top, floor, noise = random.uniform(0.2, 0.8), random.uniform(0.0, 0.1), random.uniform(0.05, 0.3)
    noisy: NDArray[np.float64] = (floor + top * level) * random.lognormal(0, noise, len(level))
    return noisy


def _without(kind: str, days: int, random: np.random.Generator) -> NDArray[np.float64]:
    count = days * PER_DAY
    steps = np.arange(count)
    white = random.normal(0, 1, count)
    if kind == "white":
        return 0.4 + 0.1 * white
    if kind == "red":
        return np.asarray(0.4 + 0.05 * _red(white, random.uniform(0.8, 0.995)))
    if kind == "walk":
        walk = np.cumsum(white)
        return np.asarray(0.5 * (walk - walk.min()) / np.ptp(walk) + 0.02 * np.abs(white))
    if kind == "bursts":
        values = 0.02 * np.abs(white)
        for start in random.integers(0, count, random.integers(2, 2 + days)):
            values[start : start + int(random.integers(2, 40))] += random.uniform(0.2, 0.8)
        return values
    if kind == "trend":
        return 0.1 + random.uniform(0.1, 0.6) * steps / count + 0.05 * white
    if kind == "shift":
        return np.where(steps < random.uniform(0.2, 0.8) * count, 0.15, 0.6) + 0.05 * white
    length = random.choice([5.0, 7.3, 10.0, 15.0, 17.0, 31.0, 40.0, 57.0]) * 3600 / STEP_SECONDS
    other: NDArray[np.float64] = 0.4 + 0.3 * np.sin(2 * np.pi * steps / length + random.uniform(0, 6)) + 0.05 * white
    return other


def _red(white: NDArray[np.float64], memory: float) -> NDArray[np.float64]:
    values = np.empty_like(white)
    last = 0.0
    for place, shock in enumerate(white):
        last = memory * last + shock
        values[place] = last
    return np.asarray(values / max(1e-9, values.std()))


def _spoiled(values: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    """Gaps of minutes to hours up to a fifth of the series, and outliers up to a twentieth."""
    spoiled = np.clip(values, 0, 1)
    count = len(spoiled)
    outliers = random.random(count) < random.uniform(0, OUTLIERS_MAX)
    spoiled[outliers] = random.uniform(0, 1, int(outliers.sum()))
    wanted = random.uniform(0, GAPS_MAX) * count
    while np.isnan(spoiled).sum() < wanted:
        start, length = int(random.integers(0, count)), int(random.integers(1, 36))
        left = int(wanted - np.isnan(spoiled).sum()) + 1
        spoiled[start : start + min(length, left)] = np.nan
    return spoiled
