"""Settings of money and energy: what a card hour costs where, how a shared card is split, what may be spent.

Part of `fleet.settings.settings`. A price book (`gputide cost prices`, `docs/money.md`) holds the same records in a
file.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from fleet.settings.kinds import Amount, Count, Price, Ratio, Section, UnitPrice

HOURS_PER_YEAR = 8760
"""Hours of a year of 365 days."""
HOURS_PER_MONTH = 730
"""Hours of a month in every monthly figure (8,760 / 12)."""

_Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
_Name = Annotated[str, Field(min_length=1, max_length=253)]
PER_HOUR_MAX = 10**9
"""Prices per hour stay below this, so that they and all sums of them are exact."""
_Override = Annotated[Price, Field(lt=PER_HOUR_MAX)]


def _date_text(value: object) -> object:
    """TOML has dates of its own; a month is text."""
    return value.isoformat() if isinstance(value, datetime.date) else value


_PriceDate = Annotated[str, BeforeValidator(_date_text), Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$")]


class PriceBasis(StrEnum):
    """What kind of price it is, which says what stops being paid when a card is freed."""

    RENTED = "rented"
    """Paid by the hour: the rent stops."""
    COMMITTED = "committed"
    """Paid until the contract ends, used or not: nothing stops."""
    OWNED = "owned"
    """Bought: its power stops."""


class OnPremises(Section):
    """What a machine that was bought costs, from which the price of a card hour is amortised.

    Of one machine with `cards` cards, per hour: (purchase × (1 + capital_cost_ratio) / (life_years × 8,760 ×
    availability_ratio) + watts / 1000 × pue × per_kwh + (hosting_per_month + operations_per_month) / 730) / cards.
    """

    purchase: Amount
    """Price of the whole machine."""
    cards: Count = 1
    """Cards in it."""
    life_years: Annotated[float, Field(gt=0.0, le=30.0)]
    """Years that it is written off over."""
    capital_cost_ratio: Annotated[float, Field(ge=0.0, le=5.0)] = 0.0
    """Interest over its whole life, as a share of the purchase."""
    availability_ratio: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the hours in which it can be used."""
    watts: Annotated[float, Field(ge=0.0, le=1e6)] = 0.0
    """What the whole machine draws on average."""
    pue: float = Field(default=1.0, ge=1.0, le=5.0)
    """Power usage effectiveness of its data centre."""
    per_kwh: UnitPrice | None = None
    """Price of a kilowatt hour; needed where `watts` is set."""
    hosting_per_month: Amount = Decimal(0)
    """Rack and cooling of the machine, a month of 730 hours."""
    operations_per_month: Amount = Decimal(0)
    """Its share of staff, spares and licences, a month of 730 hours."""

    @model_validator(mode="after")
    def _power_has_a_price(self) -> OnPremises:
        if self.watts > 0 and self.per_kwh is None:
            raise ValueError("watts is set, but per_kwh is not")
        return self


class PriceRule(Section):
    """One price and the cards that it holds for: what is left out holds for all. The first rule that fits counts."""

    card_model: _Name | None = None
    """Model, as the driver prints it or an alias of the catalogue."""
    cluster: _Name | None = None
    """Cluster of the card."""
    node: _Name | None = None
    """Node of the card."""
    node_labels: Mapping[str, Annotated[str, Field(max_length=253)]] = {}
    """Labels that the card's node must carry, such as `pool = "reserved"`."""
    since: datetime.date | None = None
    """First day (UTC) on which the price holds."""
    until: datetime.date | None = None
    """First day (UTC) on which it no longer holds."""
    per_card_hour: UnitPrice | None = None
    """Price of a card hour; either this or `on_premises`."""
    on_premises: OnPremises | None = None
    """What the price is amortised from."""
    marginal_per_card_hour: UnitPrice | None = None
    """What stops being paid per hour when the card is freed; without it `basis` says."""
    currency: _Currency | None = None
    """ISO 4217 code of the rule's amounts; none for `prices.currency`."""
    basis: PriceBasis | None = None
    """Rented, committed or owned; none for what the source says of the card."""
    contract: Annotated[str, Field(max_length=253)] = ""
    """Contract or invoice that it stands in."""
    source: Annotated[str, Field(min_length=1, max_length=500)]
    """Where the price comes from."""
    date: _PriceDate
    """Day or month of the source, `YYYY-MM-DD` or `YYYY-MM`."""

    @model_validator(mode="after")
    def _has_one_price_and_a_time(self) -> PriceRule:
        if (self.per_card_hour is None) == (self.on_premises is None):
            raise ValueError("expected either per_card_hour or on_premises")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError(f"since={self.since} is not before until={self.until}")
        return self


