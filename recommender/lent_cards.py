"""Cards of the plan on which framebuffer is lent: with one factor per node, within the host memory of each.

Called by `placement` once every pod has its card; pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fleet.capabilities.capability import OPEN_BYTES_MIN, Capabilities
from fleet.decisions import RecommendationKind, Refusal
from fleet.inventory import CardId, Grant, WorkloadId
from fleet.servers import Use, known_server
from recommender.advice.case import Case, Permits
from recommender.bin_cards import Seat
from recommender.consolidate import Group
from recommender.cuts import Cut
from recommender.demand import DAY_SECONDS, touched
from recommender.lending import Loan, any_by_hours, lenders_of, loan_of, scaling_max
from recommender.outlook import DAYS_MAX
from recommender.problem import PlanningProblem

LENDING_REASONS = frozenset(
    {"node_has_whole_card", "host_memory_unknown", "host_memory_short", "node_factor_too_large", "lent_card_open"}
)
"""Reasons of refusals by which a node lets its pods lend nothing; they may share in other ways."""
_KIND = RecommendationKind.OVERSUBSCRIBE
HOST_RATIO_MAX = 0.5
"""Share of what requests leave of a node's memory that framebuffer may take: who asks for none uses some all the same,
and so do pods without cards, which nobody counted here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LentCard:
    """A card of the plan on which pods lend each other framebuffer.

    Attributes:
        scaling: factor of the card's node, 1 or more; beyond `scaling_max` its pods may not lend there.
        own: what lending comes to with the least factor that the card needs by itself.
        loan: what that comes to, with the factor of the card's node.
    """

    card: CardId
    node: str
    rows: tuple[int, ...]
    scaling: float
    own: Loan
    loan: Loan

    @property
    def waits_beyond(self) -> float:
        """Pods that wait for framebuffer on average because the node's factor is larger than the card needs."""
        return float(self.loan.waits_seconds_per_day.sum() - self.own.waits_seconds_per_day.sum()) / DAY_SECONDS


def lent_cards(
    groups: Sequence[Group], seats: Sequence[Seat], size_of: Mapping[int, int], today: Mapping[str, float]
) -> dict[CardId, LentCard]:
    """Cards whose pods are granted more than the card has, by card; a node's factor is that of its neediest card.

    Args:
        size_of: framebuffer that each row is granted which is cut.
        today: factor that nodes have already (`factors_today`): no plan lowers it.
    """
    place = {int(row): (group, item) for group in groups for item, row in enumerate(group.rows)}
    over: list[tuple[Seat, Group, Loan]] = []
    for seat in seats:
        group = place[seat.rows[0]][0] if seat.rows[0] in place else None
        is_cut = all(row in size_of for row in seat.rows)
        if group is None or group.lenders is None or not is_cut or len(seat.rows) < 2:
            continue
        if sum(size_of[row] for row in seat.rows) > group.problem.capacity_bytes:
            loan = _loan(seat, group, place, 1.0)
            if loan is not None:
                over.append((seat, group, loan))
    factor: dict[str, float] = defaultdict(lambda: 1.0, today)
    for seat, _, loan in over:
        factor[seat.node] = max(factor[seat.node], loan.scaling)
    return {
        seat.card: LentCard(
            card=seat.card,
            node=seat.node,
            rows=seat.rows,
            scaling=factor[seat.node],
            own=own,
            loan=_loan(seat, group, place, factor[seat.node]) or own,
        )
        for seat, group, own in over
    }


def _loan(seat: Seat, group: Group, place: Mapping[int, tuple[Group, int]], scaling_min: float) -> Loan | None:
    if group.lenders is None:
        return None
    items = np.array([place[row][1] for row in seat.rows], np.int64)
    problem = group.problem
    return loan_of(group.lenders, items, problem.item_bytes, problem.capacity_bytes, scaling_min=scaling_min)


