"""The frontier that a plan is chosen from, which point of it is chosen, and how much better any other packing could be.

Groups are packed in every tier of care, greedily and, if few, exactly. Where there are few pods, the program of
`packing.column_generation` gives a cost that no packing of the same slices can beat at a price of a card. A packing
that harms no more than the plan's pays for its harm no more either, so it needs at least (bound - harm) / price cards;
the best of several prices counts. That bounds the cards that any packing could free beyond the plan. The point
with the fewest cards that a limit on harm allows is chosen; where even the most careful one is above the limit, its
most harmful cards are dissolved one by one. Called by `planner`; pure.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fleet.settings.settings import PackingChoice, Settings
from fleet.sharing import CONTENTION_RATIO_MAX
from recommender.advice.case import Permits
from recommender.consolidate import TIERS, Group, Point, frontier, group_of, judged, packed
from recommender.demand import Demand, touched
from recommender.outlook import Member, outlook_of
from recommender.packing.column_generation import bin_cost, generate_columns
from recommender.packing.exact import ExactPacker, columns_of, limits_of
from recommender.packing.greedy import GreedyPacker
from recommender.packing.packer import Packer, kinds_of, renumbered
from recommender.problem import PlanningProblem

SEED = 20
BETWEEN_MAX = 2
"""Prices that are tried between two points of the frontier with a limit between them."""
_ROUNDING = 1e-6


def points_of(
    problem: PlanningProblem, permits: Permits, resting: float, homes: NDArray[np.int32] | None = None
) -> tuple[Point, ...]:
    """The frontier, down to what the strictest limit asks for; of points that are alike the greedy one is the last.

    Exact packings cost no more at any price, and still the walk over prices may end at fewer cards without them: so
    both are there to be chosen from, and a plan frees no fewer cards for having looked closer.

    Args:
        homes: number of the node that each row of the demand stays on, -1 for any, (rows,); None where all may go.
    """
    tiers = _Recalled(_at_home(groups, homes) for groups in tiers_of(problem, permits))
    limits = problem.forecast_limits.values()

    def walked(packer: Packer) -> tuple[Point, ...]:
        def at(groups: Sequence[Group], price: float) -> Point:
            return next(packed(groups, [price], resting_active=resting, packer=packer, seed=SEED))

        points = frontier(tiers, violation_ratio_min=min(limits), resting_active=resting, packer=packer, seed=SEED)
        return closer(points, limits, at)

    greedy = walked(GreedyPacker())
    # Where framebuffer is lent a packing is changed afterwards anyway; the plan is compared with one without lending.
    lends = any(member.lends for member in permits.members)
    exactly = None if lends else _exact_packer(permits, problem.demand, problem.settings)
    fewest = min((point.choice.bins for point in greedy if point.choice.violation_ratio <= min(limits)), default=None)
    if exactly is None or fewest == sum(map(_bins_at_least, greedy[0].groups)):
        return greedy
    return (*walked(exactly), *greedy)


def closer(
    points: Iterable[Point], limits: Iterable[float], at: Callable[[Sequence[Group], float], Point]
) -> tuple[Point, ...]:
    """The frontier with points at prices in between, where it passes a limit in a step of several cards.

    A point above its limit gives up shared cards one by one until it is not, which costs more of them than packing at a
    higher price of harm.

    Args:
        points: the frontier, from dense to careful.
        limits: limits of predicted violation, 0-1.
        at: packs these groups at this price of a card.
    """
    found = list(points)
    for limit in limits:
        for _ in range(BETWEEN_MAX):
            harmful = (number for number, point in enumerate(found) if point.choice.violation_ratio > limit)
            above = max(harmful, default=len(found))
            if above + 1 >= len(found):
                break
            dense, careful = found[above], found[above + 1]
            if careful.choice.bins - dense.choice.bins < 2 or dense.price is None or careful.price is None:
                break
            found.insert(above + 1, at(careful.groups, math.sqrt(dense.price * careful.price)))
    return tuple(found)


def _at_home(groups: Sequence[Group], homes: NDArray[np.int32] | None) -> tuple[Group, ...]:
    """Groups in which those who stay on their nodes share cards there alone."""
    if homes is None:
        return tuple(groups)
    found = []
    for group in groups:
        apart = np.column_stack([group.problem.item_group, homes[group.rows]])
        _, number = np.unique(apart, axis=0, return_inverse=True)
        item_group = np.where((apart == -1).all(axis=1), -1, number.reshape(-1)).astype(np.int32)
        found.append(replace(group, problem=replace(group.problem, item_group=item_group)))
    return tuple(found)


def _bins_at_least(group: Group) -> int:
    """Cards that no packing goes below: for framebuffer, for slices, and for replicas, which never share one."""
    problem = group.problem
    replicas = np.unique(problem.item_workload, return_counts=True)[1]
    filled = float(problem.item_bytes.sum()) / problem.capacity_bytes
    return max(math.ceil(filled - _ROUNDING), math.ceil(len(group.rows) / problem.slices_max), int(replicas.max()))


def _exact_packer(permits: Permits, demand: Demand, settings: Settings) -> ExactPacker | None:
    """The exact packer where the settings want it for any card model of this fleet; its work has a limit of steps."""
    chosen = settings.recommender
    if chosen.packing is PackingChoice.GREEDY or not permits.members:
        return None
    of_model = Counter(demand.grants[member.row].card_model for member in permits.members)
    most = max(of_model.values()) if chosen.packing is PackingChoice.EXACT else chosen.packing_exact_pods_max
    return ExactPacker(items_max=most) if min(of_model.values()) <= most else None


class _Recalled:
    """Groups of each tier, made when they are first asked for, and kept."""

    def __init__(self, tiers: Iterator[tuple[Group, ...]]) -> None:
        self._tiers, self._made = tiers, list[tuple[Group, ...]]()

    def __iter__(self) -> Iterator[tuple[Group, ...]]:
        for number in itertools.count():
            if number == len(self._made):
                following = next(self._tiers, None)
                if following is None:
                    return
                self._made.append(following)
            yield self._made[number]


def tiers_of(problem: PlanningProblem, permits: Permits) -> Iterator[tuple[Group, ...]]:
    """For each of `TIERS` the groups with framebuffer granted at its price, made when they are asked for."""
    demand, capability = problem.demand, problem.capability
    # Cards of one name may differ in framebuffer, above all those that nobody could name.
    by_model: dict[tuple[str, int, str], list[Member]] = defaultdict(list)
    for member in permits.members:
        grant = demand.grants[member.row]
        policy = permits.cases[grant.workload_id].node_policy
        by_model[grant.card_model, grant.framebuffer_bytes, policy or ""].append(member)
    touches = touched(problem.history) if any(member.lends for member in permits.members) else None
    outlooks = [
        outlook_of(
            demand,
            by_model[model],
            seed=SEED,
            capacity_bytes=capability.shareable_bytes(model[1]),
            inflation_max=problem.settings.risk.latency_inflation_max,
            touches=touches,
            capability=capability,
        )
        for model in sorted(by_model)
    ]
    for tier in TIERS:
        yield tuple(
            group_of(
                outlook,
                card_price=tier.grant_price,
                headroom_ratio=problem.settings.recommender.framebuffer_headroom_ratio,
                step_bytes=capability.framebuffer_step_bytes or 1,
                slices_max=capability.slices_per_card_max,
                least_bytes=capability.framebuffer_min_bytes,
                contention_left=problem.past.contention_left,
            )
            for outlook in outlooks
        )


def proven_beyond(points: Sequence[Point], chosen: Point) -> int | None:
    """Proof for the packing that was taken, at the prices that its slices were packed at."""
    tiers: list[tuple[Group, ...]] = []
    for point in points:
        if not any(point.groups is groups for groups in tiers):
            tiers.append(point.groups)
    price = TIERS[next(number for number, groups in enumerate(tiers) if groups is chosen.groups)].card_prices
    return cards_beyond(chosen.groups, chosen.choice.bin_of, price)


PROOF_ITEMS_MAX = 60
"""Largest group of which anything is proven: a proof takes some tenths of a second then."""
PROOF_ROUNDS_MAX = 60
PROOF_WORK_MAX = 2e8
"""Slots that the searches of one proof may look at; a proof that ends early says less, never anything wrong."""


def cards_beyond(groups: Sequence[Group], packings: Sequence[NDArray[np.int32]], prices: Sequence[float]) -> int | None:
    """Most cards that any packing of these slices could free beyond this one without more harm.

    Args:
        packings: bin of each item, one array per group.
        prices: prices of a card to prove it at, in harm on average over time, above 0.

    Returns:
        0 or more, on the days that the packing was searched on; None where a group has more than `PROOF_ITEMS_MAX`
        items, or where there is nothing to prove it at.
    """
    if not groups or not prices or any(len(group.rows) > PROOF_ITEMS_MAX for group in groups):
        return None
    bins = sum(int(bin_of.max(initial=-1)) + 1 for bin_of in packings)
    least = max(_cards_needed(groups, packings, price) for price in prices)
    return max(0, bins - least)


def _cards_needed(groups: Sequence[Group], packings: Sequence[NDArray[np.int32]], price: float) -> int:
    """Cards that any packing needs which harms no more than this one, proven at one price."""
    bound = harm = 0.0
    for group, bin_of in zip(groups, packings, strict=True):
        if not len(group.rows):
            continue
        kinds = kinds_of(group.problem)
        points = int(group.problem.load.shape[1])
        limits = limits_of(group.problem, price / group.contention_left * points)
        columns = columns_of(bin_of, kinds)
        cost = sum(bin_cost(kinds, limits, column) for column in columns)
        harm += group.contention_left * (cost - limits.price * len(columns)) / points
        proven = generate_columns(kinds, limits, columns, rounds_max=PROOF_ROUNDS_MAX, work_max=PROOF_WORK_MAX)
        bound += group.contention_left * proven.bound / points
    return int(np.ceil((bound - harm) / price - 1e-6))


def choose(
    points: Sequence[Point], *, violation_ratio_max: float, resting_active: float, pod_ratio_max: float = 1.0
) -> Point:
    """The point with the fewest cards whose predicted violation meets the limit.

    Args:
        points: the frontier, at least one point.
        violation_ratio_max: the limit, 0-1.
        pod_ratio_max: most that contention may violate any one pod, share of its active time.

    Returns:
        The point; where a point is too harmful, cards of it are dissolved until it is not.
    """
    # Of equals the last, which is the most careful: what costs no card is had for nothing.
    thinned = [_dissolved(point, violation_ratio_max, resting_active, pod_ratio_max) for point in points]
    best = min(range(len(points)), key=lambda number: (thinned[number][0], -number))
    groups = points[best].groups
    choice = judged(groups, thinned[best][1], resting_active)
    return Point(groups=groups, choice=choice, parted=points[best].parted)


def _dissolved(
    point: Point, limit: float, resting_active: float, pod_ratio_max: float
) -> tuple[int, list[NDArray[np.int32]]]:
    """The point with its most harmful cards given up until it is within both limits and no hard share is exceeded.

    Returns:
        How many cards that takes, and the packings.
    """
    groups, harms = point.groups, point.choice.harm
    calmed = [
        group.below_ceiling(bin_of, harm.violated, pod_ratio_max)
        for group, bin_of, harm in zip(groups, point.choice.bin_of, harms, strict=True)
    ]
    packings = [bin_of for bin_of, _ in calmed]
    splits = [_Splits(bin_of) for bin_of in packings]
    candidates: list[tuple[float, int, int, float]] = []
    shorts: list[_Shortage] = []
    bad = 0.0
    for number, (group, (_, points)) in enumerate(zip(groups, calmed, strict=True)):
        violated = points / group.points
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
