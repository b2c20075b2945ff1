"""Level shifts and growth are found from days, and weekends are neither."""

import numpy as np
import pytest

from analyzer.drift import drift
from tests.analyzer.build import Slice, by_hour, history, noise, profile, work


def days(levels, seed: int = 1, spread: float = 0.05) -> np.ndarray:
    return np.array(levels) * np.random.default_rng(seed).uniform(1 - spread, 1 + spread, len(levels))


def test_a_step_that_stays_is_a_shift_at_its_first_day() -> None:
    found = drift(days([0.1] * 6 + [0.4] * 5))
    assert found.shift_day == 6
    assert found.shift_ratio == pytest.approx(4.0, rel=0.1)
    assert found.growth_per_week_ratio is None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [7, 10, 14, 21, 28])
def test_weekends_are_neither_shift_nor_growth(seed: int, count: int) -> None:
    week = [0.5] * 5 + [0.1] * 2
    found = drift(days((week * 4)[:count], seed))
    assert (found.shift_day, found.growth_per_week_ratio) == (None, None)


@pytest.mark.parametrize("seed", range(5))
def test_steady_growth_has_its_rate(seed: int) -> None:
    found = drift(days(0.2 + 0.01 * np.arange(21), seed, spread=0.02))
    assert found.growth_per_week_ratio == pytest.approx(0.07 / 0.3, rel=0.25)


@pytest.mark.parametrize("seed", range(20))
def test_noise_neither_shifts_nor_grows(seed: int) -> None:
    found = drift(np.random.default_rng(seed).uniform(0.1, 0.3, 21))
    assert (found.shift_day, found.growth_per_week_ratio) == (None, None)


def test_days_that_were_not_seen_are_left_out() -> None:
    levels = days([0.1] * 6 + [0.4] * 6)
    levels[[2, 8]] = np.nan
    assert drift(levels).shift_day == 6
    assert drift(np.full(12, np.nan)).shift_day is None
    assert drift(np.zeros(0)).growth_per_week_ratio is None


def test_the_profile_dates_a_shift() -> None:
    level = np.r_[noise(6, low=0.08, high=0.12), noise(5, low=0.4, high=0.5)]
    given = history([Slice(usage=work(level))], days=11)
    said = profile(given).drift
    assert said is not None
    assert said.shifted_at is not None
    assert said.shifted_at.date().isoformat() == "2026-01-11"
    level_one = profile(history([Slice(usage=work(by_hour(10, [0.3] * 24)))], days=10)).drift
    assert level_one is not None
    assert level_one.shifted_at is None
    assert profile(history([Slice(usage=work(0.3))], days=3)).drift is None
