"""A card over time says what its files say: means of hours, and who held it."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from dashboards.address import read_address
from dashboards.pages import card_history as card_page
from dashboards.queries import Views
from fleet.errors import NotEnoughData
from fleet.settings.settings import Settings
from gputide.container.pages import views_of
from gputide.session import Session
from tests.gputide.test_card_hours import text


@pytest.fixture(scope="module")
def data(_replayed: Path) -> Path:
    """Return the folder of a replayed fleet."""
    return _replayed


@pytest.fixture(scope="module")
def views(data: Path) -> Views:
    """Return the ports of the pages over it."""
    return views_of(Session(data_path=data, settings=Settings(), now_override=None, is_quiet=True))


def busiest(views: Views, cluster: str) -> str:
    shared = [card for card in views.fleet.profiles(cluster).cards if len(card.workloads) > 1]
    return max(shared, key=lambda card: card.compute_p95 or 0.0).card


def test_hours_are_those_of_the_files(views: Views, data: Path) -> None:
    (cluster,) = views.fleet.clusters()
    card = busiest(views, cluster)
    found = views.fleet.card_history(cluster, card, 48)
    assert found is not None
    files = str(data / "warehouse" / "card_usage" / "**" / "*.parquet")
    answer = duckdb.sql(
        "SELECT window_start, sum(sm_active_ratio_sum) / sum(sm_active_ratio_count) / 1e6 AS mean "
        f"FROM read_parquet('{files}', union_by_name => true) "
        f"WHERE card = '{card}' AND window_seconds = 3600 AND sm_active_ratio_count > 0 GROUP BY window_start"
    )
    assert answer is not None
    means = dict(answer.fetchall())
    shown = {int(moment.timestamp() * 1000): value for moment, value in zip(found.times, found.compute, strict=True)}
    known = {moment: value for moment, value in shown.items() if value is not None}
    assert len(known) > 24
    assert known == pytest.approx({moment: means[moment] for moment in known})


def test_who_held_it_is_who_was_granted_it_then(views: Views) -> None:
    (cluster,) = views.fleet.clusters()
    card = busiest(views, cluster)
    found = views.fleet.card_history(cluster, card, None)
    assert found is not None
    profile = next(one for one in views.fleet.profiles(cluster).cards if one.card == card)
    assert {one.workload for one in found.held if one.until == max(held.until for held in found.held)} == set(
        profile.workloads
    )
    assert all(found.times[0] <= one.since < one.until for one in found.held)


def test_page_shows_it_and_a_card_that_is_not_there_is_said(views: Views) -> None:
    (cluster,) = views.fleet.clusters()
    profiles = views.fleet.profiles(cluster)
    card = busiest(views, cluster)
    page = text(card_page.layout(views, read_address("/card", f"?card={card}&range=all"), profiles))
    assert card in page
    assert all(name in page for name in next(one for one in profiles.cards if one.card == card).workloads)
    hostile = "x' OR 1=1 --"
    assert "1=1" in text(card_page.layout(views, read_address("/card", f"?card={hostile}"), profiles))
    assert views.fleet.card_history(cluster, hostile, 24) is None
    with pytest.raises(NotEnoughData):
        views.fleet.card_history("mars", card, 24)
