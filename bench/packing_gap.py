"""How far a packing lies from what no packing can beat, by column generation."""

from __future__ import annotations

from dataclasses import dataclass

from recommender.packing.column_generation import ROUNDS_MAX, bin_cost, generate_columns
from recommender.packing.exact import columns_of, limits_of
from recommender.packing.packer import Packing, PackingProblem, kinds_of


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


def prove_gap(problem: PackingProblem, packing: Packing, *, rounds_max: int = ROUNDS_MAX) -> Gap:
    """How far a packing lies from the least cost at its own price, harm weighed as `packing.greedy` does.

    Raises:
        ValueError: the price is not above 0.
    """
    if packing.price <= 0:
        raise ValueError(f"cannot prove the gap of a packing at a price of {packing.price}: a card must cost something")
    if not packing.bins:
        return Gap(cost=0.0, bound=0.0)
    kinds, limits = kinds_of(problem), limits_of(problem, packing.price)
    start = columns_of(packing.bin_of, kinds)
    found = generate_columns(kinds, limits, start, rounds_max=rounds_max)
    return Gap(cost=sum(bin_cost(kinds, limits, column) for column in start), bound=found.bound)
