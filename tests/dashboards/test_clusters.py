"""Many clusters in one table: who is silent is first and in no sum, and nobody sees a cluster that is not theirs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from functools import cache

from dash import html
from dash.development.base_component import Component

from dashboards.access.people import Person, Right, Role
from dashboards.access.scoped import scoped_views
from dashboards.address import read_address
from dashboards.pages import clusters as page_clusters
from dashboards.queries import PlanEntry, Views
from dashboards.view_models.cluster_sighting import ClusterSighting
from dashboards.view_models.clusters import cluster_lines, fleet_totals
from tests.dashboards.embedded import CLUSTER, NOW, EmbeddedFleet, EmbeddedSightings, make_views


def sighting(cluster: str, silent: timedelta, cards: int) -> ClusterSighting:
    return ClusterSighting(cluster=cluster, newest_at=NOW - silent, cards=cards, silent_after_seconds=3600.0, now=NOW)


class ManyClusters(EmbeddedFleet):
    """One fleet under several names."""

    def clusters(self) -> tuple[str, ...]:
        return (CLUSTER, "lonely", "west")


class PlansOfOne:
    """The plans of one cluster; of the others there are none."""

    def __init__(self, entries: tuple[PlanEntry, ...]) -> None:
        self._entries = entries

    def plans(self, cluster: str) -> tuple[PlanEntry, ...]:
        return self._entries if cluster == CLUSTER else ()


@cache
def many() -> Views:
    """Three clusters, one of them silent; no test changes them."""
    views = make_views()[0]
    return replace(
        views,
        fleet=ManyClusters(views.fleet.profiles(CLUSTER)),
        plans=PlansOfOne(views.plans.plans(CLUSTER)),  # type: ignore[arg-type]
        sightings=EmbeddedSightings(
            (
                sighting(CLUSTER, timedelta(seconds=40), 100),
                sighting("lonely", timedelta(minutes=59), 7),
                sighting("west", timedelta(days=3), 5000),
            )
        ),
    )


def test_silent_cluster_stands_first_with_its_last_cards_and_is_in_no_sum() -> None:
    lines = cluster_lines(many())
    assert [(line.sighting.cluster, line.sighting.silent_since is None) for line in lines] == [
        ("west", False), (CLUSTER, True), ("lonely", True),
    ]  # fmt: skip
    assert lines[0].sighting.silent_since == NOW - timedelta(days=3)
    assert lines[0].sighting.cards == 5000
    totals = fleet_totals(lines)
    newest = many().plans.plans(CLUSTER)[0].plan
    assert (totals.clusters, totals.silent, totals.cards) == (3, 1, 107)
    assert totals.cards_freed == newest.totals.cards_freed
    assert totals.saving_per_week == ((newest.currency, newest.totals.saving_per_week.amortised),)


def test_sums_of_two_currencies_are_never_mixed() -> None:
    line = cluster_lines(many())[1]
    other = replace(line, currency="EUR", saving_per_week=Decimal(10))
    assert dict(fleet_totals([line, other, other]).saving_per_week) == {
        str(line.currency): line.saving_per_week, "EUR": Decimal(20),
    }  # fmt: skip


def test_page_says_since_when_a_cluster_is_silent() -> None:
    views = many()
    page = page_clusters.layout(views, read_address("/clusters", ""), views.fleet.profiles(CLUSTER))
    said = " ".join(texts(page))
    assert f"silent since {NOW - timedelta(days=3):%Y-%m-%d %H:%M} UTC" in said
    assert said.index("west") < said.index("lonely")


def texts(part: object) -> list[str]:
    """All text of a page, in its order."""
    if isinstance(part, str):
        return [part]
    if isinstance(part, (list, tuple)):
        return [text for one in part for text in texts(one)]
    return texts(part.children) if isinstance(part, Component) and hasattr(part, "children") else []


def test_somebody_who_may_see_one_namespace_learns_nothing_of_the_size_of_a_cluster() -> None:
    tenant = Person(name="ann", rights=(Right(role=Role.VIEWER, clusters=None, namespaces=frozenset({"team"})),))
    of_west = Person(name="bob", rights=(Right(role=Role.VIEWER, clusters=frozenset({"west"}), namespaces=None),))
    views = many()
    assert cluster_lines(scoped_views(views, lambda: tenant)) == ()
    assert [line.sighting.cluster for line in cluster_lines(scoped_views(views, lambda: of_west))] == ["west"]
    assert isinstance(
        page_clusters.layout(
            scoped_views(views, lambda: tenant), read_address("/clusters", ""), views.fleet.profiles(CLUSTER)
        ),
        html.Div,
    )
