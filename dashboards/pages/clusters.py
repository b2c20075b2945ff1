"""All clusters: which send and which are silent since when, how many cards they have, what their newest plans bring."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboards.address import Address
from dashboards.long_list import FROM_KEY, part_of
from dashboards.pages.frame import card, div, figure_number, page, scrolled, table
from dashboards.queries import Views
from dashboards.view_models.clusters import ClusterLine, FleetTotals, cluster_lines, fleet_totals
from dashboards.view_models.rows import age_words, moment_words, money_words
from dashboards.words.reading import say
from fleet.profiles import Profiles
from fleet.units import format_count

KEYS = ("cluster", FROM_KEY)
"""Values of the address that build the page anew."""


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The page; the cluster of the address is only the one that the other pages go on with."""
    lines, title = cluster_lines(views), say("clusters.clusters")
    note = say("clusters.silent_cluster_keeps_its_last_figures")
    listed = card(title, _table(address, lines, profiles.cluster), export="clusters", note=note)
    return page("clusters", title, _headline(fleet_totals(lines)), listed)


def _headline(totals: FleetTotals) -> Any:
    saved = ", ".join(money_words(amount, currency) for currency, amount in totals.saving_per_week)
    tone, by_plans = "warn" if totals.silent else "", say("clusters.by_newest_plans")
    return div(
        "headline",
        figure_number(format_count(totals.clusters - totals.silent), say("clusters.clusters_send")),
        figure_number(format_count(totals.silent), say("clusters.clusters_silent"), tone=tone),
        figure_number(format_count(totals.cards), say("health.cards"), note=say("clusters.of_those_that_send")),
        figure_number(format_count(totals.cards_freed), say("clusters.cards_freed"), note=by_plans),
        figure_number(saved or "–", say("clusters.saved_week"), note=by_plans),
    )


def _table(address: Address, lines: tuple[ClusterLine, ...], shown: str) -> Any:
    if not lines:
        return html.P(say("clusters.no_cluster_you_may_see_as"), className="soft")
    listed, around = part_of(lines, address)
    columns = (
        (say("frame.cluster"), "t"), (say("tenants.state"), "t"), (say("health.cards"), "n"),
        (say("clusters.cards_freed"), "n"), (say("tenants.week"), "n"), (say("clusters.stages_applied"), "n"),
    )  # fmt: skip
    rows = [_row(address, line, shown) for line in listed]
    return scrolled(table(columns, rows), around, name=say("clusters.clusters"))


def _row(address: Address, line: ClusterLine, shown: str) -> tuple[Any, ...]:
    sighting = line.sighting
    since = sighting.silent_since
    state = (
        html.Span(["● ", say("clusters.sends"), html.Small(say("frame.age_old", age=age_words(sighting.age_seconds)))])
        if since is None
        else html.Span(["▲ ", say("clusters.silent_since_moment", moment=moment_words(since))], className="warn")
    )
    name = dcc.Link(sighting.cluster, href=address.href("/", cluster=sighting.cluster))
    return (
        html.B(name) if sighting.cluster == shown else name,
        state,
        format_count(sighting.cards),
        "–" if line.cards_freed is None else format_count(line.cards_freed),
        "–" if line.currency is None else money_words(line.saving_per_week, line.currency),
        say("list.done_all", done=line.applied_stages, all=line.stages) if line.stages else "–",
    )
