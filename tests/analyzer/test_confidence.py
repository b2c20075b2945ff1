"""Confidence follows what happened in the fleet's own past, and leans on a prior where that is short."""

from dataclasses import replace

import numpy as np
import pytest

from analyzer.confidence import (
    HORIZON_DAYS,
    IDLE_PRIOR,
    WAKING_DAYS_USED,
    WAKING_NEAR_USE,
    DayRecord,
    breaks,
    calibrate,
    day_starts,
    hazards,
    streaks,
    waking_scores,
)
from fleet.profiles import WorkloadClass, WorkloadState
from tests.analyzer.build import Slice, by_hour, history, profile, profiles, work

INFERENCE = WorkloadClass.INFERENCE


def record(used: np.ndarray, nearly_used: np.ndarray | None = None) -> DayRecord:
    nothing = np.zeros(used.shape, bool)
    count = np.zeros(len(used), np.int64)
    return DayRecord(
        seen=np.ones(used.shape, bool),
        used=used,
        nearly_used=used if nearly_used is None else nearly_used,
        compute_large=nothing,
        need_large=nothing,
        promised=count,
        kept=count,
    )


def idle_confidence(used: np.ndarray, streak: int = 1) -> float:
    days = record(used)
    found = calibrate(days, [INFERENCE] * len(used))
    return found.survival(found.idle, INFERENCE, streak, waking_score=float(waking_scores(days)[-1, -1]))


def test_without_history_the_prior_speaks() -> None:
    assert idle_confidence(np.zeros((5, 1), bool)) == pytest.approx(IDLE_PRIOR)


def test_a_fleet_whose_silence_lasts_is_believed() -> None:
    assert idle_confidence(np.zeros((300, 14), bool)) > 0.9


def test_a_fleet_whose_silence_breaks_every_other_day_is_not() -> None:
    used = np.zeros((300, 14), bool)
    used[:, ::2] = True
    assert idle_confidence(used) < 0.01


def test_longer_silence_is_surer_where_the_past_says_so() -> None:
    used = np.zeros((400, 14), bool)
    used[:200, 1::2] = True
    assert idle_confidence(used, streak=7) > idle_confidence(used, streak=1) + 0.3


def test_an_unseen_day_is_neither_silence_nor_event() -> None:
    holds = np.ones((1, 3), bool)
    seen = np.array([[True, False, True]])
    assert streaks(holds, seen).tolist() == [[1, 0, 1]]
    found = hazards(holds, seen, [INFERENCE], 0.5)
    assert found[INFERENCE, 0] == pytest.approx(1 - 0.5 ** (1 / HORIZON_DAYS))


@pytest.mark.parametrize(
    ("steps", "step_seconds", "days"), [(143, 600, 1), (141, 600, 0), (1009, 600, 7), (1440, 60, 1)]
)
def test_days_are_counted_back_from_the_end(steps: int, step_seconds: int, days: int) -> None:
    starts = day_starts(steps, step_seconds)
    assert len(starts) == days
    if days > 1:
        assert steps - starts[-1] == 86400 // step_seconds


def test_promises_that_were_broken_before_lower_the_confidence_of_new_ones() -> None:
    office = [0.8 if 8 <= hour < 18 else 0.02 for hour in range(24)]
    steady = by_hour(14, office)
    surprised = steady.copy()
    for day in (5, 8, 11):
        # The night's surprises wander, so that hours which stayed quiet so far keep breaking their promise.
        surprised[day * 144 + (day - 5) * 12 : day * 144 + (day - 5) * 12 + 12] = 0.7
    sure, doubtful = (
        profile(history([Slice(usage=work(level, framebuffer=7e10))], days=13)).confidence
        for level in (steady[: 13 * 144], surprised[: 13 * 144])
    )
    assert doubtful < sure


def test_what_woke_often_before_is_believed_less_than_what_slept_on() -> None:
    asleep, restless = np.full(12 * 144, 0.0, np.float32), np.full(12 * 144, 0.0, np.float32)
    for day in (1, 3, 5, 7, 9):
        restless[day * 144 + 70] = 0.5
    slices = [Slice(workload="asleep", usage=work(asleep)), Slice(workload="restless", usage=work(restless))]
    found = {one.workload.rsplit("/", 1)[1]: one for one in profiles(history(slices, days=12)).workloads}
    assert {one.state for one in found.values()} == {WorkloadState.IDLE_HELD}
    assert found["restless"].confidence < found["asleep"].confidence


def test_breaks_are_counted_on_seen_days_only() -> None:
    holds = np.array([[True, False, True, True, False]])
    seen = np.array([[True, True, True, True, False]])
    at_risk, broke = breaks(holds, seen)
    assert (at_risk.tolist(), broke.tolist()) == ([2], [1])


def test_what_trickles_just_below_the_limit_is_believed_less_than_what_is_dead() -> None:
    found = profiles(
        history(
            [
                Slice(workload="dead", usage=work(np.zeros(6 * 144, np.float32))),
                Slice(workload="trickle", usage=work(np.full(6 * 144, 0.0025, np.float32))),
            ],
            days=6,
        )
    )
    dead, trickle = found.workloads
    assert {dead.state, trickle.state} == {WorkloadState.IDLE_HELD}
    assert trickle.confidence < dead.confidence


def test_a_trickle_counts_as_long_as_the_silence_that_it_came_in() -> None:
    used = np.array([[True, False, False, False, True, False]])
    near = np.array([[True, False, True, False, True, False]])
    scores = waking_scores(record(used, near))[0]
    share = np.cumsum(used[0]) / np.arange(1, 7)
    wanted = WAKING_NEAR_USE * np.array([False, False, True, True, False, False])
    assert scores - WAKING_DAYS_USED * share == pytest.approx(wanted)


def test_days_that_were_not_seen_are_no_days_of_work() -> None:
    days = record(np.array([[True, True, False]]))
    unseen = replace(days, seen=np.array([[True, False, True]]))
    assert waking_scores(unseen)[0, -1] < waking_scores(days)[0, -1]


def test_factors_leave_the_level_of_the_hazard_to_the_fleet() -> None:
    random = np.random.default_rng(3)
    used = random.random((400, 14)) < 0.3
    days = record(used)
    found = calibrate(days, [INFERENCE] * len(used))
    scores = waking_scores(days)[:, -2]
    silent = np.flatnonzero(~used[:, -2])
    foretold = np.mean(
        [1.0 - (1.0 - found.idle[INFERENCE, 0]) ** np.exp(scores[row]) for row in silent if used[row, -3]]
    )
    assert foretold == pytest.approx(0.3, abs=0.05)
