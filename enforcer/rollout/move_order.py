"""In which order workloads and pods change seats: each when its new place has room, so that services wait little.

Pure. Called by the rollout for a stage and, the other way round, for its restoration. What goes at once is a unit: one
pod that is evicted, or all pods of an owner that rolls by itself, one after the other. An owner that can surge does so
wherever its new seats have room while its pods still sit in their old ones: then no pod is missing at any moment. Units
that want each other's cards can't all go to a free place: then a pod gives up its seat first, and waits for its new one
until another has left. Of each owner at most one pod waits like that, unless there is no such order. A place is a card,
or a node where the API does not say which of its cards a share is on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from enforcer.backend import Move
from enforcer.card_room import CardRoom, NodeRoom, card_rooms, node_rooms
from enforcer.dialect import SeatSlice, StandingCard
from enforcer.seat import PodSeat
from fleet.inventory import WorkloadId

_AtPlace = tuple[str, SeatSlice]

_Rooms = Mapping[str, CardRoom | NodeRoom]
"""By place."""

Unit = tuple[Move, ...]
"""Moves of one workload that go together."""


class Order(StrEnum):
    """How the pods of a unit may follow each other."""

    FREE = "free"
    """Any of them may go first."""
    FIXED = "fixed"
    """Only in the order given does each find its place free, at the latest once the other units of its wave went on."""
    AT_ONCE = "at_once"
    """They want each other's places, or those of another unit of their wave, and several of them must wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedUnit:
    """One unit of a wave.

    Attributes:
        moves: its moves, in the order in which they find room.
        order: whether that order matters; where the unit surges, it does not if all new seats have room beside all old
            ones.
        surges: each new seat has room while the pod that leaves for it still sits in its old one.
    """

    moves: Unit
    order: Order
    surges: bool = False


def waves(
    units: Sequence[Unit],
    seats: Mapping[str, PodSeat],
    cards: Mapping[str, StandingCard],
    wave_max: int,
    surging: Collection[WorkloadId] = (),
    firm: Collection[WorkloadId] = (),
) -> list[list[OrderedUnit]]:
    """Put units into waves; every unit of a wave may go as soon as the wave before it is done.

    Args:
        units: moves that go together; the seat before a move is where its pod sits now.
        seats: all pods of the cluster as they sit now, also those on their way out: they still hold cards.
        surging: workloads whose new pods can get ready beside the old ones. A unit of theirs goes without surge only
            when no unit has room otherwise.
        firm: workloads whose pods can sit in their new places alone, while the scheduler may give those of others any:
            they go first, before one of the others is put where they have to sit, unless more pods would be missing.

    Returns:
        Every unit once. A wave longer than `wave_max` is a ring of units that wait for each other.
    """
    found = _in_waves(units, _rooms(seats, cards), wave_max, surging, ())
    if not firm:
        return found
    first = _in_waves(units, _rooms(seats, cards), wave_max, surging, firm)
    return first if _missing(first, surging) <= _missing(found, surging) else found


def _missing(found: Sequence[Sequence[OrderedUnit]], surging: Collection[WorkloadId]) -> tuple[int, int]:
    """How many units must wait for each other, and how many go with a gap though their pods could do without."""
    ordered = [unit for wave in found for unit in wave]
    rings = sum(unit.order is Order.AT_ONCE for unit in ordered)
    return rings, sum(not unit.surges and unit.moves[0].workload in surging for unit in ordered)


def _in_waves(
    units: Sequence[Unit],
    rooms: _Rooms,
    wave_max: int,
    surging: Collection[WorkloadId],
    firm: Collection[WorkloadId],
) -> list[list[OrderedUnit]]:
    left = [unit for unit in units if unit]
    found: list[list[OrderedUnit]] = []
    while left:
        first = [unit for unit in left if unit[0].workload in firm]
        others = [unit for unit in left if unit[0].workload not in firm]
        wave, later, freed = _wave(first, rooms, wave_max, surging, may_gap=False)
        later += others
        if not wave:
            wave, later, freed = _wave(left, rooms, wave_max, surging, may_gap=False)
        if not wave:
            wave, later, freed = _wave(left, rooms, wave_max, surging, may_gap=True)
        if not wave:
            before = {place: room.copy() for place, room in rooms.items()}
            ring, later = _ring(later, rooms)
            wave = _in_turn(ring, before) or [OrderedUnit(moves=unit, order=Order.AT_ONCE) for unit in ring]
        for place, part in freed:
            rooms[place].count(part, -1)
        found.append(wave)
        left = later
    return found


