"""The price book: what an hour of a card costs, and how much of that is no longer paid when the card is freed.

One book answers for every card at every hour: cost, FOCUS export, budgets, plans, pages, report and messages ask it.
The first rule that fits the card on that UTC day goes before `prices.overrides`, and those before the catalogue's list
price. A rule in another currency needs an exchange rate; a list price in one is unknown without it. Prices change with
the day alone and cards of one node and model cost the same, so each answer is computed once per such period and kept.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_EVEN, Decimal

from fleet.catalogue import CardModel, catalogue, find_model
from fleet.errors import Misconfigured
from fleet.inventory import Card, Node
from fleet.money.amortisation import PRICE_QUANTUM, card_hour_cost
from fleet.money.energy import WATTS_PER_KILOWATT, idle_watts
from fleet.settings.money import PER_HOUR_MAX, PriceBasis, PriceRule
from fleet.settings.settings import Settings

HOURS_PER_WEEK = 168
_PRICED_BY = {"currency", "overrides", "marginal_overrides", "power_per_kwh", "rules", "rates"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPrice:
    """What one card costs per hour, in the book's currency; None is unknown, which is not nothing.

    Attributes:
        amortised: full price of a card hour.
        marginal: what stops being paid per hour when the card is switched off or given back.
        list_price: public price of its model.
        basis: rented, committed or owned; None where unknown.
        source: where the price comes from, with its date; empty where there is none.
        contract: contract or invoice; empty where none is named.
    """

    amortised: Decimal | None
    marginal: Decimal | None
    list_price: Decimal | None
    basis: PriceBasis | None
    source: str
    contract: str


class PriceBook:
    """Prices per card hour (mutable: it keeps the prices that it was asked for).

    Args:
        settings: all settings, with the entries of the price book's file.
        nodes: nodes, for rules that hold for nodes with some labels.
    """

    def __init__(self, settings: Settings, nodes: Iterable[Node] = ()) -> None:
        self.settings = settings.prices
        self.idle_watts_ratio = settings.energy.idle_watts_ratio
        self._pue = settings.energy.pue
        self._labels_of_node = {(node.cluster, node.node): dict(node.labels) for node in nodes}
        self._turns = sorted({day for rule in settings.prices.rules for day in (rule.since, rule.until) if day})
        self._known: dict[tuple[int, str, str, str, bool | None], CardPrice] = {}

    @property
    def currency(self) -> str:
        """ISO 4217 code of every price."""
        return self.settings.currency

    @property
    def has_own_prices(self) -> bool:
        """True where somebody set a price; else all are public list prices."""
        return bool(self.settings.overrides or self.settings.rules)

    @property
    def version(self) -> str:
        """First 12 hex digits of the SHA-256 of all prices, list prices included: the same prices, the same version."""
        listed = {model.name: model.price.per_card_hour.amount for model in catalogue() if model.price is not None}
        content = [self.settings.model_dump(include=_PRICED_BY), listed]
        text = json.dumps(content, sort_keys=True, ensure_ascii=False, default=_plain)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def at(self, moment: datetime) -> Prices:
        """The book at one moment, UTC."""
        return Prices(book=self, moment=moment)

    def price_of(self, card: Card, moment: datetime) -> CardPrice:
        """What a card costs in the hour that a moment lies in.

        Raises:
            Misconfigured: the rule that fits is in a currency that no rate converts.
        """
        day = moment.astimezone(UTC).date()
        key = (bisect_right(self._turns, day), card.card_model, card.cluster, card.node, card.is_owned)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._price(card, day)
        return found

    def list_price(self, card_model: str) -> Decimal | None:
        """Public price of a card hour, converted where a rate is given; None where there is none."""
        model = find_model(card_model)
        if model is None or model.price is None:
            return None
        price = model.price.per_card_hour
        rate = self.rate(price.currency)
        return None if rate is None else _rounded(price.amount * rate)

    def rate(self, currency: str) -> Decimal | None:
        """Units of the book's currency for one of another; None where no rate was given."""
        if currency == self.currency:
            return Decimal(1)
        rates = (item.rate for item in self.settings.rates if (item.currency, item.into) == (currency, self.currency))
        return next(rates, None)

    def converted(self, amount: Decimal, currency: str | None, *, of: str) -> Decimal:
        """An amount in the book's currency.

        Args:
            currency: its ISO 4217 code; None for the book's.

        Raises:
            Misconfigured: no rate converts it.
        """
        rate = self.rate(currency if currency is not None else self.currency)
        if rate is None:
            raise Misconfigured(
                f"cannot add {of} of {amount} {currency} to sums in {self.currency}: no rate from {currency} into "
                f"{self.currency}; give one in prices.rates (a [[rate]] of the price book) or set prices.currency"
            )
        return _rounded(amount * rate)

    def _price(self, card: Card, day: date) -> CardPrice:
        found = self._rule(card, day)
        if found is None:
            return CardPrice(
                amortised=self._unruled(card.card_model),
                marginal=self._unruled_marginal(card),
                list_price=self.list_price(card.card_model),
                basis={True: PriceBasis.OWNED, False: PriceBasis.RENTED, None: None}[card.is_owned],
                source=self._unruled_source(card.card_model),
                contract="",
            )
        number, rule = found
        basis = _basis(rule, card.is_owned)
        return CardPrice(
            amortised=self._amount(rule, number),
            marginal=self._marginal(rule, number, card.card_model, basis),
            list_price=self.list_price(card.card_model),
            basis=basis,
            source=f"{rule.source}, {rule.date}",
            contract=rule.contract,
        )

    def _rule(self, card: Card, day: date) -> tuple[int, PriceRule] | None:
        labels = self._labels_of_node.get((card.cluster, card.node), {})
        for number, rule in enumerate(self.settings.rules, start=1):
            if _holds_on(rule, day) and _is_of_model(rule, card.card_model) and _is_of_place(rule, card, labels):
                return number, rule
        return None

    def _amount(self, rule: PriceRule, number: int) -> Decimal:
        if rule.on_premises is not None:
            amount = card_hour_cost(rule.on_premises).total
        else:
            amount = rule.per_card_hour if rule.per_card_hour is not None else Decimal(0)
        price = self.converted(amount, rule.currency, of=f"the price of rule {number} ({rule.source})")
        if price >= PER_HOUR_MAX:
            raise Misconfigured(
                f"cannot use the price of rule {number} ({rule.source}): {price:.0f} {self.currency} a card hour is "
                f"not below {PER_HOUR_MAX}; choose another prices.currency"
            )
        return price

    def _marginal(self, rule: PriceRule, number: int, card_model: str, basis: PriceBasis | None) -> Decimal | None:
        if rule.marginal_per_card_hour is not None:
            return self.converted(
                rule.marginal_per_card_hour, rule.currency, of=f"the marginal price of rule {number} ({rule.source})"
            )
        if basis is PriceBasis.RENTED:
            return self._amount(rule, number)
        if basis is PriceBasis.COMMITTED:
            return Decimal(0)
        machine = rule.on_premises
        if machine is None or machine.per_kwh is None:
            return self._resting(card_model, self.settings.power_per_kwh, self._pue)
        per_kwh = self.converted(machine.per_kwh, rule.currency, of=f"the power price of rule {number}")
        return self._resting(card_model, per_kwh, machine.pue)

    def _resting(self, card_model: str, per_kwh: Decimal | None, pue: float) -> Decimal | None:
        """Price of the power that a card draws at rest: switched off, that is what is saved for sure."""
        watts = idle_watts(find_model(card_model), self.idle_watts_ratio)
        if per_kwh is None or watts is None:
            return None
        return _rounded(per_kwh * Decimal(str(watts)) * Decimal(str(pue)) / WATTS_PER_KILOWATT)

    def _unruled_marginal(self, card: Card) -> Decimal | None:
        """Of a bought card its power stops, of a rented one its rent; None where neither is known."""
        chosen = _chosen(self.settings.marginal_overrides, card.card_model)
        if chosen is not None:
            return chosen
        if card.is_owned is False:
            return self._unruled(card.card_model)
        return self._resting(card.card_model, self.settings.power_per_kwh, self._pue)

    def _unruled(self, card_model: str) -> Decimal | None:
        chosen = _chosen(self.settings.overrides, card_model)
        return _rounded(chosen) if chosen is not None else self.list_price(card_model)

    def _unruled_source(self, card_model: str) -> str:
        if _chosen(self.settings.overrides, card_model) is not None:
            return "setting prices.overrides"
        model = find_model(card_model)
        if model is None or model.price is None or self.list_price(card_model) is None:
            return ""
        return f"{model.price.basis}, {model.price.source}, {model.price.date}"


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Prices:
    """The book at one moment: what cards cost in that hour."""

    book: PriceBook
    moment: datetime

    @property
    def currency(self) -> str:
        """ISO 4217 code of every price."""
        return self.book.currency

    def of(self, card: Card) -> CardPrice:
        """What a card costs; see `PriceBook.price_of`."""
        return self.book.price_of(card, self.moment)

    def per_week(self, card: Card) -> Decimal | None:
        """Amortised price of 168 hours of a card at the price of now; None where it has none."""
        price = self.of(card).amortised
        return None if price is None else price * HOURS_PER_WEEK


