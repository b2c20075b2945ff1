"""Habits: period, hours of the week, and promises of off-peak hours."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.period import periods
from analyzer.presence import Timeline
from analyzer.rhythm import local_hours
from bench.labelled_series import labelled_series
from fleet.profiles import WorkloadState
from fleet.schema import Measure
from tests.analyzer.build import MONDAY, Slice, by_hour, history, noise, profile, profiles, work

OFFICE = [0.8 if 8 <= hour < 18 else 0.02 for hour in range(24)]
WORKWEEK = [0.8 if 8 <= hour % 24 < 18 and hour < 120 else 0.02 for hour in range(168)]


def service(levels, days, **changes):
    given_zone = changes.pop("zone", UTC)
    since = changes.get("since", MONDAY)
    return history(
        [Slice(usage=work(by_hour(days, levels, zone=given_zone, since=since), framebuffer=7e10))], days=days, **changes
    )


def test_a_daily_habit_is_found_after_three_days() -> None:
    said = profile(service(OFFICE, 4))
    assert said.period_hours == 24
    assert said.state is WorkloadState.OFF_PEAK


def test_no_rhythm_is_claimed_below_three_days() -> None:
    said = profiles(service(OFFICE, 2))
    assert said.workloads[0].period_hours is None
    assert said.workloads[0].off_peak_hours == ()
    assert {item.kind.value for item in said.withheld} == {"offpeak_pair", "tide"}


def test_promised_hours_lie_within_the_quiet_ones() -> None:
    quiet = {hour for hour in range(168) if OFFICE[hour % 24] < 0.1}
    promised = set(profile(service(OFFICE, 5)).off_peak_hours)
    assert promised <= quiet
    # One hour on either side is kept back: habits start a little earlier on some days.
    assert len(promised) == len(quiet) - 2 * 7


def test_a_weekly_habit_is_found_after_two_weeks_and_promises_the_weekend() -> None:
    said = profile(service(WORKWEEK, 15))
    assert said.period_hours == 168
    assert set(range(120, 167)) <= set(said.off_peak_hours)


def test_below_two_weeks_days_are_folded_and_weekends_promise_nothing_of_their_own() -> None:
    said = profile(service(WORKWEEK, 10))
    assert said.period_hours != 168
    assert 5 * 24 + 12 not in said.off_peak_hours
    assert said.hour_of_week.max[5 * 24 + 12] == said.hour_of_week.max[12]


def test_one_busy_night_takes_the_promise_back() -> None:
    level = by_hour(5, OFFICE)
    level[3 * 144 + 12] = 0.5
    said = profile(history([Slice(usage=work(level, framebuffer=7e10))], days=5))
    assert 2 not in said.off_peak_hours
    assert 5 in said.off_peak_hours


def test_the_busiest_replica_makes_the_promise() -> None:
    night = [OFFICE[(hour + 12) % 24] for hour in range(24)]
    pods = [Slice(usage=work(by_hour(5, levels), framebuffer=7e10)) for levels in (OFFICE, night)]
    assert len(profile(history(pods, days=5)).off_peak_hours) < 20


def test_noise_and_random_walks_have_no_period() -> None:
    random = np.random.default_rng(11)
    steps = 14 * 144
    walks = np.cumsum(random.normal(0, 0.02, (40, steps)), axis=1)
    flat = random.uniform(0.2, 0.8, (40, steps))
    line = Timeline(since=MONDAY, step_seconds=600, steps=steps, now=datetime(2026, 1, 19, tzinfo=UTC))
    found = periods(np.concatenate([walks, flat]).astype(np.float32), line)
    assert sum(period is not None for period in found) <= 2


@pytest.mark.parametrize("levels", [OFFICE, WORKWEEK])
def test_gaps_and_outliers_do_not_hide_a_period(levels: list[float]) -> None:
    values = np.tile(by_hour(21, levels), (20, 1))
    random = np.random.default_rng(7)
    values[random.random(values.shape) < 0.05] = 1.0
    values[random.random(values.shape) < 0.2] = np.nan
    line = Timeline(since=MONDAY, step_seconds=600, steps=values.shape[1], now=datetime(2026, 1, 26, tzinfo=UTC))
    wanted = 24 if levels is OFFICE else 168
    found = periods(values, line)
    assert found.count(wanted) >= 18


def test_hours_are_counted_in_the_clusters_zone() -> None:
    shanghai = service(OFFICE, 5, zone=ZoneInfo("Asia/Shanghai"), time_zone="Asia/Shanghai")
    said = profile(shanghai)
    assert said.time_zone == "Asia/Shanghai"
    assert set(said.off_peak_hours) <= {hour for hour in range(168) if OFFICE[hour % 24] < 0.1}


def test_a_half_hour_zone_splits_hours_at_half_past() -> None:
    line = Timeline(since=MONDAY, step_seconds=900, steps=8, now=datetime(2026, 1, 6, tzinfo=UTC))
    assert local_hours(line, "Asia/Kolkata").of_step.tolist() == [5, 5, 6, 6, 6, 6, 7, 7]


def test_a_step_belongs_to_the_hour_in_which_it_ends_less_a_millisecond() -> None:
    line = Timeline(since=MONDAY, step_seconds=600, steps=7, now=datetime(2026, 1, 6, tzinfo=UTC))
    assert local_hours(line, "UTC").of_step.tolist() == [0, 0, 0, 0, 0, 0, 1]


@settings(max_examples=6)
@given(st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]), st.booleans())
def test_a_change_of_the_clock_moves_no_habit(zone: str, in_autumn: bool) -> None:
    since = datetime(2026, 10, 22, tzinfo=UTC) if in_autumn else datetime(2026, 3, 26, tzinfo=UTC)
    said = profile(service(OFFICE, 6, zone=ZoneInfo(zone), time_zone=zone, since=since))
    night, noon = said.hour_of_week.max[3], said.hour_of_week.p50[12]
    assert night is not None
    assert noon is not None
    assert night < 0.1 < noon
    assert {9, 12, 17}.isdisjoint(hour % 24 for hour in said.off_peak_hours)
    assert {3, 22} <= {hour % 24 for hour in said.off_peak_hours}


def test_hours_that_were_never_seen_are_absent_and_not_zero() -> None:
    said = profile(history([Slice(usage=work(noise(1, low=0.2, high=0.4)))], days=1))
    assert said.hour_of_week.p50[0] is not None
    assert said.hour_of_week.p50[30] is None
    assert said.hour_of_week.max[30] is None


def test_a_workload_that_hardly_ever_works_promises_nothing() -> None:
    level = np.zeros(5 * 144)
    level[-10] = 0.6
    assert profile(history([Slice(usage={Measure.SM_ACTIVE: level})], days=5)).off_peak_hours == ()


@pytest.mark.parametrize("days", [1, 7, 21])
def test_a_fleet_of_noise_promises_no_hours_and_has_no_period(days: int) -> None:
    given = labelled_series(5, days=max(days, 4), per_kind=3)
    noisy = [row[: days * 144] for row, label in zip(given.values, given.periods, strict=True) if label is None]
    said = profiles(
        history([Slice(workload=f"n{number}", usage=work(row)) for number, row in enumerate(noisy)], days=days)
    )
    assert [one.workload for one in said.workloads if one.off_peak_hours] == []
    assert [one.workload for one in said.workloads if one.period_hours] == []


def test_work_that_comes_once_in_a_while_promises_nothing() -> None:
    level = np.full(10 * 144, 0.02, np.float32)
    for day in (0, 3, 4):
        level[day * 144 + 60 : day * 144 + 110] = 0.7
    assert profile(history([Slice(usage=work(level))], days=10)).off_peak_hours == ()
