"""Where a pod should go when it arrives, so that what stays free can still be used by those who come later.

Free cards are no use to a pod that finds no node with enough of everything. How much of a node's free share of cards
the expected pods could not use is its fragmentation: for each kind of expected pod all of it where the node lacks
cards, CPU or the card model, else what lies on cards too full for one of its slices, weighted by how often the kind
arrives. An arriving pod goes where it raises fragmentation least, and two terms mend what that measure does not see:
cards that are about to be stranded because the node's CPU runs out before its cards do, counted against the CPU that
the expected pods take per card, and what is left over on the node (nodes that are nearly full are filled). Inside a
node the fullest cards that suffice are taken; among equals the node with the first name wins.

Every score is kept per kind of pod and node, and worked out anew only where the node has changed since. Called by
`online.advice` and by benchmarks that replay arrivals.

Source: Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent,
USENIX ATC 2023 (the measure of fragmentation and the descent; the two terms are ours).
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
_NEARLY = 1e-9

F = TypeVar("F", bound=Callable[..., Any])


def _compiled(function: F) -> F:
    compiled: Any = numba.njit(cache=True, nogil=True)(function)
    return cast(F, compiled)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeNodes:
    """What nodes have free; one row per node, sorted by name.

    Attributes:
        cpu_milli: free CPU, thousandths of a core, (nodes,), int64; a very large number where it is unknown.
        memory_bytes: free host memory, (nodes,), int64; a very large number where it is unknown.
        card_model: number of the model of its cards, (nodes,), int64.
        cards: cards of the node, (nodes,), int64.
        card_milli: free share of each card, thousandths, (nodes, most cards), int64; 0 beyond `cards`.
    """

    cpu_milli: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    card_model: NDArray[np.int64]
    cards: NDArray[np.int64]
    card_milli: NDArray[np.int64]


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
    """

    fragmentation: float = 1.0
    stranded: float = 2.0
    left_over: float = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What became of a stream of arrivals.

    Attributes:
        node_of: node of each arrival, (arrivals,), int64; -1 where none could take it.
        left: what nodes have free afterwards.
    """

    node_of: NDArray[np.int64]
    left: FreeNodes


class _Expected(NamedTuple):
    """Kinds with cards, as the compiled functions see them; `cpu_per_milli` is the CPU taken per thousandth."""

    cpu: Any
    cards: Any
    milli: Any
    may_use: Any
    frequency: Any
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
    node_of = np.full(len(arrivals), -1, np.int64)
    _place(state, _kinds(kinds), expected, arrivals.astype(np.int64), _weights(weights), node_of)
    left = FreeNodes(
        cpu_milli=state.cpu,
        memory_bytes=state.memory,
        card_model=nodes.card_model,
        cards=nodes.cards,
        card_milli=state.milli,
    )
    return Placed(node_of=node_of, left=left)


def placement_scores(
    nodes: FreeNodes, kinds: PodKinds, kind: int, *, weights: PlacementWeights | None = None
) -> NDArray[np.float64]:
    """What it would cost to place one pod of a kind on each node, thousandths of a card; the least is the best place.

    Returns:
        Scores, (nodes,); inf where the pod does not fit.
    """
    state, expected = _start(nodes, kinds)
    scores = np.full(len(nodes.cards), np.inf)
    after = np.empty(nodes.card_milli.shape[1], np.int64)
    for node in range(len(scores)):
        scores[node] = _score(state, node, _kinds(kinds), kind, expected, _weights(weights), after)
    return scores


def fragmented_milli(nodes: FreeNodes, kinds: PodKinds) -> NDArray[np.float64]:
    """Free share of each node's cards that the expected pods can't use, thousandths of a card, (nodes,)."""
    return np.array(_start(nodes, kinds)[0].fragmented)


def stranded_milli(nodes: FreeNodes, kinds: PodKinds) -> NDArray[np.float64]:
    """Free share of each node's cards that is left without CPU if pods come as expected, thousandths, (nodes,)."""
    return np.array(_start(nodes, kinds)[0].stranded)


def _start(nodes: FreeNodes, kinds: PodKinds) -> tuple[_Nodes, _Expected]:
    expected = _expected(kinds)
    state = _Nodes(
        cpu=nodes.cpu_milli.copy(),
        memory=nodes.memory_bytes.copy(),
        model=nodes.card_model,
        cards=nodes.cards,
        milli=nodes.card_milli.copy(),
        fragmented=np.empty(len(nodes.cards)),
        stranded=np.empty(len(nodes.cards)),
    )
    _measure(state, expected)
    return state, expected


