"""What a request or a token of one workload costs, on its page. Called by `pages.workloads`."""

from __future__ import annotations

from typing import Any

from dash import html

from dashboards.money.unit_costs import UnitCost
from dashboards.pages.frame import card, scrolled, table
from dashboards.queries import Views
from dashboards.words.pages import say
from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.units import format_count


def unit_cost(views: Views, cluster: str, workload: str) -> Any:
    """Its units over the last week, with what a million of them cost, or why not; None where nobody counts any."""
    try:
        found = [one for one in views.money.unit_costs(cluster) if one.workload == workload]
    except (Misconfigured, Unavailable, Corrupt) as exc:
        return card(say("Unit cost"), html.P(str(exc), className="soft"))
    if not found:
        return None
    columns = ((say("unit"), "t"), (say("last week"), "n"), (say("a million costs"), "n"))
    return card(
        say("Unit cost"),
        scrolled(table(columns, [_row(one, views.prices.currency) for one in found]), name=say("Unit cost")),
        note=say("cost by allocation over what was counted"),
    )


def _row(one: UnitCost, currency: str) -> tuple[Any, ...]:
    count = format_count(round(one.count)) if one.count is not None else html.Span("–", title=one.fault)
    price: Any = "–" if one.per_million is None else f"{one.per_million:,.4f} {currency}"
    if one.per_million is not None and one.is_partly_priced:
        price = html.Span(f"≥ {price}", title=say("some of its card hours have no price"))
    return say(one.unit), count, price
