"""Target cards by which services change cards without a gap: each goes to a card that is free at that moment.

A pod that is cut on the card that it holds whole must leave before the new one has room. So pods that are to share a
card go to one that is free (cards of workloads that are given back come first, for their stages do), and the cards that
they leave are the targets of the next ones: with one free card every service of a card model can change cards in turn.
Kinds that make no new pod before an old one leaves wait for room like the others; their pods leave first. Pods of
running jobs stay where they are, and those beside them. Called by `placement` once every group has its seats; pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fleet.decisions import RecommendationKind, Refusal
from fleet.inventory import Card, CardId, CardModelName, Grant, WorkloadId
from fleet.workload_kinds import JOB_KINDS
from recommender.advice.case import Case
from recommender.bin_cards import NodeRoom, Seat, asked_by
from recommender.cuts import Cut, is_new
from recommender.lent_cards import whole_fillers
from recommender.problem import PlanningProblem

Key = TypeVar("Key")
Value = TypeVar("Value")
_ABSENT = object()
_WAYS = ((True, False), (True, True), (False, False))
"""Whether the first pod of a seat books room for the others, and whether it prefers the node that was meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurgeSeats:
    """Seats to which services can go without a gap.

    Attributes:
        seats: the seats that were given, on other cards where that is needed.
        order: workloads that change, in the order in which each finds room beside those that stand there then.
        refused: services that find none, or would miss a pod that they can't spare, and those on cards with them now.
        homeless: those whose nodes lack CPU or memory for their pods even once the old ones have left, likewise.
        cards: cards that nobody holds now and that are taken: so many are needed at once, for each that is left since
            is taken first.
        is_whole: everybody found room.
    """

    seats: tuple[Seat, ...]
    order: tuple[WorkloadId, ...]
    refused: Mapping[WorkloadId, Refusal]
    homeless: Mapping[WorkloadId, Refusal]
    cards: frozenset[CardId]
    is_whole: bool


def surge_seats(
    problem: PlanningProblem,
    seats: Sequence[Seat],
    cuts: Mapping[WorkloadId, Cut],
    order: Sequence[WorkloadId],
    gone: Collection[int],
    cases: Mapping[WorkloadId, Case],
) -> SurgeSeats:
    """Find a free card for every seat to which a service could not go otherwise without a gap.

    The first pod of a seat books CPU and memory for all that come after it, so that none of them finds the node full.
    Where somebody finds no room, cards on the node that was meant come first, then nothing is booked; what refuses the
    fewest pods is taken.

    Args:
        seats: seats of the pods of `order` and of those beside them, each on a card that one of its pods holds.
        order: workloads that are cut, the least risky first; those that have their slices and seats already stay.
        gone: rows of the demand whose pods give their cards back before.
    """
    found: list[SurgeSeats] = []
    gaps_allowed = problem.settings.guard.gaps_allowed
    for books, is_home in _WAYS:
        found.append(_chained(_Chain(problem, seats, cuts, gone, cases, books=books, is_home=is_home), order, cases))
        if found[-1].is_whole or (gaps_allowed and not found[-1].homeless):
            break

    def left_out(one: SurgeSeats) -> int:
        return sum(len(problem.rows_of[name]) for name in (one.homeless if gaps_allowed else one.refused))

    return min(found, key=left_out)


