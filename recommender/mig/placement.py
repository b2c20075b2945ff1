"""Seats of workloads that get MIG instances: a step of an arrangement where the backend cuts by MIG.

`mig.advice` says which instance a pod gets, `mig.card_cutting` on which card, `mig.stages` in what order. Cards are cut
only where that frees some. Called by `planner`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from fleet.capabilities.capability import Division
from fleet.catalogue import MigFamily, find_model
from fleet.decisions import RecommendationKind, Refusal
from fleet.inventory import CardId, CardModelName, Inventory, Priority, WorkloadId
from fleet.sharing import ACTIVE_RATIO_MIN
from recommender.advice.case import Permits, is_restartable
from recommender.bin_cards import NodeRoom, Seat
from recommender.demand import Demand
from recommender.mig.card_cutting import MigSeats, MigStock, seat_instances
from recommender.mig.instance_size import InstanceAdvice, NoInstance, advise_instance
from recommender.mig.stages import Machines, carvings_of
from recommender.node_terms import NodeTerms
from recommender.placement import Arrangement, moves_left
from recommender.problem import PlanningProblem

CLAIMED_CARDS_MAX = 200
"""Cards that one claim may name: each takes 44 bytes of an expression of 10,240 (`resource.k8s.io/v1`)."""


def with_mig_instances(problem: PlanningProblem, permits: Permits, arrangement: Arrangement) -> Arrangement:
    """The arrangement with workloads that need a part of a card on instances, as far as that frees cards.

    Nothing changes where the backend does not cut by MIG.
    """
    demand, inventory, capability = problem.demand, problem.inventory, problem.capability
    if not capability.cuts_by_mig:
        return arrangement
    advice, refused = _advice(problem, permits)
    advice, late = _within_moves(permits, advice, moves_left(problem, arrangement))
    scene = _Scene(
        demand=demand,
        inventory=inventory,
        arrangement=arrangement,
        node_of={card: known.node for card, known in problem.cards.items()},
        rows_on=_rows_on(demand, permits),
        closed_nodes=_closed_nodes(demand, permits, problem.terms) if capability.empties_node else frozenset(),
    )
    machines = Machines(node_of=scene.node_of, rows_on=scene.rows_on) if capability.empties_node else None
    room = NodeRoom(inventory, demand.grants)
    by_model: dict[CardModelName, dict[WorkloadId, InstanceAdvice]] = defaultdict(dict)
    for name, item in advice.items():
        by_model[permits.cases[name].grants[0].card_model][name] = item
    seats: list[MigSeats] = []
    unseated: set[WorkloadId] = set()
    for model in sorted(by_model):
        if (family := _family(model)) is None:
            continue
        for apart in _apart(by_model[model], permits, problem.capability.division):
            found, without = _seats(scene, model, family, apart, room, seats)
            seats += [] if found is None else [found]
            unseated |= without
    refused += late + _without_card(permits, advice, unseated)
    carved = carvings_of(demand.grants, advice, seats, machines)
    if not any(item.stage for item in carved):
        return replace(arrangement, refused=(*arrangement.refused, *refused))
    target = {row: card for item in carved for row, card in item.targets.items()}
    on_card: dict[CardId, list[int]] = defaultdict(list)
    for seat in arrangement.seats:
        for row in seat.rows:
            on_card[target.get(row, seat.card)].append(row)
    return replace(
        arrangement,
        seats=tuple(
            Seat(card=card, node=scene.node_of[card], rows=tuple(sorted(on_card[card]))) for card in sorted(on_card)
        ),
        refused=(*arrangement.refused, *refused),
        carved=carved,
    )


def mig_violation_ratio(demand: Demand, arrangement: Arrangement) -> float:
    """Predicted share of all active time of high and normal priority that instances are too small for, 0-1."""
    high = [row for row, grant in enumerate(demand.grants) if grant.priority is not Priority.LOW]
    active = int((demand.compute[high] > ACTIVE_RATIO_MIN).sum())
    violated = sum(
        item.advice.violated
        for item in arrangement.carved
        if item.stage and demand.grants[min(item.targets)].priority is not Priority.LOW
    )
    return violated / active if active else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """What seats are found in."""

    demand: Demand
    inventory: Inventory
    arrangement: Arrangement
    node_of: Mapping[CardId, str]
    rows_on: Mapping[str, Sequence[int]]
    closed_nodes: frozenset[str]


def _rows_on(demand: Demand, permits: Permits) -> dict[str, list[int]]:
    """Rows on each machine that are there when instances are cut."""
    rows_on: dict[str, list[int]] = defaultdict(list)
    gone = set(permits.reclaimed)
    for row, grant in enumerate(demand.grants):
        if grant.workload_id not in gone and row not in permits.dropped:
            rows_on[grant.node].append(row)
    return rows_on


def _closed_nodes(demand: Demand, permits: Permits, terms: NodeTerms) -> frozenset[str]:
    """Machines that can't be emptied, for somebody on them must not be restarted, and those that are barred."""
    closed = set(terms.barred)
    for node, rows in _rows_on(demand, permits).items():
        names = {demand.grants[row].workload_id for row in rows}
        if not all(name in permits.kinds and is_restartable(permits.cases[name]) for name in names):
            closed.add(node)
    return frozenset(closed)