def _holds_on(rule: PriceRule, day: date) -> bool:
    return (rule.since is None or rule.since <= day) and (rule.until is None or day < rule.until)


def _is_of_model(rule: PriceRule, card_model: str) -> bool:
    if rule.card_model is None or rule.card_model == card_model:
        return True
    wanted = find_model(rule.card_model)
    return wanted is not None and wanted is find_model(card_model)


def _is_of_place(rule: PriceRule, card: Card, labels: Mapping[str, str]) -> bool:
    if rule.cluster not in (None, card.cluster) or rule.node not in (None, card.node):
        return False
    return all(labels.get(key) == value for key, value in rule.node_labels.items())


def _basis(rule: PriceRule, is_owned: bool | None) -> PriceBasis | None:
    if rule.basis is not None:
        return rule.basis
    if rule.on_premises is not None or is_owned is True:
        return PriceBasis.OWNED
    return PriceBasis.RENTED if is_owned is False else None


def _chosen(prices: Mapping[str, Decimal], card_model: str) -> Decimal | None:
    if card_model in prices:
        return prices[card_model]
    wanted: CardModel | None = find_model(card_model)
    if wanted is None:
        return None
    return next((price for name, price in prices.items() if find_model(name) is wanted), None)


def _rounded(amount: Decimal) -> Decimal:
    """Rounded to `PRICE_QUANTUM` where it has more digits than that."""
    exponent = amount.as_tuple().exponent
    if isinstance(exponent, int) and exponent >= -9:
        return amount
    return amount.quantize(PRICE_QUANTUM, ROUND_HALF_EVEN)


def _plain(value: object) -> str:
    """How a price or a day enters the version: 4.20 and 4.2 are one price."""
    return f"{value.normalize():f}" if isinstance(value, Decimal) else str(value)
