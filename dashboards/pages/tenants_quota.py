"""The tenants page's quotas and budgets: who uses less than its quota, and whose month costs more than it may.

Called by `pages.tenants`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from dashboards.address import Address
from dashboards.money.budgets import BudgetState, BudgetStatus
from dashboards.pages.frame import card, scrolled, table
from dashboards.queries import Views
from dashboards.shown.quotas import QuotaUse, quota_uses
from dashboards.shown.rows import money_words
from dashboards.shown.tenants import Tenant
from dashboards.words.pages import percent_sign, say
from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.inventory import Quota
from fleet.units import format_count, format_percent

QUOTAS_MAX = 500
_ABSENT = "–"


def quotas(found: Sequence[Quota], tenants: Sequence[Tenant], address: Address) -> Any:
    """Quotas and queues, those with most unused cards first; None where nothing tells of any."""
    if not found:
        return None
    uses = quota_uses(found, tenants)
    rest = len(uses) - QUOTAS_MAX
    columns = (
        (say("team"), "t"), (say("quota of"), "t"), (say("resource"), "t"), (say("quota"), "n"), (say("granted"), "n"),
        (say("in use"), "n"), (say("left"), "n"), (say("used of it"), "n"),
    )  # fmt: skip
    under = sum(use.is_underused for use in uses)
    return card(
        say("Quotas"),
        scrolled(
            table(columns, [_quota_row(use, address) for use in uses[:QUOTAS_MAX]]),
            html.P(say("and {count} more", count=format_count(rest)), className="soft") if rest > 0 else None,
            name=say("Quotas"),
            class_name="quotas",
        ),
        note=say("{count} use less than their quota; in use: cards, where a quota counts cards", count=under),
        export="quotas",
    )


def budgets_of(views: Views, cluster: str) -> Any:
    """Budgets of a cluster, or why they can't be told; None where there is none."""
    try:
        return budgets(views.money.budgets(cluster), views.prices.currency)
    except (Misconfigured, Unavailable, Corrupt) as exc:
        return card(say("Budgets of this month"), html.P(str(exc), className="soft"))


def budgets(found: Sequence[BudgetStatus], currency: str) -> Any:
    """Budgets of the month, those that are or will be exceeded first; None where there is none."""
    if not found:
        return None
    order = (BudgetState.OVER, BudgetState.FORECAST_OVER, BudgetState.OK, BudgetState.UNKNOWN)
    rows = [
        (
            status.name,
            money_words(status.per_month, currency),
            money_words(status.spent, currency),
            _ABSENT if status.spent is None else _percent(float(status.spent / status.per_month)),
            money_words(status.forecast, currency),
            html.Span(_state(status.state), className="over" if status.state in order[:2] else ""),
        )
        for status in sorted(found, key=lambda status: (order.index(status.state), status.kind, status.name))
    ]
    columns = (
        (say("team"), "t"), (say("a month"), "n"), (say("spent"), "n"), (say("of it"), "n"), (say("month's end"), "n"),
        (say("state"), "t"),
    )  # fmt: skip
    title = say("Budgets of this month")
    return card(title, scrolled(table(columns, rows), name=title), export="budgets")


def _quota_row(use: QuotaUse, address: Address) -> tuple[Any, ...]:
    who: Any = use.namespace or say("the cluster")
    if use.namespace:
        who = dcc.Link(use.namespace, href=address.href("/workloads", team=use.namespace))
    return (
        who,
        html.Span([use.name, html.Small(f" {use.kind}")]),
        use.resource,
        _amount(use.quota),
        _amount(use.granted),
        _amount(use.used),
        _amount(use.left),
        _ABSENT if use.used_ratio is None else _percent(use.used_ratio),
    )


def _state(state: BudgetState) -> str:
    return {
        BudgetState.OK: say("within budget"),
        BudgetState.FORECAST_OVER: say("foretold to be exceeded"),
        BudgetState.OVER: say("exceeded"),
        BudgetState.UNKNOWN: say("no price"),
    }[state]


def _amount(value: float | None) -> str:
    """Grouped by thousands, with one digit where it has any; an en dash where it is absent."""
    if value is None:
        return _ABSENT
    return f"{value:,.1f}".removesuffix(".0")


def _percent(ratio: float) -> str:
    return percent_sign(format_percent(ratio))
