"""Seats of the groups that a packing made: bins become cards, what is known of each pod that shares, and its slice.

Called by `placement`, which lets services change cards without a gap afterwards; pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.capabilities.capability import Division
from fleet.decisions import RecommendationKind, Refusal
from fleet.inventory import CardId, Inventory, WorkloadId
from fleet.priority_holds import Hold
from fleet.sharing import CONTENTION_RATIO_MAX
from recommender.advice.case import Permits
from recommender.bin_cards import BinSeats, Seat, seat_bins
from recommender.consolidate import LOW_KEPT_MIN, Group, Point
from recommender.cuts import Cut, cuts_of, within_card
from recommender.demand import Demand
from recommender.harm.pair_guard import PairGuard
from recommender.latency.guard import LatencyGuard
from recommender.problem import PlanningProblem
from recommender.scheduler_choice import ChosenSeats, SchedulersChoice

HOURS_PER_WEEK = 168
_SLICE = RecommendationKind.SLICE


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What is known of one shared bin.

    Attributes:
        low_hours: work of low priority that it makes room for, GPU hours a week.
        hold: what holds low priority back on it; None where all are alike.
    """

    kind: RecommendationKind
    violation_ratio: float
    low_hours: float
    hold: Hold | None = None


ALONE = Sharing(kind=RecommendationKind.SLICE, violation_ratio=0.0, low_hours=0.0)
"""Of a pod that gets a card to itself, because others of its workload share theirs and all have one slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seating:
    """Seats that stand before a packing is arranged, where nodes are shared in whole.

    Attributes:
        seats: seats of each group by its number.
        sharing: workloads on shared nodes, cut even where one of their pods has a card to itself.
        together: workloads that change in one stage each.
        displaced: new card of each row that leaves a node which is shared without it.
    """

    seats: Mapping[int, tuple[Seat, ...]]
    sharing: frozenset[WorkloadId]
    together: tuple[tuple[WorkloadId, ...], ...]
    displaced: Mapping[int, CardId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """Who keeps pods apart.

    Attributes:
        latency: keeps latency-critical services from being slowed.
        pairs: keeps pods apart that were measured to slow each other down.
        violation_ratio_max: predicted violation that the plan may have, 0-1.
    """

    latency: LatencyGuard
    pairs: PairGuard
    violation_ratio_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seated:
    """Groups on physical cards: seats, what is known of each row that shares, slices, refusals, rows that stay.

    Pods that are violated at a time beyond what was predicted for the packing, on average, count the worst that a
    scheduler can choose. Where workloads are stuck, the seats can't be had with them.
    """

    seats: list[Seat]
    sharing: dict[int, Sharing]
    cuts: dict[WorkloadId, Cut]
    refused: list[Refusal]
    resting: list[int]
    violated: float
    stuck: dict[WorkloadId, Refusal]


def seated(
    problem: PlanningProblem,
    permits: Permits,
    packing: Point,
    guards: Guards,
    seating: Seating | None,
    stuck: Collection[WorkloadId],
    vain: frozenset[int],
    gives_back: bool,
) -> Seated:
    """Seats every group where its pods are, without the workloads that are stuck and the groups in vain.

    Args:
        gives_back: see `seat_bins`.
    """
    demand, inventory, groups, guard = problem.demand, problem.inventory, packing.groups, guards.latency
    only = None if problem.scope.only is RecommendationKind.RECLAIM else problem.scope.only
    gone = set(permits.reclaimed)
    packed = {int(row) for group in groups for row in group.rows}
    away = packed | permits.dropped | set(() if seating is None else seating.displaced)
    resting = [row for row, grant in enumerate(demand.grants) if row not in away and grant.workload_id not in gone]
    seats: list[Seat] = []
    sharing: dict[int, Sharing] = {}
    cuts: dict[WorkloadId, Cut] = {}
    refused: list[Refusal] = []
    violated = 0.0
    lost: dict[WorkloadId, Refusal] = {}
    for number, group in enumerate(groups):
        bins, known = _bins_of(packing, number, permits, demand, only)
        left = {int(row) for row in group.rows if demand.grants[int(row)].workload_id in stuck}
        resting += sorted(left)
        bins = [rows for held in bins if (rows := [row for row in held if row not in left])]
        found: tuple[Seat, ...] | None
        chosen: ChosenSeats | None = None
        if seating is None:
            bins, slowed = _kept_fast([part for rows in bins for part in guards.pairs.parted(rows)], guard)
            refused += _too_slow(slowed, demand, permits, guard)
            if number in vain:
                resting += [int(row) for row in group.rows if int(row) not in left]
                together = {demand.grants[row].workload_id for rows in bins if len(rows) > 1 for row in rows}
                refused += [permits.cases[name].refuse(_SLICE, "frees_no_card") for name in sorted(together)]
                continue
            if problem.capability.division is Division.SCHEDULER:
                choice = SchedulersChoice(
                    group=group,
                    demand=demand,
                    inventory=inventory,
                    latency=guard,
                    pairs=guards.pairs,
                    terms=problem.terms,
                    predicted=float(packing.choice.harm[number].violated.sum())
                    + group.shortage_of(packing.choice.bin_of[number]),
                    violated_max=(guards.violation_ratio_max - packing.choice.violation_ratio) * packing.choice.active
                    - violated,
                )
                chosen = choice.seats(bins, resting)
                found = None if chosen is None else chosen.seats
            else:
                on_cards, known = _Sharers(group, permits, demand, only).seats(
                    bins, known, inventory, resting, gives_back
                )
                lost |= _lost(on_cards, group, demand, permits)
                found = on_cards.seats
        else:
            found = seating.seats[number]
        if found is None:
            refused += _too_dense(group.rows.tolist(), group, demand, permits)
            resting += [int(row) for row in group.rows if int(row) not in left]
            continue
        seats += found
        sharing.update(known)
        new = cuts_of(group, found, demand, permits, always=frozenset() if seating is None else seating.sharing)
        if chosen is not None:
            resting += chosen.resting
            violated += chosen.violated
            new = {name: replace(cut, framebuffer_bytes=chosen.sizes[name]) for name, cut in new.items()}
            sharing |= {
                row: replace(known.get(row, ALONE), violation_ratio=ratio)
                for row, ratio in chosen.violation_ratio.items()
            }
        cuts.update(within_card(new, found, demand, problem.capability))
    return Seated(
        seats=seats,
        sharing=sharing,
        cuts=cuts,
        refused=[*refused, *_shut_out(seats, packing.parted, demand, permits, stuck)],
        resting=resting,
        violated=violated,
        stuck=lost,
    )


def _bins_of(
    packing: Point, number: int, permits: Permits, demand: Demand, only: RecommendationKind | None
) -> tuple[list[list[int]], dict[int, Sharing]]:
    group, bin_of, harm = packing.groups[number], packing.choice.bin_of[number], packing.choice.harm[number]
    left = group.limits.left_for_low(harm, bin_of)
    items_of: dict[int, list[int]] = defaultdict(list)
    for item, b in enumerate(bin_of):
        items_of[int(b)].append(item)
    bins: list[list[int]] = []
    known: dict[int, Sharing] = {}
    for b, held in items_of.items():
        items = held
        rows = [int(group.rows[item]) for item in items]
        kind = _kind_of(group, items, [permits.kinds[demand.grants[row].workload_id] for row in rows])
        if len(items) > 1 and only is not None and kind is not only:
            bins += [[row] for row in rows]
            continue
        if len(items) > 1 and kind in permits.off:
            kind, items, parted = _carried_out(group, items, permits, demand)
            bins += [[int(group.rows[item])] for item in parted]
            rows = [int(group.rows[item]) for item in items]
        bins.append(rows)
        ratio = float(harm.violated[b] / harm.active[b]) if harm.active[b] > 0 else 0.0
        hold = _hold_of(group, items) if kind is RecommendationKind.COLOCATE else None
        low = min(float(left[b]), float(group.low_demand[items].sum())) * HOURS_PER_WEEK
        known |= dict.fromkeys(rows, Sharing(kind=kind, violation_ratio=ratio, low_hours=low, hold=hold))
    return bins, known


class _Sharers:
    """What it is that some of a group's rows share a card, and whether it may be advised."""

    def __init__(self, group: Group, permits: Permits, demand: Demand, only: RecommendationKind | None) -> None:
        self._group, self._permits, self._demand, self._only = group, permits, demand, only
        self._item_of = {int(row): item for item, row in enumerate(group.rows)}

    def kind_of(self, rows: Sequence[int]) -> RecommendationKind:
        """The kind of advice that makes these share a card."""
        kinds = [self._permits.kinds[self._demand.grants[row].workload_id] for row in rows]
        return _kind_of(self._group, [self._item_of[row] for row in rows], kinds)

    def seats(
        self,
        bins: Sequence[Sequence[int]],
        known: dict[int, Sharing],
        inventory: Inventory,
        resting: Sequence[int],
        gives_back: bool,
    ) -> tuple[BinSeats, dict[int, Sharing]]:
        """Seats of bins, and what is known of each row: of a bin that is not seated whole nobody is harmed more."""
        found = seat_bins(
            bins, self._demand.grants, inventory, resting, gives_back=gives_back, may_share=self.may_share
        )
        whole = {tuple(sorted(rows)) for rows in bins}
        parts = [seat.rows for seat in found.seats if len(seat.rows) > 1 and seat.rows not in whole]
        return found, known | {row: replace(known[row], kind=self.kind_of(rows)) for rows in parts for row in rows}

    def may_share(self, rows: Sequence[int]) -> bool:
        """Whether that kind was asked for and is carried out by the backend."""
        kind = self.kind_of(rows)
        return kind not in self._permits.off and self._only in (None, kind)


