"""Levels to reserve: shape from the week, height from the last days, local hours."""

from dataclasses import replace
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from analyzer.reservation import OUTLOOK, reservation
from tests.analyzer.build import Slice, by_hour, history, profile, work

DAY = [0.7 if 8 <= hour < 18 else 0.1 for hour in range(24)]


def test_it_covers_nineteen_of_twenty_steps_of_a_habit() -> None:
    level = by_hour(9, DAY, spread=0.3)
    said = reservation(level[None, : 8 * 144], 600, slots_per_day=144)[0]
    assert (level[8 * 144 :] <= said).mean() >= 0.9
    assert said.mean() < 0.75


def test_it_follows_a_level_that_has_moved() -> None:
    risen = np.r_[np.full(5 * 144, 0.1), np.full(2 * 144, 0.5)].astype(np.float32)[None]
    said = reservation(risen, 600)[0]
    assert (said >= 0.5).all()
    # A rise like that is a habit by now, but not one of every day.
    assert (said < 0.9).all()
    fallen = reservation(np.ascontiguousarray(risen[:, ::-1]), 600)[0]
    assert (fallen >= 0.1).all()
    assert (fallen < 0.25).all()


def test_what_is_above_the_usual_now_is_carried_into_the_day_and_fades() -> None:
    calm = np.full((1, 7 * 144), 0.2, np.float32)
    lifted = calm.copy()
    lifted[0, -3:] = 0.6
    carried = replace(OUTLOOK, rise_weight=0.0)
    extra = (reservation(lifted, 600, outlook=carried) - reservation(calm, 600, outlook=carried))[0]
    assert extra[0] == pytest.approx(0.5 * 0.4 * np.exp(-0.5 / 24), rel=1e-4)
    assert extra[12] == pytest.approx(0.5 * 0.4 * np.exp(-12.5 / 24), rel=1e-4)
    lowered = calm.copy()
    lowered[0, -3:] = 0.0
    assert reservation(lowered, 600, outlook=carried) == pytest.approx(reservation(calm, 600, outlook=carried))


def test_the_view_that_lost_least_on_the_last_days_weighs_most() -> None:
    # The level of each day is another one, and stays through the day: it shows at midnight, and no habit knows it.
    chance = np.random.default_rng(3)
    days = chance.uniform(0.1, 0.9, (40, 9))
    level = np.repeat(days, 144, axis=1).astype(np.float32)
    level[:, 143::144] = np.roll(days, -1, axis=1)
    level[:, 142::144] = level[:, 141::144] = level[:, 143::144]
    past, coming = np.ascontiguousarray(level[:, : 8 * 144]), level[:, 8 * 144 : 9 * 144 - 3]
    lost = {}
    for judged_days in (0, 3):
        said = reservation(past, 600, slots_per_day=144, outlook=replace(OUTLOOK, judged_days=judged_days))
        short = coming - said[:, : coming.shape[1]]
        lost[judged_days] = np.where(short > 0, 0.95 * short, -0.05 * short).sum()
    assert lost[3] < 0.9 * lost[0]


@pytest.mark.parametrize("seed", range(4))
def test_the_habit_is_what_nineteen_of_twenty_values_of_that_time_do_not_pass(seed: int) -> None:
    # Few distinct values, so that many are equal.
    level = np.random.default_rng(seed).integers(0, 5, (3, 7 * 144)).astype(np.float32)
    level[1] = np.random.default_rng(seed).random(7 * 144)
    habit = replace(OUTLOOK, habit_reach_seconds=0, yesterday_weight=0.0, rise_weight=0.0, carried_ratio=0.0)
    by_hour_of_day = np.sort(level.reshape(3, 7, 24, 6).swapaxes(1, 2).reshape(3, 24, 42), axis=2)
    assert reservation(level, 600, outlook=habit) == pytest.approx(by_hour_of_day[:, :, 39])


def test_units_do_not_matter() -> None:
    level = by_hour(9, DAY, spread=0.3)[None]
    assert reservation(np.float32(8.0) * level, 600) == pytest.approx(8.0 * reservation(level, 600), rel=1e-5)


def test_gaps_are_left_out_and_less_than_a_day_is_not_enough() -> None:
    level = np.full((1, 3 * 144), 0.4, np.float32)
    level[0, ::3] = np.nan
    assert reservation(level, 600)[0] == pytest.approx(np.full(24, 0.4))
    level[0, -20:] = np.nan
    assert reservation(level, 600)[0] == pytest.approx(np.full(24, 0.4))
    assert np.isnan(reservation(level[:, :143], 600)).all()
    assert np.isnan(reservation(np.full((2, 500), np.nan, np.float32), 600)).all()


def test_a_time_of_day_that_was_never_seen_gets_what_is_enough_at_any_time() -> None:
    level = np.full((1, 2 * 144), 0.3, np.float32)
    level[0, 60:90] = 0.7
    level[0, 100:140] = np.nan
    level[0, 244:284] = np.nan
    said = reservation(level, 600)[0]
    assert said[18:22] == pytest.approx(np.full(4, 0.7))
    assert said[2] == pytest.approx(0.3)


def test_no_more_than_a_card_is_reserved() -> None:
    surge = np.full(7 * 144, 0.3, np.float32)
    surge[-144:] = 1.0
    surge[-145] = 0.3
    said = profile(history([Slice(usage=work(surge))], days=7)).reservation
    assert max(value or 0.0 for value in said) == 1.0


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "Asia/Kolkata", "America/New_York"])
def test_the_profile_holds_it_by_local_hour(zone: str) -> None:
    level = by_hour(6, DAY, zone=ZoneInfo(zone))
    said = profile(history([Slice(usage=work(level))], days=6, time_zone=zone)).reservation
    assert (said[13] or 0.0) > 0.65
    assert (said[2] or 1.0) < 0.3


def test_an_hour_that_came_more_often_has_a_closer_upper_bound() -> None:
    level = by_hour(14, DAY, spread=0.3)
    short = profile(history([Slice(usage=work(level[: 4 * 144]))], days=4)).hour_of_week.upper
    long = profile(history([Slice(usage=work(level[: 13 * 144]))], days=13)).hour_of_week.upper
    assert np.mean(np.array(long, float)) < np.mean(np.array(short, float))
    assert all(value is None for value in profile(history([Slice(usage=work(0.3))], days=1)).hour_of_week.upper)
