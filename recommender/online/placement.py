"""Where a pod should go when it arrives, so that what stays free can still be used by those who come later.

Free cards are no use to a pod that finds no node with enough of everything. How much of a node's free share of cards
the expected pods could not use is its fragmentation: for each kind of expected pod all of it where the node lacks
cards, CPU or the card model, else what lies on cards too full for one of its slices, weighted by how often the kind
arrives. An arriving pod goes where it raises fragmentation least, and two terms mend what that measure does not see:
cards that are about to be stranded because the node's CPU runs out before its cards do, counted against the CPU that
the expected pods take per card, and what is left over on the node (nodes that are nearly full are filled). Inside a
node the fullest cards that suffice are taken; among equals the node with the first name wins.

Two more terms choose between card models. A model is scarce where more of the expected pods need it than it has free;
pods that could use another one go elsewhere. And each watt that a pod makes its node draw more counts, the less the
fuller the cluster is: what is saved while cards are free would be paid for with room once they are not.

Every score is kept per kind of pod and node, and worked out anew only where the node has changed since. Called by
`online.advice` and by benchmarks that replay arrivals.

Sources: Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent,
USENIX ATC 2023 (the measure of fragmentation and the descent; the other terms are ours). Lettich et al., Power- and
Fragmentation-aware Online Scheduling for GPU Datacenters, arXiv:2412.17484 (what draws power: cards and CPU sockets
with any work on them, two threads a core).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

WHOLE_CARD = 1000
"""Thousandths of one card."""
SOCKET_MILLI = 32_000
"""CPU of one socket, thousandths of a thread: 16 cores, as Xeon E5-2682 v4 has."""
_SOCKET_SHARE = 0.3
"""How much of a socket's watts is charged to the pod that wakes it; the others are those of the pods that follow."""
_NEARLY = 1e-9

F = TypeVar("F", bound=Callable[..., Any])


