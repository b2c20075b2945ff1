"""Exact packing of small groups.

The packer of `packing.greedy` gives a packing; column generation gives bins that would improve it; an integer program
over those bins gives a packing at least as good, very often the best. Larger groups keep the packing they came with, so
this packer fits wherever a `Packer` does. Called by `frontier_points` through the port of `packing.packer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fleet.errors import Refused
from recommender.packing.column_generation import (
    BinLimits,
    Column,
    Columns,
    bin_cost,
    column_rows,
    generate_columns,
)
from recommender.packing.greedy import GreedyPacker
from recommender.packing.linear_program import Program, solve_whole
from recommender.packing.packer import ItemKinds, Packing, PackingProblem, kinds_of, renumbered

ITEMS_MAX = 120
"""Largest group that is packed exactly unless set otherwise."""
NODES_MAX = 2_000
"""Nodes of the search for whole bins."""
SWEEP_ROUNDS_MAX = 40
"""Rounds of column generation at one price of a sweep; the first ones find nearly all there is."""
SWEEP_WORK_MAX = 1e8
"""Slots that the searches at one price may look at: some tenths of a second of one core."""
_PRICE_MIN = 1e-6


class ExactPacker:
    """Column generation and an integer program over its bins, for small groups; see `packer.Packer`."""

    def __init__(self, *, items_max: int = ITEMS_MAX) -> None:
        """Sets the largest group that is packed exactly; larger ones are packed greedily."""
        self._items_max = items_max

    def sweep(self, problem: PackingProblem, prices: Sequence[float], *, seed: int) -> Iterator[Packing]:
        """One packing per price, see `packer.Packer`; none costs more than the one it started from."""
        kinds = kinds_of(problem) if len(problem.item_type) else None
        for packing in GreedyPacker().sweep(problem, prices, seed=seed):
            if kinds is None or len(problem.item_type) > self._items_max:
                yield packing
                continue
            limits = limits_of(problem, max(packing.price, _PRICE_MIN))
            columns = generate_columns(
                kinds,
                limits,
                columns_of(packing.bin_of, kinds),
                rounds_max=SWEEP_ROUNDS_MAX,
                work_max=SWEEP_WORK_MAX,
            )
            bin_of, bins = _best(kinds, limits, columns, packing)
            yield Packing(price=packing.price, bin_of=bin_of, bins=bins)


def limits_of(problem: PackingProblem, price: float) -> BinLimits:
    """What a bin of a problem may hold at this price of a card."""
    return BinLimits(capacity_bytes=float(problem.capacity_bytes), slices_max=problem.slices_max, price=price)


def columns_of(bin_of: NDArray[np.int32], kinds: ItemKinds) -> list[Column]:
    """The kinds in each bin of a packing, whose bins are numbered from 0."""
    bins = int(bin_of.max(initial=-1)) + 1
    return [tuple(sorted(kinds.kind_of[bin_of == number].tolist())) for number in range(bins)]


def _best(kinds: ItemKinds, limits: BinLimits, columns: Columns, start: Packing) -> tuple[NDArray[np.int32], int]:
    """The cheapest packing of these columns, or the one that is known where no cheaper one is found."""
    known = columns_of(start.bin_of, kinds)
    cost = sum(bin_cost(kinds, limits, column) for column in known)
    program = Program(
        costs=columns.costs,
        rows=column_rows(kinds, columns.columns),
        row_least=kinds.count.astype(float),
        row_most=np.full(len(kinds.count), np.inf),
        most=np.full(len(columns.columns), float(kinds.count.max())),
    )
    try:
        answer = solve_whole(program, nodes_max=NODES_MAX)
    except Refused:
        return start.bin_of, start.bins
    if answer.cost >= cost * (1 - 1e-9):
        return start.bin_of, start.bins
    return _seat(kinds, columns.columns, answer.amounts)


def _seat(kinds: ItemKinds, columns: Sequence[Column], amounts: NDArray[np.float64]) -> tuple[NDArray[np.int32], int]:
    """Hands the items of each kind to the bins that were chosen; a place too many stays empty."""
    waiting = [list(np.flatnonzero(kinds.kind_of == kind)) for kind in range(len(kinds.count))]
    bin_of = np.full(len(kinds.kind_of), -1, np.int32)
    number = 0
    for column, times in zip(columns, amounts.astype(int), strict=True):
        for _ in range(times):
            for kind in column:
                if waiting[kind]:
                    bin_of[waiting[kind].pop()] = number
            number += 1
    return renumbered(bin_of)
