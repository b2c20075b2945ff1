"""Cost: where card hours and money went, day by day; cut to a span, grouped, and cut again by a click on a row.

Everything that is chosen stands in the address. Amounts are those of `gputide cost show`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import MAXYEAR, UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from dashboards.address import Address, read_address
from dashboards.figures.cost_days import cost_days_figure
from dashboards.long_list import FROM_KEY
from dashboards.long_list import part_of as part_of_list
from dashboards.pages.frame import card, div, figure_number, graph, missing, page, scrolled, table
from dashboards.pages.measures import cells_of, cost_words, hours_words
from dashboards.queries import Views
from dashboards.view_models.rows import money_words, percent_words
from dashboards.words.reading import reader_words, say, say_code
from fleet.money.charges import Owner, in_cents
from fleet.money.cost_days import GROUPS, CostDays
from fleet.money.week_hours import NOT_USED, WASTED, Measures, part_of
from fleet.profiles import HourMeasure, Profiles
from fleet.units import format_count

BY_KEY, SINCE_KEY, UNTIL_KEY = "by", "since", "until"
KEYS = ("cluster", "range", BY_KEY, SINCE_KEY, UNTIL_KEY, *(owner.value for owner in GROUPS), FROM_KEY)
"""Values of the address that build the page anew."""
DAYS = {"7d": 7, "28d": 28, "all": 91}
"""Days shown by time range; the day in progress is one of them."""
_BELOW = {
    Owner.TEAM: Owner.WORKLOAD,
    Owner.NAMESPACE: Owner.WORKLOAD,
    Owner.MODEL: Owner.NODE,
    Owner.NODE: Owner.WORKLOAD,
    Owner.WORKLOAD: Owner.NODE,
}
"""By what is grouped next, once a row of this grouping was chosen."""
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
HOURLY_DAYS_MAX = 7
"""Spans up to this are drawn by the hour, where hours are known."""


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The page for one cluster."""
    name = address.time_range if address.time_range in DAYS else "7d"
    found = views.money.cost_days(profiles.cluster, is_quarter=name == "all")
    if found is None or not found.starts:
        return missing(say("cost.nothing_known"), say("measure.no_card_known_week"), "gputide cost show")
    chosen = {owner: value for owner in GROUPS if (value := address.get(owner.value)) is not None}
    since, until = _span(address, found, DAYS[name])
    days = found.between(since, until).of(chosen)
    by = _grouping(address, chosen)
    title = say("cost.card_hours_by_day")
    has_hours = len(days.hourly) > 0 and len(days.starts) <= HOURLY_DAYS_MAX
    figure = cost_days_figure(days, is_hourly=has_hours)
    is_cut = address.get(SINCE_KEY) is not None
    return page(
        "cost",
        say("page.cost"),
        _chosen(address, chosen),
        _headline(days, found),
        card(
            title,
            graph(figure, name=title, id="cost-days"),
            note=dcc.Link(say("cost.whole_range"), href=address.href(since=None, until=None)) if is_cut else say(
                "cost.drag_to_cut"
            ),
            export="card-hours-by-day",
            has_figure=True,
        ),
        card(
            say("cost.by_group"),
            _groupings(address, chosen, by),
            _table(days, by, address),
            note=_note(),
            export=f"cost-by-{by.value}",
        ),
    )  # fmt: skip


