"""The price book: what a card hour costs, and what is saved in cash when a card falls free.

The first rule that fits a card goes before `prices.overrides`, and those before the catalogue's list price. A rule in
another currency needs an exchange rate; a list price in one is unknown without it. Called by `cost` and by the
chargeback.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from types import MappingProxyType

from fleet.catalogue import CardModel, find_model
from fleet.errors import Misconfigured
from fleet.inventory import Card, Node
from fleet.money.amortisation import PRICE_QUANTUM, card_hour_cost
from fleet.money.energy import WATTS_PER_KILOWATT, idle_watts
from fleet.settings.money import PER_HOUR_MAX, PriceBasis, PriceRule, PricesSettings
from fleet.settings.settings import Settings

_NO_LABELS: Mapping[str, Mapping[str, str]] = MappingProxyType({})


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    """Prices per card hour.

    Attributes:
        settings: prices that were set.
        pue: power usage effectiveness of the data centre.
        idle_watts_ratio: what an idle card draws, share of its power limit, where nothing better is known.
        labels_of_node: labels per node.
        day: UTC day that prices are asked for; None leaves out rules that hold for a time only.
    """

    settings: PricesSettings
    pue: float
    idle_watts_ratio: float | None = None
    labels_of_node: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: _NO_LABELS)
    day: date | None = None

    @property
    def currency(self) -> str:
        """ISO 4217 code of every price."""
        return self.settings.currency

    def price_of(self, card: Card, *, day: date | None = None) -> CardPrice:
        """What a card costs.

        Args:
            card: the card.
            day: UTC day; the book's own unless given.

        Raises:
            Misconfigured: the rule that fits is in a currency that no rate converts.
        """
        found = self._rule(card.card_model, card, day if day is not None else self.day)
        if found is None:
            basis = {True: PriceBasis.OWNED, False: PriceBasis.RENTED, None: None}[card.is_owned]
            return CardPrice(
                amortised=self._unruled(card.card_model),
                marginal=self.marginal_per_hour(card.card_model, is_owned=card.is_owned),
                list_price=self.list_price(card.card_model),
                basis=basis,
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

    def amortised_per_hour(self, card_model: str) -> Decimal | None:
        """Full price of an hour of any card of a model; None where nobody set one and no list price is known.

        Rules for some nodes, labels or clusters only say nothing of a model as such.
        """
        found = self._rule(card_model, None, self.day)
        return self._amount(found[1], found[0]) if found is not None else self._unruled(card_model)

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
        return self._resting(card_model, self.settings.power_per_kwh, self.pue)

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
            amount: amount.
            currency: its ISO 4217 code; None for the book's.
            of: what it is, for the message.

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

    def _rule(self, card_model: str, card: Card | None, day: date | None) -> tuple[int, PriceRule] | None:
        labels = self.labels_of_node.get(card.node, {}) if card is not None else {}
        for number, rule in enumerate(self.settings.rules, start=1):
            if _holds_on(rule, day) and _is_of_model(rule, card_model) and _is_of_place(rule, card, labels):
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
            return self._resting(card_model, self.settings.power_per_kwh, self.pue)
        per_kwh = self.converted(machine.per_kwh, rule.currency, of=f"the power price of rule {number}")
        return self._resting(card_model, per_kwh, machine.pue)

    def _resting(self, card_model: str, per_kwh: Decimal | None, pue: float) -> Decimal | None:
        """Price of the power that a card draws at rest: switched off, that is what is saved for sure."""
        watts = idle_watts(find_model(card_model), self.idle_watts_ratio)
        if per_kwh is None or watts is None:
            return None
        return _rounded(per_kwh * Decimal(str(watts)) * Decimal(str(pue)) / WATTS_PER_KILOWATT)

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


def price_book(settings: Settings, nodes: Iterable[Node] = (), *, at: datetime | None = None) -> PriceBook:
    """The book that the settings and the catalogue make.

    Args:
        settings: all settings.
        nodes: nodes, for rules that hold for some labels.
        at: moment that prices are asked for, UTC; None leaves out rules that hold for a time only.
    """
    return PriceBook(
        settings=settings.prices,
        pue=settings.energy.pue,
        idle_watts_ratio=settings.energy.idle_watts_ratio,
        labels_of_node={node.node: dict(node.labels) for node in nodes},
        day=None if at is None else at.date(),
    )


def _holds_on(rule: PriceRule, day: date | None) -> bool:
    if day is None:
        return rule.since is None and rule.until is None
    return (rule.since is None or rule.since <= day) and (rule.until is None or day < rule.until)


def _is_of_model(rule: PriceRule, card_model: str) -> bool:
    if rule.card_model is None or rule.card_model == card_model:
        return True
    wanted = find_model(rule.card_model)
    return wanted is not None and wanted is find_model(card_model)


def _is_of_place(rule: PriceRule, card: Card | None, labels: Mapping[str, str]) -> bool:
    if card is None:
        return rule.cluster is None and rule.node is None and not rule.node_labels
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
