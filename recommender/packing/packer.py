"""The packing problem in plain arrays, and the port that solves it: which pods share a card, for every price of a card.

A packer knows nothing of plans or money. It gets items (pods) of types (replicas that behave alike), what they are
predicted to demand in a set of scenarios, and what they need of framebuffer; it answers with bins (cards of one
model). One price, in harm per card, sweeps the whole frontier between few cards and little harm. Called by `planner`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

SLICES_MAX = 32
"""Most slices of one card that are ever planned, whatever the backend allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingProblem:
    """Pods that may share cards of one model.

    Attributes:
        item_type: type of each item, (items,), int32; the rows of `load`.
        item_workload: workload of each item, (items,), int32; two of one workload never share a card.
        item_group: isolation group, (items,), int32; -1 shares with anyone of -1, others with their own group only.
        item_bytes: framebuffer granted to each item, (items,), float64.
        load: predicted high and normal priority demand of one item of a type, share of a card, (types, points),
            float32; 0 for low priority, which never contends with anybody.
        is_low: True for items of low priority, (items,), bool.
    """

    item_type: NDArray[np.int32]
    item_workload: NDArray[np.int32]
    item_group: NDArray[np.int32]
    item_bytes: NDArray[np.float64]
    load: NDArray[np.float32]
    is_low: NDArray[np.bool_]
    capacity_bytes: float
    slices_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemKinds:
    """Items that are alike in everything a packer looks at; one row per kind.

    Attributes:
        kind_of: kind of each item, (items,), int64.
        count: items of each kind, (kinds,), int64.
        size_bytes: framebuffer of one item, (kinds,), float64.
        workload: workload, (kinds,), int64; two of one workload never share a bin.
        group: isolation group, (kinds,), int64; only items of one group share a bin.
        is_low: True for low priority, (kinds,), bool.
        load: demand of one item, share of a card, (kinds, points), float32.
    """

    kind_of: NDArray[np.int64]
    count: NDArray[np.int64]
    size_bytes: NDArray[np.float64]
    workload: NDArray[np.int64]
    group: NDArray[np.int64]
    is_low: NDArray[np.bool_]
    load: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Which bin each item lies in.

    Attributes:
        price: harm (violated item-points) that one card was worth.
        bin_of: bin of each item, (items,), int32, numbered 0 … bins-1 in the order of their first item.
    """

    price: float
    bin_of: NDArray[np.int32]
    bins: int


class Packer(Protocol):
    """Packs items into as few and as harmless bins as a price makes worth it.

    Contract: every item lies in exactly one bin; no bin holds more framebuffer than `capacity_bytes`, more than
    `slices_max` items, two items of one workload, or items of two isolation groups. The answer depends on the
    arguments alone. Time and memory grow linearly with the items.
    """

    def sweep(self, problem: PackingProblem, prices: Sequence[float], *, seed: int) -> Iterator[Packing]:
        """One packing per price, made when it is asked for.

        Args:
            prices: harm per card, highest first; each packing starts from the one before.

        Returns:
            The packings, in the order of the prices, made as they are asked for.
        """
        ...


def renumbered(bin_of: NDArray[np.int32]) -> tuple[NDArray[np.int32], int]:
    """Bins numbered in the order of their first item.

    Returns:
        The new numbers, (items,), and how many bins there are.
    """
    _, first, inverse = np.unique(bin_of, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first), dtype=np.int32)
    return rank[inverse.reshape(-1)].astype(np.int32), len(first)


def kinds_of(problem: PackingProblem) -> ItemKinds:
    """Groups items that are alike."""
    rows = np.column_stack(
        [problem.item_type, problem.item_workload, problem.item_group, np.round(problem.item_bytes), problem.is_low]
    ).astype(np.float64)
    _, first, kind_of, count = np.unique(rows, axis=0, return_index=True, return_inverse=True, return_counts=True)
    return ItemKinds(
        kind_of=kind_of.reshape(-1).astype(np.int64),
        count=count.astype(np.int64),
        size_bytes=problem.item_bytes[first].astype(np.float64),
        workload=problem.item_workload[first].astype(np.int64),
        group=problem.item_group[first].astype(np.int64),
        is_low=problem.is_low[first],
        load=np.ascontiguousarray(problem.load[problem.item_type[first]], np.float32),
    )
