"""How many cards more any packing could free, proven: what a plan may say of itself where there are few pods.

The program of `packing.column_generation` gives a cost that no packing of the same slices can beat at a price of a
card. A packing that harms no more than the plan's pays for its harm no more either, so it needs at least
(bound - harm) / price cards; the best of several prices counts. Packing small groups exactly
(`packing.exact`) searches for more; this says how little is left after that. Called by
`frontier_points`; pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recommender.consolidate import Group
from recommender.packing.column_generation import BinLimits, bin_cost, generate_columns
from recommender.packing.slots import kinds_of

PROOF_ITEMS_MAX = 60
"""Largest group of which anything is proven: a proof takes some tenths of a second then."""
PROOF_ROUNDS_MAX = 60
PROOF_WORK_MAX = 2e8
"""Slots that the searches of one proof may look at; a proof that ends early says less, never anything wrong."""


def cards_beyond(groups: Sequence[Group], packings: Sequence[NDArray[np.int32]], prices: Sequence[float]) -> int | None:
    """Most cards that any packing of these slices could free beyond this one without more harm.

    Args:
        groups: groups that were packed, one per card model.
        packings: bin of each item, one array per group.
        prices: prices of a card to prove it at, in harm on average over time, above 0.

    Returns:
        0 or more, on the days that the packing was searched on; None where a group has more than `PROOF_ITEMS_MAX`
        items, or where there is nothing to prove it at.
    """
    if not groups or not prices or any(len(group.rows) > PROOF_ITEMS_MAX for group in groups):
        return None
    bins = sum(int(bin_of.max(initial=-1)) + 1 for bin_of in packings)
    least = max(_cards_needed(groups, packings, price) for price in prices)
    return max(0, bins - least)


def _cards_needed(groups: Sequence[Group], packings: Sequence[NDArray[np.int32]], price: float) -> int:
    """Cards that any packing needs which harms no more than this one, proven at one price."""
    bound = harm = 0.0
    for group, bin_of in zip(groups, packings, strict=True):
        if not len(group.rows):
            continue
        kinds = kinds_of(group.problem)
        limits = BinLimits(
            capacity_bytes=float(group.problem.capacity_bytes),
            slices_max=group.problem.slices_max,
            price=price * group.points,
            load_max=None,
        )
        bins = int(bin_of.max(initial=-1)) + 1
        columns = [tuple(sorted(kinds.kind_of[bin_of == number].tolist())) for number in range(bins)]
        cost = sum(bin_cost(kinds, limits, column) for column in columns)
        harm += (cost - limits.price * bins) / group.points
        proven = generate_columns(kinds, limits, columns, rounds_max=PROOF_ROUNDS_MAX, work_max=PROOF_WORK_MAX)
        bound += proven.bound / group.points
    return int(np.ceil((bound - harm) / price - 1e-6))
