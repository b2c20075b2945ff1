"""The world after the plan: who sits on which card with which slice, and what that adds up to. Called by `planner`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from fleet.capabilities.capability import Capabilities, CorePolicy, Division, equal_part_bytes
from fleet.decisions import CardPlacement, PlacedSlice, RecommendationKind, Refusal
from fleet.inventory import CardId, Grant, Inventory, WorkloadId
from fleet.priority_holds import Hold
from recommender.advice.case import Permits
from recommender.bin_cards import Seat
from recommender.consolidate import Group, Point, violation_of_seats
from recommender.cuts import Cut, equal_part_ratio, filled_up, is_new, portions_of_nodes
from recommender.demand import Demand
from recommender.footprint_grants import pool_cut
from recommender.group_seats import ALONE, Guards, Seated, Seating, Sharing, seated
from recommender.lent_cards import LentCard, factors_today, lent_cards, not_to_lend, scaling_today, too_large_a_factor
from recommender.mig.instance_size import InstanceAdvice
from recommender.mig.stages import Carving
from recommender.problem import PlanningProblem
from recommender.rehome import Rehoming
from recommender.surge import surge_seats, with_neighbours

MIG_MODE = "mig"
"""Mode of a node with cards on which the plan counts with instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A pod that changes its card.

    Attributes:
        kind: what the sharing on the target is.
        violation_ratio: predicted violated share of the target's active time, 0-1.
        low_hours: work of low priority that the target makes room for, GPU hours a week.
        is_first: it is the first that comes there, with which that work is counted.
        hold: what holds low priority back on the target; None where all are alike.
    """

    row: int
    source: CardId
    target: CardId
    kind: RecommendationKind
    violation_ratio: float
    low_hours: float
    is_first: bool
    hold: Hold | None = None


@dataclass(frozen=True, kw_only=True)
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
        sequence: workloads that change one after the other, in the order in which each finds room.
        surge_cards: cards that nobody held before and that this takes.
        lent: cards on which pods lend each other framebuffer.
        violation_ratio: predicted violated share of active time by the sharing that was seated, 0-1.
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
    sequence: tuple[WorkloadId, ...] = ()
    surge_cards: frozenset[CardId] = frozenset()
    lent: Mapping[CardId, LentCard] = field(default_factory=dict)
    violation_ratio: float

    @cached_property
    def freed(self) -> frozenset[CardId]:
        """Cards that nobody needs any more."""
        return self.cards_before - {seat.card for seat in self.seats}

    @cached_property
    def taken(self) -> frozenset[CardId]:
        """Cards that nobody held before."""
        return frozenset(seat.card for seat in self.seats) - self.cards_before

    @property
    def cards_freed(self) -> int:
        """How many cards fewer are held."""
        return len(self.freed) - len(self.taken)


def arrange(
    problem: PlanningProblem,
    permits: Permits,
    packing: Point,
    guards: Guards,
    *,
    seating: Seating | None = None,
    stuck: Mapping[WorkloadId, Refusal] = MappingProxyType({}),
    vain: frozenset[int] = frozenset(),
    gives_back: bool = False,
) -> Arrangement:
    """Seats a packing on physical cards.

    Where one kind of sharing alone is asked for, cards shared in any other way are dissolved. Services go to cards that
    are free when they change (`recommender.surge`); those that find none stay as they are, unless gaps are allowed.

    Args:
        permits: which workloads may share, which are reclaimed.
        guards: who keeps pods apart.
        seating: the seats, where they are not for this to find; the guards were asked before.
        stuck: workloads that can't change without a gap or find no card, and those beside them: they stay as they are.
        vain: numbers of groups that free no card beyond the spares without those: they stay as they are.
        gives_back: whether CPU and memory that pods leave on a node are for others to come to; where the backend admits
            pods, for then they go in an order in which each finds room.

    Returns:
        The world after the plan; a card model whose packing can't be seated stays as it is.
    """
    demand, guard = problem.demand, guards.latency

    def without(refused: Mapping[WorkloadId, Refusal]) -> Arrangement:
        members = {demand.grants[int(row)].workload_id for group in packing.groups for row in group.rows}
        also_stuck = with_neighbours(refused, members - set(stuck), permits.cases)
        return arrange(problem, permits, packing, guards, stuck={**stuck, **also_stuck}, gives_back=gives_back)

    displaced = {} if seating is None else seating.displaced
    found = seated(problem, permits, packing, guards, seating, stuck, vain, gives_back)
    if found.stuck:
        return without(found.stuck)
    seats = found.seats
    surge = None
    if seating is None and problem.capability.admits_pods:
        order = sorted(found.cuts, key=lambda name: (_risk(problem.rows_of[name], found.sharing), name))
        surge = surge_seats(problem, seats, found.cuts, order, _gone_rows(demand, permits), permits.cases)
        if waiting := surge.homeless if problem.settings.guard.gaps_allowed else surge.refused:
            return arrange(problem, permits, packing, guards, stuck={**stuck, **waiting}, gives_back=gives_back)
        seats = list(surge.seats)
        if (also_vain := vain | _in_vain(problem, packing.groups, seats, found.resting)) > vain:
            return arrange(problem, permits, packing, guards, stuck=stuck, vain=also_vain, gives_back=gives_back)
    sizes = {row: cut.framebuffer_bytes for name, cut in found.cuts.items() for row in problem.rows_of[name]}
    factors = factors_today(problem)
    lent = lent_cards(packing.groups, seats, sizes, factors)
    slices = _filled_up(problem, permits, found, seats, lent, factors)
    rest = _resting_seats(found.resting, demand)
    if homeless := not_to_lend(problem, lent, (*seats, *rest), slices, permits.cases):
        return without(homeless)
    moves = _moves_to(seats, found.sharing, demand, displaced)
    moved = {demand.grants[move.row].workload_id for move in moves}
    # Who has such a limit already may have it without force, which no inventory shows.
    gated = {move.target for move in moves if move.hold is Hold.CORES}
    limited = {demand.grants[row].workload_id for seat in seats if seat.card in gated for row in seat.rows}
    cuts = {
        name: cut
        for name, cut in slices.items()
        if name in moved | limited or any(is_new(cut, demand.grants[row]) for row in problem.rows_of[name])
    }
    seats += _displaced_seats(problem, packing, displaced)
    seats += rest
    harm = _violation_ratio(problem, packing, found, seats) if moves else 0.0
    if slowed := [card for card in lent.values() if card.waits_beyond > 0.0]:
        harm += sum(card.waits_beyond for card in slowed) / packing.choice.active
    if slowed and harm > guards.violation_ratio_max:
        return without(too_large_a_factor(slowed, demand.grants, permits.cases))
    return Arrangement(
        seats=tuple(sorted(seats, key=lambda seat: seat.card)),
        cuts=cuts,
        moves=moves,
        refused=(*found.refused, *stuck.values()),
        dropped=permits.dropped,
        inflations={row: ratio for seat in seats for row, ratio in guard.inflations(seat.rows).items()},
        cards_before=frozenset(grant.card for grant in demand.grants),
        together=() if seating is None else seating.together,
        displaced=displaced,
        portions=portions_of_nodes(seats) if problem.capability.division is Division.EQUAL_PARTS else {},
        sequence=() if surge is None else surge.order,
        surge_cards=frozenset() if surge is None else surge.cards,
        lent=lent,
        violation_ratio=harm,
    )


def _gone_rows(demand: Demand, permits: Permits) -> set[int]:
    """Rows whose cards are given back."""
    gone = set(permits.reclaimed)
    return {row for row, grant in enumerate(demand.grants) if grant.workload_id in gone} | permits.dropped


def _displaced_seats(problem: PlanningProblem, packing: Point, displaced: Mapping[int, CardId]) -> list[Seat]:
    node_of = {card.card: card.node for card in problem.inventory.cards}
    packed = {int(row) for group in packing.groups for row in group.rows}
    return [
        Seat(card=card, node=node_of.get(card, problem.demand.grants[row].node), rows=(row,))
        for row, card in sorted(displaced.items())
        if row not in packed
    ]


def _filled_up(
    problem: PlanningProblem,
    permits: Permits,
    found: Seated,
    seats: Sequence[Seat],
    lent: Mapping[CardId, LentCard],
    factors: Mapping[str, float],
) -> Mapping[WorkloadId, Cut]:
    """Slices that leave no compute of a card to newcomers where its node registers more framebuffer than it has."""
    nodes = {card.node for card in lent.values()} | set(factors)
    if not nodes or not problem.capability.adds_up_cores:
        return found.cuts
    names = {seat.card: {problem.demand.grants[row].workload_id for row in seat.rows} for seat in seats}
    shared = [
        seat.card
        for seat in seats
        if seat.node in nodes
        and len(seat.rows) > 1
        and all(name in found.cuts and not permits.cases[name].is_hard for name in names[seat.card])
    ]
    return filled_up(found.cuts, seats, sorted(shared, key=lambda card: (card not in lent, card)), problem.demand)


def _violation_ratio(problem: PlanningProblem, packing: Point, found: Seated, seats: Sequence[Seat]) -> float:
    """Predicted violated share of active time by the sharing that was seated; at most, where the scheduler chooses."""
    if problem.capability.division is Division.SCHEDULER:
        return packing.choice.violation_ratio + (found.violated / packing.choice.active if found.violated else 0.0)
    return violation_of_seats(packing, {row: number for number, seat in enumerate(seats) for row in seat.rows})


def _moves_to(
    seats: Sequence[Seat], sharing: Mapping[int, Sharing], demand: Demand, displaced: Mapping[int, CardId]
) -> tuple[Move, ...]:
    """Pods that come to other cards by what is shared there."""
    moves: list[Move] = []
    for seat in seats:
        coming = [row for row in seat.rows if demand.grants[row].card != seat.card and row not in displaced]
        for row in coming:
            how = sharing.get(row) or ALONE
            moves.append(
                Move(
                    row=row,
                    source=demand.grants[row].card,
                    target=seat.card,
                    kind=how.kind,
                    violation_ratio=how.violation_ratio,
                    low_hours=how.low_hours,
                    is_first=row == coming[0],
                    hold=how.hold,
                )
            )
    return tuple(moves)


def _in_vain(
    problem: PlanningProblem, groups: Sequence[Group], seats: Sequence[Seat], resting: Sequence[int]
) -> frozenset[int]:
    """Numbers of the groups that free no card; of all where they free no more than the spares that moves ask for."""
    grants = problem.demand.grants
    held = {seat.card for seat in seats} | {grants[row].card for row in resting}
    held_before = {grant.card for grant in grants}
    freed: list[int | None] = []
    for group in groups:
        rows = {int(row) for row in group.rows}
        after = {seat.card for seat in seats if not rows.isdisjoint(seat.rows)}
        # One that could not be seated stays anyway.
        gain = len({grants[row].card for row in rows} - held) - len(after - held_before)
        freed.append(gain if after else None)
    is_vain = sum(gain or 0 for gain in freed) <= problem.spares_wanted(len(held))
    return frozenset(number for number, gain in enumerate(freed) if gain is not None and (is_vain or gain <= 0))


def _risk(rows: Sequence[int], sharing: Mapping[int, Sharing]) -> float:
    """Predicted violated share of the worst card that pods of a workload come to."""
    return max((sharing[row].violation_ratio for row in rows if row in sharing), default=0.0)


def _resting_seats(resting: Sequence[int], demand: Demand) -> list[Seat]:
    rows_of: dict[CardId, list[int]] = defaultdict(list)
    for row in resting:
        rows_of[demand.grants[row].card].append(row)
    return [
        Seat(card=card, node=demand.grants[rows[0]].node, rows=tuple(sorted(rows))) for card, rows in rows_of.items()
    ]


def placement_of(
    demand: Demand, arrangement: Arrangement, inventory: Inventory, capability: Capabilities
) -> tuple[CardPlacement, ...]:
    """The plan's placement: every card that carries a pod afterwards."""
    cards = {card.card: card for card in inventory.cards}
    factors = {card.node: card.scaling for card in arrangement.lent.values()}
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
                _size(grant, arrangement, alone=_is_whole(seat, grants), capacity=capacity)
                if parts is None
                else equal_part_bytes(capacity, parts)
            )
            if instance is None
            else instance.framebuffer_bytes
            for grant, instance in zip(grants, instances, strict=True)
        ]
        over = sum(sizes) > capacity
        lends = seat.card in arrangement.lent
        scaling = None
        if capability.may_have_lent and not lends:
            scaling = scaling_today(sizes, capacity, capability)
        if lends or scaling is not None:
            # A node has one factor, so what its other cards need counts as well.
            scaling = max(factors.get(seat.node, 1.0), scaling or 1.0)
        pools = [
            pool_cut(demand, row, size, card_bytes=capacity, sees_limit=capability.holds_framebuffer)
            for row, size in zip(seat.rows, sizes, strict=True)
        ]
        placed.append(
            CardPlacement(
                card=seat.card,
                card_model=grants[0].card_model if known is None else known.card_model,
                node=seat.node,
                framebuffer_bytes=capacity,
                framebuffer_oversubscription_ratio=round(sum(sizes) / capacity, 6) if capacity else 0.0,
                node_mode=MIG_MODE if any(instances) else None,
                memory_scaling=scaling,
                kept_ratio=None
                if scaling is None
                else max(capability.kept_share(size, capacity, scaling) for size in sizes),
                slices=tuple(
                    replace(
                        _slice(grant, size, arrangement, alone=_is_whole(seat, grants), over=over, parts=parts)
                        if instance is None
                        else _instance(grant, instance, over=over),
                        pool_cut=pool,
                    )
                    for grant, size, instance, pool in zip(grants, sizes, instances, pools, strict=True)
                ),
            )
        )
    return tuple(placed)


def _size(grant: Grant, arrangement: Arrangement, *, alone: bool, capacity: int) -> int:
    cut = arrangement.cuts.get(grant.workload_id)
    if cut is not None:
        return cut.framebuffer_bytes
    return capacity if alone and grant.mig_profile is None else min(grant.framebuffer_granted_bytes, capacity)


def _is_whole(seat: Seat, grants: Sequence[Grant]) -> bool:
    """Whether the only pod of a card has all of it: one that was given a share and stays there keeps that share."""
    return len(grants) == 1 and (grants[0].compute_granted_ratio >= 1.0 or grants[0].card != seat.card)


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
        # What was granted beyond the card before is left so; our own slices fit, or lend each other framebuffer.
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
