"""All clusters: which send and which are silent since when, how many cards they have, what their newest plans bring."""

from __future__ import annotations

from typing import Any

from dash import Dash, dcc, html

from dashboards.address import Address
from dashboards.long_list import FROM_KEY, part_of
from dashboards.pages.frame import card, figure_number, heading, scrolled, table
from dashboards.queries import Views
from dashboards.shown.clusters import ClusterLine, FleetTotals, cluster_lines, fleet_totals
from dashboards.shown.rows import age_words, moment_words, money_words
from dashboards.words.pages import say
from fleet.profiles import Profiles
from fleet.units import format_count

KEYS = ("cluster", FROM_KEY)
"""Values of the address that build the page anew."""


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The page; the cluster of the address is only the one that the other pages go on with."""
    lines = cluster_lines(views)
    totals = fleet_totals(lines)
    return html.Div(
        [
            heading(say("Clusters")),
            _headline(totals),
            card(
                say("Clusters"), _table(address, lines, profiles.cluster), export="clusters",
                note=say("a silent cluster keeps its last figures, and is in no sum"),
            ),
        ],
        className="page clusters",
    )  # fmt: skip


def register(app: Dash, views: Views) -> None:
    """The page has no callbacks of its own: its links carry all of its state."""
    del app, views


def _headline(totals: FleetTotals) -> Any:
    saved = ", ".join(money_words(amount, currency) for currency, amount in totals.saving_per_week)
    return html.Div(
        [
            figure_number(format_count(totals.clusters - totals.silent), say("clusters send")),
            figure_number(
                format_count(totals.silent), say("clusters are silent"), tone="warn" if totals.silent else ""
            ),
            figure_number(format_count(totals.cards), say("cards"), note=say("of clusters that send")),
            figure_number(format_count(totals.cards_freed), say("cards freed"), note=say("by the newest plans")),
            figure_number(saved or "–", say("saved a week"), note=say("by the newest plans")),
        ],
        className="headline",
    )


def _table(address: Address, lines: tuple[ClusterLine, ...], shown: str) -> Any:
    if not lines:
        return html.P(say("There is no cluster that you may see as a whole."), className="soft")
    listed, around = part_of(lines, address)
    columns = (
        (say("cluster"), "t"), (say("state"), "t"), (say("cards"), "n"), (say("cards freed"), "n"),
        (say("a week"), "n"), (say("stages applied"), "n"),
    )  # fmt: skip
    rows = [_row(address, line, shown) for line in listed]
    return scrolled(table(columns, rows), around, name=say("Clusters"))


def _row(address: Address, line: ClusterLine, shown: str) -> tuple[Any, ...]:
    sighting = line.sighting
    since = sighting.silent_since
    state = (
        html.Span(["● ", say("sends"), html.Small(say("{age} old", age=age_words(sighting.age_seconds)))])
        if since is None
        else html.Span(["▲ ", say("silent since {moment}", moment=moment_words(since))], className="warn")
    )
    name = dcc.Link(sighting.cluster, href=address.href("/", cluster=sighting.cluster))
    return (
        html.B(name) if sighting.cluster == shown else name,
        state,
        format_count(sighting.cards),
        "–" if line.cards_freed is None else format_count(line.cards_freed),
        "–" if line.currency is None else money_words(line.saving_per_week, line.currency),
        say("{done} of {all}", done=line.applied_stages, all=line.stages) if line.stages else "–",
    )
