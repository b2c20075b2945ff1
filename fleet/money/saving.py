"""Savings per week, in whole freed cards only: a smaller slice on a card that stays in use saves nothing.

Called by the recommender.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from fleet.decisions import Saving
from fleet.inventory import Card
from fleet.money.book import HOURS_PER_WEEK, Prices

_CENT = Decimal("0.01")


def saving_of(cards: Iterable[Card], prices: Prices, *, taken: Iterable[Card] = ()) -> Saving:
    """What freeing these cards saves per week.

    Args:
        cards: cards that nobody needs any more.
        prices: what cards cost now.
        taken: cards that somebody needs from now on and nobody did before: their price comes off.

    Returns:
        Amounts in the book's currency, rounded to cents: the sum over the cards whose price is known, so a lower bound
        where some have none; None where no freed card has one, or a taken one has none. No card saves 0.
    """
    freed, added = list(cards), list(taken)
    return Saving(
        amortised=_per_week(
            [prices.of(card).amortised for card in freed],
            [prices.of(card).amortised for card in added],
        ),
        marginal=_per_week(
            [prices.of(card).marginal for card in freed],
            [prices.of(card).marginal for card in added],
        ),
    )


def _per_week(freed: list[Decimal | None], added: list[Decimal | None]) -> Decimal | None:
    known = [price for price in freed if price is not None]
    cost = [price for price in added if price is not None]
    if (freed and not known) or len(cost) < len(added):
        return None
    return ((sum(known, start=Decimal(0)) - sum(cost, start=Decimal(0))) * HOURS_PER_WEEK).quantize(_CENT)