def _expected(kinds: PodKinds) -> _Expected:
    with_cards = (kinds.cards > 0) & (kinds.frequency > 0)
    frequency = kinds.frequency[with_cards] / max(kinds.frequency[with_cards].sum(), _NEARLY)
    milli = (frequency * kinds.cards[with_cards] * kinds.card_milli[with_cards]).sum()
    return _Expected(
        cpu=kinds.cpu_milli[with_cards],
        cards=kinds.cards[with_cards],
        milli=kinds.card_milli[with_cards],
        may_use=kinds.may_use[with_cards],
        frequency=frequency,
        cpu_per_milli=float((frequency * kinds.cpu_milli[with_cards]).sum() / max(milli, _NEARLY)),
    )


def _kinds(kinds: PodKinds) -> _Kinds:
    return _Kinds(
        cpu=kinds.cpu_milli, memory=kinds.memory_bytes, cards=kinds.cards, milli=kinds.card_milli, may_use=kinds.may_use
    )


def _weights(weights: PlacementWeights | None) -> NDArray[np.float64]:
    chosen = weights or PlacementWeights()
    return np.array([chosen.fragmentation, chosen.stranded, chosen.left_over])


@_compiled
def _measure(nodes: Any, expected: Any) -> None:
    for n in range(nodes.cards.shape[0]):
        nodes.fragmented[n] = _fragmented(nodes.cpu[n], nodes.milli[n], nodes.cards[n], nodes.model[n], expected)
        nodes.stranded[n] = _stranded(nodes.cpu[n], nodes.milli[n], nodes.cards[n], expected.cpu_per_milli)


@_compiled
def _place(nodes: Any, kinds: Any, expected: Any, arrivals: Any, weights: Any, node_of: Any) -> None:
    """Places every arrival where its score is least; scores are kept until the node changes."""
    count = nodes.cards.shape[0]
    scores = np.empty((kinds.cards.shape[0], count))
    seen = np.full((kinds.cards.shape[0], count), -1, np.int64)
    version = np.zeros(count, np.int64)
    after = np.empty(nodes.milli.shape[1], np.int64)
    for a in range(arrivals.shape[0]):
        kind = arrivals[a]
        best, least = -1, np.inf
        for n in range(count):
            if seen[kind, n] != version[n]:
                seen[kind, n] = version[n]
                scores[kind, n] = _score(nodes, n, kinds, kind, expected, weights, after)
            if scores[kind, n] < least - _NEARLY:
                best, least = n, scores[kind, n]
        if best < 0:
            continue
        _take(nodes.milli[best], nodes.cards[best], kinds.cards[kind], kinds.milli[kind], after)
        nodes.milli[best, :] = after
        nodes.cpu[best] -= kinds.cpu[kind]
        nodes.memory[best] -= kinds.memory[kind]
        nodes.fragmented[best] = _fragmented(nodes.cpu[best], after, nodes.cards[best], nodes.model[best], expected)
        nodes.stranded[best] = _stranded(nodes.cpu[best], after, nodes.cards[best], expected.cpu_per_milli)
        version[best] += 1
        node_of[a] = best


@_compiled
def _score(nodes: Any, n: int, kinds: Any, kind: int, expected: Any, weights: Any, after: Any) -> float:
    """What placing one pod of the kind on the node costs; inf where it does not fit. Overwrites `after`."""
    cpu = nodes.cpu[n] - kinds.cpu[kind]
    if cpu < 0 or nodes.memory[n] < kinds.memory[kind]:
        return np.inf
    if kinds.cards[kind] > 0 and not kinds.may_use[kind, nodes.model[n]]:
        return np.inf
    if not _take(nodes.milli[n], nodes.cards[n], kinds.cards[kind], kinds.milli[kind], after):
        return np.inf
    left = 0
    for card in range(nodes.cards[n]):
        left += after[card]
    fragmented = _fragmented(cpu, after, nodes.cards[n], nodes.model[n], expected) - nodes.fragmented[n]
    stranded = _stranded(cpu, after, nodes.cards[n], expected.cpu_per_milli) - nodes.stranded[n]
    return float(weights[0] * fragmented + weights[1] * stranded + weights[2] * left)


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
