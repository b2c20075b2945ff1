"""Greedy packing over scenarios with local search on predicted harm; the packer that plans are made with.

Items go in by decreasing framebuffer, each to the open bin that it harms least; then pods move and swap away from the
worst cards, cards that cost less harm than the price are emptied, and those that gain more are split. The number of
bins that are looked at per item is bounded, so time grows linearly with the fleet. Harm of a bin is its violated
item-points: at every point the number of active items, times how far the summed demand lies into the ramp around
`CONTENTION_RATIO_MAX` (a ramp, because replicas jitter from step to step and a search should not rely on a hair).
Called by `planner` through the port of `packing.packer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

from fleet.sharing import ACTIVE_RATIO_MIN, CONTENTION_RATIO_MAX
from recommender.packing.packer import Packing, PackingProblem, renumbered

OPEN_BINS_MAX = 256
"""Open bins kept while inserting; the fullest is closed first."""
INSERT_CANDIDATES_MAX = 64
"""Bins whose harm is computed for one insertion."""
MOVE_CANDIDATES_MAX = 32
"""Bins drawn for one pod that may move."""
SWAP_CANDIDATES_MAX = 8
"""Of those, bins whose items are tried for a swap."""
SWAP_CANDIDATES_CAREFUL = 2
"""As many where cards are cheap: then there is room to move to, and swaps find little that moves do not."""
SWAP_PRICE_MIN = 0.04
"""Price of a card, violated items on average, from which on cards are filled so closely that swaps count."""
SLICES_MAX = 32
"""Most slices of one card that are ever planned, whatever the backend allows."""
RAMP_RATIO = 0.06
"""Width of the ramp around the limit, share of a card."""
CHUNK_POINTS = 128
"""Points that are added up before it is asked whether a candidate is out already."""
_EPSILON = 1e-6
_WORTH_RATIO = 0.05
"""Share of a card's price that a bin's harm must pass before its items look for another place."""
_FIT_WEIGHT = 0.05

_ACTIVE = np.float32(ACTIVE_RATIO_MIN)
_RAMP_START = np.float32(CONTENTION_RATIO_MAX - RAMP_RATIO / 2)
_RAMP_SLOPE = np.float32(1 / RAMP_RATIO)

F = TypeVar("F", bound=Callable[..., Any])


def _compiled(function: F) -> F:
    compiled: Any = numba.njit(cache=True, fastmath=True, nogil=True)(function)
    return cast(F, compiled)


def _inlined(function: F) -> F:
    """Compiled into its callers: handing over two records of arrays takes longer than what is done with them."""
    compiled: Any = numba.njit(cache=True, fastmath=True, nogil=True, forceinline=True)(function)
    return cast(F, compiled)


class _Items(NamedTuple):
    """What is packed, as the compiled functions see it: fields of `PackingProblem`, and the highest of each load."""

    types: Any
    workloads: Any
    groups: Any
    sizes: Any
    counted: Any
    load: Any
    top: Any
    capacity: Any


class _Bins(NamedTuple):
    """Bins while they are being filled, one row per possible bin; changed in place by the compiled functions.

    `total` is the summed demand, `crest` its highest, `active` how many items are active, per point.
    """

    bin_of: Any
    used: Any
    count: Any
    members: Any
    total: Any
    crest: Any
    active: Any
    harm: Any


class GreedyPacker:
    """First fit by decreasing framebuffer on predicted harm, then local search."""

    def __init__(self, *, passes: int = 1, first_passes: int = 2) -> None:
        """Sets how long it searches.

        Args:
            passes: passes of local search per price after the first.
            first_passes: passes at the first price.
        """
        self._passes = passes
        self._first_passes = first_passes

    def sweep(self, problem: PackingProblem, prices: Sequence[float], *, seed: int) -> Iterator[Packing]:
        """One packing per price, see `packer.Packer`."""
        if not len(problem.item_type):
            yield from (Packing(price=price, bin_of=np.empty(0, np.int32), bins=0) for price in prices)
            return
        items = _items(problem)
        bins = _no_bins(len(problem.item_type), items.load.shape[1], problem.slices_max)
        order = np.lexsort((np.arange(len(items.sizes)), items.types, -items.sizes)).astype(np.int32)
        random = np.array([seed * 2654435761 % 2**32 + 1], np.uint64)
        for number, price in enumerate(prices):
            if number == 0:
                _insert_all(order, items, bins, price)
            for _ in range(self._passes if number else self._first_passes):
                _search(items, bins, price, random)
                _empty_cards(items, bins, price, random)
            bin_of, count = renumbered(bins.bin_of)
            yield Packing(price=price, bin_of=bin_of, bins=count)


def _items(problem: PackingProblem) -> _Items:
    # The points at which most is demanded come first: there it shows soonest that a candidate is out.
    hottest = np.argsort(-problem.load.mean(axis=0), kind="stable")
    load = np.ascontiguousarray(problem.load[:, hottest], np.float32)
    return _Items(
        types=problem.item_type,
        workloads=problem.item_workload,
        groups=problem.item_group,
        sizes=problem.item_bytes,
        counted=(~problem.is_low).astype(np.float32),
        load=load,
        top=load.max(axis=1, initial=0.0),
        capacity=float(problem.capacity_bytes),
    )


def _no_bins(items: int, points: int, slices_max: int) -> _Bins:
    return _Bins(
        bin_of=np.full(items, -1, np.int32),
        used=np.zeros(items),
        count=np.zeros(items, np.int32),
        members=np.full((items, min(slices_max, SLICES_MAX)), -1, np.int32),
        # Bins that are never opened cost address space, no memory: the pages stay untouched.
        total=np.zeros((items, points), np.float32),
        crest=np.zeros(items, np.float32),
        active=np.zeros((items, points), np.float32),
        harm=np.zeros(items),
    )


@_inlined
def _harm_with(b: int, kind: int, counted: Any, bound: float, it: Any, bins: Any) -> float:
    """Harm of a bin with one more item of a type; beyond the bound only that it is more."""
    if bins.crest[b] + it.top[kind] <= _RAMP_START:
        return 0.0
    # Unsigned throughout: no place is counted from the end, and the loops stay free of that question.
    row, column, points = np.uintp(b), np.uintp(kind), np.uintp(it.load.shape[1])
    harm = np.float32(0.0)
    start = np.uintp(0)
    while start < points:
        stop = min(start + np.uintp(CHUNK_POINTS), points)
        part = np.float32(0.0)
        for t in range(start, stop):
            load = it.load[column, t]
            over = (bins.total[row, t] + load - _RAMP_START) * _RAMP_SLOPE
            over = min(max(over, np.float32(0.0)), np.float32(1.0))
            part += over * (bins.active[row, t] + (counted if load > _ACTIVE else np.float32(0.0)))
        harm += part
        if harm > bound:
            break
        start = stop
    return float(harm)


@_inlined
def _harm_without(b: int, kind: int, counted: Any, it: Any, bins: Any) -> float:
    """Harm of a bin with one item of a type less."""
    row, column = np.uintp(b), np.uintp(kind)
    harm = np.float32(0.0)
    for t in range(np.uintp(it.load.shape[1])):
        load = it.load[column, t]
        over = (bins.total[row, t] - load - _RAMP_START) * _RAMP_SLOPE
        over = min(max(over, np.float32(0.0)), np.float32(1.0))
        harm += over * (bins.active[row, t] - (counted if load > _ACTIVE else np.float32(0.0)))
    return float(harm)


@_inlined
def _harm_swapped(b: int, leaving: int, joining: int, bound: float, it: Any, bins: Any) -> float:
    """Harm of a bin where one item takes another's place; beyond the bound only that it is more."""
    if bins.crest[b] + it.top[it.types[joining]] <= _RAMP_START:
        return 0.0
    counted_out, counted_into = it.counted[leaving], it.counted[joining]
    column_out, column_into = np.uintp(it.types[leaving]), np.uintp(it.types[joining])
    row, points = np.uintp(b), np.uintp(it.load.shape[1])
    harm = np.float32(0.0)
    start = np.uintp(0)
    while start < points:
        stop = min(start + np.uintp(CHUNK_POINTS), points)
        part = np.float32(0.0)
        for t in range(start, stop):
            out, into = it.load[column_out, t], it.load[column_into, t]
            over = (bins.total[row, t] - out + into - _RAMP_START) * _RAMP_SLOPE
            over = min(max(over, np.float32(0.0)), np.float32(1.0))
            less = counted_out if out > _ACTIVE else np.float32(0.0)
            more = counted_into if into > _ACTIVE else np.float32(0.0)
            part += over * (bins.active[row, t] - less + more)
        harm += part
        if harm > bound:
            break
        start = stop
    return float(harm)


