"""Which pod gets which MIG instance on which card, and in what order the cards can be cut.

`mig.geometry` says which layouts serve all instances with the fewest cards; here the layouts meet physical cards and
pods. A card is cut only while it is empty, so cards are taken in an order in which every pod on the next one has left
before, or comes back to it and waits meanwhile: cards that others have emptied go first, and nobody waits but on the
first. Pods whose instance stays where it is are not touched; replicas of one workload are spread over cards; cards of
machines that stay busy are preferred, so that others are freed whole. Called by `mig.placement`; pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.catalogue import MigFamily
from fleet.inventory import CardId, Grant, WorkloadId
from recommender.bin_cards import NodeRoom
from recommender.mig.geometry import MigCard, MigCut, MigLayout, MigPlacement, is_valid_layout, plan_geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class MigStock:
    """The cards of one model and who wants instances of them.

    Attributes:
        family: how the cards may be cut.
        profile_of: profile that each row gets; these are the rows that take part.
        fixed: profiles held by pods that take no part, on each card that carries one of them beside others.
        empty: cards that nobody holds any more, which may be cut at once.
        busy_nodes: machines that stay in use whatever is done here.
        closed_nodes: machines of which no card can be cut, for somebody on them must not be restarted.
    """

    family: MigFamily
    grants: Sequence[Grant]
    profile_of: Mapping[int, str]
    fixed: Mapping[CardId, Sequence[str]]
    empty: Sequence[CardId]
    busy_nodes: frozenset[str]
    node_of: Mapping[CardId, str]
    closed_nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSeats:
    """Rows on cards.

    Attributes:
        targets: card of each row that takes part.
        recut: cards that are cut anew, in an order in which each is empty when its turn comes.
        unseated: workloads for which no way was found; where there are any, nothing else counts.
    """

    targets: Mapping[int, CardId]
    recut: tuple[CardId, ...]
    unseated: frozenset[WorkloadId] = frozenset()

    def restarted(self, grants: Sequence[Grant], profile_of: Mapping[int, str]) -> frozenset[int]:
        """Rows that get another instance, another card, or whose card is cut under them."""
        anew = set(self.recut)
        return frozenset(
            row
            for row, card in self.targets.items()
            if card in anew or grants[row].card != card or grants[row].mig_profile != profile_of[row]
        )


def seat_instances(stock: MigStock, room: NodeRoom) -> MigSeats:
    """Seats every row of one card model.

    Args:
        room: CPU and host memory that the machines have left; what is taken of it is booked.

    Returns:
        The seats; `unseated` names workloads to leave out before this is asked again.
    """
    cards = sorted({stock.grants[row].card for row in stock.profile_of})
    layouts = {card: layout_now(stock.family, _profiles_on(stock, card)) for card in cards}
    odd = {card for card, layout in layouts.items() if layout is None}
    if odd:
        return _unseated(stock, (row for row in stock.profile_of if stock.grants[row].card in odd))
    geometry = plan_geometry(
        stock.family,
        Counter(stock.profile_of.values()) + Counter(name for held in stock.fixed.values() for name in held),
        cards=[MigCard(card=card, layout=layouts[card] or (), is_pinned=card in stock.fixed) for card in cards],
    )
    work = _Work(stock=stock, room=room, rows_on=_rows_by_card(stock))
    _stay(work, geometry.cuts)
    _cut_in_turn(work, [cut.layout for cut in geometry.cuts if cut.is_recut])
    if work.left:
        return _unseated(stock, [next(iter(sorted(work.left)))])
    return MigSeats(targets=work.targets, recut=tuple(work.recut))


def layout_now(family: MigFamily, profiles: Sequence[str]) -> MigLayout | None:
    """A valid layout of some instances, wherever they really stand; None where they can't stand on one card.

    Args:
        family: how the card may be cut.
    """
    known = {profile.name: profile for profile in family.profiles}
    if not set(profiles) <= set(known):
        return None
    # The largest first: they have the fewest places.
    return _placed(family, sorted(profiles, key=lambda name: (-known[name].memory_slices, name)), ())


def _placed(family: MigFamily, profiles: Sequence[str], layout: MigLayout) -> MigLayout | None:
    if not profiles:
        return tuple(sorted(layout))
    starts = next(profile.starts for profile in family.profiles if profile.name == profiles[0])
    for start in starts:
        longer = (*layout, MigPlacement(start=start, profile=profiles[0]))
        if is_valid_layout(family, longer) and (found := _placed(family, profiles[1:], longer)) is not None:
            return found
    return None


def _profiles_on(stock: MigStock, card: CardId) -> list[str]:
    """Profiles of all instances that somebody holds on a card now."""
    own = [stock.grants[row].mig_profile for row in stock.profile_of if stock.grants[row].card == card]
    return [name for name in own if name is not None] + list(stock.fixed.get(card, ()))


def _rows_by_card(stock: MigStock) -> dict[CardId, list[int]]:
    rows: dict[CardId, list[int]] = defaultdict(list)
    for row in sorted(stock.profile_of):
        rows[stock.grants[row].card].append(row)
    return rows


def _unseated(stock: MigStock, rows: Iterable[int]) -> MigSeats:
    names = frozenset(stock.grants[row].workload_id for row in rows)
    return MigSeats(targets={}, recut=(), unseated=names)


@dataclass(slots=True, kw_only=True)
class _Work:
    """Seats while they are being filled; mutable: every `put` changes them.

    Attributes:
        stock: cards and rows.
        room: what the machines have left.
        rows_on: rows that take part, by the card they hold now.
        staying: cards that keep their layout.
        recut: cards cut so far, in order.
        left: rows without a card yet.
        waiting: the same by profile and workload.
        names_on: workloads on each card, counted.
        uncut: cards that may be cut yet, and the rows that still hold each.
        busy: machines that stay in use.
    """

    stock: MigStock
    room: NodeRoom
    rows_on: dict[CardId, list[int]]
    staying: set[CardId] = field(default_factory=set)
    targets: dict[int, CardId] = field(default_factory=dict)
    recut: list[CardId] = field(default_factory=list)
    left: set[int] = field(init=False)
    waiting: dict[str, dict[WorkloadId, list[int]]] = field(init=False)
    names_on: dict[CardId, Counter[WorkloadId]] = field(default_factory=lambda: defaultdict(Counter))
    uncut: dict[CardId, set[int]] = field(init=False)
    busy: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.left = set(self.stock.profile_of)
        self.busy = set(self.stock.busy_nodes)
        self.uncut = {card: set() for card in self.stock.empty}
        self.uncut.update({card: set(rows) for card, rows in self.rows_on.items()})
        closed = [card for card in self.uncut if self.stock.node_of[card] in self.stock.closed_nodes]
        for card in closed:
            del self.uncut[card]
        self.waiting = defaultdict(lambda: defaultdict(list))
        for row in sorted(self.stock.profile_of, reverse=True):
            self.waiting[self.stock.profile_of[row]][self.stock.grants[row].workload_id].append(row)

    def put(self, row: int, card: CardId) -> None:
        """Gives a row its card."""
        name = self.stock.grants[row].workload_id
        self.targets[row] = card
        self.left.discard(row)
        if (held := self.uncut.get(self.stock.grants[row].card)) is not None:
            held.discard(row)
        self.waiting[self.stock.profile_of[row]][name].remove(row)
        self.names_on[card][name] += 1
        self.busy.add(self.stock.node_of[card])

    def pick(self, profile: str, card: CardId) -> int | None:
        """The row that takes a free instance: of a workload that is not there yet, and of those the one with most left.

        Of its rows the one on a busy machine: what it leaves is cut next.
        """
        names = [name for name, rows in self.waiting[profile].items() if rows]
        node = self.stock.node_of[card]
        for name in sorted(
            names, key=lambda name: (self.names_on[card][name], -len(self.waiting[profile][name]), name)
        ):
            rows = self.waiting[profile][name]
            for row in sorted(rows, key=lambda row: (self.stock.grants[row].node not in self.busy, row)):
                grant = self.stock.grants[row]
                if grant.node == node or self.room.admit(node, [grant]):
                    return row
        return None


def _stay(work: _Work, cuts: Sequence[MigCut]) -> None:
    """Rows whose instance stays where it is: on pinned cards, and on as many cards of each layout as are kept."""
    kept = Counter(cut.layout for cut in cuts if not cut.is_recut and cut.card not in work.stock.fixed)
    work.staying |= set(work.rows_on) & set(work.stock.fixed)
    matching = {card: len(_unchanged(work, card)) for card in work.rows_on}
    order = sorted(
        set(work.rows_on) - work.staying,
        key=lambda card: (-matching[card], work.stock.node_of[card] not in work.busy, card),
    )
    for card in order:
        layout = layout_now(work.stock.family, _profiles_on(work.stock, card)) or ()
        if layout and kept[layout]:
            kept[layout] -= 1
            work.staying.add(card)
    for card in sorted(work.staying):
        work.uncut.pop(card, None)
        for row in _unchanged(work, card):
            work.put(row, card)


def _unchanged(work: _Work, card: CardId) -> list[int]:
    grants = work.stock.grants
    return [row for row in work.rows_on[card] if grants[row].mig_profile == work.stock.profile_of[row]]


def _cut_in_turn(work: _Work, layouts: Sequence[MigLayout]) -> None:
    """Cuts card after card, each empty by then, and fills it; what is left at the end found no card."""
    crowd = Counter(work.stock.node_of[card] for card in work.rows_on)
    waiting = Counter(layouts)
    while work.left and +waiting:
        # The layout with the most instances empties the most cards, and what it empties can be cut next.
        order = sorted(+waiting, key=lambda layout: (-len(layout), layout))
        found = next(
            ((layout, card) for layout in order if (card := _next_card(work, layout, crowd)) is not None), None
        )
        if found is None:
            return
        layout, card = found
        waiting[layout] -= 1
        _fill(work, layout, card)


def _next_card(work: _Work, layout: MigLayout, crowd: Counter[str]) -> CardId | None:
    """A card that can be cut now: emptied already, of a busy machine, of the machine with most cards to choose from."""
    has = Counter(placement.profile for placement in layout)
    best: tuple[tuple[int, bool, int, str, CardId], CardId] | None = None
    for card, own in work.uncut.items():
        if own and not _has_all(has, [work.stock.profile_of[row] for row in own]):
            continue
        node = work.stock.node_of[card]
        key = (len(own), node not in work.busy, -crowd[node], node, card)
        if best is None or key < best[0]:
            best = (key, card)
    return None if best is None else best[1]


def _has_all(has: Counter[str], profiles: Sequence[str]) -> bool:
    return profiles[0] in has if len(profiles) == 1 else not Counter(profiles) - has


def _fill(work: _Work, layout: MigLayout, card: CardId) -> None:
    """Cuts a card and fills its instances; instances that pods leave elsewhere by that are filled as well."""
    work.recut.append(card)
    work.uncut.pop(card)
    open_at = [(placement.profile, card) for placement in layout]
    for row in [row for row in work.rows_on.get(card, ()) if row in work.left]:
        open_at.remove((work.stock.profile_of[row], card))
        work.put(row, card)
    while open_at:
        profile, target = open_at.pop(0)
        arriving = work.pick(profile, target)
        if arriving is None:
            continue
        work.put(arriving, target)
        grant = work.stock.grants[arriving]
        if grant.card in work.staying and grant.mig_profile is not None:
            open_at.append((grant.mig_profile, grant.card))
