"""What the node agent sees at one moment: its cards, who uses how much of them, and which of them are in trouble.

Records and the port through which they come; the command line hands in a reader of driver, kubelet and regions. The
agent reports trouble at once to clients that wait; what follows from it is decided by `enforcer.relief`, which judges
anew from the view itself. What the types of fields say beyond `str`, `int` and `float` is checked where a view is read
from text (`node_view_text`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

from pydantic import AfterValidator, Field

from fleet.inventory import Priority

Entry = TypeVar("Entry")

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([-._:/A-Za-z0-9]{0,251}[A-Za-z0-9])?$")]
Uid = Annotated[str, Field(pattern=r"^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})$")]
Bytes = Annotated[int, Field(ge=0, lt=1 << 44)]
Ratio = Annotated[float, Field(ge=0, le=1 + 1e-6), AfterValidator(lambda ratio: min(1.0, ratio))]
Moment = Annotated[float, Field(gt=0, lt=1e11, allow_inf_nan=False)]
"""Unix seconds."""


def at_most(most: int) -> Callable[[tuple[Entry, ...]], tuple[Entry, ...]]:
    """Checks of a list that is read from text that it has no more entries."""

    def check(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        if len(entries) > most:
            raise ValueError(f"has {len(entries)} entries, at most {most} are taken")
        return entries

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerKey:
    """Which container: the name of its directory of regions."""

    pod_uid: Uid
    container: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]

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

    card: Name
    framebuffer_bytes: Bytes
    framebuffer_free_bytes: Bytes | None
    duty_cycle_ratio: Ratio | None


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

    namespace: Name
    pod: Name
    pod_uid: Uid | None
    container: Name
    card: Name
    priority: Priority
    framebuffer_used_bytes: Bytes | None
    framebuffer_granted_bytes: Bytes
    framebuffer_limit_bytes: Bytes | None
    duty_cycle_ratio: Ratio | None

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
