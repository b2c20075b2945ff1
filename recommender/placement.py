"""The world after the plan: who sits on which card with which slice, and what that adds up to. Called by `planner`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from fleet.capabilities.capability import CorePolicy, Division, equal_part_bytes
from fleet.decisions import CardPlacement, PlacedSlice, RecommendationKind, Refusal
from fleet.inventory import CardId, Grant, Inventory, WorkloadId
from fleet.sharing import CONTENTION_RATIO_MAX
from recommender.advice.case import Permits
from recommender.bin_cards import Seat, seat_bins
from recommender.consolidate import Group, Point
from recommender.cuts import Cut, cuts_of, equal_part_ratio, portions_of_nodes, within_card
from recommender.demand import Demand
from recommender.harm.pair_guard import PairGuard
from recommender.latency.guard import LatencyGuard
from recommender.mig.instance_size import InstanceAdvice
from recommender.mig.stages import Carving
from recommender.problem import PlanningProblem
from recommender.rehome import Rehoming
from recommender.surge import must_gap, refused_surge, surge_seats

HOURS_PER_WEEK = 168
MIG_MODE = "mig"
"""Mode of a node with cards on which the plan counts with instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A pod that changes its card.

    Attributes:
        row: row of the demand.
        source: card it leaves.
        target: card it joins.
        kind: what the sharing on the target is.
        violation_ratio: predicted violated share of the target's active time, 0-1.
        low_hours: work of low priority that the target makes room for, GPU hours a week.
    """

    row: int
    source: CardId
    target: CardId
    kind: RecommendationKind
    violation_ratio: float
    low_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Seats after the plan.

    Attributes:
        seats: every card that carries a pod afterwards, sorted by card.
        cuts: new slice per workload that is cut.
        moves: pods that change cards.
        refused: workloads that could not be seated.
        dropped: rows of cards that pods of several give back.
        rehomed: workloads that move to cheaper cards.
        carved: workloads on MIG instances that the plan cuts or counts with.
        inflations: P99 latency beside others / alone of each latency-critical row that shares its card.
        cards_before: cards granted to somebody before.
        together: workloads that change in one stage each, for their nodes change for all of them at once.
        displaced: new card of each row that leaves a node which is shared without it.
        portions: into how many equal parts the cards of a node are divided, where the backend makes equal parts.
        surging: workloads that change cards without a gap, in the order in which each finds its cards free.
        surge_cards: cards that nobody held before and that this takes.
    """

    seats: tuple[Seat, ...]
    cuts: Mapping[WorkloadId, Cut]
    moves: tuple[Move, ...]
    refused: tuple[Refusal, ...]
    dropped: frozenset[int]
    rehomed: tuple[Rehoming, ...] = ()
    carved: tuple[Carving, ...] = ()
    inflations: Mapping[int, float | None]
    cards_before: frozenset[CardId]
    together: tuple[tuple[WorkloadId, ...], ...] = ()
    displaced: Mapping[int, CardId] = field(default_factory=dict)
    portions: Mapping[str, int] = field(default_factory=dict)
    surging: tuple[WorkloadId, ...] = ()
    surge_cards: frozenset[CardId] = frozenset()

    @property
    def freed(self) -> frozenset[CardId]:
        """Cards that nobody needs any more."""
        return self.cards_before - {seat.card for seat in self.seats}

    @property
    def taken(self) -> frozenset[CardId]:
        """Cards that nobody held before."""
        return frozenset(seat.card for seat in self.seats) - self.cards_before

    @property
    def cards_freed(self) -> int:
        """How many cards fewer are held."""
        return len(self.freed) - len(self.taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sharing:
    """What is known of one shared bin."""

    kind: RecommendationKind
    violation_ratio: float
    low_hours: float


_ALONE = _Sharing(kind=RecommendationKind.SLICE, violation_ratio=0.0, low_hours=0.0)
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
    """

    latency: LatencyGuard
    pairs: PairGuard


def arrange(
    problem: PlanningProblem,
    permits: Permits,
    packing: Point,
    guards: Guards,
    *,
    seating: Seating | None = None,
    stuck: Mapping[WorkloadId, bool] = MappingProxyType({}),
    vain: frozenset[int] = frozenset(),
) -> Arrangement:
    """Seats a packing on physical cards.

    Where one kind of sharing alone is asked for, cards shared in any other way are dissolved. Services go to cards that
    are free when they change (`recommender.surge`); those that find none stay as they are, unless gaps are allowed.

    Args:
        problem: what the plan is made from.
        permits: which workloads may share, which are reclaimed.
        packing: groups and bins.
        guards: who keeps pods apart.
        seating: the seats, where they are not for this to find; the guards were asked before.
        stuck: workloads that can't change without a gap: True where no free card would help.
        vain: numbers of groups that free no card beyond the spares without those: they stay as they are.

    Returns:
        The world after the plan; a card model whose packing can't be seated stays as it is.
    """
    demand, inventory, groups, guard = problem.demand, problem.inventory, packing.groups, guards.latency
    only = None if problem.scope.only is RecommendationKind.RECLAIM else problem.scope.only
    gone = set(permits.reclaimed)
    packed = {int(row) for group in groups for row in group.rows}
    displaced = {} if seating is None else seating.displaced
    away = packed | permits.dropped | set(displaced)
    resting = [row for row, grant in enumerate(demand.grants) if row not in away and grant.workload_id not in gone]
    seats: list[Seat] = []
    sharing: dict[int, _Sharing] = {}
    cuts: dict[WorkloadId, Cut] = {}
    refused: list[Refusal] = []
    for number, group in enumerate(groups):
        if number in vain:
            resting += map(int, group.rows)
            continue
        bins, known = _bins_of(packing, number, permits, demand, only)
        left = {int(row) for row in group.rows if demand.grants[int(row)].workload_id in stuck}
        resting += sorted(left)
        bins = [rows for held in bins if (rows := [row for row in held if row not in left])]
        found: tuple[Seat, ...] | None
        if seating is None:
            bins, slowed = _kept_fast([part for rows in bins for part in guards.pairs.parted(rows)], guard)
            refused += _too_slow(slowed, demand, permits, guard)
            found = seat_bins(bins, demand.grants, inventory, resting)
        else:
            found = seating.seats[number]
        if found is None:
            refused += _too_dense(group, demand, permits)
            resting += [int(row) for row in group.rows if int(row) not in left]
            continue
        seats += found
        sharing.update(known)
        new = cuts_of(group, found, demand, permits, always=frozenset() if seating is None else seating.sharing)
        cuts.update(within_card(new, found, demand, problem.capability))
    surge = None
    if seating is None and problem.capability.admits_pods:
        order = sorted(cuts, key=lambda name: (_risk(problem.rows_of[name], sharing), name))
        gone_rows = {row for row, grant in enumerate(demand.grants) if grant.workload_id in gone} | permits.dropped
        surge = surge_seats(problem, seats, cuts, order, gone_rows)
        found_stuck = {
            **dict.fromkeys(surge.stuck, False),
            **{name: True for name in order if must_gap(permits.cases[name])},
        }
        if found_stuck and not problem.settings.guard.gaps_allowed:
            return arrange(problem, permits, packing, guards, stuck={**stuck, **found_stuck})
        seats = list(surge.seats)
        also_vain = vain | _in_vain(problem, groups, seats, resting)
        if stuck and also_vain > vain:
            return arrange(problem, permits, packing, guards, stuck=stuck, vain=also_vain)
    moves = _moves_to(seats, sharing, demand, displaced)
    node_of = {card.card: card.node for card in inventory.cards}
    seats += [
        Seat(card=card, node=node_of.get(card, demand.grants[row].node), rows=(row,))
        for row, card in sorted(displaced.items())
        if row not in packed
    ]
    seats += _resting_seats(resting, demand)
    return Arrangement(
        seats=tuple(sorted(seats, key=lambda seat: seat.card)),
        cuts=cuts,
        moves=moves,
        refused=(*refused, *refused_surge(stuck, permits)),
        dropped=permits.dropped,
        inflations={row: ratio for seat in seats for row, ratio in guard.inflations(seat.rows).items()},
        cards_before=frozenset(grant.card for grant in demand.grants),
        together=() if seating is None else seating.together,
        displaced=displaced,
        portions=portions_of_nodes(seats) if problem.capability.division is Division.EQUAL_PARTS else {},
        surging=() if surge is None else surge.order,
        surge_cards=frozenset() if surge is None else surge.cards,
    )


def _moves_to(
    seats: Sequence[Seat], sharing: Mapping[int, _Sharing], demand: Demand, displaced: Mapping[int, CardId]
) -> tuple[Move, ...]:
    """Pods that come to other cards by what is shared there."""
    return tuple(
        Move(
            row=row,
            source=demand.grants[row].card,
            target=seat.card,
            kind=how.kind,
            violation_ratio=how.violation_ratio,
            low_hours=how.low_hours,
        )
        for seat in seats
        for row in seat.rows
        if demand.grants[row].card != seat.card and row not in displaced
        for how in [sharing.get(row) or _ALONE]
    )


def _in_vain(
    problem: PlanningProblem, groups: Sequence[Group], seats: Sequence[Seat], resting: Sequence[int]
) -> frozenset[int]:
    """Numbers of the groups that free no card; of all where they free no more than the spares that moves ask for."""
    grants = problem.demand.grants
    held = {seat.card for seat in seats} | {grants[row].card for row in resting}
    held_before = {grant.card for grant in grants}
    freed = []
    for group in groups:
        rows = {int(row) for row in group.rows}
        after = {seat.card for seat in seats if not rows.isdisjoint(seat.rows)}
        freed.append(len({grants[row].card for row in rows} - held) - len(after - held_before))
    is_vain = sum(freed) <= problem.spares_wanted(len(held))
    return frozenset(number for number, gain in enumerate(freed) if is_vain or gain <= 0)


def _risk(rows: Sequence[int], sharing: Mapping[int, _Sharing]) -> float:
    """Predicted violated share of the worst card that pods of a workload come to."""
    return max((sharing[row].violation_ratio for row in rows if row in sharing), default=0.0)


def _bins_of(
    packing: Point, number: int, permits: Permits, demand: Demand, only: RecommendationKind | None
) -> tuple[list[list[int]], dict[int, _Sharing]]:
    group, bin_of, harm = packing.groups[number], packing.choice.bin_of[number], packing.choice.harm[number]
    items_of: dict[int, list[int]] = defaultdict(list)
    for item, b in enumerate(bin_of):
        items_of[int(b)].append(item)
    bins: list[list[int]] = []
    known: dict[int, _Sharing] = {}
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
        low = min(float(harm.left[b]), float(group.low_demand[items].sum())) * HOURS_PER_WEEK
        # The work is counted once per card, with its first pod.
        for place, row in enumerate(rows):
            known[row] = _Sharing(kind=kind, violation_ratio=ratio, low_hours=0.0 if place else low)
    return bins, known


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
    return [
        permits.cases[name].refuse(RecommendationKind.SLICE, "latency", inflation_max=guard.inflation_max)
        for name in names
    ]


def _kind_of(group: Group, items: Sequence[int], kinds: Sequence[frozenset[RecommendationKind]]) -> RecommendationKind:
    """What sharing this card is: by priorities first, then by whether peaks fit, then by hours."""
    low = group.problem.is_low[items]
    if low.any() and not low.all():
        return RecommendationKind.COLOCATE
    if group.peak[items].sum() <= CONTENTION_RATIO_MAX:
        return RecommendationKind.SLICE
    replayed = group.problem.load[group.problem.item_type[items], : group.joint_points].sum(axis=0)
    if all(RecommendationKind.OFFPEAK_PAIR in kind for kind in kinds) and replayed.max() <= CONTENTION_RATIO_MAX:
        return RecommendationKind.OFFPEAK_PAIR
    return RecommendationKind.OVERSUBSCRIBE


def _too_dense(group: Group, demand: Demand, permits: Permits) -> list[Refusal]:
    names = sorted({demand.grants[int(row)].workload_id for row in group.rows})
    return [permits.cases[name].refuse(None, "shares_already", card_model=group.card_model) for name in names]


def _resting_seats(resting: Sequence[int], demand: Demand) -> list[Seat]:
    rows_of: dict[CardId, list[int]] = defaultdict(list)
    for row in resting:
        rows_of[demand.grants[row].card].append(row)
    return [
        Seat(card=card, node=demand.grants[rows[0]].node, rows=tuple(sorted(rows))) for card, rows in rows_of.items()
    ]


def placement_of(demand: Demand, arrangement: Arrangement, inventory: Inventory) -> tuple[CardPlacement, ...]:
    """The plan's placement: every card that carries a pod afterwards."""
    cards = {card.card: card for card in inventory.cards}
    instance_of = {row: item.advice for item in arrangement.carved for row in item.targets}
    placed = []
    for seat in arrangement.seats:
        grants = [demand.grants[row] for row in seat.rows]
        instances = [instance_of.get(row) for row in seat.rows]
        known = cards.get(seat.card)
        capacity = grants[0].framebuffer_bytes if known is None else known.framebuffer_bytes
        parts = arrangement.portions.get(seat.node)
        sizes = [
            (
                _size(grant, arrangement, alone=len(grants) == 1, capacity=capacity)
                if parts is None
                else equal_part_bytes(capacity, parts)
            )
            if instance is None
            else instance.framebuffer_bytes
            for grant, instance in zip(grants, instances, strict=True)
        ]
        over = sum(sizes) > capacity
        placed.append(
            CardPlacement(
                card=seat.card,
                card_model=grants[0].card_model if known is None else known.card_model,
                node=seat.node,
                framebuffer_bytes=capacity,
                framebuffer_oversubscription_ratio=round(sum(sizes) / capacity, 6) if capacity else 0.0,
                node_mode=MIG_MODE if any(instances) else None,
                slices=tuple(
                    _slice(grant, size, arrangement, alone=len(grants) == 1, over=over, parts=parts)
                    if instance is None
                    else _instance(grant, instance, over=over)
                    for grant, size, instance in zip(grants, sizes, instances, strict=True)
                ),
            )
        )
    return tuple(placed)


def _size(grant: Grant, arrangement: Arrangement, *, alone: bool, capacity: int) -> int:
    cut = arrangement.cuts.get(grant.workload_id)
    if cut is not None:
        return cut.framebuffer_bytes
    return capacity if alone and grant.mig_profile is None else min(grant.framebuffer_granted_bytes, capacity)


def _slice(
    grant: Grant, size: int, arrangement: Arrangement, *, alone: bool, over: bool, parts: int | None
) -> PlacedSlice:
    cut = arrangement.cuts.get(grant.workload_id)
    whole = alone and grant.mig_profile is None
    share: float | None
    if parts is not None:
        share = equal_part_ratio(parts)
    elif cut is not None:
        share = cut.compute_ratio
    elif whole:
        share = 1.0
    else:
        # All of a card's compute beside others is no limit.
        share = grant.compute_granted_ratio if grant.compute_granted_ratio < 1.0 else None
    is_burst = cut is not None and not cut.is_hard
    return PlacedSlice(
        namespace=grant.namespace,
        pod=grant.pod,
        container=grant.container,
        workload=grant.workload_id,
        framebuffer_bytes=size,
        compute_ratio=share,
        # A pod left on a card that others share keeps what it had; nobody knows of a hard limit there.
        core_policy=CorePolicy.BURST if is_burst or (cut is None and not whole) else CorePolicy.HARD,
        priority=grant.priority,
        # Only what was granted beyond the card before is left so; our own slices always fit.
        oversubscribed=over,
        mig_profile=grant.mig_profile,
    )


def _instance(grant: Grant, instance: InstanceAdvice, *, over: bool) -> PlacedSlice:
    return PlacedSlice(
        namespace=grant.namespace,
        pod=grant.pod,
        container=grant.container,
        workload=grant.workload_id,
        framebuffer_bytes=instance.framebuffer_bytes,
        compute_ratio=round(instance.compute_ratio, 4),
        core_policy=CorePolicy.HARD,
        priority=grant.priority,
        oversubscribed=over,
        mig_profile=instance.profile.name,
    )


def moves_of(demand: Demand, arrangement: Arrangement) -> int:
    """Pods that are restarted."""
    return len({demand.grants[row].pod_id for row in _restarted(demand, arrangement)})


def moves_left(problem: PlanningProblem, arrangement: Arrangement) -> int | None:
    """How many more pods the plan may restart; None for any number."""
    if problem.moves_max is None:
        return None
    return max(0, problem.moves_max - moves_of(problem.demand, arrangement))


def _restarted(demand: Demand, arrangement: Arrangement) -> list[int]:
    moved = {move.row for move in arrangement.moves} | arrangement.dropped
    moved |= {row for item in arrangement.rehomed for row in item.targets}
    moved |= {row for item in arrangement.carved for row in item.restarted | item.interrupted}
    moved |= set(arrangement.displaced)
    return [row for row, grant in enumerate(demand.grants) if row in moved or grant.workload_id in arrangement.cuts]
