"""What the schedulers of a simulated cluster count, and what pods ask of them, whichever sharing system it plays.

Books are mutable: pods are booked in and out. Called by every system, by the store and by the controllers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class CardBook:
    """What is granted on one card; mutable: it changes as pods are placed.

    Attributes:
        framebuffer_mib: framebuffer that may be granted, MiB (with the node's oversubscription factor).
        used_mib: framebuffer granted, MiB.
        used_cores: compute granted, percent.
        lent_cores: compute granted out of what others leave idle, percent.
    """

    card: str
    card_model: str
    node: str
    framebuffer_mib: int
    slices_max: int
    slices: int = 0
    used_mib: int = 0
    used_cores: int = 0
    lent_cores: int = 0

    @property
    def device_type(self) -> str:
        """Type under which the plugins of HAMi's kin register it; choices of models are held against this."""
        return f"NVIDIA-{self.card_model}"


@dataclass(slots=True, kw_only=True)
class NodeBook:
    """Host resources of one node, None where the capacity is not known; mutable: it changes as pods are placed.

    Attributes:
        cpu_cores: allocatable cores.
        memory_bytes: allocatable memory.
        used_cpu_cores: requested.
        used_memory_bytes: requested.
    """

    node: str
    cpu_cores: float | None
    memory_bytes: int | None
    used_cpu_cores: float = 0.0
    used_memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAsk:
    """What one container asks for.

    Attributes:
        framebuffer_mib: MiB per card; None where it is a share of the card.
        framebuffer_percent: percent of the card, where no MiB are given.
        core_percent: percent of each card, 0-100; 100 keeps every other pod off.
        resource: what it asks by, where a system knows several ways; empty elsewhere.
    """

    container: str
    count: int
    framebuffer_mib: int | None
    framebuffer_percent: int = 100
    core_percent: int = 0
    resource: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAsk:
    """What a pod asks of the scheduler.

    Attributes:
        use_cards: only these cards; empty for any.
        avoid_cards: none of these.
        use_models: only card types that hold one of these texts; empty for any.
        avoid_models: no card type that holds one of these.
        node_policy: the word by which nodes are chosen; empty for the system's own.
        card_policy: the same for a node's cards.
    """

    containers: tuple[ContainerAsk, ...]
    cpu_cores: float
    memory_bytes: int
    use_cards: frozenset[str] = frozenset()
    avoid_cards: frozenset[str] = frozenset()
    use_models: tuple[str, ...] = ()
    avoid_models: tuple[str, ...] = ()
    node_policy: str = ""
    card_policy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One card's share that the scheduler gives to one container.

    Attributes:
        lent_percent: compute out of what others leave idle, percent of the card.
    """

    container: str
    card: str
    framebuffer_mib: int
    core_percent: int
    lent_percent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """Why a pod finds no place."""

    reason: str


def book(books: dict[str, CardBook], allocations: Iterable[Allocation], sign: int = 1) -> None:
    """Enter allocations into the books; with `sign` -1 take them out. Cards that are gone are passed over."""
    for part in allocations:
        card = books.get(part.card)
        if card is not None:
            card.slices += sign
            card.used_mib += sign * part.framebuffer_mib
            card.used_cores += sign * part.core_percent
            card.lent_cores += sign * part.lent_percent
