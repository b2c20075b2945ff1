"""Packing over the hours of the week without any contention: in every slot the pods of a card fit it together.

Where the packer of `packing.greedy` weighs harm over scenarios, this one takes one expected series per pod as it stands
and asks for the fewest cards, which is what a first sizing of a very large fleet and a proof against a bound want.
Kinds of pods go in by decreasing size, each replica to the first card that holds it. A card is passed over for want of
framebuffer, of a free slice, or of room in the slots where the pod is hottest, before all slots are looked at;
replicas that behave alike are one kind, and a scan over the cards places all of them. Small fleets are packed in
several orders and the least loaded cards emptied and filled again; the fewest cards win. Called through the port of
`packing.packer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from fleet.sharing import CONTENTION_RATIO_MAX
from recommender.packing.packer import Packing, PackingProblem, renumbered

ITEMS_TRIED_MAX = 20_000
"""Above this many items one order is tried, and nothing is repacked."""
REPACKS_MAX = 3000
"""How often cards are emptied and filled again at most."""
REPACKED_ITEMS = 600_000
"""How often times how many items: larger fleets are filled again less often."""
EMPTIED_RATIO_MAX = 0.5
"""Largest share of the cards that is emptied at once."""
SLICES_MAX = 32
"""Most slices of one card that are ever planned, whatever the backend allows."""
_HOT_SLOTS = 7
"""Slots of a kind that are looked at before all are: the hottest of each day where a slot is an hour of the week."""
_SHAKE_RATIO = 0.3
# Compiled with fast arithmetic, which knows no infinity.
_CLOSED, _ENDLESS = -1.0, 1e300
_NOISE_RATIO = 1e-5
_NOISE_BYTES = 0.5

F = TypeVar("F", bound=Callable[..., Any])


def _compiled(function: F) -> F:
    compiled: Any = numba.njit(cache=True, fastmath=True, nogil=True)(function)
    return cast(F, compiled)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemKinds:
    """Items that are alike in everything a packer looks at; one row per kind.

    Attributes:
        kind_of: kind of each item, (items,), int64.
        count: items of each kind, (kinds,), int64.
        size_bytes: framebuffer of one item, (kinds,), float64.
        workload: workload, (kinds,), int64; two of one workload never share a bin.
        group: isolation group, (kinds,), int64; only items of one group share a bin.
        is_low: True for low priority, (kinds,), bool.
        load: demand of one item, share of a card, (kinds, points), float32.
    """

    kind_of: NDArray[np.int64]
    count: NDArray[np.int64]
    size_bytes: NDArray[np.float64]
    workload: NDArray[np.int64]
    group: NDArray[np.int64]
    is_low: NDArray[np.bool_]
    load: NDArray[np.float32]


class _Kinds(NamedTuple):
    """What differs between kinds of items, as the compiled functions see it."""

    sizes: Any
    workloads: Any
    groups: Any
    load: Any


class _Limits(NamedTuple):
    """What a bin holds at most, as the compiled functions see it."""

    capacity: float
    slices: int
    load: float


class _Bins(NamedTuple):
    """Bins while they are being filled; changed in place. `opened[0]` of them are in use."""

    free: Any
    count: Any
    members: Any
    total: Any
    by_slot: Any
    hottest: Any
    hottest_slot: Any
    group: Any
    opened: Any


class SlotPacker:
    """First fit over slots; never more demand on a card than it has, so every price has the same answer."""

    def __init__(self, *, load_max: float = CONTENTION_RATIO_MAX, repacks_max: int = REPACKS_MAX) -> None:
        """Sets the limit.

        Args:
            load_max: demand up to which a card is not contended, share of a card; an item above it is left alone.
            repacks_max: how often cards of a small fleet are emptied and filled again.
        """
        self._load_max = load_max
        self._repacks_max = repacks_max

    def sweep(self, problem: PackingProblem, prices: Sequence[float], *, seed: int) -> Iterator[Packing]:
        """One packing for all prices, see `packer.Packer`."""
        bin_of, bins = self.pack(problem, seed=seed)
        yield from (Packing(price=price, bin_of=bin_of, bins=bins) for price in prices)

    def pack(self, problem: PackingProblem, *, seed: int) -> tuple[NDArray[np.int32], int]:
        """Bin of each item, (items,), and how many bins there are.

        Args:
            problem: what to pack.
            seed: seed of the choice of cards that are emptied and filled again.
        """
        items = len(problem.item_type)
        if not items:
            return np.empty(0, np.int32), 0
        kinds = kinds_of(problem)
        limits = _Limits(
            capacity=float(problem.capacity_bytes) + _NOISE_BYTES,
            slices=min(problem.slices_max, SLICES_MAX),
            load=self._load_max + _NOISE_RATIO,
        )
        orders = _orders(kinds, limits)
        best: NDArray[np.int64] | None = None
        for order in orders if items <= ITEMS_TRIED_MAX else orders[:1]:
            members = _first_fit(kinds, limits, order)
            if best is None or len(members) < len(best):
                best = members
        if best is None:
            raise AssertionError("there is at least one order")
        if items <= ITEMS_TRIED_MAX:
            repacks = min(self._repacks_max, REPACKED_ITEMS // items)
            best = _repack(kinds, limits, best, orders, repacks, seed)
        return renumbered(_bin_of(best, kinds, items))


def kinds_of(problem: PackingProblem) -> ItemKinds:
    """Groups items that are alike."""
    rows = np.column_stack(
        [
            problem.item_type,
            problem.item_workload,
            problem.item_group,
            np.round(problem.item_bytes),
            problem.is_low,
        ]
    ).astype(np.float64)
    _, first, kind_of, count = np.unique(rows, axis=0, return_index=True, return_inverse=True, return_counts=True)
    return ItemKinds(
        kind_of=kind_of.reshape(-1).astype(np.int64),
        count=count.astype(np.int64),
        size_bytes=problem.item_bytes[first].astype(np.float64),
        workload=problem.item_workload[first].astype(np.int64),
        group=problem.item_group[first].astype(np.int64),
        is_low=problem.is_low[first],
        load=np.ascontiguousarray(problem.load[problem.item_type[first]], np.float32),
    )


def _orders(kinds: ItemKinds, limits: _Limits) -> list[NDArray[np.int64]]:
    """Orders to try, the best first: by the larger of peak and framebuffer, by peak, by their sum, by mean, by size."""
    peak = kinds.load.max(axis=1, initial=0.0) / limits.load
    size = kinds.size_bytes / limits.capacity
    mean = kinds.load.mean(axis=1) if kinds.load.shape[1] else peak
    keys = (np.maximum(peak, size), peak, peak + size, mean + size, size)
    return [np.lexsort((np.arange(len(key)), -size, -key)).astype(np.int64) for key in keys]


def _first_fit(kinds: ItemKinds, limits: _Limits, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Kinds in each bin, (bins, slices), -1 for none."""
    bins = _no_bins(int(kinds.count.sum()), kinds.load.shape[1], limits.slices)
    _fill(order, kinds.count.copy(), _compiled_kinds(kinds), limits, bins)
    return np.array(bins.members[: bins.opened[0]])


