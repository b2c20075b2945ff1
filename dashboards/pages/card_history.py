"""A card over time: who held it, and how busy, full, warm and hungry it was meanwhile, on one axis."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboards.address import RANGES, Address
from dashboards.figures.card_history import card_history_figure
from dashboards.pages.frame import card, div, figure_number, graph, missing, page, scrolled, table
from dashboards.queries import Views
from dashboards.view_models.card_history import CardHistory, Series
from dashboards.view_models.rows import moment_words, percent_words
from dashboards.words.reading import say
from fleet.profiles import CardProfile, Profiles
from fleet.units import GIB, format_bytes_short

KEYS = ("cluster", "range", "card")
"""Values of the address that build the page anew."""
HELD_MAX = 100
"""Rows of the table of who held it, the newest first."""


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The page for the card that the address names."""
    wanted = address.get("card") or ""
    found = next((one for one in profiles.cards if one.card == wanted), None)
    history = None if found is None else views.fleet.card_history(profiles.cluster, wanted, RANGES[address.time_range])
    if found is None or history is None:
        why = say("fleet.no_card_cluster", cluster=profiles.cluster) if found is None else say("card.held_by_others")
        return missing(say("fleet.no_such_card"), f"{wanted} {why}".strip(), "gputide workloads")
    back = dcc.Link(say("card.on_the_fleet_page"), href=address.href("/") + _and(address, wanted))
    title = say("card.over_time")
    return page(
        "card-history",
        say("page.card"),
        html.P([html.Code(found.card, className="uuid"), " ", found.card_model, " · ", found.node, " · ", back]),
        _headline(found, history),
        card(
            title,
            graph(card_history_figure(history), name=title, id="card-history"),
            note=say("card.hours_means"),
            export="card-over-time",
            has_figure=True,
        ),
        card(say("card.who_held_it"), _held(address, history), export="card-holders"),
    )


def _and(address: Address, wanted: str) -> str:
    joint = "&" if "?" in address.href("/") else "?"
    return f"{joint}card={wanted}"


def _headline(found: CardProfile, history: CardHistory) -> Any:
    """What was measured of it."""
    used, hottest, most = (
        _largest(series)
        for series in (history.framebuffer_used_bytes, history.temperature_celsius, history.power_watts)
    )
    size = format_bytes_short(found.framebuffer_bytes)
    numbers = [figure_number(percent_words(_mean(history.compute), 0), say("card.mean_compute"))]
    if used is not None:
        numbers.append(figure_number(f"{used / GIB:,.1f} GiB", say("card.most_framebuffer", size=size)))
    if hottest is not None:
        numbers.append(figure_number(f"{hottest:,.0f} °C", say("card.warmest_hour")))
    if most is not None:
        numbers.append(figure_number(f"{most:,.0f} W", say("card.hungriest_hour")))
    return div("headline", *numbers)


def _held(address: Address, history: CardHistory) -> Any:
    if not history.held:
        return html.P(say("card.nobody_held_it"), className="soft")
    rows = [
        (
            dcc.Link(one.workload, href=address.href("/workloads", w=one.workload)),
            html.Code(one.pod),
            moment_words(one.since),
            moment_words(one.until),
        )
        for one in sorted(history.held, key=lambda one: one.since, reverse=True)[:HELD_MAX]
    ]
    columns = ((say("term.workload"), "t"), (say("card.pod"), "t"), (say("card.since"), "t"), (say("card.until"), "t"))
    return scrolled(table(columns, rows), name=say("card.who_held_it"))


def _largest(series: Series) -> float | None:
    return max((value for value in series if value is not None), default=None)


def _mean(series: Series) -> float | None:
    seen = [value for value in series if value is not None]
    return sum(seen) / len(seen) if seen else None