def _hold_of(group: Group, items: Sequence[int]) -> Hold:
    """What holds low priority back on a card: of several pods the one that is held least says it."""
    held = {Hold(group.limits.hold[item]) for item in items if group.limits.is_beneath[item]}
    return next(hold for hold in Hold if hold in held)


def _carried_out(
    group: Group, items: Sequence[int], permits: Permits, demand: Demand
) -> tuple[RecommendationKind, list[int], list[int]]:
    """What is left of a card once sharing it is of a kind that the backend carries out, and who parts for that.

    Pods that ask for most parts come first; in the end those stay whose peaks fit the card together.
    """
    kept = list(items)
    parted: list[int] = []
    while True:
        kinds = [permits.kinds[demand.grants[int(group.rows[item])].workload_id] for item in kept]
        kind = _kind_of(group, kept, kinds)
        if len(kept) < 2 or kind not in permits.off:
            return kind, kept, parted
        largest = max(kept, key=lambda item: (float(group.peak[item]), item))
        kept.remove(largest)
        parted.append(largest)


def _kept_fast(bins: Sequence[Sequence[int]], guard: LatencyGuard) -> tuple[list[list[int]], list[int]]:
    """Bins in which nobody who must answer fast is slowed, and the rows that got a card of their own for that."""
    kept: list[list[int]] = []
    apart: list[int] = []
    for rows in bins:
        if not guard.is_too_slow(rows):
            kept.append(list(rows))
            continue
        fast = [row for row in rows if row in guard.critical]
        kept += [[row] for row in fast]
        kept += [rest] if (rest := [row for row in rows if row not in guard.critical]) else []
        apart += fast
    return kept, apart