def _compiled(function: F) -> F:
    compiled: Any = numba.njit(cache=True, nogil=True)(function)
    return cast(F, compiled)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerDraw:
    """What nodes draw more with work than at rest; one row per node.

    Attributes:
        card_watts: each card, (nodes,), float64.
        socket_watts: each CPU socket, (nodes,), float64; 0 where the node's CPU is unknown.
        cpu_total_milli: CPU of the node, thousandths of a thread, (nodes,), int64.
    """

    card_watts: NDArray[np.float64]
    socket_watts: NDArray[np.float64]
    cpu_total_milli: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeNodes:
    """What nodes have free; one row per node, sorted by name.

    Attributes:
        cpu_milli: free CPU, thousandths of a core, (nodes,), int64; a very large number where it is unknown.
        memory_bytes: free host memory, (nodes,), int64; a very large number where it is unknown.
        card_model: number of the model of its cards, (nodes,), int64.
        cards: cards of the node, (nodes,), int64.
        card_milli: free share of each card, thousandths, (nodes, most cards), int64; 0 beyond `cards`.
        draw: what work costs in watts; None where unknown.
    """

    cpu_milli: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    card_model: NDArray[np.int64]
    cards: NDArray[np.int64]
    card_milli: NDArray[np.int64]
    draw: PowerDraw | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodKinds:
    """Pods that ask for the same; one row per kind.

    Attributes:
        cpu_milli: CPU asked for, thousandths of a core, (kinds,), int64.
        memory_bytes: host memory asked for, (kinds,), int64.
        cards: cards asked for, (kinds,), int64; 0 for pods without.
        card_milli: share of each of them, thousandths, (kinds,), int64.
        may_use: True where the kind may use the card model, (kinds, models), bool.
        frequency: how often the kind is expected, (kinds,), float64; any scale.
    """

    cpu_milli: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    cards: NDArray[np.int64]
    card_milli: NDArray[np.int64]
    may_use: NDArray[np.bool_]
    frequency: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementWeights:
    """What a thousandth of a card is worth, in thousandths of fragmentation.

    Attributes:
        fragmentation: each thousandth that expected pods can't use.
        stranded: each thousandth whose CPU is gone.
        left_over: each thousandth left free on the node, so that nodes are filled one by one.
        scarce: each thousandth of a card model that the expected pods need twice as much of as is free.
        power: each watt that the node draws more, times the share of all cards that is free.
    """

    fragmentation: float = 1.0
    stranded: float = 2.0
    left_over: float = 0.01
    scarce: float = 3.0
    power: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What became of a stream of arrivals.

    Attributes:
        node_of: node of each arrival, (arrivals,), int64; -1 where none could take it.
        left: what nodes have free afterwards.
        watts: what each arrival made its node draw more, (arrivals,), float64; 0 where unknown or not placed.
    """

    node_of: NDArray[np.int64]
    left: FreeNodes
    watts: NDArray[np.float64]


class _Expected(NamedTuple):
    """Kinds with cards, as the compiled functions see them.

    `milli_share` is the kind's share of all cards asked for, `cpu_per_milli` the CPU taken per thousandth of a card.
    """

    cpu: Any
    cards: Any
    milli: Any
    may_use: Any
    frequency: Any
    milli_share: Any
    cpu_per_milli: Any


class _Kinds(NamedTuple):
    """All kinds, as the compiled functions see them; fields as in `PodKinds`."""

    cpu: Any
    memory: Any
    cards: Any
    milli: Any
    may_use: Any


class _Nodes(NamedTuple):
    """Nodes while they fill up; changed in place by the compiled functions."""

    cpu: Any
    memory: Any
    model: Any
    cards: Any
    milli: Any
    fragmented: Any
    stranded: Any
    card_watts: Any
    socket_watts: Any
    cpu_total: Any


def place_arrivals(
    nodes: FreeNodes, kinds: PodKinds, arrivals: NDArray[np.int64], *, weights: PlacementWeights | None = None
) -> Placed:
    """Places pods one by one, each before the next is known.

    Args:
        nodes: what is free before; stays as it is.
        kinds: what the pods ask for, and what is expected to arrive.
        arrivals: kind of each arrival, in order, (arrivals,).
        weights: what counts how much.

    Returns:
        The node of each pod, and what is free after the last.
    """
    state, expected = _start(nodes, kinds)
    node_of, watts = np.full(len(arrivals), -1, np.int64), np.zeros(len(arrivals))
    _place(state, _kinds(kinds), expected, arrivals.astype(np.int64), _weights(weights), node_of, watts)
    left = FreeNodes(
        cpu_milli=state.cpu,
        memory_bytes=state.memory,
        card_model=nodes.card_model,
        cards=nodes.cards,
        card_milli=state.milli,
        draw=nodes.draw,
    )
    return Placed(node_of=node_of, left=left, watts=watts)


def placement_scores(
    nodes: FreeNodes, kinds: PodKinds, kind: int, *, weights: PlacementWeights | None = None
) -> NDArray[np.float64]:
    """What it would cost to place one pod of a kind on each node, thousandths of a card; the least is the best place.

    Returns:
        Scores, (nodes,); inf where the pod does not fit.
    """
    state, expected = _start(nodes, kinds)
    table, chosen = _kinds(kinds), _weights(weights)
    scores = np.full(len(nodes.cards), np.inf)
    after = np.empty(nodes.card_milli.shape[1], np.int64)
    scarcity = np.empty(kinds.may_use.shape[1])
    free = _scarcity(_free_by_model(state, len(scarcity)), expected, scarcity)
    watt = chosen[4] * free / max(WHOLE_CARD * int(nodes.cards.sum()), 1)
    scarce = chosen[3] * kinds.cards[kind] * kinds.card_milli[kind]
    for node in range(len(scores)):
        own, watts, _ = _score(state, node, table, kind, expected, chosen, after)
        scores[node] = own + scarce * (scarcity[nodes.card_model[node]] - 1.0) + watt * watts
    return scores


def fragmented_milli(nodes: FreeNodes, kinds: PodKinds) -> NDArray[np.float64]:
    """Free share of each node's cards that the expected pods can't use, thousandths of a card, (nodes,)."""
    return np.array(_start(nodes, kinds)[0].fragmented)


def stranded_milli(nodes: FreeNodes, kinds: PodKinds) -> NDArray[np.float64]:
    """Free share of each node's cards that is left without CPU if pods come as expected, thousandths, (nodes,)."""
    return np.array(_start(nodes, kinds)[0].stranded)