def _advice(problem: PlanningProblem, permits: Permits) -> tuple[dict[WorkloadId, InstanceAdvice], list[Refusal]]:
    """The instance of everybody who may get one, and who gets none."""
    settings = problem.settings
    advice: dict[WorkloadId, InstanceAdvice] = {}
    refused: list[Refusal] = []
    for name in sorted(set(permits.kinds) - set(permits.reclaimed)):
        case = permits.cases[name]
        model = find_model(case.grants[0].card_model)
        if RecommendationKind.MIG not in permits.kinds[name] or model is None:
            continue
        found = advise_instance(
            problem.demand,
            problem.rows_of[name],
            model,
            headroom_ratio=settings.recommender.framebuffer_headroom_ratio,
            violation_ratio_max=settings.risk.violation_ratio_limit,
            inflation_max=settings.risk.latency_inflation_max if case.is_latency_critical else None,
        )
        if isinstance(found, NoInstance):
            refused.append(case.refuse(RecommendationKind.MIG, found.reason, **dict(found.values)))
        else:
            advice[name] = found
    return advice, refused


def _within_moves(
    permits: Permits, advice: dict[WorkloadId, InstanceAdvice], moves_max: int | None
) -> tuple[dict[WorkloadId, InstanceAdvice], list[Refusal]]:
    """Keeps the workloads with the smallest instances, as far as the moves go."""
    if moves_max is None:
        return advice, []
    kept: dict[WorkloadId, InstanceAdvice] = {}
    refused: list[Refusal] = []
    used = 0
    for name in sorted(advice, key=lambda name: (advice[name].profile.memory_slices, name)):
        case = permits.cases[name]
        if used + len(case.grants) <= moves_max:
            used += len(case.grants)
            kept[name] = advice[name]
        else:
            refused.append(case.refuse(RecommendationKind.MIG, "moves_max", pods=len(case.grants), moves_max=moves_max))
    return kept, refused


def _family(model: CardModelName) -> MigFamily | None:
    known = find_model(model)
    return None if known is None else known.mig


@dataclass(frozen=True, slots=True, kw_only=True)
class _Apart:
    """Workloads that may meet on cards, and nobody else.

    Attributes:
        is_chosen: the scheduler chooses among the cards that a claim names, so a pod may take anybody's place there.
    """

    advice: Mapping[WorkloadId, InstanceAdvice]
    is_chosen: bool


