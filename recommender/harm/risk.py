"""Predicted harm: how much active time is violated on every card, judged on scenarios the search has not seen.

The rules are those of `fleet.sharing` (and so of replay and back-test): a point of a pod is violated when the pod is
active and its card's high and normal priority demand exceeds the card, or its demand exceeds its own limit, or when its
load is beyond anything it showed and its framebuffer grant does not reach that far. Called by `planner` for its own
plan and for the naive rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from fleet.confidence import CONFIDENT_MIN, LIKELY_MIN
from fleet.decisions import RiskLevel
from fleet.sharing import ACTIVE_RATIO_MIN, CONTENTION_RATIO_MAX
from fleet.usage import Float32
from recommender.footprint_grants import Grants

SHORTAGE_FACTOR = 2.0
"""Multiplies expected shortage: a service that rises for the first time stays up longer than its neighbours' past days
show, so on cut days of public inference traces it was 2-5 times what they said where services shifted, and less where
they did not."""
_LOW_MAX = 0.001
_MEDIUM_MAX = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """Predicted harm of a packing; points are scenario points, counted per item.

    Attributes:
        violated: violated item-points per bin, (bins,), float64.
        active: active item-points per bin, (bins,), float64.
        left: compute that high and normal priority leave on each bin, mean share of a card, (bins,), float64.
        quiet: share of the points in which none of them is active on each bin, 0-1, (bins,), float64.
    """

    violated: NDArray[np.float64]
    active: NDArray[np.float64]
    left: NDArray[np.float64]
    quiet: NDArray[np.float64]


def contention_harm(
    bin_of: NDArray[np.int32],
    bins: int,
    type_of: NDArray[np.int32],
    load: Float32,
    is_low: NDArray[np.bool_],
    most: Float32,
) -> Harm:
    """Plays a packing on scenarios; returns harm per bin.

    Args:
        bin_of: bin of each item, (items,).
        type_of: type of each item, (items,), rows of `load`.
        load: demand of each type, share of a card, (types, points).
        is_low: True for items of low priority, (items,).
        most: limit of each item's compute, share of a card, (items,); infinite where there is none.
    """
    order = np.argsort(bin_of, kind="stable")
    ends = np.cumsum(np.bincount(bin_of, minlength=bins))
    violated, active, left, quiet = _play(order, ends, type_of, load, is_low, most)
    return Harm(violated=violated, active=active, left=left, quiet=quiet)


def shortage_points(
    grants: Grants, type_of: NDArray[np.int32], load: Float32, capacity_bytes: float, is_low: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Expected points, per item, in which a service that rises needs more framebuffer than it was granted.

    At a load beyond anything it showed, a service is short when its slope is steeper than the room it was granted
    allows; how often slopes are that steep is read off its own past or the busy services. A pod with the whole
    card is never short.

    Args:
        type_of: type of each item, (items,), rows of `load`.
        load: demand of each type, share of a card, (types, points).
        is_low: True for items of low priority, which are not counted, (items,).

    Returns:
        Points of each item if its workload is cut, (items,).
    """
    expected = np.zeros(len(type_of))
    known: dict[tuple[int, float, float, int], float] = {}
    for item in np.flatnonzero((grants.granted_bytes < capacity_bytes) & ~is_low):
        room = float(grants.granted_bytes[item] - grants.shown_bytes[item])
        key = (int(type_of[item]), room, float(grants.load_max[item]), int(grants.slope_of[item]))
        if key not in known:
            slopes = grants.slopes_bytes[key[3]]
            rise = load[key[0]] - np.float32(key[2])
            steepest = room / rise[rise > 0].astype(float)
            steeper = len(slopes) - np.searchsorted(slopes, steepest, side="right")
            known[key] = float(steeper.sum()) / len(slopes)
        expected[item] = known[key]
    return expected * SHORTAGE_FACTOR


def level_of(violation_ratio: float, confidence: float) -> RiskLevel:
    """The worse of what predicted harm and confidence say.

    Args:
        violation_ratio: predicted violated share of active time, 0-1: the preset under which it still falls.
        confidence: chance that the advice holds, 0-1: for a reclaim the rest is the chance that it wakes.
    """
    if violation_ratio <= _LOW_MAX and confidence >= CONFIDENT_MIN:
        return RiskLevel.LOW
    if violation_ratio <= _MEDIUM_MAX and confidence >= LIKELY_MIN:
        return RiskLevel.MEDIUM
    return RiskLevel.HIGH


@numba.njit(cache=True, nogil=True)
def _play(order: Any, ends: Any, type_of: Any, load: Any, is_low: Any, most: Any) -> Any:
    bins = ends.shape[0]
    points = load.shape[1]
    violated = np.zeros(bins)
    active = np.zeros(bins)
    left = np.zeros(bins)
    quiet = np.zeros(bins)
    slack = np.float32(CONTENTION_RATIO_MAX - 1.0)
    total = np.zeros(points, np.float32)
    running = np.zeros(points, np.float32)
    start = 0
    for b in range(bins):
        total[:] = 0
        running[:] = 0
        for k in range(start, ends[b]):
            item = order[k]
            if is_low[item]:
                continue
            row = load[type_of[item]]
            for t in range(points):
                total[t] += row[t]
                if row[t] > ACTIVE_RATIO_MIN:
                    running[t] += 1
        for t in range(points):
            active[b] += running[t]
            left[b] += max(0.0, 1.0 - total[t])
            quiet[b] += running[t] == 0
            if total[t] > CONTENTION_RATIO_MAX:
                violated[b] += running[t]
        for k in range(start, ends[b]):
            item = order[k]
            if is_low[item] or np.isinf(most[item]):
                continue
            row = load[type_of[item]]
            for t in range(points):
                if row[t] > most[item] + slack and total[t] <= CONTENTION_RATIO_MAX:
                    violated[b] += 1
        left[b] /= max(1, points)
        quiet[b] /= max(1, points)
        start = ends[b]
    return violated, active, left, quiet