def _chained(chain: _Chain, order: Sequence[WorkloadId], cases: Mapping[WorkloadId, Case]) -> SurgeSeats:
    """What becomes of everybody once each has gone who can; where all wait, one that may lose a pod begins."""
    problem, seats = chain.problem, chain.seats
    done: list[WorkloadId] = []
    waiting, has_gone = list[WorkloadId](), True
    while has_gone:
        # Who is to stay changes as well once its seat has got another card.
        gone_before = set(done)
        waiting = [name for name in order if name not in gone_before and chain.changes(name)]
        later: list[WorkloadId] = []
        for name in waiting:
            (done if chain.go(name) else later).append(name)
        if len(later) == len(waiting):
            # None finds a free card: one that may lose a pod meanwhile begins, and leaves its cards to the others.
            spared = (name for name in later if cases[name].can_surge and cases[name].spares_one)
            able = (name for name in spared if chain.go(name, surges=False))
            begun = next(able, None)
            later = [name for name in later if name != begun]
            done += [] if begun is None else [begun]
        has_gone, waiting = len(later) < len(waiting), later
    has_landed = True
    homeless = list(waiting)
    while has_landed:
        staying = [name for name in homeless if not chain.land(name)]
        has_landed, homeless = len(staying) < len(homeless), staying
    found, grants = chain.result(), problem.demand.grants
    before = {grant.card for grant in grants}
    seated = {grants[row].workload_id for seat in seats for row in seat.rows}
    lost = {
        name: cases[name].refuse(None, "no_node_room", card_model=cases[name].grants[0].card_model) for name in homeless
    }
    must_gap = [name for name in order if chain.changes(name) and cases[name].must_gap]
    stuck = _stuck(waiting, chain.roomless, cases) | {
        name: cases[name].refuse(RecommendationKind.SLICE, "gap_needs_yes", workload_kind=cases[name].workload_kind)
        for name in must_gap
    }
    return SurgeSeats(
        seats=found,
        order=tuple(done),
        refused=with_neighbours(stuck | lost, seated, cases),
        homeless=with_neighbours(lost, seated, cases),
        cards=frozenset(seat.card for seat in found if seat.card not in before),
        is_whole=not waiting,
    )


def _stuck(
    waiting: Sequence[WorkloadId], roomless: Collection[WorkloadId], cases: Mapping[WorkloadId, Case]
) -> dict[WorkloadId, Refusal]:
    """Workloads that can't change without a gap."""
    return {
        name: cases[name].refuse(
            RecommendationKind.SLICE,
            "no_surge_room" if name in roomless else "no_surge_card",
            card_model=cases[name].grants[0].card_model,
        )
        for name in waiting
        if cases[name].can_surge or cases[name].is_ordered
    }


def with_neighbours(
    stuck: Mapping[WorkloadId, Refusal], seated: Collection[WorkloadId], cases: Mapping[WorkloadId, Case]
) -> dict[WorkloadId, Refusal]:
    """Workloads that stay as they are, and of those seated all that share a card with one of them, sorted."""
    found = dict(stuck)
    staying = sorted(found)
    for name in staying:
        beside = [other for other in cases[name].neighbours if other in seated and other not in found]
        found.update({other: cases[other].refuse(None, "neighbour_stays", neighbour=name) for other in beside})
        staying += beside
    return dict(sorted(found.items()))


@dataclass(slots=True)
class _Pool:
    """Free cards of one model; mutable: they are taken and left again.

    Those that the plan leaves are taken before those that nobody held.
    """

    seats: dict[CardId, Card | None] = field(default_factory=dict)
    left: dict[CardId, Card | None] = field(default_factory=dict)
    unused: dict[CardId, Card | None] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Card]:
        # Cards that were chosen as seats first: whole nodes are emptied around them.
        for cards in (self.seats, self.left, self.unused):
            yield from (card for card in cards.values() if card is not None)

    def take(self, card: CardId, changes: _Changes) -> None:
        for cards in (self.seats, self.left, self.unused):
            if card in cards:
                changes.put(cards, card, None)


class _Changes:
    """What a workload that goes has changed in tables, to be taken back where it finds no room; mutable.

    An entry of None is as good as absent, and keeps its place until it is sure that it goes.
    """

    def __init__(self) -> None:
        self._before: list[tuple[dict[Any, Any], Any, Any]] = []

    def put(self, table: dict[Key, Value], key: Key, value: Value) -> None:
        """Write an entry."""
        self._before.append((table, key, table.get(key, _ABSENT)))
        table[key] = value

    def take_back(self) -> None:
        """Put every entry back as it was."""
        for table, key, value in reversed(self._before):
            if value is _ABSENT:
                del table[key]
            else:
                table[key] = value
        self._before.clear()

    def keep(self) -> None:
        """Leave every entry as it is."""
        for table, key, _ in self._before:
            if table.get(key, _ABSENT) is None:
                del table[key]
        self._before.clear()


