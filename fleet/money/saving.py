"""Savings per week, in whole freed cards only: a smaller slice on a card that stays in use saves nothing.

The recommender values what it plans, the enforcer what was measured: each card at its own price.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise

from fleet.decisions import FreedCard, Saving
from fleet.inventory import Card
from fleet.money.prices import HOURS_PER_WEEK, PriceBook, Prices

_CENT = Decimal("0.01")


def saving_of(cards: Iterable[Card], prices: Prices, *, taken: Iterable[Card] = ()) -> Saving:
    """What freeing these cards saves per week.

    Args:
        cards: cards that nobody needs any more.
        taken: cards that somebody needs from now on and nobody did before: their price comes off.

    Returns:
        Amounts in the book's currency, rounded to cents: the sum over the cards whose price is known, so a lower bound
        where some have none; None where no freed card has one, or a taken one has none. No card saves 0.
    """
    freed, added = list(cards), list(taken)
    return Saving(
        amortised=_per_week(
            [prices.of(card).amortised for card in freed], [prices.of(card).amortised for card in added]
        ),
        marginal=_per_week([prices.of(card).marginal for card in freed], [prices.of(card).marginal for card in added]),
    )


def saving_between(card: Card, book: PriceBook, since: datetime, until: datetime, *, instead: Card | None) -> Saving:
    """What one card that is free from `since` to `until` saves per week: the mean over the prices of these hours.

    Args:
        until: end, UTC, later than `since`.
        instead: card that is used instead: its price comes off; None where there is none.

    Returns:
        Amounts in the book's currency, rounded to cents; hours without a price save 0, and None is of a card that has
        none in all of them.
    """
    first = since.astimezone(UTC).date()
    # The book's prices change with the UTC day alone.
    days = range(1, (until.astimezone(UTC).date() - first).days + 1)
    turns = [since, *(datetime.combine(first, time.min, UTC) + timedelta(days=day) for day in days), until]
    taken = () if instead is None else (instead,)
    parts = [
        (saving_of((card,), book.at(begin), taken=taken), _microseconds(begin, end) / _microseconds(since, until))
        for begin, end in pairwise(turns)
    ]
    return Saving(
        amortised=_mean([(saving.amortised, share) for saving, share in parts]),
        marginal=_mean([(saving.marginal, share) for saving, share in parts]),
    )


def cards_in(freed: Iterable[FreedCard]) -> int:
    """How many cards fewer are in use: those that no other card replaces."""
    return sum(card.replaced_by is None for card in freed)


def saved(freed: Collection[FreedCard]) -> Saving:
    """What cards save a week together: the sum of what is known; None where there are cards and none has a price."""
    savings = [card.saving_per_week for card in freed]
    return Saving(
        amortised=_sum([saving.amortised for saving in savings]), marginal=_sum([saving.marginal for saving in savings])
    )


def _sum(amounts: Sequence[Decimal | None]) -> Decimal | None:
    known = [amount for amount in amounts if amount is not None]
    return None if amounts and not known else sum(known, start=Decimal("0.00"))


def _microseconds(begin: datetime, end: datetime) -> Decimal:
    return Decimal((end - begin) // timedelta(microseconds=1))


def _mean(amounts: Sequence[tuple[Decimal | None, Decimal]]) -> Decimal | None:
    known = [amount * share for amount, share in amounts if amount is not None]
    return sum(known, start=Decimal(0)).quantize(_CENT) if known else None


def _per_week(freed: list[Decimal | None], added: list[Decimal | None]) -> Decimal | None:
    known = [price for price in freed if price is not None]
    cost = [price for price in added if price is not None]
    if (freed and not known) or len(cost) < len(added):
        return None
    return ((sum(known, start=Decimal(0)) - sum(cost, start=Decimal(0))) * HOURS_PER_WEEK).quantize(_CENT)
