"""A new plan on the cards in use: how often, and which card is which, so that few pods move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.relief.rules import LOAD_BYTES_PER_SECOND
from recommender.simulate.stage import Opening


@dataclass(frozen=True, slots=True, kw_only=True)
class Replan:
    """How seats are planned anew every few days, with all that is known by then.

    The new plan's cards are matched with those in use so that few pods move. Pods that move are stopped first and
    started on the other card: they serve nothing while their framebuffer is loaded.

    Attributes:
        every_seconds: time between two plans.
        plan: the policy's plan at a step; None where it has none.
        load_bytes_per_second: how fast framebuffer is loaded.
    """

    every_seconds: int
    plan: Callable[[int], Opening | None]
    load_bytes_per_second: float = LOAD_BYTES_PER_SECOND


def matched_cards(
    planned: NDArray[np.int64],
    seated: NDArray[np.int64],
    row_model: NDArray[np.int64],
    card_model: NDArray[np.int64],
    is_open: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Gives every card of a plan a card that exists: the one with which it has most pods in common.

    Args:
        planned: the plan's card of each row, any numbers, (rows,).
        seated: card that each row sits on, (rows,).
        row_model: card model of each row, (rows,).
        card_model: card model of each card, (cards,).
        is_open: cards that may be given, (cards,); a card that may not keeps its rows.

    Returns:
        Card of each row, (rows,). A plan's card for which none is left stays where its first pod sits.
    """
    result = seated.copy()
    movable = is_open[seated]
    pairs, counts = np.unique(np.stack([planned[movable], seated[movable]]), axis=1, return_counts=True)
    taken: set[int] = set()
    given: dict[int, int] = {}
    for number in np.lexsort((pairs[1], pairs[0], -counts)):
        plan_card, card = int(pairs[0, number]), int(pairs[1, number])
        if plan_card not in given and card not in taken:
            given[plan_card] = card
            taken.add(card)
    free = {
        int(model): [int(card) for card in np.flatnonzero((card_model == model) & is_open) if int(card) not in taken]
        for model in np.unique(card_model)
    }
    for row in np.flatnonzero(movable):
        plan_card = int(planned[row])
        if plan_card not in given:
            left = free[int(row_model[row])]
            given[plan_card] = left.pop(0) if left else int(seated[row])
        result[row] = given[plan_card]
    return result