def factors_today(problem: PlanningProblem) -> dict[str, float]:
    """Factors that nodes have already where framebuffer is lent, as far as grants show them.

    A card on which pods lend needs one (`scaling_today`), and a pod with a card to itself is granted all that the card
    registers, which is its framebuffer times the factor.
    """
    found: dict[str, float] = {}
    sizes: dict[CardId, list[int]] = defaultdict(list)
    for grant in problem.demand.grants if problem.capability.can_lend else ():
        sizes[grant.card].append(grant.framebuffer_granted_bytes)
    for card, granted in sizes.items():
        known = problem.cards[card]
        lent = scaling_today(granted, known.framebuffer_bytes, problem.capability)
        factor = max(lent or 1.0, max(granted) / known.framebuffer_bytes)
        if factor > 1.0 + _SAME_FACTOR:
            found[known.node] = max(found.get(known.node, 1.0), round(factor, 2))
    return found


_SAME_FACTOR = 0.005
"""By so much sources may differ in what a card has."""


def may_gain(problem: PlanningProblem, permits: Permits, groups: Sequence[Group]) -> bool:
    """Whether lending could free a card of these groups beyond a packing without it.

    Args:
        groups: as they were packed without lending.
    """
    lends = {member.row for member in permits.members if member.lends}
    if not lends:
        return False
    touches = touched(problem.history)
    return any(
        any_by_hours(
            lenders_of(
                problem.demand,
                touches,
                group.rows,
                [int(row) in lends for row in group.rows],
                days=DAYS_MAX,
                capability=problem.capability,
            ),
            group.problem.item_bytes,
            group.problem.capacity_bytes,
        )
        for group in groups
    )


def scaling_today(sizes: Sequence[int], capacity_bytes: int, capability: Capabilities) -> float | None:
    """Smallest factor that a card must have on which pods lend already: each holds its grant while it works alone.

    Args:
        sizes: what each pod on it is granted, bytes.

    Returns:
        None where the card holds all, or one of them is granted all of it.
    """
    total, largest = sum(sizes), max(sizes, default=0)
    if total <= capacity_bytes or largest >= capacity_bytes:
        return None
    # Of what a probe saw stay a factor makes no less, and the books need no more than this one.
    by_rule = 1.0 if capability.probed_lending is not None else (total - largest) / (capacity_bytes - largest)
    return round(max(by_rule, total / capacity_bytes), 2)


def not_to_lend(
    problem: PlanningProblem,
    lent: Mapping[CardId, LentCard],
    seats: Sequence[Seat],
    cuts: Mapping[WorkloadId, Cut],
    cases: Mapping[WorkloadId, Case],
) -> dict[WorkloadId, Refusal]:
    """Workloads on cards whose node can't let them lend, each with why.

    A node needs host memory for all that may ever lie there, beyond what its other cards lend already, cards that need
    least first; where nobody knows its memory there is none. And no server that takes framebuffer ahead of need may
    have one of its cards whole: started anew, it would see the card's framebuffer times the node's factor, and fill
    that. Where shares of compute are counted, those of a card must be all of it, elsewhere what it registers must be
    granted: nothing else keeps newcomers off.

    Args:
        seats: every card that carries a pod after the plan.
        cuts: the slices of the plan, as they are granted.
    """
    grants = problem.demand.grants
    cut = {row for row, grant in enumerate(grants) if grant.workload_id in cuts or _is_part(grant)}
    whole = whole_fillers(grants, ((seat.node, row) for seat in seats for row in seat.rows if row not in cut))
    left = {card.node: _host_memory(problem, card, lent, seats, cuts) for card in lent.values()}
    refused: dict[WorkloadId, Refusal] = {}
    for card in sorted(lent.values(), key=lambda card: (card.loan.host_bytes_max, card.card)):
        room, needed, node = left[card.node], card.loan.host_bytes_max, card.node
        names = sorted({grants[row].workload_id for row in card.rows})
        if node in whole:
            pod = whole[node].pod_id
            refused |= {name: cases[name].refuse(_KIND, "node_has_whole_card", node=node, pod=pod) for name in names}
        elif _is_open(problem, card, names, cuts):
            refused |= {name: cases[name].refuse(_KIND, "lent_card_open", node=node) for name in names}
        elif card.scaling > scaling_max(problem.capability):
            refused |= too_large_a_factor([card], grants, cases)
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