@_compiled
def _put(item: int, b: int, it: Any, bins: Any, new_harm: float) -> None:
    load, total, active = it.load[it.types[item]], bins.total[b], bins.active[b]
    counted = it.counted[item]
    bins.bin_of[item] = b
    bins.used[b] += it.sizes[item]
    bins.members[b, bins.count[b]] = item
    bins.count[b] += 1
    crest = np.float32(0.0)
    for t in range(load.shape[0]):
        total[t] += load[t]
        active[t] += counted if load[t] > _ACTIVE else np.float32(0.0)
        crest = max(crest, total[t])
    bins.crest[b] = crest
    bins.harm[b] = new_harm


@_compiled
def _take(item: int, b: int, it: Any, bins: Any) -> None:
    load, total, active = it.load[it.types[item]], bins.total[b], bins.active[b]
    counted = it.counted[item]
    for k in range(bins.count[b]):
        if bins.members[b, k] == item:
            bins.members[b, k] = bins.members[b, bins.count[b] - 1]
            bins.members[b, bins.count[b] - 1] = -1
            break
    bins.count[b] -= 1
    bins.bin_of[item] = -1
    bins.used[b] -= it.sizes[item]
    if bins.count[b] == 0:
        # Rounding of many additions and subtractions must not outlive the last item.
        bins.used[b] = 0.0
        bins.crest[b] = np.float32(0.0)
        total[:] = 0.0
        active[:] = 0.0
        bins.harm[b] = 0.0
        return
    harm, crest = np.float32(0.0), np.float32(0.0)
    for t in range(load.shape[0]):
        total[t] -= load[t]
        active[t] -= counted if load[t] > _ACTIVE else np.float32(0.0)
        crest = max(crest, total[t])
        over = (total[t] - _RAMP_START) * _RAMP_SLOPE
        harm += min(max(over, np.float32(0.0)), np.float32(1.0)) * active[t]
    bins.crest[b] = crest
    bins.harm[b] = harm


