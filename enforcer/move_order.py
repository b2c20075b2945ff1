"""In which order pods change seats: each when its new place has room, so that services wait as little as possible.

Pure. Called by the rollout for a stage and, the other way round, for its restoration. Two pods that want each other's
card can't both go to a free place: then one is evicted without waiting, and gets its seat when the other has left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from enforcer.backend import Move
from enforcer.seat import WHOLE_CORE_PERCENT, PodSeat, SeatSlice


@dataclass(slots=True)
class _Room:
    """What is granted on one card; mutable: it changes as moves go on."""

    framebuffer_mib: int
    used_mib: int = 0
    used_cores: int = 0
    slices: int = 0

    def takes(self, part: SeatSlice) -> bool:
        if part.core_percent == WHOLE_CORE_PERCENT:
            return self.slices == 0
        fits = self.used_mib + part.framebuffer_mib <= self.framebuffer_mib
        return fits and self.used_cores < WHOLE_CORE_PERCENT and self.used_cores + part.core_percent <= 100

    def count(self, part: SeatSlice, sign: int) -> None:
        self.slices += sign
        self.used_mib += sign * part.framebuffer_mib
        self.used_cores += sign * part.core_percent


def waves(
    moves: Sequence[Move], seats: Mapping[str, PodSeat], card_mib: Mapping[str, int], wave_max: int
) -> list[list[Move]]:
    """Put moves into waves; every move of a wave may be made as soon as the wave before it is done.

    Args:
        moves: pods and their seats before and after; the seat before is where they sit now.
        seats: all pods of the cluster as they sit now.
        card_mib: framebuffer that may be granted on each card, MiB.
        wave_max: most pods of a wave, each of another workload.

    Returns:
        Every move once. A wave longer than `wave_max` is a ring of pods that wait for each other.
    """
    rooms = _rooms(seats, card_mib)
    left = list(moves)
    found: list[list[Move]] = []
    while left:
        wave: list[Move] = []
        later: list[Move] = []
        # What leaves during a wave makes room in the next one only: pods of a wave go at the same time.
        freed: list[SeatSlice] = []
        for move in left:
            is_first = all(other.workload != move.workload for other in wave)
            if len(wave) < wave_max and is_first and _fits(move, rooms):
                wave.append(move)
                freed += _leave(move, rooms)
            else:
                later.append(move)
        if not wave:
            wave, later = _ring(later, rooms)
            freed = []
        for part in freed:
            rooms[part.card].count(part, -1)
        found.append(wave)
        left = later
    return found


def can_go_alone(moves: Sequence[Move], seats: Mapping[str, PodSeat], card_mib: Mapping[str, int]) -> bool:
    """Whether these pods find room by themselves, without anybody else moving first."""
    rooms = _rooms(seats, card_mib)
    left = list(moves)
    while left:
        ready = [move for move in left if _fits(move, rooms)]
        if not ready:
            return False
        for part in _leave(ready[0], rooms):
            rooms[part.card].count(part, -1)
        left.remove(ready[0])
    return True


def _rooms(seats: Mapping[str, PodSeat], card_mib: Mapping[str, int]) -> dict[str, _Room]:
    rooms = {card: _Room(size) for card, size in card_mib.items()}
    for seat in seats.values():
        for part in seat.slices:
            if part.card in rooms:
                rooms[part.card].count(part, 1)
    return rooms


def _fits(move: Move, rooms: Mapping[str, _Room]) -> bool:
    own = [part for part in move.old if part.card in rooms]
    for part in own:
        rooms[part.card].count(part, -1)
    fits = all(part.card in rooms and rooms[part.card].takes(part) for part in move.new)
    for part in own:
        rooms[part.card].count(part, 1)
    return fits


def _leave(move: Move, rooms: Mapping[str, _Room]) -> list[SeatSlice]:
    """Enter the new seat; the old one is given back at once where the pod stays on its card, else after the wave."""
    staying = {part.card for part in move.new}
    freed = []
    for part in move.old:
        if part.card not in rooms:
            continue
        if part.card in staying:
            rooms[part.card].count(part, -1)
        else:
            freed.append(part)
    for part in move.new:
        rooms[part.card].count(part, 1)
    return freed


def _ring(moves: list[Move], rooms: Mapping[str, _Room]) -> tuple[list[Move], list[Move]]:
    """Evict pods in order until one of those that were evicted, or the next, finds its place."""
    ring: list[Move] = []
    for number, move in enumerate(moves):
        ring.append(move)
        for part in move.old:
            if part.card in rooms:
                rooms[part.card].count(part, -1)
        waiting = [entry for entry in ring if not _enter(entry, rooms)]
        if not waiting:
            return ring, moves[number + 1 :]
        for entry in ring:
            if entry not in waiting:
                for part in entry.new:
                    rooms[part.card].count(part, -1)
    for move in moves:
        for part in move.new:
            if part.card in rooms:
                rooms[part.card].count(part, 1)
    return moves, []


def _enter(move: Move, rooms: Mapping[str, _Room]) -> bool:
    if not all(part.card in rooms and rooms[part.card].takes(part) for part in move.new):
        return False
    for part in move.new:
        rooms[part.card].count(part, 1)
    return True
