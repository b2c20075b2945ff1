"""What the node agent sees at one moment: its cards, who uses how much of them, and which of them are in trouble.

Records and the port through which they come; the command line hands in a reader of driver, kubelet and regions. The
agent reports trouble at once to clients that wait; what follows from it is decided by `enforcer.relief`, which judges
anew from the view itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fleet.inventory import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerKey:
    """Which container: the name of its directory of regions."""

    pod_uid: str
    container: str

    def folder(self, containers: Path) -> Path:
        """Its directory below the root of all regions."""
        return containers / f"{self.pod_uid}_{self.container}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardView:
    """One card.

    Attributes:
        framebuffer_free_bytes: of that, free, as the driver says; None where it does not.
        duty_cycle_ratio: share of the last second in which something ran, 0-1; None where nobody says.
    """

    card: str
    framebuffer_bytes: int
    framebuffer_free_bytes: int | None
    duty_cycle_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceView:
    """One container on one card.

    Attributes:
        pod_uid: its UID; None where the API server has not reported it yet.
        priority: as its manifest says, never as its region does, which is the tenant's to write.
        framebuffer_used_bytes: None where nobody says.
        framebuffer_granted_bytes: as the scheduler counts it.
        framebuffer_limit_bytes: as its region says, which is the tenant's to write; None where it has none.
        duty_cycle_ratio: 0-1; None where nobody says.
    """

    namespace: str
    pod: str
    pod_uid: str | None
    container: str
    card: str
    priority: Priority
    framebuffer_used_bytes: int | None
    framebuffer_granted_bytes: int
    framebuffer_limit_bytes: int | None
    duty_cycle_ratio: float | None

    @property
    def pod_id(self) -> str:
        """`namespace/pod`."""
        return f"{self.namespace}/{self.pod}"

    @property
    def key(self) -> ContainerKey | None:
        """Which container; None where its UID is not known."""
        return None if self.pod_uid is None else ContainerKey(pod_uid=self.pod_uid, container=self.container)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node at one moment.

    Attributes:
        slices: who uses them; one entry per container and card.
    """

    at_seconds: float
    cards: tuple[CardView, ...]
    slices: tuple[SliceView, ...]

    def on_card(self, card: str) -> tuple[SliceView, ...]:
        """Slices of one card."""
        return tuple(entry for entry in self.slices if entry.card == card)


class NodeReader(Protocol):
    """Reads this node."""

    def read(self, deadline_seconds: float) -> NodeView:
        """Cards and slices as they are now; an unknown value is None, never 0.

        Raises:
            Unavailable: the driver did not answer in time.
        """
        ...


def troubled_cards(view: NodeView, *, full_ratio: float, free_ratio_min: float) -> frozenset[str]:
    """Cards in trouble: full while somebody above low priority works, or short of framebuffer.

    Args:
        full_ratio: duty cycle from which a card is full, 0-1.
        free_ratio_min: free framebuffer / framebuffer below which it is short, 0-1.
    """
    wanted = {part.card for part in view.slices if part.priority is not Priority.LOW}
    found = set()
    for card in view.cards:
        free, duty = card.framebuffer_free_bytes, card.duty_cycle_ratio
        is_short = free is not None and free < free_ratio_min * card.framebuffer_bytes
        is_full = duty is not None and duty >= full_ratio
        if card.card in wanted and (is_short or is_full):
            found.add(card.card)
    return frozenset(found)


def trouble_digest(cards: Iterable[str]) -> str:
    """Sixteen letters that differ where the troubled cards do; empty for none."""
    names = sorted(cards)
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:16] if names else ""
