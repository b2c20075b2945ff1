"""Levels to reserve: shape from the week, height from the last days, local hours."""

from zoneinfo import ZoneInfo

import numpy as np
import pytest

from analyzer.reservation import reservation
from tests.analyzer.build import Slice, by_hour, history, profile, work

DAY = [0.7 if 8 <= hour < 18 else 0.1 for hour in range(24)]


def test_it_covers_nineteen_of_twenty_steps_of_a_habit() -> None:
    level = by_hour(9, DAY, spread=0.3)
    said = reservation(level[None, : 8 * 144], 600, slots_per_day=144)[0]
    assert (level[8 * 144 :] <= said).mean() >= 0.9
    assert said.mean() < 0.75


def test_it_follows_a_level_that_has_moved() -> None:
    level = np.r_[np.full(5 * 144, 0.1), np.full(2 * 144, 0.5)].astype(np.float32)[None]
    assert reservation(level, 600)[0] == pytest.approx(np.full(24, 0.5))
    fallen = reservation(level[:, ::-1], 600)[0]
    assert fallen == pytest.approx(np.full(24, 0.3))


def test_gaps_are_left_out_and_less_than_a_day_is_not_enough() -> None:
    level = np.full((1, 3 * 144), 0.4, np.float32)
    level[0, ::3] = np.nan
    assert reservation(level, 600)[0] == pytest.approx(np.full(24, 0.4))
    assert np.isnan(reservation(level[:, :143], 600)).all()
    assert np.isnan(reservation(np.full((2, 500), np.nan, np.float32), 600)).all()


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "Asia/Kolkata", "America/New_York"])
def test_the_profile_holds_it_by_local_hour(zone: str) -> None:
    level = by_hour(6, DAY, zone=ZoneInfo(zone))
    said = profile(history([Slice(usage=work(level))], days=6, time_zone=zone)).reservation
    # Four hours to either side are pooled for the level, so the deep night is what stays low.
    assert (said[13] or 0.0) > 0.65
    assert (said[2] or 1.0) < 0.3


def test_an_hour_that_came_more_often_has_a_closer_upper_bound() -> None:
    level = by_hour(14, DAY, spread=0.3)
    short = profile(history([Slice(usage=work(level[: 4 * 144]))], days=4)).hour_of_week.upper
    long = profile(history([Slice(usage=work(level[: 13 * 144]))], days=13)).hour_of_week.upper
    assert np.mean(np.array(long, float)) < np.mean(np.array(short, float))
    assert all(value is None for value in profile(history([Slice(usage=work(0.3))], days=1)).hour_of_week.upper)