def register(app: Dash) -> None:
    """A span that is dragged over the figure goes into the address."""

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input("cost-days", "relayoutData"),
        State("address", "pathname"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def _cut(changed: Mapping[str, Any] | None, path: str, search: str) -> Any:
        address = read_address(path, search)
        ends = [str((changed or {}).get(f"xaxis.range[{end}]", ""))[:10] for end in (0, 1)]
        if not all(_DATE.fullmatch(end) for end in ends):
            return no_update
        return address.href(since=ends[0], until=ends[1]).removeprefix(address.path)


def _span(address: Address, found: CostDays, days: int) -> tuple[datetime, datetime]:
    """From the start of a day to the end of one: the cut of the address, else the last days of the range."""
    last = found.until - timedelta(microseconds=1)
    today = last.replace(hour=0, minute=0, second=0, microsecond=0)
    since, until = (_day(address.get(key)) for key in (SINCE_KEY, UNTIL_KEY))
    if since is not None and until is not None and since <= until:
        return since, until + timedelta(days=1)
    return today - timedelta(days=days - 1), found.until


def _day(text: str | None) -> datetime | None:
    if text is None or not _DATE.fullmatch(text):
        return None
    try:
        found = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None
    return found if found.year < MAXYEAR else None


def _grouping(address: Address, chosen: Mapping[Owner, str]) -> Owner:
    """As the address says; else below what was chosen last, else by team."""
    asked = address.get(BY_KEY)
    if asked in GROUPS:
        return Owner(asked)
    return _BELOW[list(chosen)[-1]] if chosen else Owner.TEAM


def _chosen(address: Address, chosen: Mapping[Owner, str]) -> Any:
    """What the page is cut to, each with a way out of it."""
    if not chosen:
        return None
    parts = [
        dcc.Link(
            [f"{say_code('owner', owner)} ", html.B(value or say("fleet.granted_to_nobody")), " ×"],
            href=address.href(**{owner.value: None, FROM_KEY: None}),
            className="chip",
            title=say("fleet.clear"),
        )
        for owner, value in chosen.items()
    ]
    return div("chosen", *parts)


def _headline(days: CostDays, found: CostDays) -> Any:
    total = days.total()
    whole, unused, wasted = (part_of(total, measures) for measures in (HourMeasure, NOT_USED, WASTED))
    words, hours = reader_words(), round(days.unpriced_card_hours)
    unpriced = say("cost.without_price", count=hours) if hours else ""
    span = say("cost.no_day")
    if days.starts:
        last = words.day(days.until - timedelta(microseconds=1), has_year=True)
        span = say("cost.since_until", since=words.day(days.starts[0]), until=last)
    return div(
        "headline",
        figure_number(money_words(whole.cost, found.currency), say("cost.all_of_it"), note=span),
        figure_number(format_count(round(whole.card_hours)), say("measure.card_hours"), note=unpriced),
        figure_number(_share(wasted.card_hours, whole.card_hours), say("cost.nobody_or_idle"),
                      note=money_words(wasted.cost, found.currency)),
        figure_number(_share(unused.card_hours, whole.card_hours), say("cost.granted_not_used"),
                      note=money_words(unused.cost, found.currency)),
    )  # fmt: skip


def _note() -> list[Any]:
    show, export = html.Code("gputide cost show"), html.Code("gputide cost export")
    return [say("cost.same_amounts_as"), " ", show, " · ", say("cost.every_row_by"), " ", export]


def _groupings(address: Address, chosen: Mapping[Owner, str], by: Owner) -> Any:
    links = [
        dcc.Link(
            say_code("owner", owner),
            href=address.href(**{BY_KEY: owner.value, FROM_KEY: None}),
            className="on" if owner is by else "",
        )
        for owner in GROUPS
        if owner not in chosen
    ]
    return div("segments by", *links)


def _table(days: CostDays, by: Owner, address: Address) -> Any:
    rows = days.grouped(by)
    shown, around = part_of_list(rows, address)
    every = [part_of(measures, HourMeasure) for _, measures in rows]
    costs = dict(zip((name for name, _ in rows), in_cents([one.cost for one in every]), strict=True))
    total = days.total()
    whole = part_of(total, HourMeasure)
    cells = [
        (_name(address, by, name), *_row(measures, whole.card_hours, costs[name])) for name, measures in shown
    ]  # fmt: skip
    known = [cost for cost in costs.values() if cost is not None]
    sum_of_costs = sum(known, Decimal(0)) if known else None
    cells.append(tuple(html.B(cell) for cell in (say("measure.total"), *_row(total, whole.card_hours, sum_of_costs))))
    columns = (
        (say_code("owner", by), "t"),
        *((say_code("hour_measure", measure), "n") for measure in HourMeasure),
        (say("measure.card_hours"), "n"), (say("measure.share"), "n"), (days.currency, "n"),
    )  # fmt: skip
    return scrolled(table(columns, cells), around, name=say("cost.by_group"), class_name="teams")


def _row(measures: Measures, all_hours: float, cost: Decimal | None) -> tuple[str, ...]:
    hours = part_of(measures, HourMeasure).card_hours
    return (*cells_of(measures), hours_words(hours), _share(hours, all_hours), cost_words(cost))


def _name(address: Address, by: Owner, name: str) -> Any:
    """A link that cuts the page to the row; what nobody was granted leads no further."""
    if not name:
        return say("fleet.granted_to_nobody")
    return dcc.Link(name, href=address.href(**{by.value: name, BY_KEY: _BELOW[by].value, FROM_KEY: None}))


def _share(part: float, whole: float) -> str:
    return percent_words(part / whole if whole else None, 1)