def _wave(
    units: Sequence[Unit],
    rooms: _Rooms,
    wave_max: int,
    surging: Collection[WorkloadId],
    *,
    may_gap: bool,
) -> tuple[list[OrderedUnit], list[Unit], list[_AtPlace]]:
    """The units that go now, those that go later, and the shares that are given back once the wave is over."""
    wave: list[OrderedUnit] = []
    later: list[Unit] = []
    # What leaves during a wave makes room in the next one only: units of a wave go at the same time.
    freed: list[_AtPlace] = []
    taken: set[WorkloadId] = set()
    for unit in units:
        workload = unit[0].workload
        ordered = None
        if len(wave) < wave_max and workload not in taken:
            ordered = _ordered(unit, rooms, surges=True) if workload in surging else None
            if ordered is None and (may_gap or workload not in surging):
                ordered = _ordered(unit, rooms, surges=False)
        if ordered is None:
            later.append(unit)
            continue
        taken.add(workload)
        wave.append(ordered)
        freed += [gone for move in unit for gone in _leave(move, rooms, surges=ordered.surges)]
    return wave, later, freed


def can_go_alone(
    moves: Sequence[Move], seats: Mapping[str, PodSeat], cards: Mapping[str, StandingCard], *, surges: bool
) -> bool:
    """Whether these pods find room by themselves, without anybody else moving first."""
    return _ordered(tuple(moves), _rooms(seats, cards), surges=surges) is not None


def _rooms(seats: Mapping[str, PodSeat], cards: Mapping[str, StandingCard]) -> dict[str, CardRoom | NodeRoom]:
    return {**card_rooms(seats.values(), cards), **node_rooms(seats.values(), cards)}


def _place(part: SeatSlice) -> str:
    return part.card or part.node or ""


def _known(slices: Sequence[SeatSlice], rooms: _Rooms) -> list[_AtPlace]:
    """Shares of places that there are; one of a card that neither API nor node knows waits for its scheduler alone."""
    return [(place, part) for part in slices if (place := _place(part)) in rooms]


def _ordered(unit: Unit, rooms: _Rooms, *, surges: bool) -> OrderedUnit | None:
    """An order in which each pod of a unit finds its place free once those before it went; None where there is none."""
    if surges and any(part.card is None for move in unit for part in move.new):
        # Nothing says whether a share of a card that the API does not name has room.
        return None
    left, order = list(unit), []
    while left:
        ready = next((move for move in left if _fits(move, rooms, surges=surges)), None)
        if ready is None:
            break
        _step(ready, rooms, 1)
        left.remove(ready)
        order.append(ready)
    for move in reversed(order):
        _step(move, rooms, -1)
    return None if left else OrderedUnit(moves=tuple(order), order=_kind(unit, rooms, surges=surges), surges=surges)


def _kind(unit: Unit, rooms: _Rooms, *, surges: bool) -> Order:
    """Free, where each fits beside the others as they sit now and beside them as they shall sit."""
    if len(unit) == 1:
        return Order.FREE
    is_free = surges or all(_fits(move, rooms, surges=False) for move in unit)
    for move in unit:
        is_free = is_free and _fits(move, rooms, surges=surges)
        _step(move, rooms, 1, stays=surges)
    for move in unit:
        _step(move, rooms, -1, stays=surges)
    return Order.FREE if is_free else Order.FIXED


def _step(move: Move, rooms: _Rooms, sign: int, *, stays: bool = False) -> None:
    """Let one pod change its seat, or take that back; one that stays keeps its old seat beside the new one."""
    for place, part in () if stays else _known(move.old, rooms):
        rooms[place].count(part, -sign)
    for place, part in _known(move.new, rooms):
        rooms[place].count(part, sign)