class ExchangeRate(Section):
    """What one unit of a currency is worth in another; nothing is converted without one."""

    currency: _Currency
    """ISO 4217 code of the currency that is converted."""
    into: _Currency
    """ISO 4217 code of what it is converted into."""
    rate: Annotated[Decimal, Field(gt=0, max_digits=18)]
    """Units of `into` for one unit of `currency`."""
    source: Annotated[str, Field(min_length=1, max_length=500)]
    """Where the rate comes from."""
    date: _PriceDate
    """Day or month of the rate."""


class Budget(Section):
    """What a team or a namespace may spend in a calendar month (UTC), in each cluster by itself."""

    team: _Name | None = None
    """Team; either this or `namespace`."""
    namespace: _Name | None = None
    """Namespace."""
    cluster: _Name | None = None
    """Cluster that it holds in alone; none for each."""
    per_month: Annotated[Decimal, Field(gt=0, max_digits=18)]
    """Amount, by allocation."""
    currency: _Currency | None = None
    """ISO 4217 code; none for `prices.currency`."""

    @model_validator(mode="after")
    def _is_of_one_owner(self) -> Budget:
        if (self.team is None) == (self.namespace is None):
            raise ValueError("expected either team or namespace")
        return self


class UnitRate(Section):
    """How many requests, tokens or other units a workload made, where a Prometheus knows it."""

    workload: Annotated[str, Field(min_length=5, max_length=600, pattern=r"^[^/\s]+/[^/\s]+/\S+$")]
    """The workload, `namespace/Kind/name`."""
    cluster: _Name | None = None
    """Its cluster; none where there is one alone, or where each has such a workload and the query names `$cluster`."""
    unit: Annotated[str, Field(pattern=r"^[a-z][a-z0-9 _-]{0,39}$")]
    """What is counted, in the plural: `tokens`, `requests`, `images`."""
    query: Annotated[str, Field(min_length=1, max_length=2000)]
    """PromQL that gives one number: the units of the last `$range` in `$cluster`, such as
    `sum(increase(vllm:generation_tokens_total{namespace="chat"}[$range]))`."""


class PricesSettings(Section):
    """What a card hour costs, where the catalogue's list price is not what you pay."""

    currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$")
    """ISO 4217 code of every price and sum; other currencies are converted by `prices.rates` only."""
    overrides: Mapping[str, _Override] = {}
    """Amortised price per card hour by card model (name as NVML prints it, or an alias), in `prices.currency`."""
    marginal_overrides: Mapping[str, _Override] = {}
    """What a card hour saves in cash when the card is idle (on-premises: power alone), by card model."""
    power_per_kwh: Price | None = None
    """Price of a kilowatt hour; with watts and `energy.pue` it gives models without a marginal price one."""
    book: Path | None = None
    """TOML file with more rules, rates and budgets; none for `prices.toml` in the data folder."""
    rules: tuple[PriceRule, ...] = ()
    """Prices by card model, node, node label, cluster or time; they go before everything else."""
    rates: tuple[ExchangeRate, ...] = ()
    """Exchange rates."""
    budgets: tuple[Budget, ...] = ()
    """What teams and namespaces may spend a month."""
    units: tuple[UnitRate, ...] = ()
    """Units whose cost is shown beside that of their workload; requests that a server reports need no entry."""
    units_prometheus_url: str | None = Field(default=None, pattern=r"^https?://[^\s]+$")
    """Prometheus that the queries of `prices.units` are asked of."""
    compute_ratio: Ratio = 0.5
    """Share of a card's price that its compute stands for; the rest is its framebuffer's."""
    blended_use_ratio: Ratio = 0.5
    """Share of the blended cost that goes by use; the rest goes by allocation."""
    team_labels: tuple[str, ...] = ("gputide.io/team", "team")
    """Pod labels that name the team, the first that is set counts; without one the namespace is the team."""


class EnergySettings(Section):
    """What a kilowatt hour means to the climate and to the data centre."""

    grid_kg_co2_per_kwh: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    """Carbon intensity of your electricity; none leaves CO2 out of the report."""
    pue: float = Field(default=1.0, ge=1.0, le=5.0)
    """Power usage effectiveness: what the data centre draws per watt of the cards."""
    idle_watts_ratio: Ratio | None = None
    """What an idle card draws, share of its power limit, where neither samples nor the catalogue say; none: unknown."""