def _apart(advice: Mapping[WorkloadId, InstanceAdvice], permits: Permits, division: Division) -> list[_Apart]:
    """Workloads by who may meet: everybody, but where the scheduler chooses, those with several pods by profile.

    Instances of one profile fit in each other's places. There may be as many of them as a claim can name cards.
    """
    if division is not Division.TEMPLATE:
        return [_Apart(advice=advice, is_chosen=False)]
    single = {name: item for name, item in advice.items() if len(permits.cases[name].grants) == 1}
    found = [_Apart(advice=single, is_chosen=True)] if single else []
    by_profile: dict[str, list[WorkloadId]] = defaultdict(list)
    for name in sorted(advice.keys() - single.keys()):
        by_profile[advice[name].profile.name].append(name)
    for names in by_profile.values():
        pods = np.cumsum([len(permits.cases[name].grants) for name in names])
        for _, some in groupby(zip(names, pods, strict=True), lambda one: one[1] // CLAIMED_CARDS_MAX):
            found.append(_Apart(advice={name: advice[name] for name, _ in some}, is_chosen=True))
    return found


def _seats(
    scene: _Scene, model: CardModelName, family: MigFamily, apart: _Apart, room: NodeRoom, before: Sequence[MigSeats]
) -> tuple[MigSeats | None, set[WorkloadId]]:
    """Seats of one card model, None where cutting frees no card; and the workloads for which no card could be cut.

    Those are left out, and then those that would only be cut to sit on a card alone.

    Args:
        before: seats that others were given.
    """
    advice = apart.advice
    names = set(advice)
    unseated: set[WorkloadId] = set()
    while names:
        stock = _stock(scene, model, family, {name: advice[name] for name in names}, before)
        tried = room.copy()
        seats = seat_instances(stock, tried)
        unseated |= seats.unseated
        gone = seats.unseated or _alone(stock, seats) or (_beside_staying(stock, seats) if apart.is_chosen else None)
        if not gone:
            if not _frees_cards(stock, seats):
                return None, unseated
            room.book(tried)
            return seats, unseated
        names -= gone
    return None, unseated


def _without_card(
    permits: Permits, advice: Mapping[WorkloadId, InstanceAdvice], names: set[WorkloadId]
) -> list[Refusal]:
    return [
        permits.cases[name].refuse(RecommendationKind.MIG, "no_card_to_cut", profile=advice[name].profile.name)
        for name in sorted(names)
    ]


def _alone(stock: MigStock, seats: MigSeats) -> frozenset[WorkloadId]:
    """Workloads that would be restarted only to sit on cards without anybody else."""
    crowd = Counter(seats.targets.values())
    crowd.update({card: len(held) for card, held in stock.fixed.items()})
    restarted = seats.restarted(stock.grants, stock.profile_of)
    alone: dict[WorkloadId, bool] = {}
    for row in restarted:
        name = stock.grants[row].workload_id
        alone[name] = alone.get(name, True) and crowd[seats.targets[row]] == 1
    return frozenset(name for name, is_alone in alone.items() if is_alone)


def _beside_staying(stock: MigStock, seats: MigSeats) -> frozenset[WorkloadId]:
    """Workloads that come to cards where somebody who is not restarted has an instance: they might take its place.

    The claims of those who stay name the cards that they have now.
    """
    name_of = {row: stock.grants[row].workload_id for row in seats.targets}
    restarted = {name_of[row] for row in seats.restarted(stock.grants, stock.profile_of)}
    held = {card for row, card in seats.targets.items() if name_of[row] not in restarted} | set(stock.fixed)
    return frozenset(name_of[row] for row, card in seats.targets.items() if card in held) & restarted


def _frees_cards(stock: MigStock, seats: MigSeats) -> bool:
    before = {stock.grants[row].card for row in stock.profile_of}
    return len(set(seats.targets.values()) | set(stock.fixed)) < len(before)


def _stock(
    scene: _Scene,
    model: CardModelName,
    family: MigFamily,
    advice: Mapping[WorkloadId, InstanceAdvice],
    before: Sequence[MigSeats],
) -> MigStock:
    grants = scene.demand.grants
    placed = {row: card for one in before for row, card in one.targets.items()}
    profile_of = {
        row: advice[grants[row].workload_id].profile.name
        for seat in scene.arrangement.seats
        for row in seat.rows
        if grants[row].workload_id in advice
    }
    held = {grants[row].card for row in profile_of}
    fixed: dict[CardId, list[str]] = defaultdict(list)
    busy = set()
    for seat in scene.arrangement.seats:
        for row in seat.rows:
            if row in profile_of:
                continue
            busy.add(seat.node)
            if seat.card in held:
                fixed[seat.card].append(grants[row].mig_profile or "")
    still = {seat.card for seat in scene.arrangement.seats if not placed.keys() >= set(seat.rows)}
    left = {grants[row].card for row in placed} - still
    freed = {grant.card for grant in grants if grant.card_model == model} & (scene.arrangement.freed | left)
    return MigStock(
        family=family,
        grants=grants,
        profile_of=profile_of,
        fixed=fixed,
        empty=tuple(sorted(freed.difference(placed.values()))),
        busy_nodes=frozenset(busy),
        node_of=scene.node_of,
        closed_nodes=scene.closed_nodes,
    )
