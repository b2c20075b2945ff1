"""Framebuffer that pods of one card lend each other, as a replay plays it: page by page, with a queue for each card.

CUDA's driver sends those pages out that came to the card longest ago, read since or not, and a kernel pulls in
what it touches and misses (NVIDIA/open-gpu-kernel-modules:kernel-open/nvidia-uvm/uvm_pmm_gpu.c). Here a pod that works
goes through all that it holds, from the first page to the last. What really happens is judged by this; what a plan
predicts comes from `fleet.lending`, with which it shares nothing. Called by `exporter.replay.reader`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet.catalogue import find_model
from fleet.inventory import Card, CardId
from fleet.units import MIB

PAGE_BYTES = 64 * MIB
"""What is moved at a time. The driver's pages have 2 MiB; so few make no difference to what has tens of GiB."""
LINK_BYTES_PER_SECOND = 8.2e9
"""What a kernel pulled over 16 lanes of PCI Express 3.0 as it touched it, measured
(parallelArchitect/pascal-um-benchmark:README.md); each later generation has twice the lanes' rate."""
_OLDEST_GENERATION = 3

_Page = tuple[Hashable, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A pod on a card, in one step.

    Attributes:
        key: what distinguishes it from the others of its card, and from itself once it is made anew.
        held_bytes: framebuffer that it has allocated; None where nobody saw: then it is what was seen last.
        kept_bytes: what of it never leaves the card; None for all of it.
        works: it launches kernels.
    """

    key: Hashable
    held_bytes: float | None
    kept_bytes: float | None
    works: bool


@dataclass(slots=True)
class Lent:
    """What lending came to in a replay; mutable: it grows with every step.

    Attributes:
        cards: cards on which framebuffer was lent.
        switches: how often pods pulled back what had left the card.
        switch_seconds: how long they waited for it, in all.
        work_seconds: how long pods of these cards worked, waits included.
        played_seconds: how long these cards were played, in all.
        host_bytes: most that lay in host memory at a time, of all cards together.
    """

    cards: set[CardId] = field(default_factory=set)
    switches: int = 0
    switch_seconds: float = 0.0
    work_seconds: float = 0.0
    played_seconds: float = 0.0
    host_bytes: float = 0.0


class Paging:
    """All cards of a replay on which framebuffer is lent; mutable: every step moves pages.

    Args:
        step_seconds: length of a step.
    """

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._queues: dict[CardId, _Queue] = {}
        self.lent = Lent()

    def step(
        self, tenants: Mapping[CardId, Sequence[Tenant]], cards: Mapping[CardId, Card]
    ) -> dict[tuple[CardId, Hashable], float]:
        """Plays one step.

        Args:
            tenants: everybody on each card on which framebuffer is lent now; pods that are named no more are gone.

        Returns:
            Seconds that each pod waited, of those that waited.
        """
        self._queues = {card: queue for card, queue in self._queues.items() if card in tenants}
        waits: dict[tuple[CardId, Hashable], float] = {}
        host_bytes = 0.0
        for card, own in tenants.items():
            queue = self._queues.setdefault(card, _Queue())
            moved = queue.step(own, cards[card].framebuffer_bytes)
            rate = link_bytes_per_second(cards[card].card_model)
            for key, pages in moved.items():
                seconds = self._step_seconds if pages is None else pages * PAGE_BYTES / rate
                waits[card, key] = min(self._step_seconds, seconds)
            host_bytes += queue.pages_away * PAGE_BYTES
            self.lent.work_seconds += self._step_seconds * sum(tenant.works for tenant in own)
        self.lent.cards.update(tenants)
        self.lent.switches += len(waits)
        self.lent.switch_seconds += sum(waits.values())
        self.lent.played_seconds += self._step_seconds * len(tenants)
        self.lent.host_bytes = max(self.lent.host_bytes, host_bytes)
        return waits


class _Queue:
    """The pages of one card that may leave it, in the order in which they came."""

    def __init__(self) -> None:
        self._pages: dict[_Page, None] = {}
        self._many: dict[Hashable, int] = {}
        self._held: dict[Hashable, float] = {}

    @property
    def pages_away(self) -> int:
        """Pages in host memory."""
        return sum(self._many.values()) - len(self._pages)

    def step(self, tenants: Sequence[Tenant], capacity_bytes: int) -> dict[Hashable, int | None]:
        """Pages that moved while each pod waited that pulled some back; None where pods never have all of theirs."""
        tenants = self._as_last_seen(tenants)
        room = self._settle(tenants, capacity_bytes)
        new = [tenant.key for tenant in tenants if tenant.key not in self._many]
        for tenant in tenants:
            self._resize(tenant)
        for key in new:
            # Whoever starts loads what it needs; that is no switch.
            self._pull(key, room)
        moved: dict[Hashable, int | None] = {}
        for tenant in tenants:
            if tenant.works and (pages := self._pull(tenant.key, room)) and not new:
                moved[tenant.key] = pages
        at_work = [tenant.key for tenant in tenants if tenant.works]
        if any(self._misses(key) for key in at_work):
            moved = dict.fromkeys(at_work)
        return moved

    def _as_last_seen(self, tenants: Sequence[Tenant]) -> list[Tenant]:
        """Pods with what they held when it was last seen; without those of which nobody has seen that yet."""
        here = {tenant.key for tenant in tenants}
        self._held = {key: held for key, held in self._held.items() if key in here}
        self._held |= {tenant.key: tenant.held_bytes for tenant in tenants if tenant.held_bytes is not None}
        return [replace(one, held_bytes=self._held[one.key]) for one in tenants if one.key in self._held]

    def _settle(self, tenants: Sequence[Tenant], capacity_bytes: int) -> int:
        """Forgets who is gone; returns how many pages the card has for those that are lent."""
        here = {tenant.key for tenant in tenants}
        self._many = {key: many for key, many in self._many.items() if key in here}
        self._pages = {page: None for page in self._pages if page[0] in here}
        kept = sum(_kept(tenant) for tenant in tenants)
        return max(0, int((capacity_bytes - kept) // PAGE_BYTES))

    def _resize(self, tenant: Tenant) -> None:
        many = math.ceil(((tenant.held_bytes or 0.0) - _kept(tenant)) / PAGE_BYTES)
        self._many[tenant.key] = many
        self._pages = {page: None for page in self._pages if page[0] != tenant.key or page[1] < many}

    def _misses(self, key: Hashable) -> bool:
        return any((key, number) not in self._pages for number in range(self._many[key]))

    def _pull(self, key: Hashable, room: int) -> int:
        """Goes through all pages of a pod; returns how many came or left."""
        moved = 0
        for number in range(self._many[key]):
            if (key, number) in self._pages:
                continue
            while len(self._pages) >= max(1, room):
                del self._pages[next(iter(self._pages))]
                moved += 1
            self._pages[key, number] = None
            moved += 1
        return moved


def _kept(tenant: Tenant) -> float:
    held = tenant.held_bytes or 0.0
    return held if tenant.kept_bytes is None else min(held, tenant.kept_bytes)


def link_bytes_per_second(card_model: str) -> float:
    """How fast pages move to a card or from it; as over the oldest link where nobody knows it."""
    model = find_model(card_model)
    generation = None if model is None else model.pcie_generation
    return LINK_BYTES_PER_SECOND * 2.0 ** ((generation or _OLDEST_GENERATION) - _OLDEST_GENERATION)
