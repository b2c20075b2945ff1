"""When a workload is idle, when it only looks so."""

from dataclasses import replace
from datetime import timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.profile import profile_fleet
from fleet.decisions import RecommendationKind
from fleet.inventory import Priority
from fleet.profiles import CardState, WorkloadState
from fleet.schema import Measure
from fleet.settings.settings import AnalyzerSettings
from fleet.usage import History, UsageGrid
from tests.analyzer.build import MONDAY, SETTINGS, Slice, by_hour, card_profile, history, noise, profile, work
from tests.english import english

IDLE = {WorkloadState.IDLE, WorkloadState.IDLE_HELD, WorkloadState.PARTLY_IDLE}
STEPS = 288


def silent_since(step: int, level: float = 0.5) -> np.ndarray:
    return np.where(np.arange(STEPS) < step, level, 0.0)


def test_a_day_without_activity_is_idle_since_the_last_one() -> None:
    said = profile(history([Slice(usage=work(silent_since(100), framebuffer=5e6))]))
    assert said.state is WorkloadState.IDLE
    assert said.idle_since == MONDAY + timedelta(seconds=600 * 100)


def test_idle_with_framebuffer_in_hand_is_idle_held() -> None:
    assert profile(history([Slice(usage=work(silent_since(100)))])).state is WorkloadState.IDLE_HELD


def test_activity_within_the_last_day_is_not_idle() -> None:
    assert profile(history([Slice(usage=work(silent_since(STEPS - 144 + 1)))])).state not in IDLE


def test_a_single_busy_window_in_the_last_day_is_not_idle() -> None:
    level = np.zeros(STEPS)
    level[200] = 0.02
    assert profile(history([Slice(usage=work(level))])).state not in IDLE


def test_the_peak_of_a_window_counts_and_not_its_mean() -> None:
    given_history = history([Slice(usage=work(0.001))])
    peak = {measure: values.copy() for measure, values in given_history.slices.mean.items()}
    peak[Measure.SM_ACTIVE][0, 250] = 0.9
    grid = given_history.slices
    bursty = UsageGrid(
        keys=grid.keys,
        since=grid.since,
        step_seconds=grid.step_seconds,
        steps=grid.steps,
        mean=grid.mean,
        peak=peak,
    )
    assert profile(replace(given_history, slices=bursty)).state not in IDLE


@pytest.mark.parametrize("engine", [Measure.ENCODER, Measure.DECODER, Measure.MEMORY_ACTIVE])
def test_another_engine_at_work_is_not_idle(engine: Measure) -> None:
    assert profile(history([Slice(usage={**work(0.0), engine: 0.4})])).state not in IDLE


@pytest.mark.parametrize(
    "served",
    [Measure.REQUEST_RATE, Measure.REQUESTS_RUNNING, Measure.PROMPT_TOKEN_RATE, Measure.GENERATED_TOKEN_RATE],
)
def test_a_service_that_works_on_a_trickle_of_requests_is_not_idle(served: Measure) -> None:
    assert profile(history([Slice(usage={**work(0.0), served: 0.01})])).state not in IDLE


NOBODY = {Measure.REQUEST_RATE: 0.0, Measure.REQUESTS_RUNNING: 0.0}
POLLS = {Measure.SM_ACTIVE: 0.2, Measure.DUTY_CYCLE: 1.0, Measure.FRAMEBUFFER_USED: 2e10}
"""Ranks of a server that wait for each other by polling."""


@pytest.mark.parametrize("own", [POLLS, {measure: POLLS[measure] for measure in POLLS if measure != Measure.SM_ACTIVE}])
def test_a_server_that_serves_nobody_is_idle_whatever_its_duty_cycle_says(own: dict[Measure, float]) -> None:
    card = {measure: POLLS[measure] for measure in own}
    served = history([Slice(usage={**own, **NOBODY})], cards={"GPU-000": card})
    assert profile(served).state is WorkloadState.IDLE_HELD
    counted = {Measure.GENERATED_TOKEN_RATE: 0.0, Measure.REQUESTS_RUNNING: 0.0}
    assert profile(history([Slice(usage={**own, **counted})])).state is WorkloadState.IDLE_HELD
    assert card_profile(served, "GPU-000").state is CardState.IDLE_HELD