def _too_slow(rows: Sequence[int], demand: Demand, permits: Permits, guard: LatencyGuard) -> list[Refusal]:
    names = sorted({demand.grants[row].workload_id for row in rows})
    return [permits.cases[name].refuse(_SLICE, "latency", inflation_max=guard.inflation_max) for name in names]


def _shut_out(
    seats: Sequence[Seat], parted: Collection[int], demand: Demand, permits: Permits, stuck: Collection[WorkloadId]
) -> list[Refusal]:
    """Workloads of low priority that share no card because their gate would not hold there, or leave them enough."""
    joined = {demand.grants[row].workload_id for seat in seats if len(seat.rows) > 1 for row in seat.rows}
    gated = {demand.grants[row].workload_id for row in parted}
    return [
        permits.cases[name].refuse(RecommendationKind.COLOCATE, "gate_leaves_too_little", kept_ratio=LOW_KEPT_MIN)
        for name in sorted(gated - joined - set(stuck))
    ]


def _kind_of(group: Group, items: Sequence[int], kinds: Sequence[frozenset[RecommendationKind]]) -> RecommendationKind:
    """What sharing this card is: by priorities first, then by whether framebuffer and peaks fit, then by hours."""
    low = group.limits.is_beneath[items]
    if low.any() and not low.all():
        return RecommendationKind.COLOCATE
    if group.problem.item_bytes[items].sum() > group.problem.capacity_bytes:
        return RecommendationKind.OVERSUBSCRIBE
    if group.peak[items].sum() <= CONTENTION_RATIO_MAX:
        return RecommendationKind.SLICE
    replayed = group.problem.load[group.problem.item_type[items], : group.joint_points].sum(axis=0)
    if all(RecommendationKind.OFFPEAK_PAIR in kind for kind in kinds) and replayed.max() <= CONTENTION_RATIO_MAX:
        return RecommendationKind.OFFPEAK_PAIR
    return RecommendationKind.OVERSUBSCRIBE


def _lost(found: BinSeats, group: Group, demand: Demand, permits: Permits) -> dict[WorkloadId, Refusal]:
    """Why workloads stay of which a pod finds no card."""
    model = group.card_model
    roomless = {demand.grants[row].workload_id for row in found.roomless}
    cases = [permits.cases[name] for name in sorted(roomless)]
    lost = {case.workload: case.refuse(None, "no_node_room", card_model=model) for case in cases}
    return lost | {refusal.workload: refusal for refusal in _too_dense(found.cardless, group, demand, permits)}


def _too_dense(rows: Sequence[int], group: Group, demand: Demand, permits: Permits) -> list[Refusal]:
    names = sorted({demand.grants[row].workload_id for row in rows})
    return [permits.cases[name].refuse(None, "shares_already", card_model=group.card_model) for name in names]
