"""Parts cards on which one pod would be harmed far more than the fleet may be, however calm the rest of it is.

A plan's limit on harm is one for the whole fleet: some pods that are seldom active and always meet each other weigh
little in it. Points are counted as in `risk`, pod by pod. Called by `frontier_points`; pure.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from fleet.sharing import ACTIVE_RATIO_MIN, CONTENTION_RATIO_MAX
from fleet.usage import Float32


def active_points(load: Float32) -> NDArray[np.int64]:
    """In how many points each type is active, (types,).

    Args:
        load: demand of each type, share of a card, (types, points).
    """
    found: NDArray[np.int64] = np.count_nonzero(load > ACTIVE_RATIO_MIN, axis=1)
    return found


def bins_to_check(
    bin_of: NDArray[np.int32],
    violated: NDArray[np.float64],
    active: NDArray[np.int64],
    is_low: NDArray[np.bool_],
    ratio_max: float,
) -> NDArray[np.int64]:
    """Bins on which a pod may be above the ceiling: that hold more violated points than it lets the calmest pod have.

    Args:
        violated: violated item-points per bin, (bins,).
        active: active points of each item, (items,).
        is_low: items whose harm is not counted, (items,).
        ratio_max: most violated points of an item / its active ones.
    """
    least = np.full(len(violated), np.inf)
    counted = ~is_low & (active > 0)
    np.minimum.at(least, bin_of[counted], active[counted].astype(float))
    shared = (np.bincount(bin_of, minlength=len(violated)) > 1) & (violated > 0) & np.isfinite(least)
    found: NDArray[np.int64] = np.flatnonzero(shared)[violated[shared] > ratio_max * least[shared]]
    return found


def parted_below(
    items: NDArray[np.int64],
    type_of: NDArray[np.int32],
    load: Float32,
    is_low: NDArray[np.bool_],
    most: NDArray[np.float32],
    ratio_max: float,
) -> list[tuple[list[int], int]]:
    """The items of one bin, in as few bins as first fit finds in which nobody is above the ceiling.

    The largest choose first. Low priority, which yields, stays with the first of them. What an item's own limit does to
    it, it would suffer alone as well: that parts nobody.

    Args:
        items: of the bin.
        type_of: type of each item of all, rows of `load`.
        load: demand of each type, share of a card, (types, points); 0 for low priority.
        most: limit of each item, share of a card, infinite where there is none, (items of all,).
        ratio_max: most violated points of an item / its active ones.

    Returns:
        Items of each bin, and their violated points.
    """
    most_ratio = {int(item): max(ratio_max, _harm([int(item)], type_of, load, most)[0][0]) for item in items}

    def fits(held: list[int]) -> bool:
        return all(
            ratio <= most_ratio[item] for item, ratio in zip(held, _harm(held, type_of, load, most)[0], strict=True)
        )

    high = [int(item) for item in items if not is_low[item]]
    bins: list[list[int]] = [high] if fits(high) else []
    if not bins:
        total = load[type_of[items]].sum(axis=1)
        for item in (int(item) for item in items[np.argsort(-total, kind="stable")] if not is_low[item]):
            fitting = next((held for held in bins if fits([*held, item])), None)
            if fitting is None:
                bins.append([item])
            else:
                fitting.append(item)
    bins[0] += [int(item) for item in items if is_low[item]]
    return [(held, _harm(held, type_of, load, most)[1]) for held in bins]


def _harm(
    items: list[int], type_of: NDArray[np.int32], load: Float32, most: NDArray[np.float32]
) -> tuple[list[float], int]:
    """Violated share of the active points of each item, 0-1, and violated points of all, on one card."""
    held = np.array(items, np.int64)
    ratios, violated = _played(type_of[held], load, most[held])
    return ratios.tolist(), int(violated)


@numba.njit(cache=True, nogil=True)
def _played(types: Any, load: Any, most: Any) -> Any:
    points = load.shape[1]
    slack = np.float32(CONTENTION_RATIO_MAX - 1.0)
    total = np.zeros(points, np.float32)
    for k in range(types.shape[0]):
        row = load[types[k]]
        for t in range(points):
            total[t] += row[t]
    ratios = np.zeros(types.shape[0])
    everybody = 0
    for k in range(types.shape[0]):
        row = load[types[k]]
        active = 0
        violated = 0
        for t in range(points):
            if row[t] > ACTIVE_RATIO_MIN:
                active += 1
                violated += total[t] > CONTENTION_RATIO_MAX or row[t] > most[k] + slack
        everybody += violated
        if active > 0:
            ratios[k] = violated / active
    return ratios, everybody
