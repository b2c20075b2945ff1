"""What low priority could have got at most on the same cards, had it known everything that came.

Hindsight has the same workers and the same rules: a worker needs the same framebuffer, leaves the same threshold free,
gets what others leave, and may be sent away no oftener per hour than the limit. Knowing the days it chooses which
stretches of room to use, saves just before each ends, and loses nothing. Every stretch is used whole or not at all: to
begin late or to end early only loses work, for an end is an eviction whenever it comes. Of all choices within the limit
the best is bounded by Lagrange relaxation, so that no policy can do better than what is returned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_HALVINGS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class HarvestBounds:
    """Card-hours of work done by those who knew.

    Attributes:
        limited: by whom the limit of evictions binds; the mark that a policy is measured by.
        unlimited: by who may be sent away as often as it likes.
        static: by workers that are seated once for all the days, where they never have to go.
    """

    limited: float
    unlimited: float
    static: float


def harvest_bounds(
    left: NDArray[np.float32],
    free_ratio: NDArray[np.floating],
    is_shared: NDArray[np.bool_],
    idle_cards: NDArray[np.int64],
    *,
    size_ratio: float,
    watermark_ratio: float,
    evictions_per_hour_max: float,
    step_seconds: int,
) -> HarvestBounds:
    """Bounds for an endless queue of workers; arrays as `recommender.simulate.harvest.harvest` takes them.

    Args:
        left: compute left on each card, (cards, steps).
        free_ratio: framebuffer that nobody needs, (cards, steps).
        is_shared: cards in use that may take a worker, (cards, steps).
        idle_cards: whole cards that are paid for and empty, (steps,).
        size_ratio: framebuffer of the smallest worker, share of the card.
        watermark_ratio: framebuffer that stays free beside it.
        evictions_per_hour_max: limit of evictions per hour that a worker ran.
        step_seconds: length of a step.
    """
    whole = np.arange(idle_cards.max(initial=0))[:, None] < idle_cards[None, :]
    fits = is_shared & (free_ratio - size_ratio >= watermark_ratio)
    able = np.concatenate([fits, whole])
    work = np.concatenate([np.where(is_shared, left, 0.0), whole]).astype(float) * step_seconds / 3600.0
    gain, hours, evictions = _stretches(able, work, step_seconds)
    stays = (fits | ~is_shared).all(axis=1)
    always = whole.all(axis=1)
    return HarvestBounds(
        limited=_bound(gain, evictions - evictions_per_hour_max * hours),
        unlimited=float(gain.sum()),
        static=float(work[np.concatenate([stays, always])].sum()),
    )


def _stretches(
    able: NDArray[np.bool_], work: NDArray[np.float64], step_seconds: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Work, hours and evictions of every stretch of steps in which a worker may stay; none is evicted at the end."""
    edge = np.zeros((len(able), 1), np.int8)
    change = np.diff(np.concatenate([edge, able.astype(np.int8), edge], axis=1), axis=1)
    card, begin = np.nonzero(change == 1)
    _, end = np.nonzero(change == -1)
    done = np.concatenate([np.zeros((len(able), 1)), np.cumsum(work, axis=1)], axis=1)
    hours = (end - begin) * step_seconds / 3600.0
    return done[card, end] - done[card, begin], hours, (end < able.shape[1]).astype(float)


def _bound(gain: NDArray[np.float64], excess: NDArray[np.float64]) -> float:
    """Most that stretches can gain while their excess of evictions adds up to no more than 0, or little above it."""
    low, high = 0.0, 1.0
    while float(excess[gain - high * excess > 0].sum()) > 0:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        price = (low + high) / 2
        if float(excess[gain - price * excess > 0].sum()) > 0:
            low = price
        else:
            high = price
    # The dual value at any price is a bound; at this price it is the least.
    return float(np.maximum(0.0, gain - high * excess).sum())
