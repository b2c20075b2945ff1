"""Forecasts that take the place of drawn days, as `bench/quality/forecast-study` compares them."""

import numpy as np
import pytest

from bench.forecast_days import LEVELS, METHODS, Replay, days_of, demand_at, learn, place_of
from recommender.harm.scenarios import POINTS_PER_DAY

STEPS, DAYS = 144, 8


def test_place_among_quantiles_leads_back_to_the_demand() -> None:
    random = np.random.default_rng(1)
    quantiles = np.sort(random.random((50, len(LEVELS))), axis=1)
    came = random.random(50) * 3.0
    assert (came > quantiles[:, -1]).any()
    np.testing.assert_allclose(demand_at(place_of(came, quantiles), quantiles), came)


@pytest.mark.parametrize("method", ["last day", "last week", "linear"])
def test_days_that_were_always_alike_are_forecast_to_come_again(method: str) -> None:
    hours = np.arange(STEPS) / STEPS
    day = np.stack([0.3 + 0.2 * np.sin(2 * np.pi * (hours + shift)) for shift in np.linspace(0, 1, 12)])
    blocks = np.repeat(day[:, None], DAYS, axis=1).astype(np.float32)
    learned = learn(METHODS[method], blocks, np.arange(12, dtype=np.int32), 0)
    found = days_of(learned, Replay(borrowed=0.0, half_life_days=7.0), draws=4, days=DAYS, replays=1, seed=0)
    expected = day.reshape(12, POINTS_PER_DAY, -1).mean(axis=2)
    assert found.shape == (12, 4, DAYS, POINTS_PER_DAY)
    assert np.abs(found - expected[:, None, None]).max() < 0.05