def _fits(move: Move, rooms: _Rooms, *, surges: bool = False) -> bool:
    own = [] if surges else _known(move.old, rooms)
    for place, part in own:
        rooms[place].count(part, -1)
    fits = _takes(move.new, rooms)
    for place, part in own:
        rooms[place].count(part, 1)
    return fits


def _takes(slices: Sequence[SeatSlice], rooms: _Rooms) -> bool:
    if any(part.card is not None and part.card not in rooms for part in slices):
        return False
    entered: list[_AtPlace] = []
    for place, part in _known(slices, rooms):
        if not rooms[place].takes(part):
            break
        rooms[place].count(part, 1)
        entered.append((place, part))
    for place, part in entered:
        rooms[place].count(part, -1)
    return len(entered) == len(_known(slices, rooms))


def _leave(move: Move, rooms: _Rooms, *, surges: bool) -> list[_AtPlace]:
    """Enter the new seat; the old one is given back after the wave, at once where a pod without surge stays."""
    staying = set() if surges else {_place(part) for part in move.new}
    freed = []
    for place, part in _known(move.old, rooms):
        if place in staying:
            rooms[place].count(part, -1)
        else:
            freed.append((place, part))
    for place, part in _known(move.new, rooms):
        rooms[place].count(part, 1)
    return freed


def _ring(units: list[Unit], rooms: _Rooms) -> tuple[list[Unit], list[Unit]]:
    """Let units go in order until all that went find their places; all of them where that never happens."""
    gone: list[Unit] = []
    for number, unit in enumerate(units):
        gone.append(unit)
        for move in unit:
            for place, part in _known(move.old, rooms):
                rooms[place].count(part, -1)
        entered: list[Move] = []
        for move in (entry for other in gone for entry in other):
            if not _takes(move.new, rooms):
                break
            for place, part in _known(move.new, rooms):
                rooms[place].count(part, 1)
            entered.append(move)
        else:
            return gone, units[number + 1 :]
        for move in entered:
            for place, part in _known(move.new, rooms):
                rooms[place].count(part, -1)
    for unit in units:
        for move in unit:
            for place, part in _known(move.new, rooms):
                rooms[place].count(part, 1)
    return units, []


def _in_turn(units: Sequence[Unit], rooms: _Rooms) -> list[OrderedUnit] | None:
    """An order in which at most one pod of each unit waits for its place; None where none was found.

    Args:
        rooms: cards before any of them went; changed in place.
    """
    left = [list(unit) for unit in units]
    orders: list[list[Move]] = [[] for _ in units]
    waiting: dict[int, Move] = {}
    while waiting or any(left):
        entering = next((number for number, move in waiting.items() if _takes(move.new, rooms)), None)
        if entering is not None:
            for place, part in _known(waiting.pop(entering).new, rooms):
                rooms[place].count(part, 1)
            continue
        able = [(number, move) for number, moves in enumerate(left) if number not in waiting for move in moves]
        if not able:
            return None
        number, going = next((entry for entry in able if _fits(entry[1], rooms)), None) or _first_wanted(
            able, waiting.values(), rooms
        )
        for place, part in _known(going.old, rooms):
            rooms[place].count(part, -1)
        left[number].remove(going)
        orders[number].append(going)
        waiting[number] = going
    return [OrderedUnit(moves=tuple(order), order=Order.FREE if len(order) == 1 else Order.FIXED) for order in orders]


def _first_wanted(able: Sequence[tuple[int, Move]], waiting: Collection[Move], rooms: _Rooms) -> tuple[int, Move]:
    """The pod to leave without a free place: one in whose place another wants to sit, of those that wait if any do."""
    wanted = {place for move in waiting or [move for _, move in able] for place, _ in _known(move.new, rooms)}
    return next((entry for entry in able if any(place in wanted for place, _ in _known(entry[1].old, rooms))), able[0])