def _start(nodes: FreeNodes, kinds: PodKinds) -> tuple[_Nodes, _Expected]:
    expected = _expected(kinds)
    draw, nothing = nodes.draw, np.zeros(len(nodes.cards))
    state = _Nodes(
        cpu=nodes.cpu_milli.copy(),
        memory=nodes.memory_bytes.copy(),
        model=nodes.card_model,
        cards=nodes.cards,
        milli=nodes.card_milli.copy(),
        fragmented=np.empty(len(nodes.cards)),
        stranded=np.empty(len(nodes.cards)),
        card_watts=nothing if draw is None else draw.card_watts,
        socket_watts=nothing if draw is None else draw.socket_watts,
        cpu_total=nodes.cpu_milli if draw is None else draw.cpu_total_milli,
    )
    _measure(state, expected)
    return state, expected


def _expected(kinds: PodKinds) -> _Expected:
    with_cards = (kinds.cards > 0) & (kinds.frequency > 0)
    frequency = kinds.frequency[with_cards] / max(kinds.frequency[with_cards].sum(), _NEARLY)
    milli_of = frequency * kinds.cards[with_cards] * kinds.card_milli[with_cards]
    milli = max(float(milli_of.sum()), _NEARLY)
    return _Expected(
        cpu=kinds.cpu_milli[with_cards],
        cards=kinds.cards[with_cards],
        milli=kinds.card_milli[with_cards],
        may_use=kinds.may_use[with_cards],
        frequency=frequency,
        milli_share=milli_of / milli,
        cpu_per_milli=float((frequency * kinds.cpu_milli[with_cards]).sum() / milli),
    )


def _kinds(kinds: PodKinds) -> _Kinds:
    return _Kinds(
        cpu=kinds.cpu_milli, memory=kinds.memory_bytes, cards=kinds.cards, milli=kinds.card_milli, may_use=kinds.may_use
    )


def _weights(weights: PlacementWeights | None) -> NDArray[np.float64]:
    chosen = weights or PlacementWeights()
    return np.array([chosen.fragmentation, chosen.stranded, chosen.left_over, chosen.scarce, chosen.power])


@_compiled
def _measure(nodes: Any, expected: Any) -> None:
    for n in range(nodes.cards.shape[0]):
        nodes.fragmented[n] = _fragmented(nodes.cpu[n], nodes.milli[n], nodes.cards[n], nodes.model[n], expected)
        nodes.stranded[n] = _stranded(nodes.cpu[n], nodes.milli[n], nodes.cards[n], expected.cpu_per_milli)


@_compiled
def _place(nodes: Any, kinds: Any, expected: Any, arrivals: Any, weights: Any, node_of: Any, watts: Any) -> None:
    """Places every arrival where its score is least; what depends on the node alone is kept until the node changes."""
    count = nodes.cards.shape[0]
    own = np.empty((kinds.cards.shape[0], count, 3))
    seen = np.full((kinds.cards.shape[0], count), -1, np.int64)
    version = np.zeros(count, np.int64)
    after = np.empty(nodes.milli.shape[1], np.int64)
    scarcity = np.empty(kinds.may_use.shape[1])
    by_model = _free_by_model(nodes, kinds.may_use.shape[1])
    free = _scarcity(by_model, expected, scarcity)
    total = max(WHOLE_CARD * nodes.cards.sum(), 1)
    for a in range(arrivals.shape[0]):
        kind = arrivals[a]
        best, least = -1, np.inf
        watt, scarce = weights[4] * free / total, weights[3] * kinds.cards[kind] * kinds.milli[kind]
        for n in range(count):
            if seen[kind, n] != version[n]:
                seen[kind, n] = version[n]
                own[kind, n] = _score(nodes, n, kinds, kind, expected, weights, after)
            score = own[kind, n, 0] + scarce * (scarcity[nodes.model[n]] - 1.0) + watt * own[kind, n, 1]
            if score < least - _NEARLY:
                best, least = n, score
        if best < 0:
            continue
        _take(nodes.milli[best], nodes.cards[best], kinds.cards[kind], kinds.milli[kind], after)
        nodes.milli[best, :] = after
        nodes.cpu[best] -= kinds.cpu[kind]
        nodes.memory[best] -= kinds.memory[kind]
        nodes.fragmented[best] = _fragmented(nodes.cpu[best], after, nodes.cards[best], nodes.model[best], expected)
        nodes.stranded[best] = _stranded(nodes.cpu[best], after, nodes.cards[best], expected.cpu_per_milli)
        version[best] += 1
        node_of[a], watts[a] = best, own[kind, best, 2]
        if kinds.cards[kind] > 0:
            by_model[nodes.model[best]] -= kinds.cards[kind] * kinds.milli[kind]
            free = _scarcity(by_model, expected, scarcity)