class _Chain:
    """Who sits where while one workload after the other goes."""

    def __init__(
        self,
        problem: PlanningProblem,
        seats: Sequence[Seat],
        cuts: Mapping[WorkloadId, Cut],
        gone: Collection[int],
        cases: Mapping[WorkloadId, Case],
        *,
        books: bool,
        is_home: bool,
    ) -> None:
        self._cases = cases
        self.problem = problem
        self.seats = seats
        self._grants = problem.demand.grants
        self._books, self._is_home = books, is_home
        self._changes = _Changes()
        self._booked: dict[int, bool | None] = {}
        self._target: dict[int, Card] = {}
        self._made: dict[int, Grant] = {}
        self._gained: list[str] = []
        self._tried: dict[int, tuple[int, bool]] = {}
        self.roomless: set[WorkloadId] = set()
        """Workloads of which a pod found no CPU, memory or label on a node where a card was free when it last tried."""
        self._cuts = cuts
        self._seat_of = {row: number for number, seat in enumerate(seats) for row in seat.rows}
        # Pods that lend each other framebuffer are granted more than their card has.
        self._lent = {
            number: sum(self._size(row) for row in seat.rows)
            for number, seat in enumerate(seats)
            if all(self._grants[row].workload_id in cuts for row in seat.rows)
        }
        self._own = {seat.card for seat in seats}
        staying = [row for row in range(len(self._grants)) if row not in gone]
        # Where they lend, no server may have a card whole that fills what it sees.
        whole = [row for row in staying if self._grants[row].workload_id not in cuts]
        self._never_lend = frozenset(whole_fillers(self._grants, ((self._grants[row].node, row) for row in whole)))
        self._held: dict[CardId, set[int]] = defaultdict(set)
        self._used: dict[CardId, int] = defaultdict(int)
        for row in staying:
            self._held[self._grants[row].card].add(row)
            self._used[self._grants[row].card] += self._grants[row].framebuffer_granted_bytes
        self._room = NodeRoom(problem.inventory, [self._grants[row] for row in staying])
        self._changing = {name for name in cuts if self.changes(name)}
        self._target = {number: problem.cards[seat.card] for number, seat in enumerate(seats) if self._stays(seat)}
        self._chosen = {card.card: True for card in self._target.values()}
        self._pools = self._free_cards()

    def changes(self, name: WorkloadId) -> bool:
        """Whether a pod of a workload gets another card or another slice."""
        return any(
            self._place_of(self._seat_of[row])[0] != self._grants[row].card
            or is_new(self._cuts[name], self._grants[row])
            for row in self.problem.rows_of[name]
        )

    def go(self, name: WorkloadId, *, surges: bool | None = None) -> bool:
        """Let every pod of a workload go to a seat with room; False, and nothing changed, where one finds none.

        Args:
            surges: whether each leaves its card only once it is ready elsewhere; by its kind where None.
        """
        case = self._cases[name]
        is_early, is_ordered = case.can_surge if surges is None else surges, case.is_ordered
        left = list(self.problem.rows_of[name])
        self.roomless.discard(name)
        done: list[int] = []
        room, self._room = self._room, self._room.copy()
        while left:
            row = next((row for row in left if self._enters(row, surges=is_early)), None)
            if row is None:
                self._room = room
                self._changes.take_back()
                for undone in done:
                    self._held[self._grants[undone].card].add(undone)
                if done:  # what failed then may have room now
                    for other in left:
                        self._tried.pop(other, None)
                return False
            left.remove(row)
            done.append(row)
            if not is_ordered:
                self._leave(row)
        for row in done if is_ordered else ():
            self._leave(row)
        room.book(self._room)
        self._room = room
        self._changes.keep()
        return True

    def land(self, name: WorkloadId) -> bool:
        """Book CPU and memory for a workload's pods once the old ones have left; False, and nothing booked, if none."""
        rows, tried = self.problem.rows_of[name], self._room.copy()
        for row in rows:
            tried.release(self._grants[row].node, [self._grants[row]])
        for row in rows:
            _, node = self._place_of(self._seat_of[row])
            if row not in self._booked and not tried.admit(node, [self._anew(row)]):
                return False
        self._room.book(tried)
        return True

    def result(self) -> tuple[Seat, ...]:
        """Every seat, on its new card where it has one."""
        places = (self._place_of(number) for number in range(len(self.seats)))
        return tuple(replace(seat, card=card, node=node) for seat, (card, node) in zip(self.seats, places, strict=True))

    def _place_of(self, number: int) -> tuple[CardId, str]:
        """Card and node that a seat has now."""
        card, seat = self._target.get(number), self.seats[number]
        return (seat.card, seat.node) if card is None else (card.card, card.node)

    def _size(self, row: int) -> int:
        return self._cuts[self._grants[row].workload_id].framebuffer_bytes

    def _lends(self, number: int) -> bool:
        """Whether pods of a seat lend each other framebuffer."""
        rows = self.seats[number].rows
        return self._lent.get(number, 0) > self._grants[rows[0]].framebuffer_bytes

    def _granted_max(self, number: int, card: Card) -> int:
        """Framebuffer that may be granted on the card of a seat."""
        return max(card.framebuffer_bytes, self._lent.get(number, 0))

    def _stays(self, seat: Seat) -> bool:
        """Whether a seat is left on its card: each of its pods can surge there or never can, or a job would lose work.

        Pods that come from elsewhere wait until there is room.
        """
        grants = [(row, self._grants[row]) for row in seat.rows]
        if any(grant.workload_kind in JOB_KINDS for _, grant in grants):
            return True
        if self._lends(self._seat_of[seat.rows[0]]) and seat.node in self._never_lend:
            return False
        here = [(row, grant.workload_id) for row, grant in grants if grant.card == seat.card]
        there = [row for row, name in here if name in self._changing and self._cases[name].can_surge]
        card = self.problem.cards[seat.card]
        left = self._granted_max(self._seat_of[seat.rows[0]], card) - self._used[seat.card]
        return all(self._size(row) <= left for row in there)

    def _free_cards(self) -> defaultdict[CardModelName, _Pool]:
        known = {grant.card for grant in self._grants}
        given_back = {card for card in known if not self._held[card]}
        held = known | {grant.card for grant in self.problem.inventory.live_grants()}
        crowd = Counter(grant.node for grant in self._grants)
        pools: defaultdict[CardModelName, _Pool] = defaultdict(_Pool)
        for card in sorted(self.problem.cards.values(), key=lambda card: (-crowd[card.node], card.node, card.card)):
            if card.mig_mode:
                continue
            if card.card not in held:
                pools[card.card_model].unused[card.card] = card
            elif card.card in given_back:
                pools[card.card_model].left[card.card] = card
        return pools

    def _enters(self, row: int, *, surges: bool) -> bool:
        """Let one pod get ready in its seat; False, and nothing changed, where it has no room.

        Args:
            surges: whether it leaves its card only then.
        """
        grant, size = self._grants[row], self._size(row)
        number = self._seat_of[row]
        card = self._target.get(number)
        if card is None:
            card = self._free_card(row, self._never_lend if self._lends(number) else ())
            if card is not None:
                self._pools[card.card_model].take(card.card, self._changes)
                self._give_back(grant)
            elif surges or self._held[grant.card] != {row} or grant.card in self._chosen:
                return False
            else:
                # It leaves the card that it has to itself, and its next pod comes back to it with less.
                card = self.problem.cards[grant.card]
            self._changes.put(self._target, number, card)
            self._changes.put(self._chosen, card.card, True)
        else:
            own = grant.framebuffer_granted_bytes if card.card == grant.card and not surges else 0
            if self._used[card.card] - own + size > self._granted_max(number, card):
                return False
            if self._booked.get(row):
                self._changes.put(self._booked, row, None)
                self._give_back(grant)
            elif surges or card.node != grant.node:
                if not self._room.admit(card.node, [self._anew(row)]):
                    self.roomless.add(grant.workload_id)
                    return False
                self._give_back(grant)
        self._changes.put(self._used, card.card, self._used[card.card] + size)
        return True

    def _leave(self, row: int) -> None:
        """Let one pod that has got ready elsewhere leave its card."""
        grant = self._grants[row]
        self._changes.put(self._used, grant.card, self._used[grant.card] - grant.framebuffer_granted_bytes)
        self._held[grant.card].discard(row)
        is_left = not self._held[grant.card] and self._used[grant.card] <= 0
        if is_left and grant.card not in self._chosen:
            self._gained.append(grant.node)
            pool = self._pools[grant.card_model]
            freed = pool.seats if grant.card in self._own else pool.left
            self._changes.put(freed, grant.card, self.problem.cards[grant.card])

    def _give_back(self, grant: Grant) -> None:
        """Give back the CPU and memory of a pod that has some elsewhere."""
        self._room.release(grant.node, [grant])
        self._gained.append(grant.node)

    def _free_card(self, row: int, barred: Collection[str]) -> Card | None:
        """A free card like the pod's own, on a node that takes it beside those that run there; its room is booked.

        So is that of all who are to come to the same seat, where the chain books it. Nodes that had none when it was
        last tried are looked at again once they gained a card or room.
        """
        grant = self._grants[row]
        since, was_roomless = self._tried.get(row, (None, False))
        gained = None if since is None else set(self._gained[since:])
        found, is_roomless = self._among(row, barred, gained) if gained is None or gained else (None, False)
        if found is None:
            self._tried[row] = len(self._gained), is_roomless or was_roomless
            if is_roomless or was_roomless:
                self.roomless.add(grant.workload_id)
        return found

    def _among(self, row: int, barred: Collection[str], gained: Collection[str] | None) -> tuple[Card | None, bool]:
        """The first free card on these nodes, on any where None, and whether some had one without the room for it."""
        grant = self._grants[row]
        terms, tried, is_roomless = self.problem.terms, set(), False
        others = [other for other in self.seats[self._seat_of[row]].rows if other != row] if self._books else []
        sure = [row, *(other for other in others if self._cases[self._grants[other].workload_id].can_surge)]
        cores, memory = asked_by(self._grants[one] for one in sure)
        pool: Iterable[Card] = self._pools[grant.card_model]
        if self._is_home:
            home = self.seats[self._seat_of[row]].node
            pool = sorted(pool, key=lambda card: card.node != home)
        for card in pool:
            if gained is not None and card.node not in gained:
                continue
            if card.node in tried or card.framebuffer_bytes != grant.framebuffer_bytes:
                continue
            tried.add(card.node)
            if (
                card.node in barred
                or card.node in terms.barred
                or terms.policies.get(card.node) != terms.policies.get(grant.node)
            ):
                continue
            if not self._room.has_left(card.node, cores, memory):
                is_roomless = True
                continue
            coming = [other for other in others if self._comes_to(card.node, other)]
            if self._room.admit(card.node, [self._anew(one) for one in (row, *coming)]):
                for one in coming:
                    self._changes.put(self._booked, one, True)
                return card, False
            is_roomless = True
        return None, is_roomless

    def _comes_to(self, node: str, row: int) -> bool:
        """Whether the node needs room for a new pod of a row: it leaves its place only later, or comes from another."""
        grant = self._grants[row]
        return self._cases[grant.workload_id].can_surge or grant.node != node

    def _anew(self, row: int) -> Grant:
        """The pod that takes the place of a row's."""
        made = self._made.get(row)
        if made is None:
            made = self._made[row] = replace(self._grants[row], pod=f"{self._grants[row].pod} anew")
        return made
