"""How much longer a service's slowest requests take where it shares a card: predicted from the loads hour by hour.

Loads are what each pod uses of a card; the answer comes from a table of request traces played through each way of
sharing (`latency.table`), read between its points. Under priority the pod that goes first waits only for a kernel that
runs already, which is not counted here. Called by `latency.guard`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from enum import StrEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray

from recommender.latency import table as latency_table

_QUANTILE = 0.99


class SharingMode(StrEnum):
    """How a card is shared."""

    HARD = "hard"
    BURST = "burst"
    PRIORITY = "priority"


def inflation(mode: SharingMode, *, own_load: float, neighbour_load: float, share: float = 1.0) -> float | None:
    """P99 on a shared card / P99 alone.

    Args:
        mode: how the card is shared; under `PRIORITY` the service is the one that goes first.
        own_load: what the service uses of a card, 0-1.
        neighbour_load: what its neighbours use together; counts under `BURST`.
        share: its hard share of the card, 0-1; counts under `HARD`.

    Returns:
        1 or more; None where the card has no room left for such a load, so that requests queue without end.
    """
    if mode is SharingMode.PRIORITY:
        return 1.0
    if mode is SharingMode.BURST:
        return _between(
            latency_table.BURST,
            latency_table.OWN_LOADS,
            latency_table.NEIGHBOUR_LOADS,
            max(0.0, own_load),
            max(0.0, neighbour_load),
        )
    if share <= own_load:
        return None
    return _between(latency_table.HARD, latency_table.OWN_LOADS, latency_table.SHARES, max(0.0, own_load), share)


def inflation_of_hours(
    mode: SharingMode, *, own_load: NDArray[np.floating], neighbour_load: NDArray[np.floating], share: float = 1.0
) -> float | None:
    """What all but a hundredth of a service's requests stay within, hour by hour: P99 shared / P99 alone.

    Args:
        own_load: mean load by hour, (hours,); NaN = not collected. An hour counts by it, as requests make load.
        neighbour_load: load of all neighbours in the same hours, (hours,).

    Returns:
        1 or more; None where in more than a hundredth of its work requests would queue without end; 1 where it never
        works.
    """
    own = np.nan_to_num(own_load.astype(float))
    beside = np.nan_to_num(neighbour_load.astype(float))
    hours = np.flatnonzero(own > 0.0)
    if not len(hours):
        return 1.0
    found = [
        inflation(mode, own_load=float(own[hour]), neighbour_load=float(beside[hour]), share=share) for hour in hours
    ]
    value = np.array([math.inf if ratio is None else ratio for ratio in found])
    order = np.argsort(value, kind="stable")
    within = np.cumsum(own[hours][order])
    place = int(np.searchsorted(within, _QUANTILE * within[-1]))
    worst = float(value[order[min(place, len(order) - 1)]])
    return worst if math.isfinite(worst) else None


def least_hard_percent(own_load: NDArray[np.floating], inflation_max: float) -> int | None:
    """Smallest hard share under which a service's slowest requests stay fast enough: whole percent, 1-99.

    Requests wait longer the more load there is, so the hour that counts in `inflation_of_hours` is found by its load.

    Args:
        own_load: mean load by hour, (hours,); NaN = not collected.
        inflation_max: most that P99 latency may grow, times that alone.

    Returns:
        None where even 99 % is too little; 1 where it never works.
    """
    own = np.sort(np.nan_to_num(own_load.astype(float)))
    within = np.cumsum(own)
    if not within.size or within[-1] <= 0.0:
        return 1
    place = min(int(np.searchsorted(within, _QUANTILE * within[-1])), len(own) - 1)
    return _least_hard_percent(math.ceil(round(float(own[place]) * 100.0, 6)), inflation_max)


@cache
def _least_hard_percent(load_percent: int, inflation_max: float) -> int | None:
    for percent in range(1, 100):
        ratio = inflation(SharingMode.HARD, own_load=load_percent / 100.0, neighbour_load=0.0, share=percent / 100.0)
        if ratio is not None and ratio <= inflation_max:
            return percent
    return None


def _between(
    table: Sequence[Sequence[float | None]], rows: Sequence[float], columns: Sequence[float], row: float, column: float
) -> float | None:
    """Reads between four points of a table, linear in the logarithm; None where a point that counts is None."""
    if row > rows[-1] or column > columns[-1]:
        return None
    top, down = _place(rows, row)
    left, right = _place(columns, column)
    total = 0.0
    for number, first in ((top, 1.0 - down), (top + 1, down)):
        for place, second in ((left, 1.0 - right), (left + 1, right)):
            weight = first * second
            if weight <= 0.0:
                continue
            value = table[number][place]
            if value is None:
                return None
            total += weight * math.log(value)
    return math.exp(total)


def _place(points: Sequence[float], value: float) -> tuple[int, float]:
    """The point at or below a value, and how far the value lies towards the next, 0-1; below the first: the first."""
    number = min(max(bisect_right(points, value) - 1, 0), len(points) - 2)
    return number, min(1.0, max(0.0, (value - points[number]) / (points[number + 1] - points[number])))
