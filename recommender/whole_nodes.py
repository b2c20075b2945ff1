"""Gathers what a plan frees on as few nodes as possible, where nodes are what is paid for.

A node that a few shared cards or whole-card services keep in use after the plan is left by them, to free cards on other
nodes. Who shares with whom stays as it was packed, so neither the number of freed cards nor the predicted harm changes.
Pods of shared cards are made anew by the plan anyway; services with whole cards are moves beyond it, of which
`recommender.moves_per_freed_node_max` bounds how many a node may cost. Cards that nobody held, or that are given back
first, are free whenever a stage comes to them, and CPU and memory are asked of nodes as if nobody left, so no order of
stages is broken. Called by `planner` once every pod has its place; pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fleet.inventory import Card, CardId, WorkloadId
from fleet.workload_kinds import JOB_KINDS
from recommender.bin_cards import NodeRoom, Seat
from recommender.placement import Arrangement, Move, moves_left
from recommender.problem import PlanningProblem
from recommender.rehome import Rehoming


def gathered(
    problem: PlanningProblem,
    paid: Collection[str],
    arrangement: Arrangement,
    alone: Mapping[WorkloadId, Sequence[int]],
) -> Arrangement:
    """The arrangement with more whole nodes left; the same where none can be.

    Args:
        paid: nodes that are paid for whole.
        alone: rows of each workload that keeps a whole card for each of its pods, and may move to another.
    """
    if not paid or not problem.capability.admits_pods or arrangement.together or arrangement.portions:
        return arrangement
    gathering = _Gathering(problem, arrangement, alone)
    for node in sorted(paid & gathering.at.keys(), key=lambda name: (len(gathering.at[name]), name)):
        gathering.leave(node)
    return gathering.result()


class _Gathering:
    """Seats as they are moved from node to node; mutable: one node is left after the other."""

    def __init__(
        self, problem: PlanningProblem, arrangement: Arrangement, alone: Mapping[WorkloadId, Sequence[int]]
    ) -> None:
        self._problem, self._arrangement = problem, arrangement
        self._grants = problem.demand.grants
        self._alone = {row: name for name, rows in alone.items() for row in rows if len(rows) == 1}
        self.at: dict[str, list[Seat]] = defaultdict(list)
        for seat in arrangement.seats:
            self.at[seat.node].append(seat)
        stays = {self._grants[row].pod_id for seat in arrangement.seats for row in seat.rows}
        gone = {grant.pod_id for grant in self._grants} - stays
        held = {grant.card for grant in problem.inventory.live_grants() if grant.pod_id not in gone}
        held |= {seat.card for seat in arrangement.seats}
        self._free: dict[str, list[Card]] = defaultdict(list)
        for card in sorted(problem.inventory.cards, key=lambda card: card.card):
            if card.card not in held and not card.mig_mode:
                self._free[card.node].append(card)
        self._room = NodeRoom(problem.inventory, self._grants)
        for seat in arrangement.seats:
            self._room.admit(seat.node, [self._grants[row] for row in seat.rows if self._grants[row].node != seat.node])
        self._moved: dict[CardId, Card] = {}
        self._moves_left = moves_left(problem, arrangement)
        self._restarted = {move.row for move in arrangement.moves} | {
            row for name in arrangement.cuts for row in problem.rows_of[name]
        }

    def leave(self, node: str) -> None:
        """Move every seat of a node elsewhere; nothing where one of them finds no place, or it costs too many moves."""
        seats = self.at[node]
        cost = sum(row not in self._restarted for seat in seats for row in seat.rows)
        most = self._problem.settings.recommender.moves_per_freed_node_max
        if cost > most or (self._moves_left is not None and cost > self._moves_left):
            return
        if not all(map(self._may_move, seats)):
            return
        tried, room = dict[CardId, Card](), self._room.copy()
        for seat in sorted(seats, key=lambda seat: (-len(seat.rows), seat.card)):
            card = self._place(seat, node, set(tried.values()), room)
            if card is None:
                return
            tried[seat.card] = card
        self._room.book(room)
        if self._moves_left is not None:
            self._moves_left -= cost
        for seat in seats:
            card = tried[seat.card]
            self._free[card.node].remove(card)
            self._moved[seat.card] = card
            self.at[card.node].append(replace(seat, card=card.card, node=card.node))
        del self.at[node]

    def result(self) -> Arrangement:
        """The arrangement with the seats where they are now."""
        if not self._moved:
            return self._arrangement
        moved, grants = self._moved, self._grants
        before = {row: seat for seat in self._arrangement.seats for row in seat.rows}
        seats = sorted((seat for own in self.at.values() for seat in own), key=lambda seat: seat.card)
        single = {
            seat.rows[0]: moved[seat.card] for seat in before.values() if seat.card in moved and self._stays(seat)
        }
        joined = {row: moved[seat.card] for row, seat in before.items() if seat.card in moved and row not in single}
        like = {move.target: move for move in reversed(self._arrangement.moves)}
        known = {move.row for move in self._arrangement.moves}
        moves = [
            replace(move, target=joined[move.row].card) if move.row in joined else move
            for move in self._arrangement.moves
        ]
        moves += [
            replace(like[before[row].card], row=row, source=grants[row].card, target=card.card, is_first=False)
            for row, card in sorted(joined.items())
            if row not in known
        ]
        return replace(
            self._arrangement,
            seats=tuple(seats),
            moves=tuple(sorted(moves, key=_order)),
            rehomed=(*self._arrangement.rehomed, *(self._rehoming(row, card) for row, card in sorted(single.items()))),
            surge_cards=self._arrangement.surge_cards - moved.keys() | {card.card for card in joined.values()},
        )

    def _may_move(self, seat: Seat) -> bool:
        """Whether a seat may go to another card: shared anew by this plan, or a service alone on its card."""
        if seat.card in self._arrangement.lent or seat.card in {card.card for card in self._moved.values()}:
            return False
        if self._stays(seat):
            return seat.rows[0] in self._alone
        comes = any(move.target == seat.card for move in self._arrangement.moves)
        is_cut = all(self._grants[row].workload_id in self._arrangement.cuts for row in seat.rows)
        return comes and is_cut and not any(self._grants[row].workload_kind in JOB_KINDS for row in seat.rows)

    def _stays(self, seat: Seat) -> bool:
        """Whether the only pod of a card has it to itself before and after."""
        return len(seat.rows) == 1 and self._grants[seat.rows[0]].card == seat.card

    def _place(self, seat: Seat, node: str, taken: Collection[Card], room: NodeRoom) -> Card | None:
        """A free card like the seat's, on the node that is fullest; its room is booked."""
        own, terms = self._problem.cards[seat.card], self._problem.terms
        arriving = [self._grants[row] for row in seat.rows]
        for other in sorted(self.at, key=lambda name: (-len(self.at[name]), name)):
            if other == node or other in terms.barred or terms.policies.get(other) != terms.policies.get(node):
                continue
            card = next((one for one in self._free[other] if one not in taken and _is_like(one, own)), None)
            if card is not None and room.admit(other, arriving):
                return card
        return None

    def _rehoming(self, row: int, card: Card) -> Rehoming:
        model = self._grants[row].card_model
        return Rehoming(
            workload=self._alone[row], source_model=model, target_model=model, targets={row: card}, slowdown=1.0,
            load_max=0.0, node_left=self._grants[row].node,
        )  # fmt: skip


def _is_like(card: Card, other: Card) -> bool:
    return (card.card_model, card.framebuffer_bytes) == (other.card_model, other.framebuffer_bytes)


def _order(move: Move) -> tuple[CardId, int]:
    return move.target, move.row
