"""Places a pod on cards of one node: filter the cards, order them, take the best node. What differs is in `Rules`.

Pure, over books that the caller keeps. Called by every system's scheduler but KAI's, which weighs cards and nodes
together. Init containers, NUMA nodes, links between cards, MIG and quotas are not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from dataclasses import dataclass

from enforcer.simulated.books import Allocation, CardBook, ContainerAsk, NodeBook, PodAsk, Unplaced, book


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How one scheduler chooses.

    Attributes:
        misfit: why a card can't take one container's share; None where it can.
        order: the cards in the order whose last is tried first, from their order for the container before; the
            register's is that of their names.
        grant: what a container is granted on a card.
        node_score: of what the pod asks, the node, its cards and what it would take there; the highest node is taken,
            of several the first.
    """

    misfit: Callable[[PodAsk, ContainerAsk, CardBook], str | None]
    order: Callable[[PodAsk, list[CardBook]], list[CardBook]]
    grant: Callable[[ContainerAsk, CardBook], Allocation]
    node_score: Callable[[PodAsk, NodeBook, Sequence[CardBook]], float]


def place_by(
    rules: Rules,
    pod: PodAsk,
    cards: Iterable[CardBook],
    nodes: dict[str, NodeBook],
    closed: Collection[str] = (),
    allowed: Collection[str] | None = None,
) -> tuple[Allocation, ...] | Unplaced:
    """Choose cards for a pod; the books are not changed.

    Args:
        cards: cards that may be used, each node's in the order of its register; a node is scored by those given.
        closed: cards among them that take no new pod.
        allowed: nodes that the pod may go to; None for all.

    Returns:
        One allocation per container and card, all on one node, or why there is none.
    """
    refusals: dict[str, int] = {}
    by_node: dict[str, list[CardBook]] = {}
    for card in cards:
        by_node.setdefault(card.node, []).append(card)
    best: tuple[float, tuple[Allocation, ...]] | None = None
    for node, books in by_node.items():
        if allowed is not None and node not in allowed:
            _count(refusals, "node is closed, or not one that the pod may run on", len(books))
            continue
        if not host_fits(pod, nodes[node]):
            _count(refusals, "node has too little CPU or memory", len(books))
            continue
        chosen = _on_node(rules, pod, books, closed, refusals)
        if chosen is not None:
            score = rules.node_score(pod, nodes[node], books)
            if best is None or score > best[0]:
                best = (score, chosen)
    if best is not None:
        return best[1]
    counted = ", ".join(f"{count} {why}" for why, count in sorted(refusals.items()))
    return Unplaced(reason=f"no card fits: {counted or 'there is no card'}")


def host_fits(pod: PodAsk, node: NodeBook) -> bool:
    """Whether a node has the CPU and memory that a pod asks for."""
    if node.cpu_cores is not None and node.used_cpu_cores + pod.cpu_cores > node.cpu_cores + 1e-9:
        return False
    return node.memory_bytes is None or node.used_memory_bytes + pod.memory_bytes <= node.memory_bytes


def least_allocated(pod: PodAsk, node: NodeBook, cards: Sequence[CardBook] = ()) -> float:
    """What is left of CPU and memory with the pod there, 0-100: how Kubernetes' and Volcano's schedulers choose a node.

    Extended resources, cards among them, do not weigh in.

    Source: kubernetes:pkg/scheduler/framework/plugins/noderesources/least_allocated.go.
    """
    del cards
    left = []
    if node.cpu_cores:
        left.append(1 - (node.used_cpu_cores + pod.cpu_cores) / node.cpu_cores)
    if node.memory_bytes:
        left.append(1 - (node.used_memory_bytes + pod.memory_bytes) / node.memory_bytes)
    # Whole points, as the scheduler counts: of nodes with as many it takes any, here the first.
    return int(100 * sum(left) / len(left)) if left else 0


def _on_node(
    rules: Rules, pod: PodAsk, books: Sequence[CardBook], closed: Collection[str], refusals: dict[str, int]
) -> tuple[Allocation, ...] | None:
    taken: list[Allocation] = []
    order = [copy(card) for card in books]
    for ask in pod.containers:
        order = rules.order(pod, order)
        found: list[Allocation] = []
        for card in reversed(order):
            why = "card is cordoned" if card.card in closed else rules.misfit(pod, ask, card)
            if why is not None:
                _count(refusals, why)
            elif len(found) < ask.count:
                found.append(rules.grant(ask, card))
        if len(found) < ask.count:
            return None
        book({card.card: card for card in order}, found)
        taken += found
    return tuple(taken)


def _count(refusals: dict[str, int], why: str, times: int = 1) -> None:
    refusals[why] = refusals.get(why, 0) + times