def _repack(
    kinds: ItemKinds,
    limits: _Limits,
    best: NDArray[np.int64],
    orders: Sequence[NDArray[np.int64]],
    repacks: int,
    seed: int,
) -> NDArray[np.int64]:
    """Empties some bins, the least filled more often, and fills them again in a shaken order.

    Fewer bins are kept, and as many where they are filled less evenly: a bin that is nearly empty falls away sooner.
    """
    draws = np.random.default_rng(seed)
    fill = kinds.load.mean(axis=1) + kinds.size_bytes / limits.capacity
    ranks = [np.argsort(order, kind="stable") for order in orders]
    filled = _filled(best, fill)
    compiled_kinds = _compiled_kinds(kinds)
    for number in range(repacks):
        share = draws.uniform(0.0, EMPTIED_RATIO_MAX)
        chosen = np.argsort(filled * draws.uniform(0.1, 1.0, len(best)))[: max(2, int(len(best) * share))]
        stays, loose = np.delete(best, chosen, axis=0), best[chosen]
        left = np.bincount(loose[loose >= 0], minlength=len(fill)).astype(np.int64)
        bins = _no_bins(len(stays) + int(left.sum()), kinds.load.shape[1], limits.slices)
        _restore(stays, compiled_kinds, limits, bins)
        rank = ranks[number % len(ranks)]
        shaken = rank + draws.normal(0, draws.uniform(0.0, _SHAKE_RATIO) * len(rank), len(rank))
        order = np.argsort(shaken, kind="stable").astype(np.int64)
        _fill(order, left, compiled_kinds, limits, bins)
        found = bins.members[: bins.opened[0]]
        found_filled = _filled(found, fill)
        if (len(found), -(found_filled**2).sum()) <= (len(best), -(filled**2).sum()):
            best, filled = found, found_filled
    return best


def _compiled_kinds(kinds: ItemKinds) -> _Kinds:
    return _Kinds(sizes=kinds.size_bytes, workloads=kinds.workload, groups=kinds.group, load=kinds.load)


def _filled(members: NDArray[np.int64], fill: NDArray[np.float64]) -> NDArray[np.float64]:
    """How full each bin is, (bins,)."""
    filled: NDArray[np.float64] = np.where(members >= 0, fill[members], 0.0).sum(axis=1)
    return filled


def _bin_of(members: NDArray[np.int64], kinds: ItemKinds, items: int) -> NDArray[np.int32]:
    """Hands the places of each kind to its items, in order."""
    bins, slots = np.nonzero(members >= 0)
    by_kind = np.argsort(members[bins, slots], kind="stable")
    bin_of = np.empty(items, np.int32)
    bin_of[np.argsort(kinds.kind_of, kind="stable")] = bins[by_kind]
    return bin_of