@_compiled
def _score(nodes: Any, n: int, kinds: Any, kind: int, expected: Any, weights: Any, after: Any) -> tuple[Any, Any, Any]:
    """What placing one pod of the kind costs on the node; inf where it does not fit. Overwrites `after`.

    Returns:
        Thousandths of a card; watts that count; watts that the node draws more.
    """
    cpu = nodes.cpu[n] - kinds.cpu[kind]
    if cpu < 0 or nodes.memory[n] < kinds.memory[kind]:
        return np.inf, 0.0, 0.0
    if kinds.cards[kind] > 0 and not kinds.may_use[kind, nodes.model[n]]:
        return np.inf, 0.0, 0.0
    if not _take(nodes.milli[n], nodes.cards[n], kinds.cards[kind], kinds.milli[kind], after):
        return np.inf, 0.0, 0.0
    left, woken = 0, 0
    for card in range(nodes.cards[n]):
        left += after[card]
        woken += nodes.milli[n, card] == WHOLE_CARD and after[card] < WHOLE_CARD
    fragmented = _fragmented(cpu, after, nodes.cards[n], nodes.model[n], expected) - nodes.fragmented[n]
    stranded = _stranded(cpu, after, nodes.cards[n], expected.cpu_per_milli) - nodes.stranded[n]
    sockets = _sockets(nodes.cpu_total[n] - cpu) - _sockets(nodes.cpu_total[n] - nodes.cpu[n])
    of_cards, of_sockets = woken * nodes.card_watts[n], sockets * nodes.socket_watts[n]
    own = weights[0] * fragmented + weights[1] * stranded + weights[2] * left
    return own, of_cards + _SOCKET_SHARE * of_sockets, of_cards + of_sockets


@_compiled
def _free_by_model(nodes: Any, models: int) -> Any:
    free = np.zeros(models, np.int64)
    for n in range(nodes.cards.shape[0]):
        free[nodes.model[n]] += nodes.milli[n, : nodes.cards[n]].sum()
    return free


@_compiled
def _scarcity(free: Any, expected: Any, scarcity: Any) -> Any:
    """What the expected pods would ask of each card model per thousandth free, if they asked for all that is free.

    A kind that may use several models asks each of them for the same share of what it has free. Overwrites `scarcity`.

    Returns:
        All that is free, thousandths.
    """
    scarcity[:] = 0.0
    total = free.sum()
    for kind in range(expected.cpu.shape[0]):
        usable = 0
        for model in range(free.shape[0]):
            usable += free[model] if expected.may_use[kind, model] else 0
        for model in range(free.shape[0]):
            if usable > 0 and expected.may_use[kind, model]:
                scarcity[model] += expected.milli_share[kind] * total / usable
    return total


@_compiled
def _sockets(cpu_milli: int) -> int:
    """Sockets that so much CPU keeps awake."""
    return (cpu_milli + SOCKET_MILLI - 1) // SOCKET_MILLI


@_compiled
def _take(free: Any, cards: int, wanted: int, milli: int, after: Any) -> bool:
    """Takes shares of the fullest cards that suffice, one of each; False where there are too few."""
    for card in range(free.shape[0]):
        after[card] = free[card]
    for _ in range(wanted):
        best = -1
        for card in range(cards):
            is_taken = after[card] != free[card]
            if not is_taken and free[card] >= milli and (best < 0 or free[card] < free[best]):
                best = card
        if best < 0:
            return False
        after[best] -= milli
    return True


@_compiled
def _fragmented(cpu: int, milli: Any, cards: int, model: int, expected: Any) -> float:
    total = 0
    for card in range(cards):
        total += milli[card]
    if total == 0:
        return 0.0
    lost = 0.0
    for kind in range(expected.cpu.shape[0]):
        if cpu < expected.cpu[kind] or not expected.may_use[kind, model]:
            lost += expected.frequency[kind] * total
            continue
        fitting, too_full = 0, 0
        for card in range(cards):
            if milli[card] >= expected.milli[kind]:
                fitting += 1
            else:
                too_full += milli[card]
        lost += expected.frequency[kind] * (too_full if fitting >= expected.cards[kind] else total)
    return lost


@_compiled
def _stranded(cpu: int, milli: Any, cards: int, cpu_per_milli: float) -> float:
    total = 0
    for card in range(cards):
        total += milli[card]
    if cpu_per_milli <= 0.0:
        return 0.0
    return max(0.0, total - cpu / cpu_per_milli)