@_inlined
def _fits(item: int, b: int, without: int, it: Any, bins: Any) -> bool:
    """Whether an item may join a bin once `without` (-1 for nobody) has left it."""
    room = it.capacity - bins.used[b]
    places = bins.members.shape[1] - bins.count[b]
    if without >= 0:
        room += it.sizes[without]
        places += 1
    if places < 1 or it.sizes[item] > room + 0.5:
        return False
    for k in range(bins.count[b]):
        other = bins.members[b, k]
        if other != without and (it.workloads[other] == it.workloads[item] or it.groups[other] != it.groups[item]):
            return False
    return True


@_inlined
def _next(random: Any, limit: int) -> int:
    """A number below limit, by xorshift64*."""
    x = random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[0] = x
    return int((x * np.uint64(2685821657736338717)) >> np.uint64(33)) % limit


@_compiled
def _insert_all(  # noqa: C901 - compiled: a loop nest whose parts share too much to be called
    order: Any, it: Any, bins: Any, price: float
) -> None:
    smallest = it.sizes.min()
    window = np.empty(OPEN_BINS_MAX + 1, np.int32)
    # What a bin was found to suffer from the kind at hand, at least: replicas come one after the other, and between
    # two of them a single bin changes.
    suffered = np.empty(bins.count.shape[0])
    asked_of = np.full(bins.count.shape[0], -1, np.int32)
    is_exact = np.zeros(bins.count.shape[0], np.bool_)
    opened = 0
    made = 0
    for number in range(order.shape[0]):
        item = order[number]
        kind = it.types[item]
        best, best_score, best_harm = -1, price, 0.0
        looked = 0
        for k in range(opened - 1, -1, -1):
            b = window[k]
            if looked >= INSERT_CANDIDATES_MAX:
                break
            if not _fits(item, b, -1, it, bins):
                continue
            looked += 1
            left = (it.capacity - bins.used[b] - it.sizes[item]) / it.capacity
            bound = best_score + bins.harm[b] - price * _FIT_WEIGHT * left
            if bound < bins.harm[b]:
                continue
            if asked_of[b] != kind or (suffered[b] <= bound and not is_exact[b]):
                suffered[b] = _harm_with(b, kind, it.counted[item], bound, it, bins)
                asked_of[b], is_exact[b] = kind, suffered[b] <= bound
            score = suffered[b] - bins.harm[b] + price * _FIT_WEIGHT * left
            if score < best_score:
                best, best_score, best_harm = b, score, suffered[b]
        if best < 0:
            best = made
            made += 1
            window[opened] = best
            opened += 1
            best_harm = _harm_with(best, kind, it.counted[item], np.inf, it, bins)
        _put(item, best, it, bins, best_harm)
        asked_of[best] = -1
        if opened > OPEN_BINS_MAX or it.capacity - bins.used[best] < smallest:
            fullest = 0
            for k in range(opened):
                if bins.used[window[k]] > bins.used[window[fullest]]:
                    fullest = k
            for k in range(fullest, opened - 1):
                window[k] = window[k + 1]
            opened -= 1


@_compiled
def _empty_bin(bins: Any) -> int:
    for b in range(bins.count.shape[0] - 1, -1, -1):
        if bins.count[b] == 0:
            return b
    return -1


