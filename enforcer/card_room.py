"""What is granted on each card, and whether it has room for one share more, as the backends' schedulers count it.

Where the API does not say which card a share is on, the node as a whole is counted. Called by the order of moves, by
relief, by admission and by the forecast of a node's loss.

Source: Project-HAMi/HAMi:pkg/device/nvidia/device.go (Fit).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from enforcer.dialect import WHOLE_CORE_PERCENT, SeatSlice, StandingCard
from enforcer.seat import PodSeat
from fleet.grammars.kai import RESERVATION_NAMESPACES
from fleet.grammars.mig import is_mig_profile


@dataclass(slots=True)
class CardRoom:
    """What is granted on one card; mutable: it changes as pods come and go."""

    framebuffer_mib: int
    slices_max: int
    used_mib: int = 0
    used_cores: int = 0
    slices: int = 0
    claims: Counter[str | None] = field(default_factory=Counter)

    def takes(self, part: SeatSlice) -> bool:
        """Whether a share fits beside those that are there."""
        if _is_claimed(part) and not all(_share(claim, part.resource) for claim, held in self.claims.items() if held):
            return False
        if part.core_percent == WHOLE_CORE_PERCENT:
            return self.slices == 0
        if self.slices >= self.slices_max:
            return False
        fits = self.used_mib + part.framebuffer_mib <= self.framebuffer_mib
        return (
            fits and self.used_cores < WHOLE_CORE_PERCENT and self.used_cores + part.core_percent <= WHOLE_CORE_PERCENT
        )

    def copy(self) -> CardRoom:
        """The same, to be changed apart."""
        return replace(self, claims=self.claims.copy())

    def count(self, part: SeatSlice, sign: int) -> None:
        """Let a share come (1) or go (-1)."""
        self.slices += sign
        self.used_mib += sign * part.framebuffer_mib
        self.used_cores += sign * part.core_percent
        if _is_claimed(part):
            self.claims[part.resource] += sign


def card_rooms(seats: Iterable[PodSeat], cards: Mapping[str, StandingCard]) -> dict[str, CardRoom]:
    """Room of cards by name, with these seats on them."""
    rooms = {name: CardRoom(card.framebuffer_mib, card.slices_max) for name, card in cards.items()}
    for seat in seats:
        for part in seat.slices:
            if part.card is not None and part.card in rooms:
                rooms[part.card].count(part, 1)
    return rooms


@dataclass(slots=True)
class NodeRoom:
    """What is granted of a node's cards where nothing says which card a share is on; mutable: it changes too.

    Only shares that are asked for by framebuffer are judged, as if they were packed largest first, each into the first
    card with room for it. The scheduler may pack them worse.

    Attributes:
        cards: how many the node has.
        framebuffer_mib: of each.
        shares: MiB of those that are there; one that is asked for without numbers has a card to itself.
    """

    cards: int
    framebuffer_mib: int
    shares: Counter[int] = field(default_factory=Counter)

    def takes(self, part: SeatSlice) -> bool:
        """Whether a share fits beside those that are there; True of one that is not asked for by framebuffer."""
        if not part.framebuffer_mib:
            return True
        left: list[int] = []
        for size in sorted((*self.shares.elements(), self._mib(part)), reverse=True):
            place = next((number for number, room in enumerate(left) if room >= size), None)
            if place is None:
                left.append(self.framebuffer_mib - size)
            else:
                left[place] -= size
        return len(left) <= self.cards and min(left) >= 0

    def copy(self) -> NodeRoom:
        """The same, to be changed apart."""
        return replace(self, shares=self.shares.copy())

    def count(self, part: SeatSlice, sign: int) -> None:
        """Let a share come (1) or go (-1)."""
        self.shares[self._mib(part)] += sign

    def _mib(self, part: SeatSlice) -> int:
        portion = part.core_percent or WHOLE_CORE_PERCENT
        return part.framebuffer_mib or self.framebuffer_mib * portion // WHOLE_CORE_PERCENT


def node_rooms(seats: Iterable[PodSeat], cards: Mapping[str, StandingCard]) -> dict[str, NodeRoom]:
    """Room of nodes that only count their cards, by name, with these seats on them.

    Pods that hold a card for those that share it are none of them: its shares are counted.
    """
    rooms: dict[str, NodeRoom] = {}
    for card in cards.values():
        if card.is_counted:
            rooms.setdefault(card.node, NodeRoom(0, card.framebuffer_mib)).cards += 1
    for seat in (seat for seat in seats if seat.namespace not in RESERVATION_NAMESPACES):
        for part in seat.slices:
            if part.card is None and part.node in rooms:
                rooms[part.node].count(part, 1)
    return rooms


def _is_claimed(part: SeatSlice) -> bool:
    """Whether a share is a device of a claim, whole or an instance, which grants nothing in numbers."""
    return not part.framebuffer_mib and not part.core_percent


def _share(claim: str | None, other: str | None) -> bool:
    """Whether two claims may have devices of one card: a whole one is a claim's alone, for all pods that name it."""
    if claim is None or other is None:
        return False
    return claim == other or (is_mig_profile(claim) and is_mig_profile(other))
