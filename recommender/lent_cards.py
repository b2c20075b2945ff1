"""Cards of the plan on which framebuffer is lent: with one factor per node, within the host memory of each.

Called by `placement` once every pod has its card; pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fleet.decisions import RecommendationKind, Refusal
from fleet.inventory import CardId, Grant, WorkloadId
from fleet.servers import hosts_engines, preallocates
from recommender.advice.case import Case
from recommender.bin_cards import Seat
from recommender.consolidate import Group
from recommender.lending import Loan, loan_of
from recommender.problem import PlanningProblem

LENDING_REASONS = frozenset({"node_has_whole_card", "host_memory_unknown", "host_memory_short"})
"""Reasons of refusals by which a node lets its pods lend nothing; they may share in other ways."""
_KIND = RecommendationKind.OVERSUBSCRIBE
HOST_RATIO_MAX = 0.5
"""Share of what requests leave of a node's memory that framebuffer may take: who asks for none uses some all the same,
and so do pods without cards, which nobody counted here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LentCard:
    """A card of the plan on which pods lend each other framebuffer.

    Attributes:
        rows: rows of the demand that sit on it.
        loan: what that comes to, with the factor of the card's node.
    """

    card: CardId
    node: str
    rows: tuple[int, ...]
    loan: Loan


def lent_cards(groups: Sequence[Group], seats: Sequence[Seat], size_of: Mapping[int, int]) -> dict[CardId, LentCard]:
    """Cards whose pods are granted more than the card has, by card; a node's factor is that of its neediest card.

    Args:
        groups: groups that were packed.
        size_of: framebuffer that each row is granted which is cut.
    """
    place = {int(row): (group, item) for group in groups for item, row in enumerate(group.rows)}
    over: list[tuple[Seat, Group]] = []
    for seat in seats:
        group = place[seat.rows[0]][0] if seat.rows[0] in place else None
        is_cut = all(row in size_of for row in seat.rows)
        if group is None or group.lenders is None or not is_cut or len(seat.rows) < 2:
            continue
        if sum(size_of[row] for row in seat.rows) > group.problem.capacity_bytes:
            over.append((seat, group))
    factor: dict[str, float] = defaultdict(lambda: 1.0)
    for seat, group in over:
        loan = _loan(seat, group, place, 1.0)
        factor[seat.node] = max(factor[seat.node], 1.0 if loan is None else loan.scaling)
    return {
        seat.card: LentCard(card=seat.card, node=seat.node, rows=seat.rows, loan=loan)
        for seat, group in over
        if (loan := _loan(seat, group, place, factor[seat.node])) is not None
    }


def _loan(seat: Seat, group: Group, place: Mapping[int, tuple[Group, int]], scaling_min: float) -> Loan | None:
    if group.lenders is None:
        return None
    items = np.array([place[row][1] for row in seat.rows], np.int64)
    problem = group.problem
    return loan_of(group.lenders, items, problem.item_bytes, problem.capacity_bytes, scaling_min=scaling_min)


def scaling_today(sizes: Sequence[int], capacity_bytes: int) -> float | None:
    """Smallest factor that a card must have on which pods lend already: each holds its grant while it works alone.

    Args:
        sizes: what each pod on it is granted, bytes.

    Returns:
        None where the card holds all, or one of them is granted all of it.
    """
    total, largest = sum(sizes), max(sizes, default=0)
    if total <= capacity_bytes or largest >= capacity_bytes:
        return None
    return round((total - largest) / (capacity_bytes - largest), 2)


def not_to_lend(
    problem: PlanningProblem,
    lent: Mapping[CardId, LentCard],
    seats: Sequence[Seat],
    cut: Collection[int],
    cases: Mapping[WorkloadId, Case],
) -> dict[WorkloadId, Refusal]:
    """Workloads on cards whose node can't let them lend, each with why.

    A node needs host memory for all that may ever lie there, cards that need least first; where nobody knows its
    memory there is none. And no server that takes framebuffer ahead of need may have one of its cards whole: started
    anew, it would see the card's framebuffer times the node's factor, and fill that.

    Args:
        seats: every card that carries a pod after the plan.
        cut: rows that are granted a number of bytes.
    """
    left = {node: _host_memory(problem, node) for node in {card.node for card in lent.values()}}
    grants = problem.demand.grants
    whole = {
        seat.node: row for seat in seats for row in seat.rows if row not in cut and fills_what_it_sees(grants[row])
    }
    refused: dict[WorkloadId, Refusal] = {}
    for card in sorted(lent.values(), key=lambda card: (card.loan.host_bytes_max, card.card)):
        room, needed, node = left[card.node], card.loan.host_bytes_max, card.node
        names = sorted({grants[row].workload_id for row in card.rows})
        if node in whole:
            pod = grants[whole[node]].pod_id
            refused |= {name: cases[name].refuse(_KIND, "node_has_whole_card", node=node, pod=pod) for name in names}
        elif room is None:
            refused |= {name: cases[name].refuse(_KIND, "host_memory_unknown", node=node) for name in names}
        elif needed > room:
            refused |= {
                name: cases[name].refuse(
                    _KIND, "host_memory_short", node=node, needed_bytes=round(needed), left_bytes=round(room)
                )
                for name in names
            }
        else:
            left[node] = room - needed
    return refused


def fills_what_it_sees(grant: Grant) -> bool:
    """Whether a program may take as much framebuffer as it is shown: some servers do, and of others nobody knows."""
    return grant.server is None or preallocates(grant.server) or hosts_engines(grant.server)


def _host_memory(problem: PlanningProblem, node: str) -> float | None:
    """Host memory of a node that framebuffer may be moved to, bytes; None where nobody knows."""
    known = next((one.memory_bytes for one in problem.inventory.nodes if one.node == node), None)
    stated = problem.settings.recommender.host_memory_bytes
    if known is None:
        return None if stated is None else float(stated)
    pods = {(grant.pod_id, grant.container): grant for grant in problem.demand.grants if grant.node == node}
    room = max(0.0, float(known - sum(grant.memory_request_bytes or 0 for grant in pods.values())))
    return HOST_RATIO_MAX * room if stated is None else min(float(stated), room)