@pytest.mark.parametrize(
    "usage",
    [
        POLLS,
        {**POLLS, Measure.REQUEST_RATE: 0.0},
        {**POLLS, **NOBODY, Measure.REQUESTS_RUNNING: 1.0},
        {**POLLS, **NOBODY, Measure.GENERATED_TOKEN_RATE: 0.5},
        {**POLLS, **NOBODY, Measure.SM_ACTIVE: 0.6},
        {**POLLS, **NOBODY, Measure.DECODER: 0.1},
    ],
    ids=[
        "server says nothing",
        "work under way is not known",
        "a long answer",
        "tokens before the first answer",
        "more than polling",
        "video",
    ],
)
def test_engines_that_move_are_at_work_where_nothing_shows_that_they_serve_nobody(usage: dict[Measure, float]) -> None:
    assert profile(history([Slice(usage=usage)])).state not in IDLE


def test_a_server_speaks_for_its_container_only_where_it_is_alone_on_the_pods_cards() -> None:
    beside = history([Slice(pod="p", usage={**POLLS, **NOBODY}), Slice(pod="p", usage={**POLLS, **NOBODY})])
    grants = [replace(grant, container=name) for grant, name in zip(beside.inventory.grants, "ab", strict=True)]
    keys = tuple(replace(key, container=name) for key, name in zip(beside.slices.keys, "ab", strict=True))
    two = replace(
        beside,
        inventory=replace(beside.inventory, grants=tuple(grants)),
        slices=replace(beside.slices, keys=keys),
    )
    assert profile(two).state not in IDLE


def test_sms_of_a_card_that_do_more_than_polling_are_somebodys_work() -> None:
    usage = {Measure.DUTY_CYCLE: 1.0, Measure.FRAMEBUFFER_USED: 2e10, **NOBODY}
    found = history([Slice(usage=usage)], cards={"GPU-000": {**POLLS, Measure.SM_ACTIVE: 0.6}})
    assert profile(found).state not in IDLE
    assert card_profile(found, "GPU-000").state is not CardState.IDLE_HELD


def test_some_cards_idle_and_some_not_is_partly_idle_and_names_the_idle_pods() -> None:
    said = profile(history([Slice(pod="works", usage=work(0.7)), Slice(pod="rests", usage=work(0.0))]))
    assert said.state is WorkloadState.PARTLY_IDLE
    assert said.idle_pods == ("rests",)


def test_a_crash_looping_workload_is_judged_by_its_owner() -> None:
    hours = timedelta(hours=4)
    pods = []
    for number in range(12):
        level = np.full(STEPS, np.nan)
        level[number * 24 : (number + 1) * 24] = 0.0
        end = None if number == 11 else MONDAY + (number + 1) * hours
        pods.append(
            Slice(pod=f"p{number}", card="GPU-0", usage=work(level), started_at=MONDAY + number * hours, ended_at=end)
        )
    assert profile(history(pods)).state in IDLE


def test_a_pod_of_three_hours_is_unknown() -> None:
    level = np.full(STEPS, np.nan)
    level[-18:] = 0.0
    said = profile(history([Slice(usage=work(level), started_at=MONDAY + timedelta(hours=45))]))
    assert said.state is WorkloadState.UNKNOWN
    assert "Only 3 hours" in english(said)


def test_an_exporter_that_died_makes_nothing_idle() -> None:
    level = np.zeros(STEPS)
    level[-30:] = np.nan
    assert profile(history([Slice(usage=work(level))])).state not in IDLE


def test_a_history_that_ended_long_ago_says_nothing_of_now() -> None:
    old = history([Slice(usage=work(0.0))])
    later = old.inventory.as_of + timedelta(days=2)
    said = profile_fleet(old, settings=SETTINGS, now=later).workloads[0]
    assert said.state is WorkloadState.UNKNOWN


def test_steps_after_now_are_not_looked_at() -> None:
    level = np.zeros(STEPS)
    level[200:] = 0.9
    early = profile_fleet(history([Slice(usage=work(level))]), settings=SETTINGS, now=MONDAY + timedelta(hours=33))
    assert early.workloads[0].state in IDLE


def test_the_idle_limit_is_a_setting() -> None:
    quiet = history([Slice(usage=work(0.03))])
    loose = profile_fleet(quiet, settings=AnalyzerSettings(idle_ratio_max=0.2), now=quiet.inventory.as_of)
    assert profile(quiet).state not in IDLE
    assert loose.workloads[0].state in IDLE


