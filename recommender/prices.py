"""The price book: what a card hour of each model costs, and what is saved in cash when a card falls idle.

Settings go before the catalogue's list price; nothing is converted between currencies. Called by `cost`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from fleet.catalogue import CardModel, find_model
from fleet.settings import PricesSettings, Settings

_WATTS_PER_KILOWATT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    """Prices per card hour.

    Attributes:
        settings: prices that were set.
        pue: power usage effectiveness of the data centre.
    """

    settings: PricesSettings
    pue: float

    @property
    def currency(self) -> str:
        """ISO 4217 code of every price."""
        return self.settings.currency

    def amortised_per_hour(self, card_model: str) -> Decimal | None:
        """Full price of a card hour; None where nobody set one and the catalogue has none in this currency."""
        chosen = _chosen(self.settings.overrides, card_model)
        if chosen is not None:
            return chosen
        model = find_model(card_model)
        if model is None or model.price is None or model.price.per_card_hour.currency != self.currency:
            return None
        return model.price.per_card_hour.amount

    def marginal_per_hour(self, card_model: str, *, is_owned: bool | None) -> Decimal | None:
        """What stops being paid when a card is switched off or given back.

        Args:
            card_model: model of the card.
            is_owned: True for bought cards (their power stops), False for rented ones (their rent stops), None where
                unknown.

        Returns:
            Price per hour; None where neither a price nor power is known.
        """
        chosen = _chosen(self.settings.marginal_overrides, card_model)
        if chosen is not None:
            return chosen
        if is_owned is False:
            return self.amortised_per_hour(card_model)
        model = find_model(card_model)
        per_kwh = self.settings.power_per_kwh
        if per_kwh is None or model is None or model.watts_idle is None:
            return None
        # A card that nobody holds would draw its resting power; switched off, that is what is saved for sure.
        return per_kwh * Decimal(str(model.watts_idle)) * Decimal(str(self.pue)) / _WATTS_PER_KILOWATT


def price_book(settings: Settings) -> PriceBook:
    """The book that the settings and the catalogue make."""
    return PriceBook(settings=settings.prices, pue=settings.energy.pue)


def _chosen(prices: Mapping[str, Decimal], card_model: str) -> Decimal | None:
    if card_model in prices:
        return prices[card_model]
    wanted: CardModel | None = find_model(card_model)
    if wanted is None:
        return None
    return next((price for name, price in prices.items() if find_model(name) is wanted), None)
