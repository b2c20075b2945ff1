"""Which point of a frontier a limit on harm allows: the one with the fewest cards, thinned where it is too harmful.

Where even the most careful packing is above the limit, its most harmful cards are dissolved one by one. Called by the
planner on what `consolidate` found.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fleet.sharing import CONTENTION_RATIO_MAX
from recommender.consolidate import Group, Point, judged
from recommender.packing.packer import renumbered


def choose(points: Sequence[Point], *, violation_ratio_max: float, resting_active: float) -> Point:
    """The point with the fewest cards whose predicted violation meets the limit.

    Args:
        points: the frontier, at least one point.
        violation_ratio_max: the limit, 0-1.
        resting_active: see `frontier`.

    Returns:
        The point; where a point is too harmful, cards of it are dissolved until it is not.
    """
    # Of equals the last, which is the most careful: what costs no card is had for nothing.
    thinned = [_dissolved(point, violation_ratio_max, resting_active) for point in points]
    best = min(range(len(points)), key=lambda number: (thinned[number][0], -number))
    groups = points[best].groups
    choice = judged(groups, thinned[best][1], resting_active)
    return Point(groups=groups, choice=choice, parted=points[best].parted)


def _dissolved(point: Point, limit: float, resting_active: float) -> tuple[int, list[NDArray[np.int32]]]:
    """The point with its most harmful cards given up until it is within the limit and no hard share is exceeded.

    Returns:
        How many cards that takes, and the packings.
    """
    groups, harms = point.groups, point.choice.harm
    packings = [bin_of.copy() for bin_of in point.choice.bin_of]
    splits = [_Splits(bin_of) for bin_of in packings]
    candidates: list[tuple[float, int, int, float]] = []
    shorts: list[_Shortage] = []
    bad = 0.0
    for number, (group, harm) in enumerate(zip(groups, harms, strict=True)):
        violated = harm.violated / group.points
        for full in _over_promised(group, packings[number]):
            splits[number].split(full)
            violated[full] = 0.0
        shorts.append(_Shortage(group, packings[number]))
        bad += float(violated.sum()) + group.shortage_of(packings[number]) / group.points
        count = np.bincount(packings[number], minlength=len(violated))
        harm_of_bin = np.bincount(packings[number], weights=group.shortage, minlength=len(count)) / group.points
        harm_of_bin[: len(violated)] += violated
        for shared in np.flatnonzero((harm_of_bin > 0) & (count > 1)):
            gain = float(harm_of_bin[shared]) / (int(count[shared]) - 1)
            candidates.append((-gain, number, int(shared), float(violated[shared])))
    active = resting_active + sum(h.active.sum() / g.points for g, h in zip(groups, harms, strict=True))
    for _, number, b, share in sorted(candidates):
        if active <= 0 or bad / active <= limit:
            break
        bad -= share + shorts[number].without(splits[number].items_of(b)) / groups[number].points
        splits[number].split(b)
    renumbers = [renumbered(bin_of) for bin_of in packings]
    return sum(bins for _, bins in renumbers), [bin_of for bin_of, _ in renumbers]


class _Shortage:
    """Which workloads are still cut while cards are dissolved one by one."""

    def __init__(self, group: Group, bin_of: NDArray[np.int32]) -> None:
        # Low priority has no workload here (-1) and is never short.
        self._workload = group.problem.item_workload.astype(np.int64) + 1
        shares = np.bincount(bin_of)[bin_of] > 1
        self._shared = np.bincount(self._workload[shares], minlength=int(self._workload.max()) + 1)
        self._points = np.bincount(self._workload, weights=group.shortage, minlength=len(self._shared))

    def without(self, items: NDArray[np.int64]) -> float:
        """Item-points that are spared once these items of one card share it no more."""
        spared = 0.0
        for workload in self._workload[items]:
            self._shared[workload] -= 1
            if not self._shared[workload]:
                spared += float(self._points[workload])
        return spared


class _Splits:
    """Gives the items of a bin a bin each, one bin after the other, in place; the items of all are looked up once."""

    def __init__(self, bin_of: NDArray[np.int32]) -> None:
        self._bin_of = bin_of
        self._order = np.argsort(bin_of, kind="stable")
        self._ends = np.cumsum(np.bincount(bin_of))
        self._next = len(self._ends)

    def items_of(self, b: int) -> NDArray[np.int64]:
        """Items of a bin that was not split yet, ascending."""
        items: NDArray[np.int64] = self._order[self._ends[b - 1] if b else 0 : self._ends[b]]
        return items

    def split(self, b: int) -> None:
        """Leaves the first item of a bin where it is, and opens a bin for each other."""
        items = self.items_of(b)[1:]
        self._bin_of[items] = self._next + np.arange(len(items), dtype=np.int32)
        self._next += len(items)


def _over_promised(group: Group, bin_of: NDArray[np.int32]) -> list[int]:
    """Bins whose items with a hard share alone were promised more compute than a card has."""
    hard = group.limits.is_hard
    promised = np.bincount(bin_of[hard], weights=group.peak[hard], minlength=int(bin_of.max(initial=-1)) + 1)
    return [int(b) for b in np.flatnonzero(promised > CONTENTION_RATIO_MAX)]
