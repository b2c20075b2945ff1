"""Tenants: what each team was granted over the last seven days, what became of it, and what that cost.

Also quotas and budgets: who uses less than its quota, and whose month costs more than it may.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from dash import dcc, html

from dashboards.address import Address
from dashboards.long_list import FROM_KEY
from dashboards.long_list import part_of as part_of_list
from dashboards.pages.frame import card, div, figure_number, missing, page, scrolled, span, spoken, table
from dashboards.pages.measures import cells_of, cost_words, hours_words, known_week, measures_card
from dashboards.queries import Views
from dashboards.view_models.made_once import MADE
from dashboards.view_models.quotas import QuotaUse, quota_uses
from dashboards.view_models.rows import money_words
from dashboards.view_models.tenants import Tenant, tenants
from dashboards.words.reading import reader_words, say, say_code
from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.inventory import Quota
from fleet.money.budgets import BudgetState, BudgetStatus
from fleet.money.charges import in_cents
from fleet.money.week_hours import IDLE, WeekHours, added, part_of
from fleet.profiles import HourMeasure, Profiles
from fleet.units import format_count

KEYS = ("cluster", FROM_KEY)
"""Values of the address that build the page anew."""


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The page for one cluster."""
    week = known_week(views, profiles.cluster)
    found = () if isinstance(week, str) else MADE.of((profiles, week), "tenants", lambda: tenants(profiles, week))
    if not profiles.workloads and not found:
        why = say("tenants.nobody_holds_card_place", place=profiles.cluster)
        return missing(say("tenants.no_teams"), why, "gputide workloads")
    if isinstance(week, str):
        hours = [measures_card(week)]
    else:
        title, note = say("tenants.card_hours_week_by_team"), say("tenants.bar_granted_card_hours")
        hours = [_headline(found, week), card(title, _table(found, week, address), note=note, export="teams")]
    held = quotas(views.money.quotas(profiles.cluster), found, address)
    return page("tenants", say("page.tenants"), *hours, held, budgets_of(views, profiles.cluster))


def _headline(found: tuple[Tenant, ...], week: WeekHours) -> Any:
    granted = sum(team.granted.card_hours for team in found)
    idle = added(team.idle for team in found)
    idle_ratio = _percent(idle.card_hours / granted if granted else 0.0)
    idle_hours = say("count.card_hours", count=round(idle.card_hours))
    most = None
    if found and found[0].idle.card_hours:
        first = found[0].idle
        what = say("tenants.holds_most_idle_card_hours" if first.cost is None else "tenants.holds_most")
        money = money_words(first.cost, week.currency)
        note = say("tenants.card_hours_money", count=round(first.card_hours), money=money)
        most = figure_number(found[0].name, what, note=note)
    return div(
        "headline",
        figure_number(format_count(len(found)), say("tenants.teams_counted")),
        figure_number(format_count(round(granted)), say("tenants.card_hours_granted_week")),
        figure_number(idle_ratio, say("tenants.of_them_idle"), note=idle_hours),
        figure_number(money_words(idle.cost, week.currency), say("tenants.cost_idle_week")),
        most,
    )


def _table(found: tuple[Tenant, ...], week: WeekHours, address: Address) -> Any:
    """One row per team, what nobody was granted, and the total, which is the fleet page's."""
    most = max((team.granted.card_hours for team in found), default=0.0)
    shown, around = part_of_list(found, address)
    every = [part_of(measures, HourMeasure) for measures in (*(team.measures for team in found), week.rest)]
    costs = in_cents([one.cost for one in every])
    cost_of = {team.name: cost for team, cost in zip(found, costs[:-1], strict=True)}
    rows: list[tuple[Any, ...]] = [
        (
            dcc.Link(team.name, href=address.href("/workloads", team=team.name)),
            format_count(team.workloads),
            _bar(team, most),
            *cells_of(team.measures),
            hours_words(team.granted.card_hours),
            cost_words(cost_of[team.name]),
            money_words(team.idle.cost, week.currency),
            f"▲ {team.distrusted}" if team.distrusted else "",
        )
        for team in shown
    ]
    known = [cost for cost in costs if cost is not None]
    total = cost_words(sum(known, Decimal(0)) if known else None)
    rest_hours, all_hours = every[-1].card_hours, sum(one.card_hours for one in every)
    nobody = say("fleet.granted_to_nobody")
    rest = (nobody, "", "", *cells_of(week.rest), hours_words(rest_hours), cost_words(costs[-1]))
    rows += [] if not week.rest else [
        (*rest, "", ""),
        tuple(map(html.B, (
            say("measure.total"), "", "", *cells_of(week.total), hours_words(all_hours), total,
            money_words(part_of(week.total, IDLE).cost, week.currency), "",
        ))),
    ]  # fmt: skip
    columns = (
        (say("term.team"), "t"), (say("health.workloads"), "n"), (say("tenants.used_idle"), "t"),
        *((say_code("hour_measure", measure), "n") for measure in HourMeasure),
        (say("measure.card_hours"), "n"), (week.currency, "n"), (say("tenants.cost_of_idle"), "n"),
        (say("state.untrusted"), "n"),
    )  # fmt: skip
    return scrolled(table(columns, rows), around, name=say("tenants.card_hours_week_by_team"), class_name="teams")


