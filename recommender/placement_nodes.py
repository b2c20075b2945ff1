"""Packings and seats where all cards of a node are shared alike: in place of a packer's bins. Called by `planner`.

Every tier of care grants framebuffer at its price; each gives one packing, and of those that predict little enough harm
the one with the fewest cards is taken. What is shared is shared by peaks, so there is no kind but slices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.capabilities.register import Capabilities, Division
from fleet.inventory import Card, CardId, WorkloadId
from recommender.advice.case import Permits, is_restartable
from recommender.bin_cards import Seat
from recommender.consolidate import Group, Point, judged
from recommender.cuts import share_of_peak
from recommender.demand import Demand
from recommender.frontier_points import tiers_of
from recommender.group_seats import Seating
from recommender.harm.pair_guard import PairGuard
from recommender.node_sharing import NodeSeats, NodeStock, changed_together, portions_of, seat_on_nodes
from recommender.node_terms import NodeTerms
from recommender.outlook import PEAK_QUANTILE
from recommender.packing.packer import SLICES_MAX, renumbered
from recommender.problem import PlanningProblem

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePoint:
    """One tier's packing, and where it sits.

    Attributes:
        seating: seats of every group, and who shares.
    """

    point: Point
    seating: Seating


def node_points(
    problem: PlanningProblem, permits: Permits, *, pairs: PairGuard, resting_active: float
) -> tuple[NodePoint, ...]:
    """One packing per tier, and at the end that in which nobody shares.

    Args:
        permits: which workloads may share, which give everything back.
        pairs: keeps those apart that were measured to slow each other down.
        resting_active: active pods on average of all that are in no group.
    """
    demand, inventory, cards = problem.demand, problem.inventory, problem.cards
    tiers = tuple(tiers_of(problem, permits))
    away = set(permits.reclaimed)
    rows_on: dict[str, list[int]] = defaultdict(list)
    for row, grant in enumerate(demand.grants):
        if grant.workload_id not in away and row not in permits.dropped:
            rows_on[grant.node].append(row)

    def parted(rows: Sequence[int]) -> int | None:
        loose = pairs.parted(rows)[1:]
        return loose[0][0] if loose else None

    found: list[NodePoint] = []
    for number, groups in enumerate((*tiers, tiers[-1])):
        seats_of: dict[int, tuple[Seat, ...]] = {}
        packings: list[NDArray[np.int32]] = []
        sharing: set[WorkloadId] = set()
        together: list[tuple[WorkloadId, ...]] = []
        displaced: dict[int, CardId] = {}
        for place, group in enumerate(groups):
            sizes, rows_of = _sizes(group, problem.capability), _rows_of(group, demand)
            stock = NodeStock(
                cards=_cards_of_model(group, demand, cards, problem.terms),
                rows_on=rows_on,
                rows_of=rows_of,
                movable=_movable(group, problem, permits),
                portions={name: min(map(sizes.portions, rows)) for name, rows in rows_of.items()}
                if number < len(tiers)
                else {},
                portions_max=sizes.portions_max,
                fits=sizes.fits,
                grants=demand.grants,
                inventory=inventory,
                parted=parted,
            )
            nodes = seat_on_nodes(stock)
            sharing |= {demand.grants[row].workload_id for seat in nodes.seats for row in seat.rows}
            together += changed_together(nodes, demand.grants)
            displaced.update(nodes.displaced)
            seats_of[place] = (*nodes.seats, *_left_alone(group, demand, cards, nodes))
            packings.append(_bin_of(group, seats_of[place]))
        found.append(
            NodePoint(
                point=Point(groups=tuple(groups), choice=judged(groups, packings, resting_active)),
                seating=Seating(
                    seats=seats_of, sharing=frozenset(sharing), together=tuple(sorted(together)), displaced=displaced
                ),
            )
        )
    return tuple(found)


def choose_nodes(points: Sequence[NodePoint], *, violation_ratio_max: float) -> NodePoint:
    """The packing with the fewest cards that predicts little enough harm; of equals the more careful.

    Args:
        points: at least one; the last shares nothing, and is the answer where all others harm too much.
        violation_ratio_max: the limit, 0-1.
    """
    fit = [item for item in points if item.point.choice.violation_ratio <= violation_ratio_max] or [points[-1]]
    return min(reversed(fit), key=lambda item: item.point.choice.bins)


def _rows_of(group: Group, demand: Demand) -> dict[WorkloadId, list[int]]:
    rows_of: dict[WorkloadId, list[int]] = defaultdict(list)
    for row in group.rows:
        rows_of[demand.grants[int(row)].workload_id].append(int(row))
    return rows_of


def _movable(group: Group, problem: PlanningProblem, permits: Permits) -> frozenset[int]:
    """Rows of whole cards of the group's model whose pods may be restarted, whatever is known of their need."""
    like = problem.demand.grants[int(group.rows[0])]
    found: set[int] = set()
    for name in permits.kinds:
        case = permits.cases[name]
        one_each = len({grant.pod_id for grant in case.grants}) == len(case.grants)
        is_alike = all(
            (grant.card_model, grant.framebuffer_bytes, grant.mig_profile)
            == (like.card_model, like.framebuffer_bytes, None)
            for grant in case.grants
        )
        if one_each and is_alike and not case.neighbours and is_restartable(case):
            found.update(problem.rows_of[name])
    return frozenset(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """What each row of a group asks for at most: what a part of a card has to hold.

    Attributes:
        share: of a card's compute, 0-1, by row; on the days that the packing is judged on as well.
        is_equal: the backend holds everybody to an equal part.
    """

    share: Mapping[int, float]
    granted_bytes: Mapping[int, float]
    capacity_bytes: float
    portions_max: int
    is_equal: bool

    def portions(self, row: int) -> int:
        """Into how many equal parts a card may be divided for a row."""
        return portions_of(
            self.granted_bytes[row], self.share[row], capacity_bytes=self.capacity_bytes, portions_max=self.portions_max
        )

    def fits(self, rows: Sequence[int], parts: int) -> bool:
        """Whether any so many of some rows fit a card together."""
        if self.is_equal:
            return all(self.portions(row) >= parts for row in rows)
        shares = sorted((self.share[row] for row in rows), reverse=True)[:parts]
        sizes = sorted((self.granted_bytes[row] for row in rows), reverse=True)[:parts]
        return sum(shares) <= 1.0 + _ROUNDING and sum(sizes) <= self.capacity_bytes


def _sizes(group: Group, capability: Capabilities) -> _Sizes:
    fresh_peak = np.quantile(group.fresh, PEAK_QUANTILE, axis=1)[group.problem.item_type]
    rows = [int(row) for row in group.rows]
    return _Sizes(
        share={
            row: share_of_peak(float(peak)) for row, peak in zip(rows, np.maximum(group.peak, fresh_peak), strict=True)
        },
        granted_bytes={row: float(size) for row, size in zip(rows, group.grants.granted_bytes, strict=True)},
        capacity_bytes=group.problem.capacity_bytes,
        portions_max=min(capability.slices_per_card_max, SLICES_MAX),
        is_equal=capability.division is Division.EQUAL_PARTS,
    )


def _cards_of_model(
    group: Group, demand: Demand, cards: Mapping[CardId, Card], terms: NodeTerms
) -> dict[str, tuple[CardId, ...]]:
    """Cards of every node of the group's model whose cards can be shared."""
    like = demand.grants[int(group.rows[0])]
    of_node: dict[str, list[Card]] = defaultdict(list)
    for card in cards.values():
        of_node[card.node].append(card)
    return {
        node: tuple(sorted(card.card for card in own))
        for node, own in of_node.items()
        if node not in terms.barred
        and all(
            (card.card_model, card.framebuffer_bytes) == (like.card_model, like.framebuffer_bytes) and not card.mig_mode
            for card in own
        )
    }


def _left_alone(group: Group, demand: Demand, cards: Mapping[CardId, Card], nodes: NodeSeats) -> list[Seat]:
    """Rows that share nothing: on the cards that they hold, or on those that they move to."""
    seated = {row for seat in nodes.seats for row in seat.rows}
    on_card: dict[CardId, list[int]] = defaultdict(list)
    for row in group.rows:
        if int(row) not in seated:
            on_card[nodes.displaced.get(int(row), demand.grants[int(row)].card)].append(int(row))
    return [Seat(card=card, node=cards[card].node, rows=tuple(sorted(rows))) for card, rows in on_card.items()]


def _bin_of(group: Group, seats: Sequence[Seat]) -> NDArray[np.int32]:
    card_of = {row: number for number, seat in enumerate(seats) for row in seat.rows}
    bin_of, _ = renumbered(np.array([card_of[int(row)] for row in group.rows], np.int32))
    return bin_of