def _no_bins(items: int, points: int, slices: int) -> _Bins:
    return _Bins(
        free=np.empty(items),
        count=np.zeros(items, np.int64),
        members=np.full((items, slices), -1, np.int64),
        # Bins that are never opened cost address space, no memory: the pages stay untouched.
        total=np.zeros((items, points), np.float32),
        by_slot=np.zeros((max(points, 1), items), np.float32),
        hottest=np.zeros(items, np.float32),
        hottest_slot=np.zeros(items, np.int64),
        group=np.empty(items, np.int64),
        opened=np.zeros(1, np.int64),
    )


@_compiled
def _fill(order: Any, left: Any, kinds: Any, limits: Any, bins: Any) -> None:
    """Puts every item that is left into the first bin that holds it; new bins are opened at the end."""
    # The smallest item of this and all later kinds: a bin with less room is done for good.
    least = np.empty(order.shape[0] + 1)
    least[order.shape[0]] = _ENDLESS
    for o in range(order.shape[0] - 1, -1, -1):
        size = kinds.sizes[order[o]] if left[order[o]] > 0 else _ENDLESS
        least[o] = min(least[o + 1], size)
    hot = np.empty(min(_HOT_SLOTS, kinds.load.shape[1]), np.int64)
    first = 0
    for o in range(order.shape[0]):
        kind = order[o]
        if left[kind] == 0:
            continue
        row, size = kinds.load[kind], kinds.sizes[kind]
        _find_hot(row, hot)
        # One column of totals per hot slot lies in memory bin by bin, so the scan below reads along it.
        one, two = (hot[0], hot[hot.shape[0] // 2]) if hot.shape[0] else (0, 0)
        room_one = limits.load - row[one] if hot.shape[0] else _ENDLESS
        room_two = limits.load - row[two] if hot.shape[0] else _ENDLESS
        while first < bins.opened[0] and bins.free[first] < least[o]:
            first += 1
        for b in range(first, bins.opened[0]):
            if bins.free[b] < size or bins.by_slot[one, b] > room_one or bins.by_slot[two, b] > room_two:
                continue
            if bins.group[b] == kinds.groups[kind] and _holds(b, kind, hot, kinds, limits, bins):
                _put(b, kind, size, row, limits, bins)
                left[kind] -= 1
                if left[kind] == 0:
                    break
        while left[kind] > 0:
            b = bins.opened[0]
            bins.opened[0] += 1
            bins.free[b] = limits.capacity
            bins.group[b] = kinds.groups[kind]
            _put(b, kind, size, row, limits, bins)
            left[kind] -= 1


@_compiled
def _holds(b: int, kind: int, hot: Any, kinds: Any, limits: Any, bins: Any) -> bool:
    """Whether a bin has room in every slot: its own hottest first, then the kind's hottest, then all."""
    row = kinds.load[kind]
    if row.shape[0] and bins.hottest[b] + row[bins.hottest_slot[b]] > limits.load:
        return False
    total = bins.total[b]
    for h in range(hot.shape[0]):
        if total[hot[h]] + row[hot[h]] > limits.load:
            return False
    for k in range(bins.count[b]):
        if kinds.workloads[bins.members[b, k]] == kinds.workloads[kind]:
            return False
    if hot.shape[0] == 0 or bins.hottest[b] + row[hot[0]] <= limits.load:
        return True
    most = np.float32(0.0)
    for t in range(row.shape[0]):
        most = max(most, total[t] + row[t])
    return bool(most <= limits.load)


@_compiled
def _find_hot(row: Any, hot: Any) -> None:
    """The hottest slot of each of some equal spans, the hottest of all first."""
    for h in range(hot.shape[0]):
        first, last = h * row.shape[0] // hot.shape[0], (h + 1) * row.shape[0] // hot.shape[0]
        hot[h] = first
        for t in range(first, last):
            if row[t] > row[hot[h]]:
                hot[h] = t
    for h in range(1, hot.shape[0]):
        if row[hot[h]] > row[hot[0]]:
            hot[0], hot[h] = hot[h], hot[0]


@_compiled
def _put(b: int, kind: int, size: float, row: Any, limits: Any, bins: Any) -> None:
    bins.members[b, bins.count[b]] = kind
    bins.count[b] += 1
    # A bin without a free slice has no room, whatever its framebuffer.
    bins.free[b] = bins.free[b] - size if bins.count[b] < limits.slices else _CLOSED
    for t in range(row.shape[0]):
        bins.total[b, t] += row[t]
        bins.by_slot[t, b] = bins.total[b, t]
        if bins.total[b, t] > bins.hottest[b]:
            bins.hottest[b] = bins.total[b, t]
            bins.hottest_slot[b] = t


@_compiled
def _restore(members: Any, kinds: Any, limits: Any, bins: Any) -> None:
    """Opens bins with these kinds in them."""
    for b in range(members.shape[0]):
        bins.opened[0] += 1
        bins.free[b] = limits.capacity
        for k in range(members.shape[1]):
            kind = members[b, k]
            if kind >= 0:
                bins.group[b] = kinds.groups[kind]
                _put(b, kind, kinds.sizes[kind], kinds.load[kind], limits, bins)