def _is_open(
    problem: PlanningProblem, card: LentCard, names: Sequence[WorkloadId], cuts: Mapping[WorkloadId, Cut]
) -> bool:
    """Whether the scheduler would let newcomers in: by shares of compute, or by framebuffer that its node registers."""
    if problem.capability.adds_up_cores:
        return round(sum(cuts[name].compute_ratio or 0.0 for name in names), 4) < 1.0
    registered = card.scaling * problem.cards[card.card].framebuffer_bytes
    granted = sum(cuts[problem.demand.grants[row].workload_id].framebuffer_bytes for row in card.rows)
    return registered - granted >= OPEN_BYTES_MIN


def too_large_a_factor(
    cards: Iterable[LentCard], grants: Sequence[Grant], cases: Mapping[WorkloadId, Case]
) -> dict[WorkloadId, Refusal]:
    """Workloads that may not lend because other cards of their node need a larger factor than theirs bears."""
    return {
        name: cases[name].refuse(
            _KIND, "node_factor_too_large", node=card.node, scaling=card.scaling, own=card.own.scaling
        )
        for card in cards
        for name in sorted({grants[row].workload_id for row in card.rows})
    }


def whole_fillers(grants: Sequence[Grant], places: Iterable[tuple[str, int]]) -> dict[str, Grant]:
    """A pod of each node that may fill what it sees, of those that have a card whole.

    Some servers take as much framebuffer as they are shown, and of others nobody knows; a notebook runs anything.

    Args:
        places: node and row of the pods that have a card whole.
    """
    return {node: grants[row] for node, row in places if _fills_what_it_sees(grants[row].server)}


def _fills_what_it_sees(name: str | None) -> bool:
    server = known_server(name)
    return server is None or server.preallocates or server.hosts or server.use is Use.NOTEBOOK


def _is_part(grant: Grant) -> bool:
    return grant.framebuffer_granted_bytes < grant.framebuffer_bytes


def _size(grant: Grant, cuts: Mapping[WorkloadId, Cut]) -> int:
    cut = cuts.get(grant.workload_id)
    return grant.framebuffer_granted_bytes if cut is None else cut.framebuffer_bytes


def _host_memory(
    problem: PlanningProblem,
    lent: LentCard,
    cards: Mapping[CardId, LentCard],
    seats: Sequence[Seat],
    cuts: Mapping[WorkloadId, Cut],
) -> float | None:
    """Host memory of a lent card's node that framebuffer may be moved to, bytes; None where nobody knows.

    Pods that the plan seats there ask for theirs, those that leave keep it until then, and cards on which pods lend
    already may fill what their grants say.
    """
    node, grants = lent.node, problem.demand.grants
    here = [seat for seat in seats if seat.node == node]
    room = host_room_bytes(problem, node, [row for seat in here for row in seat.rows])
    if room is None:
        return None
    taken = 0.0
    for seat in here:
        sizes, card_bytes = [_size(grants[row], cuts) for row in seat.rows], problem.cards[seat.card].framebuffer_bytes
        if seat.card not in cards and len(seat.rows) > 1 and sum(sizes) > card_bytes:
            taken += sum(size * (1 - problem.capability.kept_share(size, card_bytes, lent.scaling)) for size in sizes)
    return room - taken


def host_room_bytes(problem: PlanningProblem, node: str, arriving: Iterable[int]) -> float | None:
    """Host memory of a node that framebuffer may be moved to, bytes; None where nobody knows.

    Args:
        arriving: rows of pods that the plan seats there; those that are there today count anyhow.
    """
    grants = problem.demand.grants
    known = next((one.memory_bytes for one in problem.inventory.nodes if one.node == node), None)
    stated = problem.settings.recommender.host_memory_bytes
    if known is None and stated is None:
        return None
    rows = {*arriving, *(row for row, one in enumerate(grants) if one.node == node)}
    pods = {(grants[row].pod_id, grants[row].container): grants[row] for row in rows}
    asked = sum(grant.memory_request_bytes or 0 for grant in pods.values())
    room = np.inf if known is None else max(0.0, float(known - asked))
    return HOST_RATIO_MAX * room if stated is None else min(float(stated), room)
