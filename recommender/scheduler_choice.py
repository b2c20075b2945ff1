"""Seats that come true where the plan names a slice's node, and the scheduler chooses the card by framebuffer alone.

Such a scheduler fills a card before it opens another, so any slices of a node that fit a card may meet there. A node
therefore has slices for one card, which meet as the packing wants, or slices of which any so many may meet: by
framebuffer no set of one more fits a card, their peaks fit it, and what they do to each other is predicted from the
busiest of the node at every moment. Slices are sized up until they fill their card, so that no other pod joins them.
Each of the packing's bins gets a node of its own as far as nodes go, and shares one where any of its slices may meet
the others; one that finds none falls apart, and its pods keep whole cards. Called by `group_seats`; pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet.inventory import CardId, Inventory, WorkloadId
from fleet.sharing import ACTIVE_RATIO_MIN, CONTENTION_RATIO_MAX
from fleet.units import MIB
from recommender.bin_cards import NodeRoom, Seat
from recommender.consolidate import Group
from recommender.demand import Demand
from recommender.harm.pair_guard import PairGuard
from recommender.harm.risk import Harm
from recommender.latency.guard import LatencyGuard
from recommender.node_terms import NodeTerms

FREE_NODES_TRIED = 16
"""Nodes with free cards that a group may come to, besides those of its own pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSeats:
    """Seats of one group.

    Attributes:
        seats: one per card; of a node with several shared cards, any slices may be on any of them.
        sizes: framebuffer of a slice of each workload that shares, bytes.
        resting: rows that stay where they are, sorted.
        violation_ratio: of rows that share, most that they are violated of their active time, 0-1.
        violated: pods that are violated at a time, on average, beyond what was predicted for the packing; at most, and
            below 0 where they are fewer.
    """

    seats: tuple[Seat, ...]
    sizes: Mapping[WorkloadId, int]
    resting: tuple[int, ...]
    violation_ratio: Mapping[int, float]
    violated: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulersChoice:
    """What the scheduler may choose among.

    Attributes:
        group: rows that may share.
        latency: who must not be slowed.
        pairs: who must not meet.
        terms: on what terms nodes share their cards.
        predicted: item-points that were predicted to be violated by the packing.
        violated_max: how many more pods may be violated at a time, on average.
    """

    group: Group
    demand: Demand
    inventory: Inventory
    latency: LatencyGuard
    pairs: PairGuard
    terms: NodeTerms
    predicted: float
    violated_max: float

    def seats(self, bins: Sequence[Sequence[int]], resting: Sequence[int]) -> ChosenSeats | None:
        """Seats of bins, without the workloads that no choice of nodes and sizes keeps as planned.

        Args:
            bins: rows that are to share a card.
            resting: rows of other groups, and of this one, that stay where they are.

        Returns:
            None where pods share cards so closely already that they would need more cards than they hold.
        """
        left: set[WorkloadId] = set()
        while True:
            still = sorted(row for rows in bins for row in rows if self._name(row) in left)
            kept = [kept for rows in bins if (kept := [row for row in rows if self._name(row) not in left])]
            barred = self._barred([*resting, *still])
            seats = self._seated(kept, barred)
            if seats is None:
                return None
            found = self._checked(seats, barred)
            if isinstance(found, ChosenSeats):
                return replace(found, resting=tuple(still))
            left |= found

    def _barred(self, resting: Sequence[int]) -> frozenset[str]:
        """Nodes with slices that the plan does not size: they may be joined, and join."""
        grants = [self.demand.grants[row] for row in resting]
        return frozenset(
            grant.node
            for grant in grants
            if grant.mig_profile is None and grant.framebuffer_granted_bytes < grant.framebuffer_bytes
        )

    def _seated(self, bins: Sequence[Sequence[int]], barred: Collection[str]) -> tuple[Seat, ...] | None:
        """The packing's bins, each on a node of its own as far as that goes, the largest first.

        A bin comes to a card that one of its rows has, or to one that nobody has. One that finds no node falls apart.
        """
        grants = self.demand.grants
        sharing = {self._name(row) for rows in bins if len(rows) > 1 for row in rows}
        sliced = sorted((rows for rows in bins if self._name(rows[0]) in sharing), key=len, reverse=True)
        free = self._free_cards()
        nodes_of = [[node for node in self._nodes_of(rows, free) if node not in barred] for rows in sliced]
        on_node: dict[str, list[Sequence[int]]] = {}
        node_of: dict[int, str] = {}

        def stay(number: int, nodes: Sequence[str]) -> None:
            """Puts a bin beside those of a node, if its slices may meet theirs."""
            for node in nodes:
                if self._meeting([*on_node.get(node, []), sliced[number]]) is not None:
                    node_of[number] = node
                    on_node.setdefault(node, []).append(sliced[number])
                    return

        for number, rows in enumerate(sliced):
            if len(rows) > 1 and len({grants[row].card for row in rows}) == 1:
                stay(number, [node for node in nodes_of[number] if node == grants[rows[0]].node])
        others = [number for number in range(len(sliced)) if number not in node_of]
        alone = matched([[node for node in nodes_of[number] if node not in on_node] for number in others])
        for node, place in alone.items():
            stay(others[place], [node])
        for number in others:
            if number not in node_of and len(sliced[number]) > 1:
                stay(number, nodes_of[number])
        room = NodeRoom(self.inventory, grants)
        seats: dict[CardId, Seat] = {}
        apart = [rows for rows in bins if self._name(rows[0]) not in sharing]
        for number, rows in enumerate(sliced):
            seat = self._seat(rows, node_of[number], free, room) if number in node_of and len(rows) > 1 else None
            if seat is None or seat.card in seats:
                apart += [[row] for row in rows]
            else:
                seats[seat.card] = seat
        return self._with_alone([row for rows in apart for row in rows], seats)

    def _with_alone(self, rows: Sequence[int], seats: dict[CardId, Seat]) -> tuple[Seat, ...] | None:
        """Seats with rows that keep their cards; None where two of them have one."""
        for row in rows:
            grant = self.demand.grants[row]
            if grant.card in seats:
                return None
            seats[grant.card] = Seat(card=grant.card, node=grant.node, rows=(row,))
        return tuple(seats.values())

    def _free_cards(self) -> dict[str, list[CardId]]:
        """Cards like those of the group that nobody has, by their nodes."""
        like = self.demand.grants[int(self.group.rows[0])]
        held = {grant.card for grant in (*self.inventory.live_grants(), *self.demand.grants)}
        found: dict[str, list[CardId]] = defaultdict(list)
        for card in self.inventory.cards:
            is_alike = (card.card_model, card.framebuffer_bytes) == (like.card_model, like.framebuffer_bytes)
            if is_alike and card.card not in held and not card.mig_mode and card.node not in self.terms.barred:
                found[card.node].append(card.card)
        return dict(found)

    def _nodes_of(self, rows: Sequence[int], free: Mapping[str, Sequence[CardId]]) -> list[str]:
        """Nodes that a bin may come to: its rows' own first, those of most of them, then some with free cards."""
        own = Counter(self.demand.grants[row].node for row in rows)
        others = [node for node in sorted(free, key=lambda node: (-len(free[node]), node)) if node not in own]
        return sorted(own, key=lambda node: (-own[node], node)) + (others[:FREE_NODES_TRIED] if len(rows) > 1 else [])

    def _seat(self, rows: Sequence[int], node: str, free: Mapping[str, list[CardId]], room: NodeRoom) -> Seat | None:
        """A bin on a node, which takes its pods; None where it does not, or has no card for them."""
        grants = self.demand.grants
        held = Counter(grants[row].card for row in rows if grants[row].node == node)
        arriving = [grants[row] for row in rows if grants[row].node != node]
        if not (held or free.get(node)) or not room.admit(node, arriving):
            return None
        card = min(held, key=lambda card: (-held[card], card)) if held else free[node].pop(0)
        return Seat(card=card, node=node, rows=tuple(sorted(rows)))

    def _checked(self, seats: Sequence[Seat], barred: Collection[str]) -> ChosenSeats | frozenset[WorkloadId]:
        """Seats with sizes and harm, or workloads that have to be left out first."""
        sharing = {self._name(row) for seat in seats if len(seat.rows) > 1 for row in seat.rows}
        sliced: dict[str, list[Seat]] = defaultdict(list)
        for seat in seats:
            if self._name(seat.rows[0]) in sharing:
                sliced[seat.node].append(seat)
        meeting = {
            node: None if node in barred else self._meeting([seat.rows for seat in own]) for node, own in sliced.items()
        }
        stuck = frozenset(self._least(sliced[node]) for node, most in meeting.items() if most is None)
        if stuck:
            return stuck
        most_of = {node: most for node, most in meeting.items() if most is not None}
        sizes = self._sizes(sliced, most_of)
        if isinstance(sizes, frozenset):
            return sizes
        whole = [seat for seat in seats if self._name(seat.rows[0]) not in sharing]
        dealt = [seat for node, own in sliced.items() for seat in _dealt(own, most_of[node])]
        harm, bin_of = self._harm([*whole, *dealt])
        violated = float(harm.violated.sum()) + self.group.shortage_of(bin_of)
        ratios: dict[int, float] = {}
        worst: list[tuple[float, str]] = []
        for node, own in sorted(sliced.items()):
            rows = [row for seat in own for row in seat.rows]
            planned = {int(bin_of[item]) for item in self._items(rows)}
            bad, active = sum(harm.violated[b] for b in planned), sum(harm.active[b] for b in planned)
            if len(own) > 1:
                beyond = max(0.0, self._worst(rows, most_of[node]) - bad)
                worst.append((beyond, node))
                bad, violated = bad + beyond, violated + beyond
            ratios |= {row: float(bad / active) if active > 0 else 0.0 for row in rows}
        most = self.predicted + max(0.0, self.violated_max) * self.group.points
        for beyond, node in sorted(worst, reverse=True):
            if violated > most and beyond > 0.0:
                stuck |= {self._least(sliced[node])}
                violated -= beyond
        if stuck:
            return stuck
        return ChosenSeats(
            seats=tuple(sorted([*whole, *dealt], key=lambda seat: seat.card)),
            sizes=sizes,
            resting=(),
            violation_ratio=ratios,
            violated=(violated - self.predicted) / self.group.points,
        )

    def _meeting(self, bins: Sequence[Sequence[int]]) -> int | None:
        """Most slices of a node that meet on a card, any of them; None where some must not, or need more cards."""
        if len(bins) == 1:
            return len(bins[0])
        rows = [row for held in bins for row in held]
        size = self.group.grants.granted_bytes[self._items(rows)].max()
        for most in range(max(2, *map(len, bins)) if self._may_meet(rows) else 1, 0, -1):
            if size <= self._part(most) and -(-len(rows) // most) <= len(bins) and self._peaks_fit(rows, most):
                return most
        return None

    def _may_meet(self, rows: Sequence[int]) -> bool:
        """Whether none of the rows of a node must be kept off another's card."""
        items = self._items(rows)
        return (
            len({self._name(row) for row in rows}) == len(rows)
            and len(set(self.group.problem.item_group[items])) == 1
            and not self.group.problem.is_low[items].any()
            and not self.latency.critical.intersection(rows)
            and len(self.pairs.parted(rows)) == 1
        )

    def _peaks_fit(self, rows: Sequence[int], most: int) -> bool:
        """Whether the peaks of any so many rows fit a card."""
        peaks = np.sort(self.group.peak[self._items(rows)])
        return most == 1 or bool(peaks[-most:].sum() <= CONTENTION_RATIO_MAX)

    def _sizes(
        self, sliced: Mapping[str, Sequence[Seat]], meeting: Mapping[str, int]
    ) -> dict[WorkloadId, int] | frozenset[WorkloadId]:
        """Framebuffer of each workload's slices, bytes; or workloads that would need slices of two sizes."""
        granted = self.group.grants.granted_bytes
        sizes: dict[WorkloadId, int] = {}
        largest: dict[WorkloadId, int] = {}
        for node, own in sorted(sliced.items()):
            rows = [row for seat in own for row in seat.rows]
            least = self._part(meeting[node] + 1) + MIB if len(own) > 1 else MIB
            most = self._part(meeting[node]) if len(own) > 1 else self._part(1)
            for row, item in zip(rows, self._items(rows), strict=True):
                name = self._name(row)
                sizes[name] = max(sizes.get(name, 0), least, int(granted[item]))
                largest[name] = min(largest.get(name, most), most)
        clashing = {name for name in sizes if sizes[name] > largest[name]}
        alone = [[self._name(row) for row in own[0].rows] for _, own in sorted(sliced.items()) if len(own) == 1]
        for names in alone:
            if sum(sizes[name] for name in names) > self._part(1):
                clashing.add(max(names, key=lambda name: (sizes[name], name)))
        if clashing:
            return frozenset(clashing)
        return _filled(sizes, largest, alone, self._part(1))

    def _harm(self, seats: Sequence[Seat]) -> tuple[Harm, NDArray[np.int32]]:
        """What is predicted for the seats as they are planned; and the bin of each item, those that rest alone."""
        bin_of = np.full(len(self.group.rows), -1, np.int32)
        for number, seat in enumerate(seats):
            bin_of[self._items(seat.rows)] = number
        alone = bin_of < 0
        bin_of[alone] = len(seats) + np.arange(alone.sum(), dtype=np.int32)
        return self.group.harm_of(bin_of, int(bin_of.max(initial=-1)) + 1), bin_of

    def _worst(self, rows: Sequence[int], most: int) -> float:
        """Item-points of a node that are violated as if the busiest met at every moment: no choice does worse."""
        load = self.group.fresh[self.group.problem.item_type[self._items(rows)]]
        busiest = np.partition(load, len(rows) - most, axis=0)[len(rows) - most :].sum(axis=0)
        active = (load > ACTIVE_RATIO_MIN).sum(axis=0)
        return float(active[busiest > CONTENTION_RATIO_MAX].sum())

    def _least(self, seats: Sequence[Seat]) -> WorkloadId:
        """The workload that is left out where slices of a node can't be mixed: of those that share least."""
        return self._name(min(seats, key=lambda seat: (len(seat.rows), seat.card)).rows[0])

    def _part(self, parts: int) -> int:
        """Bytes of each of so many equal parts of a card, whole MiB."""
        return int(self.group.problem.capacity_bytes) // parts // MIB * MIB

    def _items(self, rows: Sequence[int]) -> NDArray[np.int64]:
        return np.searchsorted(self.group.rows, rows)

    def _name(self, row: int) -> WorkloadId:
        return self.demand.grants[row].workload_id


def matched(nodes_of: Sequence[Sequence[str]]) -> dict[str, int]:
    """A bin for each node, at most one each, so that as many bins as can be have a node; earlier bins come first.

    Args:
        nodes_of: nodes that each bin may come to, the best first.
    """
    bin_on: dict[str, int] = {}
    for number in range(len(nodes_of)):
        # Nodes that are found to be reachable, each from the bin that would move there (Kuhn's algorithm).
        came: dict[str, int] = {}
        waiting = [number]
        while waiting:
            mover = waiting.pop(0)
            fresh = [node for node in nodes_of[mover] if node not in came]
            came |= dict.fromkeys(fresh, mover)
            open_node = next((node for node in fresh if node not in bin_on), None)
            if open_node is not None:
                _shift(bin_on, came, open_node, number)
                break
            waiting += [bin_on[node] for node in fresh]
    return bin_on


def _shift(bin_on: dict[str, int], came: Mapping[str, int], node: str, number: int) -> None:
    """Lets every bin on the way to an open node move one on, so that the first has a place."""
    while True:
        mover = came[node]
        left = next((other for other, there in bin_on.items() if there == mover), None)
        bin_on[node] = mover
        if mover == number or left is None:
            return
        del bin_on[left]
        node = left


def _dealt(seats: Sequence[Seat], most: int) -> list[Seat]:
    """Slices of a node on as many cards as a scheduler takes that fills cards, at most so many on each."""
    needed = -(-sum(len(seat.rows) for seat in seats) // most)
    ordered = sorted(seats, key=lambda seat: (-len(seat.rows), seat.card))
    held = [list(seat.rows[:most]) for seat in ordered[:needed]]
    loose = [row for seat in ordered[:needed] for row in seat.rows[most:]]
    loose += [row for seat in ordered[needed:] for row in seat.rows]
    for rows in held:
        room = most - len(rows)
        rows.extend(loose[:room])
        del loose[:room]
    return [replace(seat, rows=tuple(sorted(rows))) for seat, rows in zip(ordered, held, strict=False)]


def _filled(
    sizes: Mapping[WorkloadId, int],
    largest: Mapping[WorkloadId, int],
    cards: Sequence[Sequence[WorkloadId]],
    card_bytes: int,
) -> dict[WorkloadId, int]:
    """Sizes raised until no card of these can be filled further without more than one size of a workload."""
    found = dict(sizes)
    while True:
        room = dict.fromkeys(found, card_bytes)
        for names in cards:
            share = (card_bytes - sum(found[name] for name in names)) // len(names)
            room.update({name: min(room[name], share) for name in names})
        raised = {name: min(found[name] + room[name], largest[name]) // MIB * MIB for name in found}
        if raised == found:
            return found
        found = raised
