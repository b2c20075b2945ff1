"""The hazard of surprise: how often, and how far, a service rises above everything it did before.

Packing is not what limits a plan, surprise is: most harm comes from pods that do what they never did in the history.
So the history itself is asked, by rolling over its days: of all services of a class (how busy they had been at
most), what share rose above their record within the next days, and what did such a day look like? The answers shape
surges in the scenarios (`scenarios`) and the head-room of grants (`footprint_grants`).
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
_PRIOR_HAZARD = (0.03, 0.10, 0.10, 0.08)
"""Daily hazard per class before anything was seen: the order of what public inference traces show."""
_PRIOR_DAYS = 30.0
"""Weight of that prior, in service-days."""
_QUIET = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surprises:
    """What was learned.

    Attributes:
        hazard: chance per day and class that a service rises above its record, (classes,).
        shapes: per class, days of surprise, (days, steps per day): in units of the record, for the quiet class in
            shares of a card.
        record: largest demand of a replica of each type, share of a card, (types,).
        type_class: class of each type, (types,).
    """

    hazard: NDArray[np.float64]
    shapes: tuple[Float32, ...]
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
    peak = filled.max(axis=2) if steps else np.zeros((types, days), np.float32)
    best = np.maximum.accumulate(peak, axis=1) if days else peak
    record = best[:, -1].astype(float) if days else np.zeros(types)
    seen = np.zeros(CLASSES)
    rose = np.zeros(CLASSES)
    pools: list[list[Float32]] = [[] for _ in range(CLASSES)]
    for origin in range(max(1, days // 2), days):
        base = best[:, origin - 1]
        classes = classes_of(base)
        for day in range(origin, min(days, origin + HORIZON_DAYS)):
            risen = (peak[:, day] > base * RISE_RATIO_MIN) & (peak[:, day] > base + RISE_MIN)
            seen += np.bincount(classes, minlength=CLASSES)
            rose += np.bincount(classes[risen], minlength=CLASSES)
            for row in np.flatnonzero(risen):
                unit = 1.0 if classes[row] == _QUIET else max(float(base[row]), 1e-6)
                pools[classes[row]].append((filled[row, day] / unit).astype(np.float32))
    prior = np.array(_PRIOR_HAZARD)
    hazard = (rose + prior * _PRIOR_DAYS) / (seen + _PRIOR_DAYS)
    return Surprises(
        hazard=hazard,
        shapes=tuple(_with_plain(pool, steps, number) for number, pool in enumerate(pools)),
        record=record,
        type_class=classes_of(record),
    )


def classes_of(record: NDArray[np.floating]) -> NDArray[np.int64]:
    """Class of each record, see `CLASS_EDGES`."""
    return np.searchsorted(np.array(CLASS_EDGES), record, side="right").astype(np.int64)


def _with_plain(pool: list[Float32], steps: int, number: int) -> Float32:
    """The pool with one plain surge of six hours, so that no class is without a shape."""
    plain = np.zeros(steps, np.float32)
    level = 0.5 if number == _QUIET else 1.5
    plain[int(0.4 * steps) : max(int(0.65 * steps), int(0.4 * steps) + 1)] = level
    return np.stack([plain, *pool]) if pool else plain[None, :]
