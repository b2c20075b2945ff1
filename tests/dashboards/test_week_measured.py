"""Hours and electricity of a week, by hand on four cards of one day."""

from datetime import datetime, timedelta

import pytest

from dashboards.report.week_measured import MeasuredWeek, measured_week
from fleet.inventory import CardId, CardModelName, Priority, WorkloadId
from fleet.profiles import CardProfile, CardState, Profiles
from tests.fleet.money.builders import DAY, END, SIZE, a_card, a_day, a_grant, measured, settled

A, B, LOW = WorkloadId("a/Deployment/x"), WorkloadId("b/Deployment/y"), WorkloadId("a/Job/z")


def _card(number: int, state: CardState, idle_since: datetime | None, *workloads: WorkloadId) -> CardProfile:
    return CardProfile(
        card=CardId(f"GPU-{number}"), card_model=CardModelName("NVIDIA A10"), node="n-0", framebuffer_bytes=SIZE,
        framebuffer_used_max=None, state=state, compute_p95=0.0, idle_since=idle_since, workloads=workloads,
        coverage_ratio=1.0, reason="",
    )  # fmt: skip


PROFILES = Profiles(
    cluster="c", as_of=END, since=DAY, until=END, coverage_ratio=1.0, workloads=(), unallocated=(),
    cards=(
        _card(0, CardState.BUSY, None, A),
        _card(1, CardState.FREE, DAY),
        _card(2, CardState.IDLE_HELD, DAY + timedelta(hours=6), A, B),
        _card(3, CardState.IDLE_HELD, DAY - timedelta(days=3), LOW),
    ),
)  # fmt: skip
"""Card 0 works, 1 is nobody's, two teams hold 2 idle since 06:00, 3 went to a job at noon that never used it."""


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
        [a_day(who, usage)], who, PROFILES, since=DAY, until=END, pue=1.5, grid_kg_co2_per_kwh=grid, team=team
    )


def test_an_idle_card_hour_is_counted_once() -> None:
    # Card 1 was free for 24 h, card 2 idle for 18; card 3 free for 12 and held idle for the other 12.
    assert _week().idle_gpu_hours == 24 + 18 + 24


def test_a_team_has_its_part_of_a_shared_idle_card_and_none_of_what_nobody_held() -> None:
    assert _week("b").idle_gpu_hours == 9
    assert _week("a").idle_gpu_hours == 9 + 12


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
