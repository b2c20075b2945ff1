"""A chargeback and budgets as answers of the command line: amounts in cents that sum to the total that is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from fleet.documents import document
from fleet.money.budgets import BudgetStatus
from fleet.money.charged_day import ServedUnit
from fleet.money.charges import BASES, Amounts, Charge, Chargeback, Served, in_cents
from fleet.money.unit_costs import UnitCost
from fleet.settings.settings import Settings
from fleet.units import Money, format_money, format_time
from gputide.answers.plan import no_price_words
from gputide.output import Answer, Listing

COST_SCHEMA = "gputide.cost/v1"
_MILLIONTH = Decimal("0.000001")
_SERVED_KEYS = {unit: unit.value.replace(" ", "_") for unit in ServedUnit}

Shown = dict[str, list[Decimal | None]]
"""Amounts per basis, one per line, in cents."""


def cost_answer(found: Chargeback, settings: Settings, units: Sequence[UnitCost] = ()) -> Answer:
    """A chargeback as document and tables.

    Args:
        units: what requests and tokens cost over the same period; empty where nobody counts any.
    """
    lines = [*found.rows, found.unallocated, found.stranded]
    shown: Shown = {basis: in_cents([getattr(line.cost, basis) for line in lines]) for basis in BASES}
    co2 = settings.energy.grid_kg_co2_per_kwh
    documents = [
        _line_document(line, {basis: shown[basis][number] for basis in BASES}, settings)
        for number, line in enumerate(lines)
    ]
    total = _line_document(found.total, {basis: _sum(shown[basis]) for basis in BASES}, settings)
    free = found.free_cards
    content = {
        "schema": COST_SCHEMA,
        "cluster": found.cluster,
        "since": format_time(found.since),
        "until": format_time(found.until),
        "currency": found.currency,
        "by": found.by.value,
        "rows": documents[:-2],
        "unallocated": documents[-2],
        "stranded": documents[-1],
        "total": total,
        "free_cards": {
            **document(free),
            "amortised": _cents(free.amortised),
            "marginal": _cents(free.marginal),
        },
        "units": [_unit_document(one) for one in units],
        "density_max": round(found.density_max, 6),
        "measured_kwh_ratio": found.measured_kwh_ratio,
        "prices": [
            {
                "price_per_card_hour": _float(price.amortised),
                "marginal_per_card_hour": _float(price.marginal),
                "basis": price.basis.value if price.basis is not None else None,
                "contract": price.contract or None,
                "source": price.source or None,
                "card_hours": hours,
            }
            for price, hours in found.prices
        ],
    }
    return Answer(
        document=content,
        listings=(
            _listing(found, documents, total, has_co2=co2 is not None),
            *((_unit_listing(units, found.currency),) if units else ()),
        ),
        headline=(
            (
                f"Cost of cluster {found.cluster} from {format_time(found.since)} to {format_time(found.until)} "
                f"in {found.currency}, by {found.by.value}"
            ),
        ),
        footnotes=_footnotes(found),
    )


def _unit_document(one: UnitCost) -> dict[str, Any]:
    return {
        "workload": one.workload,
        "unit": one.unit,
        "count": one.count,
        "cost_allocation": _cents(one.cost),
        "per_million": None if one.per_million is None else float(one.per_million),
        "is_partly_priced": one.is_partly_priced,
        "fault": one.fault,
    }


def _unit_listing(units: Sequence[UnitCost], currency: str) -> Listing:
    columns = ("workload", "unit", "count", "cost_allocation", "per_million", "is_partly_priced", "fault")
    return Listing(
        title=f"Unit cost in {currency}",
        columns=columns,
        rows=[[_unit_document(one)[column] for column in columns] for one in units],
    )


def budget_answer(statuses: Sequence[BudgetStatus], currency: str, month: str) -> Answer:
    """Budgets as document and table."""
    listing = Listing.of(
        f"Budgets of {month} in {currency}",
        statuses,
        {
            "kind": lambda item: item.kind,
            "name": lambda item: item.name,
            "per_month": lambda item: _cents(item.per_month),
            "spent": lambda item: _cents(item.spent),
            "forecast": lambda item: _cents(item.forecast),
            "unpriced_card_hours": lambda item: round(item.unpriced_card_hours, 2),
            "state": lambda item: item.state.value,
        },
    )
    return Answer(
        document=[{**record, "currency": currency, "month": month} for record in listing.records()],
        listings=(listing,),
        footnotes=(
            *(
                f"{item.kind} {item.name} held no card this month: is the name right?"
                for item in statuses
                if item.spent == 0
            ),
            "the forecast goes on at the mean of the last seven days of the month so far",
        ),
    )


def _line_document(line: Charge, cost: dict[str, Decimal | None], settings: Settings) -> dict[str, Any]:
    pue, grid = settings.energy.pue, settings.energy.grid_kg_co2_per_kwh
    kwh = None if line.kwh is None else line.kwh * pue
    return {
        "name": line.name,
        "card_hours": round(line.card_hours, 6),
        **{f"cost_{basis}": _float(cost[basis]) for basis in BASES},
        "measures": {
            measure.value: {"card_hours": round(hours.card_hours, 6), "cost": cost}
            for (measure, hours), cost in zip(
                line.measures.items(), map(_float, in_cents([one.cost for one in line.measures.values()])), strict=True
            )
        },
        "unallocated": _rest(line.unallocated),
        "stranded": _rest(line.stranded),
        "unpriced_card_hours": round(line.unpriced_card_hours, 6),
        "unmeasured_card_hours": round(line.unmeasured_card_hours, 6),
        "kwh": None if kwh is None else round(kwh, 3),
        "kg_co2": None if kwh is None or grid is None else round(kwh * grid, 3),
        "unknown_kwh_card_hours": round(line.unknown_kwh_card_hours, 6),
        **_served_document(line.served),
    }


def _served_document(served: Mapping[ServedUnit, Served]) -> dict[str, int | float | None]:
    """`requests`, `per_million_requests` and so on of every unit; None where no server reports it."""
    found: dict[str, int | float | None] = {}
    for unit, key in _SERVED_KEYS.items():
        one = served.get(unit)
        per_million = None if one is None else one.per_million
        found[key] = None if one is None else round(one.count)
        found[f"per_million_{key}"] = None if per_million is None else float(per_million.quantize(_MILLIONTH))
    return found


def _listing(found: Chargeback, lines: list[dict[str, Any]], total: dict[str, Any], *, has_co2: bool) -> Listing:
    shown = ("idle", "idle_held", "unused")
    columns = ["name", "card_hours", "cost_allocation", "cost_use", "cost_blended", *shown]
    if any(row.unallocated is not None for row in found.rows):
        columns += ["unallocated", "stranded"]
    if total["unpriced_card_hours"]:
        columns.append("unpriced_card_hours")
    if total["kwh"] is not None:
        columns += ["kwh", "kg_co2"] if has_co2 else ["kwh"]
    for key in _SERVED_KEYS.values():
        if total[key] is not None:
            columns += [key, f"per_million_{key}"]
    names = [*(line["name"] for line in lines[:-2]), "(unallocated)", "(stranded)", "(total)"]
    rows = [
        [
            name,
            *(line["measures"][column]["cost"] if column in shown else _flat(line[column]) for column in columns[1:]),
        ]
        for name, line in zip(names, [*lines, total], strict=True)
    ]
    headings = tuple(found.by.value if column == "name" else column for column in columns)
    return Listing(title=f"Cost by {found.by.value}", columns=headings, rows=rows)


def _footnotes(found: Chargeback) -> tuple[str, ...]:
    free, notes = found.free_cards, []
    if free.card_hours:
        notes.append(
            f"free cards: {free.card_hours:,} card hours in which nobody held any slice: "
            f"{_words(found, free.amortised)} amortised; giving them back saves {_marginal_words(found)}"
        )
    if found.total.unpriced_card_hours:
        notes.append(
            f"value of {found.total.unpriced_card_hours:,.0f} card hours unknown, and in no amount: "
            f"{no_price_words(found.unpriced_models)}"
        )
    if found.total.unmeasured_card_hours:
        notes.append(
            f"{found.total.unmeasured_card_hours:,.1f} granted card hours were not measured: by use they count as "
            "granted"
        )
    if found.density_max > 1.000001:
        notes.append(f"up to {found.density_max:.2f} of a card was granted at once: such grants were scaled down to it")
    if found.total.kwh is not None and found.measured_kwh_ratio is not None:
        notes.append(_energy_words(found.total, found.measured_kwh_ratio))
    notes.append("method: docs/money.md; prices: gputide cost prices list")
    return tuple(notes)


def _marginal_words(found: Chargeback) -> str:
    free = found.free_cards
    if free.marginal is None:
        return "an unknown amount at once: set prices.power_per_kwh, or the basis of your prices (docs/money.md)"
    unknown = free.unknown_marginal_card_hours
    more = f"; for {unknown:,} of the card hours that is not known (docs/money.md)" if unknown else ""
    return f"{_words(found, free.marginal)} at once (marginal){more}"


def _energy_words(total: Charge, measured_ratio: float) -> str:
    words = f"electricity: {measured_ratio:.0%} as cards report it"
    if measured_ratio < 0.9995:
        words += ", the rest estimated from use"
    if total.unknown_kwh_card_hours >= 0.5:
        unknown = f"{total.unknown_kwh_card_hours:,.0f} card hours"
        words += f"; unknown for {unknown} (energy.idle_watts_ratio lets it be estimated)"
    return words


def _rest(part: Amounts | None) -> dict[str, float | None] | None:
    return None if part is None else {basis: _cents(getattr(part, basis)) for basis in BASES}


def _flat(value: Any) -> Any:
    """A cell: of the unallocated and stranded parts of a node those by allocation."""
    return value["allocation"] if isinstance(value, dict) else value


def _sum(amounts: list[Decimal | None]) -> Decimal | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if known else None


def _words(found: Chargeback, amount: Decimal | None) -> str:
    if amount is None:
        return "unknown (no price)"
    return format_money(Money(amount=amount, currency=found.currency), digits=2)


def _cents(amount: Decimal | None) -> float | None:
    return _float(in_cents([amount])[0])


def _float(amount: Decimal | None) -> float | None:
    return None if amount is None else float(amount)
