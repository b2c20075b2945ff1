"""The card hours of one day with the part of every tenant, summed by `charges` and written out by `focus`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from fleet.money.prices import CardPrice
from fleet.money.split import CardHours, Split
from fleet.profiles import HourMeasure


class ServedUnit(StrEnum):
    """What inference servers count of their work; the value is its name in answers."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    """Of prompts and of answers."""
    GENERATED_TOKENS = "generated tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargedDay:
    """The card hours of one UTC day, or of the part of it that was asked for.

    Attributes:
        start: start of the first hour, UTC.
        card: place of the card of each card hour, int64, shape (card hours,).
        hour: hour of each card hour, 0 … hours-1, int64, shape (card hours,).
        grant: place of the grant of each row, int64, shape (rows,).
        columns: who held what of which card hour.
        split: whose part is how large.
        measures: the part of each row by what becomes of it (`analyzer.state.card_hours`), millionths of a card hour,
            int64, shape (rows,); they sum to its part by allocation.
        prices: distinct prices.
        price_of: place of each card's price among them, int64, shape (cards,).
        kwh: electricity of each card hour, shape (card hours,); NaN where unknown.
        kwh_is_measured: True where the card reported its power, shape (card hours,).
        served: what each row's pod served in the hour, on its first row of the hour, else 0; NaN where no server
            reports it; each of shape (rows,).
    """

    start: datetime
    hours: int
    card: NDArray[np.int64]
    hour: NDArray[np.int64]
    grant: NDArray[np.int64]
    columns: CardHours
    split: Split
    measures: Mapping[HourMeasure, NDArray[np.int64]]
    prices: tuple[CardPrice, ...]
    price_of: NDArray[np.int64]
    kwh: NDArray[np.float64]
    kwh_is_measured: NDArray[np.bool_]
    served: Mapping[ServedUnit, NDArray[np.float64]]

    @property
    def is_unpriced(self) -> NDArray[np.bool_]:
        """Which cards have no price on this day, shape (cards,)."""
        return np.array([price.amortised is None for price in self.prices], np.bool_)[self.price_of]