@_compiled
def _search(  # noqa: C901, PLR0912 - compiled: a loop nest whose parts share too much to be called
    it: Any, bins: Any, price: float, random: Any
) -> None:
    """Moves and swaps items of harmed bins, worst first; opens a new bin where that gains more than the price."""
    items = it.types.shape[0]
    vacant = _empty_bin(bins)
    worth = max(_EPSILON, price * _WORTH_RATIO)
    drawn = np.empty(MOVE_CANDIDATES_MAX, np.int32)
    swaps = SWAP_CANDIDATES_MAX if price >= SWAP_PRICE_MIN * it.load.shape[1] else SWAP_CANDIDATES_CAREFUL
    for b in np.argsort(-bins.harm):
        if bins.harm[b] <= worth:
            break
        for k in range(bins.count[b] - 1, -1, -1):
            if k >= bins.count[b] or bins.harm[b] <= worth:
                continue
            item = bins.members[b, k]
            without = _harm_without(b, it.types[item], it.counted[item], it, bins)
            leaving = without - bins.harm[b] - (price if bins.count[b] == 1 else 0.0)
            best_gain, best_bin, best_swap = -_EPSILON, -1, -1
            if vacant >= 0 and bins.count[b] > 1 and leaving + price < best_gain:
                best_gain, best_bin = leaving + price, vacant
            for tried in range(MOVE_CANDIDATES_MAX):
                c = bins.bin_of[_next(random, items)]
                drawn[tried] = c
                if c != b and _fits(item, c, -1, it, bins):
                    bound = best_gain - leaving + bins.harm[c]
                    gain = leaving + _harm_with(c, it.types[item], it.counted[item], bound, it, bins) - bins.harm[c]
                    if gain < best_gain:
                        best_gain, best_bin, best_swap = gain, c, -1
            for c in drawn[:swaps]:
                # No pod that comes harms the bin less than none.
                if c == b or without - bins.harm[b] >= best_gain:
                    continue
                for j in range(bins.count[c]):
                    other = bins.members[c, j]
                    if it.types[other] == it.types[item]:
                        continue
                    if not _fits(item, c, other, it, bins):
                        continue
                    if not _fits(other, b, item, it, bins):
                        continue
                    gain = _harm_swapped(b, item, other, best_gain + bins.harm[b], it, bins) - bins.harm[b]
                    if gain >= best_gain:
                        continue
                    bound = best_gain - gain + bins.harm[c]
                    gain += _harm_swapped(c, other, item, bound, it, bins) - bins.harm[c]
                    if gain < best_gain:
                        best_gain, best_bin, best_swap = gain, c, other
            if best_bin < 0:
                continue
            _take(item, b, it, bins)
            if best_swap >= 0:
                _take(best_swap, best_bin, it, bins)
                after = _harm_with(b, it.types[best_swap], it.counted[best_swap], np.inf, it, bins)
                _put(best_swap, b, it, bins, after)
            after = _harm_with(best_bin, it.types[item], it.counted[item], np.inf, it, bins)
            _put(item, best_bin, it, bins, after)
            if best_bin == vacant or bins.count[b] == 0:
                vacant = _empty_bin(bins)


@_compiled
def _empty_cards(it: Any, bins: Any, price: float, random: Any) -> None:
    """Empties bins whose items find room elsewhere for less harm than the price, emptiest first."""
    items = it.types.shape[0]
    moved = np.empty(bins.members.shape[1], np.int32)
    for b in np.argsort(bins.used):
        if bins.count[b] == 0:
            continue
        before = bins.harm[b]
        spent = -before
        done = 0
        while bins.count[b] > 0:
            item = bins.members[b, 0]
            for k in range(1, bins.count[b]):
                if it.sizes[bins.members[b, k]] > it.sizes[item]:
                    item = bins.members[b, k]
            best, best_cost, best_harm = -1, price - spent, 0.0
            for _ in range(2 * MOVE_CANDIDATES_MAX):
                c = bins.bin_of[_next(random, items)]
                if c == b or not _fits(item, c, -1, it, bins):
                    continue
                with_item = _harm_with(c, it.types[item], it.counted[item], best_cost + bins.harm[c], it, bins)
                cost = with_item - bins.harm[c]
                if cost < best_cost:
                    best, best_cost, best_harm = c, cost, with_item
            if best < 0:
                break
            _take(item, b, it, bins)
            _put(item, best, it, bins, best_harm)
            spent += best_cost
            moved[done] = item
            done += 1
        if bins.count[b] == 0:
            continue
        for k in range(done - 1, -1, -1):
            item = moved[k]
            c = bins.bin_of[item]
            _take(item, c, it, bins)
            after = _harm_with(b, it.types[item], it.counted[item], np.inf, it, bins)
            _put(item, b, it, bins, after)