def _bar(team: Tenant, most: float) -> Any:
    """A bar as long as the team's card hours, filled by what was used and what was idle."""
    granted, idle = team.granted.card_hours, team.idle.card_hours
    used = team.measures[HourMeasure.USED].card_hours
    told = {"granted": hours_words(granted), "used": hours_words(used), "idle": hours_words(idle)}
    words = say("tenants.granted_used_idle", **told)
    segments = [
        span(f"part {name}", style={"width": f"{100 * value / granted:.2f}%"})
        for name, value in (("used", used), ("idle", idle))
        if granted and value > 0
    ]
    width = f"{100 * granted / most:.2f}%" if most else "0"
    return span("bullet-bar", *segments, style={"width": width}, title=words, role="img", **spoken(words))


QUOTAS_MAX = 500
_ABSENT = "–"


def quotas(found: Sequence[Quota], tenants: Sequence[Tenant], address: Address) -> Any:
    """Quotas and queues, those with most unused cards first; None where nothing reports any."""
    if not found:
        return None
    uses = quota_uses(found, tenants)
    rest = len(uses) - QUOTAS_MAX
    columns = (
        (say("term.team"), "t"), (say("tenants.quota_of"), "t"), (say("tenants.resource"), "t"),
        (say("tenants.quota"), "n"), (say("tenants.granted"), "n"),
        (say("tenants.in_use"), "n"), (say("tenants.left"), "n"), (say("tenants.used_of_it"), "n"),
    )  # fmt: skip
    note = say("tenants.count_use_less_than_their_quota", count=sum(use.is_underused for use in uses))
    title, rows = say("tenants.quotas"), table(columns, [_quota_row(use, address) for use in uses[:QUOTAS_MAX]])
    more = html.P(say("health.count_more", count=rest), className="soft") if rest > 0 else None
    return card(title, scrolled(rows, more, name=title, class_name="quotas"), note=note, export="quotas")


def budgets_of(views: Views, cluster: str) -> Any:
    """Budgets of a cluster, or why they can't be told; None where there is none."""
    try:
        return budgets(views.money.budgets(cluster), views.money.currency)
    except (Misconfigured, Unavailable, Corrupt) as exc:
        return card(say("tenants.budgets_month"), html.P(str(exc), className="soft"))


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
        (say("term.team"), "t"), (say("tenants.month"), "n"), (say("tenants.spent"), "n"),
        (say("tenants.of_it"), "n"), (say("tenants.months_end"), "n"), (say("tenants.state"), "t"),
    )  # fmt: skip
    title = say("tenants.budgets_month")
    return card(title, scrolled(table(columns, rows), name=title), export="budgets")


def _quota_row(use: QuotaUse, address: Address) -> tuple[Any, ...]:
    who: Any = use.namespace or say("tenants.the_cluster")
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
        BudgetState.OK: say("tenants.within_budget"),
        BudgetState.FORECAST_OVER: say("tenants.foretold_be_exceeded"),
        BudgetState.OVER: say("tenants.exceeded"),
        BudgetState.UNKNOWN: say("tenants.no_price"),
    }[state]


def _amount(value: float | None) -> str:
    """Grouped by thousands, with one digit where it has any; an en dash where it is absent."""
    if value is None:
        return _ABSENT
    return f"{value:,.1f}".removesuffix(".0")


def _percent(ratio: float) -> str:
    return reader_words().percent(ratio, 0)
