"""Who shares a card with whom: scenarios, grants and packing put together, one group per card model.

Prices are walked down from many pods per card to few until the predicted violation meets the preset. Called by
`planner`, which chooses among the points by `frontier_points`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet.capabilities.capability import SHARED_PERCENT_MAX
from fleet.inventory import CardModelName
from fleet.priority_holds import Hold
from fleet.usage import Float32
from recommender.core_limits import CoreLimits, parted, shared_percents
from recommender.footprint_grants import Grants, grant_framebuffer
from recommender.harm.pod_ceiling import bins_to_check, parted_below
from recommender.harm.risk import Harm, contention_harm, shortage_points
from recommender.lending import Lenders, lending_sweep, lent_violated, over_full
from recommender.outlook import Member, Outlook
from recommender.packing.packer import Packer, PackingProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One level of care: framebuffer is granted at one price of a card and packed at some others.

    Prices are harm that a card is worth: violated pods, on average over time. Framebuffer is granted at lower prices
    than it is packed at, for it is the cheaper care: a little more of it rules a shortage out, where contention is
    only thinned by another card.

    Attributes:
        card_prices: prices at which cards are packed, highest first.
    """

    grant_price: float
    card_prices: tuple[float, ...]


TIERS = (
    Tier(grant_price=0.4, card_prices=(1.0,)),
    Tier(grant_price=0.2, card_prices=(1.0,)),
    Tier(grant_price=0.1, card_prices=(1.0,)),
    Tier(grant_price=0.03, card_prices=(0.3,)),
    Tier(grant_price=0.01, card_prices=(0.1, 0.05)),
    Tier(grant_price=0.002, card_prices=(0.03, 0.015)),
    Tier(grant_price=0.0003, card_prices=(0.008, 0.004)),
    Tier(grant_price=0.00003, card_prices=(0.002, 0.0008, 0.0003, 0.0001)),
)
"""From the densest to the most careful."""
LOW_KEPT_MIN = 0.5
"""Share of its work that low priority must keep behind a gate: with less it is stopped rather than co-located."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows on one card model that may share, with everything the packer wants.

    Attributes:
        rows: rows of the demand, (items,), int64.
        fresh: scenarios the search never sees, (types, points); 0 for low priority.
        grants: framebuffer per item.
        peak: largest demand to expect of each item, 0-1, (items,).
        low_demand: mean demand of each item of low priority, 0 for others, (items,).
        joint_points: the first points of `problem.load` replay the history jointly.
        active: points of `fresh` in which each item is active, (items,).
        shortage: expected points short of framebuffer of each item, if its workload is cut, (items,).
        limits: who is limited to which share of compute.
        contention_left: share of the contention of scenarios that stays, 0-1; less than 1 where relief acts.
        lenders: see `Outlook`; then a bin may hold more than a card, on which framebuffer is lent.
    """

    card_model: CardModelName
    rows: NDArray[np.int64]
    problem: PackingProblem
    fresh: Float32
    grants: Grants
    peak: NDArray[np.float64]
    low_demand: NDArray[np.float64]
    joint_points: int
    active: NDArray[np.int64]
    shortage: NDArray[np.float64]
    limits: CoreLimits
    contention_left: float = 1.0
    lenders: Lenders | None = None

    @property
    def points(self) -> int:
        """Points of the scenarios that packings are judged on."""
        return int(self.fresh.shape[1])

    def busier(self, times: float) -> Group:
        """The same on days on which everybody asks for so many times as much, and needs framebuffer accordingly."""
        fresh = np.minimum(1.0, self.fresh * np.float32(times))
        problem = self.problem
        shortage = shortage_points(self.grants, problem.item_type, fresh, problem.capacity_bytes, problem.is_low)
        return replace(self, fresh=fresh, shortage=shortage)

    def shortage_of(self, bin_of: NDArray[np.int32]) -> float:
        """Expected item-points short of framebuffer: of workloads of which any pod shares a card, for all are cut."""
        workload = self.problem.item_workload
        shares = np.bincount(bin_of)[bin_of] > 1 if len(bin_of) else np.zeros(0, bool)
        return float(self.shortage[np.isin(workload, np.unique(workload[shares]))].sum())

    def harm_of(self, bin_of: NDArray[np.int32], bins: int) -> Harm:
        """Predicted harm of a packing of this group, by contention, by limits beside low priority, and by lending."""
        problem = self.problem
        most = self.limits.most_beside_low(bin_of, problem.is_low)
        harm = contention_harm(bin_of, bins, problem.item_type, self.fresh, problem.is_low, most)
        harm = replace(harm, violated=harm.violated * self.contention_left)
        if self.lenders is not None:
            for b in over_full(bin_of, problem.item_bytes, problem.capacity_bytes):
                harm.violated[b] = lent_violated(
                    self.lenders,
                    np.flatnonzero(bin_of == b),
                    problem.item_bytes,
                    self.fresh,
                    problem.item_type,
                    problem.capacity_bytes,
                )
        return harm

    def with_holds(self, bin_of: NDArray[np.int32]) -> NDArray[np.int32]:
        """The packing, with low priority alone where its hold is not good for all that sit there.

        It does not yield to low priority that nothing holds back, and is alone where its gate would not hold, would
        limit others below a peak, or would leave it too little.
        """
        if not self.problem.is_low.any():
            return bin_of
        beside_equals = self.limits.in_bins_of((Hold.NONE,), bin_of)[bin_of]
        apart = parted(bin_of, np.flatnonzero(self.problem.is_low & beside_equals))
        is_gated = np.isin(self.limits.hold, (Hold.CORES, Hold.PROBED))
        if not is_gated.any():
            return apart
        found = self.limits.with_gates_that_hold(apart)
        bins = int(found.max(initial=-1)) + 1
        left = self.limits.left_for_low(self.harm_of(found, bins), found)[found]
        is_shared = np.bincount(found)[found] > 1
        leaving = np.flatnonzero(is_gated & is_shared & (left < LOW_KEPT_MIN * self.low_demand))
        return parted(found, leaving)

    def below_ceiling(
        self, bin_of: NDArray[np.int32], violated: NDArray[np.float64], ratio_max: float
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """A packing with every card parted on which contention would harm a pod beyond a ceiling.

        Where framebuffer is lent, harm comes from waiting for it as well, and the card stays as it is.

        Args:
            violated: violated item-points of each of its bins, (bins,).
            ratio_max: most violated points of an item / its active ones.

        Returns:
            The packing, new bins last, and the violated item-points of its bins.
        """
        problem = self.problem
        to_check = bins_to_check(bin_of, violated, self.active, problem.is_low, ratio_max)
        lent = set() if self.lenders is None else {*over_full(bin_of, problem.item_bytes, problem.capacity_bytes)}
        most = self.limits.most_beside_low(bin_of, problem.is_low)
        found, harm = bin_of.copy(), [*violated]
        order = np.argsort(bin_of, kind="stable")
        ends = np.cumsum(np.bincount(bin_of))
        for b in (int(b) for b in to_check if int(b) not in lent):
            held = order[ends[b - 1] if b else 0 : ends[b]]
            (_, first), *others = parted_below(
                held, problem.item_type, self.fresh, problem.is_low, most, ratio_max / self.contention_left
            )
            harm[b] = first * self.contention_left
            for items, harmed in others:
                found[items] = len(harm)
                harm.append(harmed * self.contention_left)
        return found, np.array(harm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One packing of every group.

    Attributes:
        bin_of: per group, bin of each item.
        harm: per group, harm per bin.
        violation_ratio: predicted violated active time / active time, all pods counted, 0-1.
        active: pods that are active at a time, on average, all counted.
        bins: cards that carry an item.
        resting_active: active pods on average of all that are in no group (they count in the ratio).
    """

    bin_of: tuple[NDArray[np.int32], ...]
    harm: tuple[Harm, ...]
    violation_ratio: float
    active: float
    bins: int
    resting_active: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of the frontier: groups and how they are packed.

    Attributes:
        price: what a card was worth, see `Tier`; None where no price was asked for.
        parted: rows of low priority that would share a card, if its gate held there and left them enough.
    """

    groups: tuple[Group, ...]
    choice: Choice
    price: float | None = None
    parted: frozenset[int] = frozenset()


def core_limits(members: Sequence[Member], peak: NDArray[np.float64], fast_percent: NDArray[np.int64]) -> CoreLimits:
    """The limits that the rows of one card model can have.

    A peak is one of step means: requests come in bursts, and wait under a limit that only the means fit in.

    Args:
        peak: largest demand to expect of each row, 0-1, (rows,).
        fast_percent: see `Outlook`.
    """
    workload = np.array([member.workload for member in members], np.int64)
    largest = np.zeros(int(workload.max(initial=-1)) + 1)
    np.maximum.at(largest, workload, np.maximum(peak, fast_percent / 100.0))
    return CoreLimits(
        workload=workload,
        hold=np.array([member.hold or "" for member in members], dtype=np.str_),
        is_hard=np.array([member.is_hard for member in members], bool),
        takes_limit=np.array([member.takes_limit for member in members], bool) & (fast_percent <= SHARED_PERCENT_MAX),
        percent=shared_percents(largest)[workload],
    )


def group_of(
    outlook: Outlook,
    *,
    card_price: float,
    headroom_ratio: float,
    step_bytes: int,
    slices_max: int,
    least_bytes: int = 0,
    contention_left: float = 1.0,
) -> Group:
    """What the packer wants, with framebuffer granted at one price.

    Args:
        card_price: harm that a card is worth, see `TIERS`.
        headroom_ratio: see `grant_framebuffer`.
        step_bytes: the backend's step of framebuffer.
        least_bytes: smallest grant that the backend takes.
        contention_left: see `Group`.
    """
    grants = grant_framebuffer(
        outlook.footprints, card_price=card_price, headroom_ratio=headroom_ratio, step_bytes=step_bytes
    )
    grants = replace(grants, granted_bytes=np.maximum(grants.granted_bytes, float(least_bytes)))
    problem = PackingProblem(
        item_type=outlook.type_of,
        # Two pods of low priority would eat the same leftovers: at most one per card, as if of one workload.
        item_workload=np.array([-1 if member.is_low else member.workload for member in outlook.members], np.int32),
        item_group=np.array([member.group for member in outlook.members], np.int32),
        item_bytes=grants.granted_bytes,
        load=outlook.load,
        is_low=outlook.is_low,
        capacity_bytes=outlook.capacity_bytes,
        slices_max=slices_max,
    )
    return Group(
        card_model=outlook.card_model,
        rows=outlook.rows,
        problem=problem,
        fresh=outlook.fresh,
        grants=grants,
        peak=outlook.peak,
        low_demand=outlook.low_demand,
        joint_points=outlook.joint_points,
        active=outlook.active,
        shortage=shortage_points(grants, outlook.type_of, outlook.fresh_rising, outlook.capacity_bytes, outlook.is_low),
        limits=core_limits(outlook.members, outlook.peak, outlook.fast_percent),
        contention_left=contention_left,
        lenders=outlook.lenders,
    )


def frontier(
    tiers: Iterable[Sequence[Group]], *, violation_ratio_min: float, resting_active: float, packer: Packer, seed: int
) -> Iterator[Point]:
    """Packings from the densest to the first that predicts little enough harm, and those that are as dense but safer.

    Args:
        tiers: for each of `TIERS` the groups with framebuffer granted at its price; read one by one.
        violation_ratio_min: once a packing predicts no more than this, the walk goes on only while it costs no card.
        resting_active: active pods on average of all that are in no group (they count in the ratio).

    Yields:
        One point per price.
    """
    enough: int | None = None
    for tier, groups in zip(TIERS, tiers, strict=False):
        for point in packed(groups, tier.card_prices, resting_active=resting_active, packer=packer, seed=seed):
            if enough is not None and point.choice.bins > enough:
                return
            yield point
            if point.choice.violation_ratio <= violation_ratio_min:
                enough = point.choice.bins


def packed(
    groups: Sequence[Group], card_prices: Sequence[float], *, resting_active: float, packer: Packer, seed: int
) -> Iterator[Point]:
    """The packing of every group at each price of a card, highest first, see `Tier`; arguments as of `frontier`."""
    # Harm of which less stays is worth fewer cards.
    sweeps = [
        _sweep(
            group,
            packer,
            [price / group.contention_left * group.problem.load.shape[1] for price in card_prices],
            seed,
        )
        for group in groups
    ]
    # Where nobody may share there is one packing: that of nobody.
    for price, packings in zip(card_prices, zip(*sweeps, strict=True) if sweeps else [()], strict=False):
        held = [group.with_holds(packing) for group, packing in zip(groups, packings, strict=True)]
        choice = judged(groups, held, resting_active)
        yield Point(groups=tuple(groups), choice=choice, price=price, parted=_parted_rows(groups, packings, held))


def _parted_rows(
    groups: Sequence[Group], packings: Sequence[NDArray[np.int32]], held: Sequence[NDArray[np.int32]]
) -> frozenset[int]:
    found: set[int] = set()
    for group, before, after in zip(groups, packings, held, strict=True):
        shared, shares = (np.bincount(bin_of)[bin_of] > 1 for bin_of in (before, after))
        is_gated = np.isin(group.limits.hold, (Hold.CORES, Hold.PROBED))
        found.update(group.rows[is_gated & shared & ~shares].tolist())
    return frozenset(found)


def _sweep(group: Group, packer: Packer, prices: Sequence[float], seed: int) -> Iterator[NDArray[np.int32]]:
    """One packing per price."""
    if group.lenders is not None:
        return lending_sweep(group.problem, group.lenders, packer, prices, seed=seed)
    return (packing.bin_of for packing in packer.sweep(group.problem, prices, seed=seed))


def judged(groups: Sequence[Group], packings: Sequence[NDArray[np.int32]], resting_active: float) -> Choice:
    """Predicted harm of packings, one per group."""
    harms = [
        group.harm_of(bin_of, int(bin_of.max(initial=-1)) + 1) for group, bin_of in zip(groups, packings, strict=True)
    ]
    bad = sum(
        (harm.violated.sum() + group.shortage_of(bin_of)) / group.points
        for group, harm, bin_of in zip(groups, harms, packings, strict=True)
    )
    active = resting_active + sum(h.active.sum() / g.points for g, h in zip(groups, harms, strict=True))
    return Choice(
        bin_of=tuple(packings),
        harm=tuple(harms),
        violation_ratio=float(bad / active) if active > 0 else 0.0,
        active=float(active),
        bins=sum(len(harm.violated) for harm in harms),
        resting_active=resting_active,
    )


def violation_of_seats(point: Point, seat_of: Mapping[int, int], *, times: float = 1.0) -> float:
    """Predicted violation of a packing as far as its pods got seats, 0-1.

    Args:
        seat_of: number of the seat of each row of the demand that got one; the others stay, and share nothing new.
        times: how many times as busy everybody is.
    """
    bad, active = 0.0, point.choice.resting_active
    # One group at a time: busier days of all would be as large again as all days that were drawn.
    for group in point.groups:
        seats = [seat_of.get(int(row), -1 - item) for item, row in enumerate(group.rows)]
        bin_of = np.unique(seats, return_inverse=True)[1].astype(np.int32)
        found = judged([group if times == 1.0 else group.busier(times)], [bin_of], 0.0)
        bad += found.violation_ratio * found.active
        active += found.active
    return bad / active if active > 0 else 0.0
