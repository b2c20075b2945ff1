"""Teams' parts and what nobody was granted sum to the fleet's card hours."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.view_models.tenants import tenants
from fleet.money.charges import MeasuredHours
from fleet.money.week_hours import GRANTED, WASTED, WeekHours, part_of
from fleet.profiles import Finding, HourMeasure
from tests.dashboards.embedded import CLUSTER, make_views

VIEWS, _ = make_views()
PROFILES = VIEWS.fleet.profiles(CLUSTER)
UNTIL = datetime(2026, 1, 12, tzinfo=UTC)


def hours(count: float, cost: int | None = None) -> MeasuredHours:
    return MeasuredHours(card_hours=count, cost=None if cost is None else Decimal(cost))


def a_week(
    *teams: tuple[MeasuredHours, MeasuredHours, MeasuredHours, MeasuredHours], unmeasured: float = 0.0
) -> WeekHours:
    """Teams as (idle, idle_held, unused, used) over ten hours, and three unallocated card hours."""
    return WeekHours(
        since=UNTIL - timedelta(hours=10), until=UNTIL, currency="CNY",
        tenants={f"team-{place}": dict(zip(GRANTED, team, strict=True)) for place, team in enumerate(teams)},
        unmeasured={f"team-{place}": unmeasured for place in range(len(teams))},
        rest={HourMeasure.UNALLOCATED: hours(3, 6), HourMeasure.STRANDED: hours(1, 2)},
    )  # fmt: skip


PARTS = st.tuples(*[st.builds(hours, st.integers(1, 500), st.one_of(st.none(), st.integers(0, 500)))] * 4)


@given(st.lists(PARTS, max_size=6))
def test_teams_and_what_nobody_was_granted_sum_to_the_fleet(
    teams: list[tuple[MeasuredHours, MeasuredHours, MeasuredHours, MeasuredHours]],
) -> None:
    week = a_week(*teams)
    found = tenants(PROFILES, week)
    granted = sum(team.granted.card_hours for team in found)
    assert granted + 4 == sum(one.card_hours for one in week.total.values())
    cost = sum((team.granted.cost or Decimal(0) for team in found), Decimal(8))
    assert cost == sum((one.cost or Decimal(0) for one in week.total.values()), Decimal(0))
    assert part_of(week.total, WASTED).card_hours == 3 + sum(team.idle.card_hours for team in found)


def test_team_with_the_dearest_idle_card_hours_comes_first() -> None:
    first, second = tenants(
        PROFILES, a_week((hours(9, 1), hours(0, 0), hours(9, 1), hours(2, 1)), (hours(1, 4), hours(2, 5)) * 2)
    )
    assert (first.name, first.idle) == ("team-1", hours(3, 9))
    assert (second.name, second.cards_used) == ("team-0", 0.2)
    assert second.idle.card_hours / second.granted.card_hours == pytest.approx(0.45)


def test_use_that_nobody_measured_is_no_use() -> None:
    (team,) = tenants(PROFILES, a_week((hours(0), hours(0), hours(0), hours(5)), unmeasured=5.0))
    assert team.cards_used is None


def test_workloads_with_distrusted_counters_are_counted() -> None:
    lie = Finding(check="frozen", counter="sm_active", values=(("value", 0.31), ("windows", 540)))
    own = replace(PROFILES.workloads[0], namespace="team-0", trust=(lie,))
    (team,) = tenants(replace(PROFILES, workloads=(own,)), a_week((hours(1), hours(0), hours(0), hours(5))))
    assert (team.workloads, team.distrusted) == (1, 1)


def test_card_hours_without_a_price_cost_nothing_that_is_known() -> None:
    (team,) = tenants(PROFILES, a_week((hours(1), hours(0, 0), hours(0, 0), hours(5, 7))))
    assert (team.idle.cost, team.idle.card_hours) == (None, 1)
    assert (team.granted.cost, team.granted.card_hours) == (Decimal(7), 6)


def test_a_reader_of_one_namespace_sees_its_own_card_hours_alone() -> None:
    week = a_week(*[(hours(1, 1), hours(1, 1), hours(1, 1), hours(1, 1))] * 2).only({"team-1"})
    assert sum(one.card_hours for one in week.total.values()) == pytest.approx(4)
