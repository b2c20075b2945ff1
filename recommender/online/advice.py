"""Advice on where what arrives should go, on a live inventory: stranded cards, and cards to cordon.

Three questions, each a pure function over `fleet.inventory`: which free cards can't be used because their node has no
CPU or host memory left for them; which cards to keep newcomers off, because the few pods on them fit elsewhere and
whole cards and nodes are freed once they have gone; and on which node a pod that arrives should be put. Where a fact
is not known (a node's CPU, a pod's request) nothing is said about it. Nothing here moves a pod. Called by rules and
pages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.catalogue import find_model
from fleet.inventory import Card, CardId, CardModelName, Grant, Inventory, Node
from recommender.online.occupancy import Occupancy, Relocation
from recommender.online.placement import (
    WHOLE_CARD,
    FreeNodes,
    PlacementWeights,
    PodKinds,
    PowerDraw,
    placement_scores,
)

_UNKNOWN_MILLI = 2**40
"""Stands for CPU that nobody reported, in thousandths of a core: never what runs out first."""
_UNKNOWN_BYTES = 2**60
_SOCKET_WATTS = 105.0
"""What a CPU socket with work draws above one at rest: Xeon E5-2682 v4, 120 W and 15 W (arXiv:2412.17484)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrandedNode:
    """A node whose CPU or host memory runs out before its cards do.

    Attributes:
        cards_free: free share of all its cards, in cards.
        cards_stranded: how much of that can't be used by pods that ask as the running ones do.
        missing: `cpu` or `memory`, whichever strands more.
        cpu_cores_missing: cores that would make all free cards usable; 0 where memory is missing alone.
        memory_bytes_missing: host memory that would; 0 where CPU is missing alone.
    """

    node: str
    card_model: CardModelName
    cards_free: float
    cards_stranded: float
    missing: str
    cpu_cores_missing: float
    memory_bytes_missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """Cards to keep newcomers off until they are empty.

    Attributes:
        cards: cards to cordon, sorted.
        frees_node: True where all cards of the node are then free.
        cards_freed: cards that become free and are not now, less those elsewhere that are no longer.
        relocations: a place elsewhere for every pod on them, all at once; sorted by pod and card.
    """

    node: str
    cards: tuple[CardId, ...]
    frees_node: bool
    cards_freed: int
    relocations: tuple[Relocation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOffer:
    """One node that could take a pod.

    Attributes:
        cost_cards: what placing it there costs in cards: those the expected pods could no longer use, those stranded,
            those of a scarce model, and what the watts that the node draws more are worth.
    """

    node: str
    cost_cards: float


def stranded_cards(inventory: Inventory) -> tuple[StrandedNode, ...]:
    """Nodes with free cards that their CPU or host memory can't serve, worst first.

    What a card takes is what the running pods of the same card model ask for per card granted; nodes and pods of
    which neither CPU nor memory is known are left out.
    """
    live = inventory.live_grants()
    state = Occupancy(inventory, live)
    needs = _per_card(live)
    found = []
    for node in inventory.nodes:
        cards = [card for card in state.cards_of.get(node.node, ()) if card.mig_mode is not True]
        model = Counter(card.card_model for card in cards).most_common(1)
        if not model or (need := needs.get(model[0][0])) is None:
            continue
        free = sum(state.free_ratio(card) for card in cards)
        report = _stranded(node, model[0][0], free, need, state)
        if report is not None:
            found.append(report)
    return tuple(sorted(found, key=lambda report: (-report.cards_stranded, report.node)))


def cards_to_cordon(inventory: Inventory) -> tuple[Cordon, ...]:
    """Cards whose pods fit elsewhere, so that whole nodes, and then whole cards, become free.

    Nodes are tried by how little they carry, first whole, then card by card. A pod fits where card model, framebuffer,
    compute share, CPU, host memory and isolation allow, no replica of its own workload is, and the node has no taint
    that its own has not. Nobody is sent to a node that is free now, and places that a cordon counts on are not
    cordoned themselves. Cards with MIG on, and cards with a pod that carries the opt-out label or holds several cards,
    stay as they are.
    """
    state = Occupancy(inventory, inventory.live_grants())
    names = sorted(state.cards_of, key=lambda node: (state.load(node), node))
    busy_of = {name: [card for card in state.cards_of[name] if state.on[card.card]] for name in names}
    cordons: list[Cordon] = []
    state.close([card for name in names if not busy_of[name] for card in state.cards_of[name]])
    receiving: set[CardId] = set()
    for name in names:
        cards, busy = state.cards_of[name], busy_of[name]
        if not busy or any(card.card in receiving for card in cards):
            continue
        own = {card.card for card in cards}
        moves = state.rehome(busy, forbidden=own)
        if moves is not None:
            came = Counter(move.target for move in moves)
            filled = sum(len(state.on[card]) == count for card, count in came.items())
            cordons.append(_cordon(name, cards, len(busy) - filled, moves, frees_node=True))
            state.close(cards)
            receiving |= {move.target for move in moves}
            continue
        for card in sorted(busy, key=lambda card: (-state.free_ratio(card), card.card)):
            if card.card in receiving:
                continue
            moves = state.rehome([card], forbidden={card.card}, onto_busy_only=True)
            if moves is not None:
                cordons.append(_cordon(name, [card], 1, moves, frees_node=False))
                state.close([card])
                receiving |= {move.target for move in moves}
    return tuple(cordons)


def nodes_for(
    inventory: Inventory,
    *,
    card_model: CardModelName | None,
    cards: int,
    card_ratio: float,
    cpu_cores: float = 0.0,
    memory_bytes: int = 0,
    weights: PlacementWeights | None = None,
) -> tuple[NodeOffer, ...]:
    """Nodes that could take a pod, best first: where what stays free is of most use to pods like those that run.

    Args:
        inventory: what stands there; its live grants are the pods that are expected to come again.
        card_model: model that the pod needs; None for any.
        card_ratio: share of each of them, 0-1.
        weights: what counts how much.
    """
    state = Occupancy(inventory, inventory.live_grants())
    nodes, names, models = _free_nodes(state)
    kinds = _expected_kinds(inventory.live_grants(), models)
    asked = PodKinds(
        cpu_milli=np.append(kinds.cpu_milli, round(cpu_cores * 1000)),
        memory_bytes=np.append(kinds.memory_bytes, memory_bytes),
        cards=np.append(kinds.cards, cards),
        card_milli=np.append(kinds.card_milli, round(card_ratio * WHOLE_CARD)),
        may_use=np.vstack([kinds.may_use, [[card_model is None or model == card_model for model in models]]]),
        frequency=np.append(kinds.frequency, 0.0),
    )
    scores = placement_scores(nodes, asked, len(kinds.cards), weights=weights)
    offers = [
        NodeOffer(node=name, cost_cards=float(score) / WHOLE_CARD)
        for name, score in zip(names, scores, strict=True)
        if np.isfinite(score)
    ]
    return tuple(sorted(offers, key=lambda offer: (offer.cost_cards, offer.node)))


def _cordon(node: str, cards: Sequence[Card], freed: int, moves: tuple[Relocation, ...], *, frees_node: bool) -> Cordon:
    return Cordon(
        node=node,
        cards=tuple(sorted(card.card for card in cards)),
        frees_node=frees_node,
        cards_freed=freed,
        relocations=moves,
    )


def _per_card(live: Sequence[Grant]) -> Mapping[CardModelName, tuple[float | None, float | None]]:
    """CPU (cores) and host memory (bytes) that running pods ask for per card granted, by card model."""
    cpu: dict[CardModelName, list[tuple[float, float]]] = defaultdict(list)
    memory: dict[CardModelName, list[tuple[float, float]]] = defaultdict(list)
    cards_of: Counter[tuple[str, str]] = Counter((grant.pod_id, grant.container) for grant in live)
    for grant in live:
        share = max(grant.compute_granted_ratio, grant.framebuffer_granted_bytes / grant.framebuffer_bytes)
        held = cards_of[grant.pod_id, grant.container]
        if grant.cpu_request_cores is not None:
            cpu[grant.card_model].append((grant.cpu_request_cores / held, share))
        if grant.memory_request_bytes is not None:
            memory[grant.card_model].append((grant.memory_request_bytes / held, share))
    return {model: (_mean(cpu[model]), _mean(memory[model])) for model in {grant.card_model for grant in live}}


def _mean(pairs: Sequence[tuple[float, float]]) -> float | None:
    shares = sum(share for _, share in pairs)
    return sum(value for value, _ in pairs) / shares if shares > 0 else None


def _stranded(
    node: Node, model: CardModelName, free: float, need: tuple[float | None, float | None], state: Occupancy
) -> StrandedNode | None:
    cpu_need, memory_need = need
    cpu, memory = state.free_cpu_cores(node.node), state.free_memory_bytes(node.node)
    by_cpu = max(free - cpu / cpu_need, 0.0) if cpu is not None and cpu_need else 0.0
    by_memory = max(free - memory / memory_need, 0.0) if memory is not None and memory_need else 0.0
    worst = max(by_cpu, by_memory)
    if worst * WHOLE_CARD < 1:
        return None
    return StrandedNode(
        node=node.node,
        card_model=model,
        cards_free=free,
        cards_stranded=worst,
        missing="cpu" if by_cpu >= by_memory else "memory",
        cpu_cores_missing=by_cpu * (cpu_need or 0.0),
        memory_bytes_missing=round(by_memory * (memory_need or 0.0)),
    )


def _free_nodes(state: Occupancy) -> tuple[FreeNodes, list[str], list[CardModelName]]:
    names = sorted(state.cards_of)
    models = state.models
    slots = max((len(cards) for cards in state.cards_of.values()), default=0)
    milli = np.zeros((len(names), slots), np.int64)
    for row, name in enumerate(names):
        for column, card in enumerate(sorted(state.cards_of[name], key=lambda card: card.card)):
            milli[row, column] = 0 if card.mig_mode is True else int(state.free_ratio(card) * WHOLE_CARD + 1e-6)
    cpu = [state.free_cpu_cores(name) for name in names]
    memory = [state.free_memory_bytes(name) for name in names]
    rows = np.array([models.index(state.cards_of[name][0].card_model) for name in names], np.int64)
    nodes = FreeNodes(
        cpu_milli=np.array([_UNKNOWN_MILLI if cores is None else int(cores * 1000) for cores in cpu], np.int64),
        memory_bytes=np.array([_UNKNOWN_BYTES if size is None else size for size in memory], np.int64),
        card_model=rows,
        cards=np.array([len(state.cards_of[name]) for name in names], np.int64),
        card_milli=milli,
        draw=_draw(state, names, models, rows),
    )
    return nodes, names, models


def _draw(
    state: Occupancy, names: Sequence[str], models: Sequence[CardModelName], rows: NDArray[np.int64]
) -> PowerDraw | None:
    """What work costs in watts; None where the watts of a card model are unknown, which would seem to draw none."""
    known = [model for name in models if (model := find_model(name)) is not None]
    if len(known) < len(models):
        return None
    cores = [state.nodes[name].cpu_cores if name in state.nodes else None for name in names]
    return PowerDraw(
        card_watts=np.array([model.watts_max - (model.watts_idle or 0.0) for model in known], float)[rows],
        socket_watts=np.array([0.0 if count is None else _SOCKET_WATTS for count in cores]),
        cpu_total_milli=np.array([_UNKNOWN_MILLI if count is None else int(count * 1000) for count in cores], np.int64),
    )


def _expected_kinds(live: Sequence[Grant], models: Sequence[CardModelName]) -> PodKinds:
    """Running pods, by what they were granted: pods that come are expected to ask for the same."""
    pods: dict[str, list[Grant]] = defaultdict(list)
    for grant in live:
        pods[grant.pod_id].append(grant)
    counts: Counter[tuple[int, int, int, int, str]] = Counter()
    for grants in pods.values():
        asked = {grant.container: grant for grant in grants}.values()
        share = max(*(grant.compute_granted_ratio for grant in grants), _framebuffer_ratio(grants))
        counts[
            round(1000 * sum(grant.cpu_request_cores or 0.0 for grant in asked)),
            sum(grant.memory_request_bytes or 0 for grant in asked),
            len({grant.card for grant in grants}),
            min(round(share * WHOLE_CARD), WHOLE_CARD),
            grants[0].card_model,
        ] += 1
    rows = np.array([kind[:4] for kind in counts], np.int64).reshape(-1, 4)
    return PodKinds(
        cpu_milli=rows[:, 0].copy(),
        memory_bytes=rows[:, 1].copy(),
        cards=rows[:, 2].copy(),
        card_milli=rows[:, 3].copy(),
        may_use=np.array([[model == kind[4] for model in models] for kind in counts], bool).reshape(
            len(counts), len(models)
        ),
        frequency=np.array(list(counts.values()), float),
    )


def _framebuffer_ratio(grants: Sequence[Grant]) -> float:
    return max(grant.framebuffer_granted_bytes / grant.framebuffer_bytes for grant in grants)
