"""Hours and electricity of a week, by hand on four cards of one day."""

from datetime import timedelta

import pytest

from dashboards.report.week_measured import MeasuredWeek, measured_week
from fleet.inventory import Priority
from fleet.profiles import HourMeasure
from tests.fleet.money.builders import BILLED, DAY, SIZE, a_card, a_day, a_grant, measured, settled


def _week(team: str | None = None, *, watts: float | list[float] = 200.0, grid: float | None = 0.5) -> MeasuredWeek:
    who = settled(
        [a_card(number) for number in range(4)],
        [
            a_grant(0, "p", namespace="a"),
            a_grant(2, "q", namespace="a", share=0.5),
            a_grant(2, "r", namespace="b", share=0.5),
            a_grant(3, "s", namespace="a", priority=Priority.LOW, started_at=DAY + timedelta(hours=12)),
        ],
    )
    usage = measured(who, compute=1.0, framebuffer_bytes=SIZE, watts=watts, activity=1.0)
    return measured_week(
        [a_day(who, usage, idle=(1, 3))], who, BILLED, known_since=DAY, pue=1.5, grid_kg_co2_per_kwh=grid, team=team
    )


def test_an_idle_card_hour_is_counted_once_and_a_team_has_its_part_of_a_shared_card() -> None:
    # Card 1 was free for 24 h and card 3 for 12; half of card 2 and, later, card 3 were idle.
    hours = _week().hours
    assert hours.total[HourMeasure.UNALLOCATED].card_hours == 24 + 12
    assert hours.total[HourMeasure.IDLE_HELD].card_hours == 12 + 12
    assert hours.tenants["b"][HourMeasure.IDLE_HELD].card_hours == 0


def test_hours_of_low_priority_are_those_that_were_granted() -> None:
    assert (_week().low_priority_gpu_hours, _week("b").low_priority_gpu_hours) == (12, 0)


def test_electricity_is_with_overhead_and_carbon_follows_it() -> None:
    week = _week()
    assert week.kwh == pytest.approx(4 * 24 * 0.2 * 1.5)
    assert week.kg_co2 == pytest.approx(4 * 24 * 0.2 * 1.5 * 0.5)
    assert week.kwh_known_ratio == 1.0
    assert dict(week.kwh_by_team)["b"] == _week("b").kwh


def test_unknown_electricity_is_none_and_known_in_part_says_which_part() -> None:
    nan = float("nan")
    # Nobody reports power; without activity of these models' resting power nothing is estimated.
    unknown = _week(watts=nan)
    assert (unknown.kwh, unknown.kg_co2, unknown.kwh_known_ratio) == (None, None, 0.0)
    assert _week(watts=[200.0, nan, nan, nan]).kwh_known_ratio == pytest.approx(0.25)
    assert _week(grid=None).kg_co2 is None
