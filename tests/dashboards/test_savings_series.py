"""What `gputide run export savings` shows is what the pages show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from dashboards.queries import Freshness, Views
from dashboards.view_models.savings_series import SAVINGS_FAMILIES, SavingsReader
from enforcer.record.savings import promised_cards, savings_steps
from fleet.errors import NotEnoughData
from fleet.money.saving import cards_in
from fleet.profiles import Profiles
from tests.dashboards.embedded import CLUSTER, NOW, EmbeddedFleet, EmbeddedSightings, make_past, make_plan, make_views

Shown = Mapping[str, Mapping[tuple[str, ...], float]]


@pytest.fixture(scope="module")
def views() -> Views:
    """Make the embedded fleet, which no test here changes."""
    return make_views()[0]


def shown(views: Views) -> Shown:
    """Return every series by family and labels."""
    reading = SavingsReader(views, off_peak_ratio=0.2, clock=lambda: NOW).read(1.0)
    assert reading is not None
    return {family.name: dict(zip(family.labels, family.values, strict=True)) for family in reading.families}


def test_funnel_card_hours_and_plans_are_those_of_the_pages(views: Views) -> None:
    found = shown(views)
    plans, outcomes = views.plans.plans(CLUSTER), views.outcomes.outcomes(CLUSTER)
    assert found["gputide_savings_cards"] == {
        (CLUSTER, step.name): float(step.cards) for step in savings_steps(plans, outcomes)
    }
    week = views.money.week(CLUSTER)
    assert week is not None
    for measure, hours in week.total.items():
        shown_hours = sum(
            value for labels, value in found["gputide_week_card_hours"].items() if labels[2] == measure.value
        )
        assert shown_hours == pytest.approx(hours.card_hours)
    cost = sum(found["gputide_week_card_hours_cost"].values())
    assert Decimal(str(cost)) == pytest.approx(sum((one.cost or Decimal(0) for one in week.total.values()), Decimal(0)))
    assert sum(found["gputide_cards"].values()) == len(views.fleet.profiles(CLUSTER).cards)
    states = {labels[1]: labels[2] for labels in found["gputide_plan_info"]}
    assert states[plans[0].plan.plan_id] == "waiting"
    standing = {one.plan.plan_id for one in plans if one.applied_stages}
    assert standing == {labels[1] for labels in found["gputide_plan_cards_realised"]}
    assert sum(found["gputide_plan_cards_realised"].values()) == found["gputide_savings_cards"][CLUSTER, "realised"]


def test_part_of_a_plan_is_held_against_what_that_part_was_to_free() -> None:
    views, cluster = make_views(with_past=False)
    profiles = views.fleet.profiles(CLUSTER)
    entry, outcome, ledger = list(make_past(profiles, make_plan(profiles)))[-1]
    first = next(stage for stage in entry.applied_stages if promised_cards(entry.plan, (stage,)))
    freed = promised_cards(entry.plan, (first,))
    part = replace(entry, applied_stages=(first,), once_applied_stages=(first,))
    cluster.remember(part, replace(outcome, stages=(first,), realised=freed), ledger)
    found, of_plan = shown(views), (CLUSTER, outcome.plan_id)
    assert found["gputide_plan_cards_promised"][of_plan] > cards_in(freed)
    assert found["gputide_plan_cards_expected"][of_plan] == cards_in(freed)
    assert found["gputide_plan_cards_realised"][of_plan] == cards_in(freed)


def test_services_over_budget_are_counted_as_the_verdict_counts_them() -> None:
    views, cluster = make_views(with_past=False)
    profiles = views.fleet.profiles(CLUSTER)
    entry, outcome, ledger = list(make_past(profiles, make_plan(profiles)))[-1]
    harmed = tuple(replace(one, violation_ratio=0.03) for one in outcome.workloads[:2])
    rare = replace(outcome.workloads[2], violation_ratio=1 / 21, active_steps=21)
    cluster.remember(entry, replace(outcome, workloads=(*harmed, rare)), ledger)
    assert shown(views)["gputide_plan_services_over_harm_budget"] == {(CLUSTER, outcome.plan_id): 2.0}


def test_every_family_is_catalogued_and_its_labels_fit(views: Views) -> None:
    catalogued = {family.name: family for family in SAVINGS_FAMILIES}
    found = shown(views)
    assert set(found) <= set(catalogued)
    # A cluster that sends is silent since no moment.
    assert len(found) >= len(catalogued) - 2
    for name, series in found.items():
        assert {len(labels) for labels in series} == {len(catalogued[name].label_names)}


def test_a_promise_has_a_limit_in_its_hours_alone_and_by_the_clock_of_the_workload(views: Views) -> None:
    profile = views.fleet.profiles(CLUSTER).workloads[0]
    # Monday 02:00 in Shanghai is Sunday 18:00 UTC.
    quiet = replace(profile, off_peak_hours=(2,), time_zone="Asia/Shanghai", compute=replace(profile.compute, p95=0.5))
    mine = replace(views.fleet.profiles(CLUSTER), workloads=(quiet,))
    limits = {}
    for hour in (17, 18, 19):
        at = datetime(2026, 1, 18, hour, 30, tzinfo=UTC)
        limits[hour] = shown(replace(views, fleet=_At(mine, at))).get("gputide_workload_off_peak_limit_ratio")
    name = quiet.workload.split("/", 2)[-1]
    assert limits == {17: None, 18: {(CLUSTER, quiet.namespace, name, quiet.workload_kind): 0.1}, 19: None}


def test_silent_cluster_has_its_moment_and_keeps_no_other_from_being_shown(views: Views) -> None:
    heard = views.sightings.sightings()[0]
    silent = replace(heard, cluster="west", newest_at=NOW - timedelta(days=40))
    both = replace(
        views,
        fleet=_WithSilent(views.fleet.profiles(CLUSTER)),
        sightings=EmbeddedSightings((heard, silent)),
    )
    found = shown(both)
    assert found["gputide_cluster_silent_since_timestamp_seconds"] == {
        ("west",): (NOW - timedelta(days=40)).timestamp()
    }
    assert found["gputide_warehouse_data_age_seconds"]["west",] == 40 * 86400
    assert {labels[0] for labels in found["gputide_cards"]} == {CLUSTER}


class _WithSilent(EmbeddedFleet):
    """A fleet of two clusters, of one of which no history is left."""

    def clusters(self) -> tuple[str, ...]:
        return (*super().clusters(), "west")

    def profiles(self, cluster: str) -> Profiles:
        if cluster == "west":
            raise NotEnoughData("cannot read history of cluster 'west': no sample")
        return super().profiles(cluster)


class _At(EmbeddedFleet):
    """A fleet whose clock stands at a moment."""

    def __init__(self, profiles: object, at: datetime) -> None:
        super().__init__(profiles)  # type: ignore[arg-type]
        self._at = at

    def freshness(self, cluster: str) -> Freshness:
        return replace(super().freshness(cluster), now=self._at)
