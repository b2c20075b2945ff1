"""Tenants: who holds how much, what of it is used, and what the idle rest costs; the most wasteful team first.

The tenants page's quotas and budgets: who uses less than its quota, and whose month costs more than it may.

Called by `pages.tenants`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import Dash, dcc, html

from dashboards.address import Address
from dashboards.long_list import FROM_KEY, part_of
from dashboards.pages.frame import card, figure_number, heading, missing, scrolled, table
from dashboards.queries import Views
from dashboards.shown.made_once import MADE
from dashboards.shown.quotas import QuotaUse, quota_uses
from dashboards.shown.rows import money_words
from dashboards.shown.tenants import Tenant, tenants
from dashboards.words.pages import percent_sign, say
from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.inventory import Quota
from fleet.money.budgets import BudgetState, BudgetStatus
from fleet.profiles import Profiles
from fleet.units import format_count, format_percent

KEYS = ("cluster", FROM_KEY)
"""Values of the address that build the page anew."""


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The page for one cluster."""
    prices = views.money.prices(profiles.cluster)
    found = MADE.of((profiles, prices), "tenants", lambda: tenants(profiles, prices))
    if not found:
        return missing(
            say("No teams"), say("Nobody holds a card in {place}.", place=profiles.cluster), "gputide analyze"
        )
    currency = prices.currency
    return html.Div(
        [
            heading(say("Tenants")),
            _headline(found, currency),
            card(
                say("Teams"), _table(found, address, currency),
                note=say("bar: of the granted cards, typically in use · idle · the rest; shared cards count in parts"),
                export="teams",
            ),
            quotas(views.money.quotas(profiles.cluster), found, address),
            budgets_of(views, profiles.cluster),
        ],
        className="page tenants",
    )  # fmt: skip


def register(app: Dash, views: Views) -> None:
    """The page has no callbacks of its own: its links carry all of its state."""
    del app, views


def _headline(found: tuple[Tenant, ...], currency: str) -> Any:
    cards = sum(team.cards for team in found)
    idle = sum(team.cards_idle for team in found)
    first = found[0]
    priced = [team.idle_per_week for team in found if team.idle_per_week is not None]
    return html.Div(
        [
            figure_number(format_count(len(found)), say("teams")),
            figure_number(_cards(cards), say("cards granted")),
            figure_number(
                percent_sign(format_percent(idle / cards if cards else 0.0)),
                say("of them idle"),
                note=say("{count} cards", count=_cards(idle)),
            ),
            figure_number(
                money_words(sum(priced, start=priced[0] * 0) if priced else None, currency), say("a week idle")
            ),
            figure_number(
                first.name,
                say("holds most of that") if first.idle_per_week is not None else say("holds most idle cards"),
                note=say(
                    "{count} cards, {money} a week",
                    count=_cards(first.cards_idle),
                    money=money_words(first.idle_per_week, currency),
                ),
            )
            if first.cards_idle
            else None,
        ],
        className="headline",
    )


def _table(found: tuple[Tenant, ...], address: Address, currency: str) -> Any:
    most = max(team.cards for team in found)
    shown, around = part_of(found, address)
    rows = [
        (
            dcc.Link(team.name, href=address.href("/workloads", team=team.name)),
            format_count(team.workloads),
            _cards(team.cards),
            _bar(team, most),
            "–" if team.cards_used is None else _cards(team.cards_used),
            _cards(team.cards_idle),
            percent_sign(format_percent(team.idle_ratio)),
            money_words(team.cost_per_week, currency),
            money_words(team.idle_per_week, currency),
            f"▲ {team.distrusted}" if team.distrusted else "",
        )
        for team in shown
    ]
    columns = (
        (say("team"), "t"), (say("workloads"), "n"), (say("cards"), "n"), (say("granted, used, idle"), "t"),
        (say("in use"), "n"), (say("idle"), "n"), (say("idle share"), "n"), (say("a week"), "n"),
        (say("idle a week"), "n"), (say("untrusted"), "n"),
    )  # fmt: skip
    return scrolled(
        table(columns, rows),
        around,
        name=say("Teams"),
        class_name="teams",
    )


def _bar(team: Tenant, most: float) -> Any:
    """A bar as long as the team's cards, filled by what is in use and what is idle."""
    used = 0.0 if team.cards_used is None else team.cards_used
    words = say(
        "{granted} granted, {used} in use, {idle} idle",
        granted=_cards(team.cards), used=_cards(used), idle=_cards(team.cards_idle),
    )  # fmt: skip
    segments = [
        html.Span(className=f"part {name}", style={"width": f"{100 * value / team.cards:.2f}%"})
        for name, value in (("used", used), ("idle", min(team.cards_idle, team.cards - used)))
        if team.cards and value > 0
    ]
    width = f"{100 * team.cards / most:.2f}%"
    spoken: Any = {"aria-label": words}
    return html.Span(segments, className="bullet-bar", style={"width": width}, title=words, role="img", **spoken)


def _cards(value: float) -> str:
    """Whole where it is, else one digit."""
    return format_count(round(value)) if abs(value - round(value)) < 0.05 else f"{value:,.1f}"


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
        return budgets(views.money.budgets(cluster), views.money.currency)
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
