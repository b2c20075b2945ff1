"""Places a pod on cards the way HAMi's scheduler does: filter, then score.

Pure, over books that the caller keeps. The rules are those of Project-HAMi/HAMi:pkg/device/nvidia/device.go (Fit),
pkg/scheduler/score.go and pkg/scheduler/policy (gpu_policy.go, node_policy.go) of v2.10.0: binpack over nodes and
spread over a node's cards, unless the pod's annotations say otherwise. Init containers, NUMA nodes, links between
cards, MIG, quotas and weights of scores are not simulated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from copy import copy
from dataclasses import dataclass

from enforcer.dialect import WHOLE_CORE_PERCENT
from enforcer.simulated.hami_webhook import ContainerAsk, PodAsk


@dataclass(slots=True, kw_only=True)
class CardBook:
    """What is granted on one card; mutable: it changes as pods are placed.

    Attributes:
        framebuffer_mib: framebuffer that may be granted, MiB (with the node's oversubscription factor).
        used_mib: framebuffer granted, MiB.
        used_cores: compute granted, percent.
    """

    card: str
    card_model: str
    node: str
    framebuffer_mib: int
    slices_max: int
    slices: int = 0
    used_mib: int = 0
    used_cores: int = 0

    @property
    def device_type(self) -> str:
        """Type under which HAMi's plugin registers it; choices of models are held against this."""
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
class Allocation:
    """One card's share that the scheduler gives to one container."""

    container: str
    card: str
    framebuffer_mib: int
    core_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """Why a pod finds no place."""

    reason: str


def place(
    pod: PodAsk, cards: Iterable[CardBook], nodes: dict[str, NodeBook], closed: Collection[str] = ()
) -> tuple[Allocation, ...] | Unplaced:
    """Choose cards for a pod; the books are not changed.

    Args:
        cards: cards that may be used, each node's in the order of its register; a node is scored by those given.
        closed: cards among them that take no new pod.

    Returns:
        One allocation per container and card, all on one node, or why there is none.
    """
    refusals: dict[str, int] = {}
    by_node: dict[str, list[CardBook]] = {}
    for card in cards:
        by_node.setdefault(card.node, []).append(card)
    best: tuple[float, tuple[Allocation, ...]] | None = None
    for node, books in by_node.items():
        if not _host_fits(pod, nodes[node]):
            _count(refusals, "node has too little CPU or memory", len(books))
            continue
        chosen = _on_node(pod, books, closed, refusals)
        if chosen is not None:
            score = _node_score(books) * (-1 if pod.node_policy == "spread" else 1)
            if best is None or score > best[0]:
                best = (score, chosen)
    if best is not None:
        return best[1]
    counted = ", ".join(f"{count} {why}" for why, count in sorted(refusals.items()))
    return Unplaced(reason=f"no card fits: {counted or 'there is no card'}")


def book(books: dict[str, CardBook], allocations: Iterable[Allocation], sign: int = 1) -> None:
    """Enter allocations into the books; with `sign` -1 take them out. Cards that are gone are passed over."""
    for part in allocations:
        card = books.get(part.card)
        if card is not None:
            card.slices += sign
            card.used_mib += sign * part.framebuffer_mib
            card.used_cores += sign * part.core_percent


def _on_node(
    pod: PodAsk, books: Sequence[CardBook], closed: Collection[str], refusals: dict[str, int]
) -> tuple[Allocation, ...] | None:
    taken: list[Allocation] = []
    order = [copy(card) for card in books]
    for ask in pod.containers:
        order = _sorted(order, pod.card_policy, books)
        found: list[Allocation] = []
        for card in reversed(order):
            why = _misfit(pod, ask, card, closed)
            if why is not None:
                _count(refusals, why)
            elif len(found) < ask.count:
                mib = _asked_mib(ask, card)
                part = Allocation(
                    container=ask.container, card=card.card, framebuffer_mib=mib, core_percent=ask.core_percent
                )
                found.append(part)
        if len(found) < ask.count:
            return None
        book({card.card: card for card in order}, found)
        taken += found
    return tuple(taken)


def _sorted(order: list[CardBook], policy: str, books: Sequence[CardBook]) -> list[CardBook]:
    """The order whose last card is tried first. It stays for the pod's next container, unless the policy is a chain."""
    parts = [part.strip() for part in policy.split(",")]
    if len(parts) > 1 or parts == ["numa"]:
        places = {card.card: number for number, card in enumerate(books)}
        order = sorted(order, key=lambda card: places[card.card])
    if parts == ["mutex"]:
        return sorted(order, key=lambda card: -card.slices)
    word = next((part for part in parts if part in ("binpack", "spread")), None)
    if word is None and parts == ["numa"]:
        return order
    sign = 1 if word == "binpack" else -1
    return sorted(order, key=lambda card: sign * _card_score(card))


def _misfit(pod: PodAsk, ask: ContainerAsk, card: CardBook, closed: Collection[str]) -> str | None:
    is_exclusive = ask.core_percent == WHOLE_CORE_PERCENT
    is_idle_wanted = "mutex" in pod.card_policy.replace(" ", "").split(",")
    cores = card.used_cores + ask.core_percent
    misfits = (
        (not _admits(pod, card) or card.card in closed, "card is excluded by annotation, type or cordon"),
        (bool(pod.use_cards) and card.card not in pod.use_cards, "card is not in use-gpuuuid"),
        (card.slices >= card.slices_max, f"card is split into deviceSplitCount={card.slices_max} slices already"),
        (card.slices > 0 and is_idle_wanted, "card is not idle"),
        (card.used_mib + _asked_mib(ask, card) > card.framebuffer_mib, "card has too little framebuffer left"),
        (cores > WHOLE_CORE_PERCENT, "card has too few cores left"),
        (card.slices > 0 and is_exclusive, "card is not free for an exclusive pod"),
        (card.used_cores >= WHOLE_CORE_PERCENT, "card is held exclusively"),
    )
    return next((why for is_misfit, why in misfits if is_misfit), None)


def _admits(pod: PodAsk, card: CardBook) -> bool:
    if card.card in pod.avoid_cards:
        return False
    kind = card.device_type.lower()
    if pod.use_models and not any(model.lower() in kind for model in pod.use_models):
        return False
    return not any(model.lower() in kind for model in pod.avoid_models)


def _host_fits(pod: PodAsk, node: NodeBook) -> bool:
    if node.cpu_cores is not None and node.used_cpu_cores + pod.cpu_cores > node.cpu_cores + 1e-9:
        return False
    return node.memory_bytes is None or node.used_memory_bytes + pod.memory_bytes <= node.memory_bytes


def _asked_mib(ask: ContainerAsk, card: CardBook) -> int:
    if ask.framebuffer_mib is not None:
        return ask.framebuffer_mib
    return card.framebuffer_mib * ask.framebuffer_percent // 100


def _card_score(card: CardBook) -> float:
    """10 × (used slots, cores and framebuffer, each as a share of the card); what is asked for does not weigh in.

    HAMi adds what is asked for to cards whose registered type is `NVIDIA`; its plugin always writes the model too.
    """
    return 10 * (
        card.slices / card.slices_max
        + card.used_cores / WHOLE_CORE_PERCENT
        + card.used_mib / max(1, card.framebuffer_mib)
    )


def _node_score(books: Sequence[CardBook]) -> float:
    """10 × (used slots, cores and framebuffer, each as a share of the node)."""
    return 10 * (
        sum(card.slices for card in books) / max(1, sum(card.slices_max for card in books))
        + sum(card.used_cores for card in books) / max(1, WHOLE_CORE_PERCENT * len(books))
        + sum(card.used_mib for card in books) / max(1, sum(card.framebuffer_mib for card in books))
    )


def _count(refusals: dict[str, int], why: str, times: int = 1) -> None:
    refusals[why] = refusals.get(why, 0) + times
