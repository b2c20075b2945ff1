"""Exact packing of small groups, and proof of how far any packing lies from the best.

The packer of `packing.greedy` (or any other) gives a packing; column generation gives bins that would improve it and a
bound that no packing can beat; an integer program over those bins gives a packing at least as good, very often the
best. Larger groups keep the packing they came with, so this packer fits wherever a `Packer` does. Called by
`frontier_points` through the port of `packing.packer`, and by benchmarks that want the gap of a packing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.errors import Misconfigured, Refused
from fleet.sharing import CONTENTION_RATIO_MAX
from recommender.packing.column_generation import (
    ROUNDS_MAX,
    BinLimits,
    Column,
    Columns,
    bin_cost,
    column_rows,
    generate_columns,
)
from recommender.packing.greedy import GreedyPacker
from recommender.packing.linear_program import Program, solve_whole
from recommender.packing.packer import Packer, Packing, PackingProblem, renumbered
from recommender.packing.slots import ItemKinds, SlotPacker, kinds_of

ITEMS_MAX = 120
"""Largest group that is packed exactly unless set otherwise."""
NODES_MAX = 2_000
"""Nodes of the search for whole bins."""
SWEEP_ROUNDS_MAX = 40
"""Rounds of column generation at one price of a sweep; the first ones find nearly all there is."""
SWEEP_WORK_MAX = 1e8
"""Slots that the searches at one price may look at: some tenths of a second of one core."""
_PRICE_MIN = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """How far a packing lies from the best.

    Attributes:
        cost: what the packing costs: its harm, and the price of every bin.
        bound: no packing costs less.
    """

    cost: float
    bound: float

    @property
    def ratio(self) -> float:
        """Cost over bound, at least 1; 1 where both are 0."""
        return max(self.cost / self.bound, 1.0) if self.bound > 0 else 1.0


class ExactPacker:
    """Column generation and an integer program over its bins, for small groups; see `packer.Packer`."""

    def __init__(self, *, start: Packer | None = None, items_max: int = ITEMS_MAX) -> None:
        """Sets what it starts from.

        Args:
            start: gives the packing to begin with, and the answer for larger groups; the greedy packer unless set.
            items_max: largest group that is packed exactly.
        """
        self._start = start or GreedyPacker()
        self._items_max = items_max

    def sweep(self, problem: PackingProblem, prices: Sequence[float], *, seed: int) -> Iterator[Packing]:
        """One packing per price, see `packer.Packer`; none costs more than the one it started from."""
        kinds = kinds_of(problem) if len(problem.item_type) else None
        for packing in self._start.sweep(problem, prices, seed=seed):
            if kinds is None or len(problem.item_type) > self._items_max:
                yield packing
                continue
            limits = _limits(problem, max(packing.price, _PRICE_MIN), None)
            columns = generate_columns(
                kinds,
                limits,
                _columns_of(packing.bin_of, packing.bins, kinds),
                rounds_max=SWEEP_ROUNDS_MAX,
                work_max=SWEEP_WORK_MAX,
            )
            bin_of, bins = _best(kinds, limits, columns, packing)
            yield Packing(price=packing.price, bin_of=bin_of, bins=bins)


def pack_slots_exactly(
    problem: PackingProblem, *, seed: int, load_max: float = CONTENTION_RATIO_MAX
) -> tuple[Packing, Gap]:
    """Fewest bins without any contention over time, with proof; for small groups.

    Args:
        problem: what to pack.
        seed: seed of the packing that it starts from.
        load_max: demand up to which a card is not contended, share of a card.

    Returns:
        The packing, and its distance from the bound, in bins.
    """
    (start,) = SlotPacker(load_max=load_max).sweep(problem, [1.0], seed=seed)
    if not start.bins:
        return start, Gap(cost=0.0, bound=0.0)
    kinds, limits = kinds_of(problem), _limits(problem, 1.0, load_max)
    columns = generate_columns(kinds, limits, _columns_of(start.bin_of, start.bins, kinds))
    bin_of, bins = _best(kinds, limits, columns, start)
    return Packing(price=1.0, bin_of=bin_of, bins=bins), Gap(cost=float(bins), bound=_whole(columns.bound))


def slots_bound(
    problem: PackingProblem, packing: Packing, *, load_max: float = CONTENTION_RATIO_MAX, rounds_max: int = ROUNDS_MAX
) -> int:
    """Fewest bins that any packing without contention needs, by column generation from a packing that is known."""
    if not packing.bins:
        return 0
    kinds = kinds_of(problem)
    columns = generate_columns(
        kinds,
        _limits(problem, 1.0, load_max),
        _columns_of(packing.bin_of, packing.bins, kinds),
        rounds_max=rounds_max,
    )
    return int(_whole(columns.bound))


def prove_gap(problem: PackingProblem, packing: Packing, *, rounds_max: int = ROUNDS_MAX) -> Gap:
    """How far a packing lies from the least cost at its own price, harm weighed as `packing.greedy` does.

    Raises:
        Misconfigured: the price is not above 0.
    """
    if packing.price <= 0:
        raise Misconfigured(
            f"cannot prove the gap of a packing at a price of {packing.price}: a card must cost something"
        )
    if not packing.bins:
        return Gap(cost=0.0, bound=0.0)
    kinds, limits = kinds_of(problem), _limits(problem, packing.price, None)
    start = _columns_of(packing.bin_of, packing.bins, kinds)
    found = generate_columns(kinds, limits, start, rounds_max=rounds_max)
    return Gap(cost=sum(bin_cost(kinds, limits, column) for column in start), bound=found.bound)


def _limits(problem: PackingProblem, price: float, load_max: float | None) -> BinLimits:
    return BinLimits(
        capacity_bytes=float(problem.capacity_bytes),
        slices_max=problem.slices_max,
        price=price,
        load_max=load_max,
    )


def _whole(bound: float) -> float:
    return float(np.ceil(bound - 1e-6))


def _columns_of(bin_of: NDArray[np.int32], bins: int, kinds: ItemKinds) -> list[Column]:
    return [tuple(sorted(kinds.kind_of[bin_of == number].tolist())) for number in range(bins)]


def _best(kinds: ItemKinds, limits: BinLimits, columns: Columns, start: Packing) -> tuple[NDArray[np.int32], int]:
    """The cheapest packing of these columns, or the one that is known where no cheaper one is found."""
    known = _columns_of(start.bin_of, start.bins, kinds)
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
