"""Electricity of card hours: measured where cards report power, else estimated from their model, else unknown.

An estimate rises in a straight line from the model's resting power to its power limit with activity, and is marked as
an estimate. Called by `charged_days` and, for the power of a card at rest, by `book`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.catalogue import CardModel, find_model
from fleet.inventory import Card

WATTS_PER_KILOWATT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CardEnergy:
    """Electricity of each card in each hour, at the card, without the data centre's overhead.

    Attributes:
        kwh: kilowatt hours, float64, shape (cards, hours); NaN where unknown.
        is_measured: True where the card reported its power, shape (cards, hours).
    """

    kwh: NDArray[np.float64]
    is_measured: NDArray[np.bool_]


def card_energy(
    cards: Sequence[Card], watts: NDArray[np.float64], activity: NDArray[np.float64], *, idle_watts_ratio: float | None
) -> CardEnergy:
    """Electricity per card hour.

    Args:
        watts: mean power, shape (cards, hours); NaN where not reported.
        activity: share of the card that was busy, 0-1, shape (cards, hours); NaN where unknown.
        idle_watts_ratio: resting power as a share of the power limit, for models without a measured one; None for
            unknown.
    """
    models = [find_model(card.card_model) for card in cards]
    idle = np.array([np.nan if (rest := idle_watts(m, idle_watts_ratio)) is None else rest for m in models], float)
    limit = np.array([np.nan if model is None else model.watts_max for model in models], float)
    estimate = idle[:, None] + (limit - idle)[:, None] * np.clip(activity, 0.0, 1.0)
    is_measured = ~np.isnan(watts)
    return CardEnergy(kwh=np.where(is_measured, watts, estimate) / WATTS_PER_KILOWATT, is_measured=is_measured)


def idle_watts(model: CardModel | None, ratio: float | None) -> float | None:
    """What a card draws at rest: as was measured of its model, else a share of its power limit; None where unknown."""
    if model is None:
        return None
    if model.watts_idle is not None:
        return model.watts_idle
    return None if ratio is None else model.watts_max * ratio