@given(st.lists(st.tuples(st.integers(0, STEPS - 1), st.integers(1, 60)), max_size=8), st.integers(0, 2**31))
def test_gaps_never_make_a_thing_idle(gaps: list[tuple[int, int]], seed: int) -> None:
    level = np.where(np.random.default_rng(seed).random(STEPS) < 0.2, 0.5, 0.0)
    level[-1] = 0.5
    level[-72] = 0.5
    cut = level.copy()
    for start, length in gaps:
        cut[start : start + length] = np.nan
    lost_all_but_zeros = np.where(cut > 0, np.nan, cut)
    for damaged in (cut, lost_all_but_zeros):
        assert profile(history([Slice(usage=work(damaged)), Slice(workload="x", usage=work(0.4))])).state not in IDLE


def test_history_below_a_day_withholds_all_advice() -> None:
    short = history([Slice(usage=work(noise(0.5, low=0, high=0.5)))], days=0.5)
    found = profile_fleet(short, settings=SETTINGS, now=short.inventory.as_of)
    assert found.workloads[0].state is WorkloadState.UNKNOWN
    assert {item.reason for item in found.withheld} == {"history_too_short"}
    assert {item.kind for item in found.withheld} == set(RecommendationKind)


OFFICE_WEEK = [0.8 if 8 <= hour % 24 < 18 and hour < 120 else 0.0 for hour in range(168)]
ALL_DAYS = (0, 1, 2, 3, 4, 5, 6)


def office(days: float, *, quiet_after: float, hidden: tuple[float, float] = (0, 0), zone: str = "UTC") -> History:
    """Work from Monday to Friday that ends after `quiet_after` days; between the days `hidden` nobody looks."""
    level = by_hour(days, OFFICE_WEEK, zone=ZoneInfo(zone))
    level[round(quiet_after * 144) :] = 0.0
    level[round(hidden[0] * 144) : round(hidden[1] * 144)] = np.nan
    return history([Slice(usage=work(level))], days=days, time_zone=zone)


def test_a_silent_weekend_is_no_silent_week() -> None:
    said = profile(office(14, quiet_after=14))
    assert said.state in IDLE
    assert said.active_weekdays == (0, 1, 2, 3, 4)
    assert said.silent_weekdays == (5, 6)


def test_the_day_of_the_last_activity_counts_when_it_has_come_round() -> None:
    friday_evening = 4 + 18 / 24
    assert profile(office(friday_evening + 7 - 1 / 24, quiet_after=5)).silent_weekdays == (0, 1, 2, 3, 5, 6)
    assert profile(office(friday_evening + 7, quiet_after=5)).silent_weekdays == ALL_DAYS


def test_a_day_that_nobody_saw_was_not_silent() -> None:
    said = profile(office(14, quiet_after=5, hidden=(10, 10.5)))
    assert said.silent_weekdays == (0, 1, 2, 4, 5, 6)
    assert said.state in IDLE


def test_many_slices_do_not_make_a_day_of_a_few_hours() -> None:
    slices = [Slice(card=f"GPU-{number}", usage=work(0.0)) for number in range(8)]
    said = profile(history(slices, days=5.25))
    assert said.state in IDLE
    assert said.silent_weekdays == (0, 1, 2, 3, 4)


def test_days_of_the_week_are_those_of_the_clusters_zone() -> None:
    sunday_evening_in_utc = np.zeros(14 * 144)
    sunday_evening_in_utc[7 * 144 - 6] = 0.5
    slices = [Slice(usage=work(sunday_evening_in_utc))]
    assert profile(history(slices, days=14)).active_weekdays == (6,)
    assert profile(history(slices, days=14, time_zone="Asia/Shanghai")).active_weekdays == (0,)


def test_what_passed_since_the_history_ended_was_not_silent() -> None:
    old = office(14, quiet_after=5)
    later = old.inventory.as_of + timedelta(days=1)
    assert profile_fleet(old, settings=SETTINGS, now=later).workloads[0].silent_weekdays == (1, 2, 3, 4, 5, 6)


def test_low_priority_that_gives_way_was_not_silent_on_that_day() -> None:
    neighbour = np.zeros(14 * 144)
    neighbour[9 * 144 : 10 * 144] = 0.5
    shared = history(
        [
            Slice(workload="low", card="GPU-0", priority=Priority.LOW, usage=work(0.0)),
            Slice(workload="high", card="GPU-0", usage=work(neighbour)),
        ],
        days=14,
    )
    assert profile(shared, "low").silent_weekdays == (0, 1, 3, 4, 5, 6)
