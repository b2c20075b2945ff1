"""The method that our forecasts are judged against does what its source does, slips included."""

import numpy as np
import pytest

from bench.crane_prediction import Estimator, predict, rebuilt

DAY = 144
TIMES = np.arange(4 * DAY)
SHAPE = 40.0 + 20.0 * np.sin(2 * np.pi * TIMES / DAY)
"""Percent of a card."""


def test_a_daily_wave_is_foretold_with_the_least_margin_that_was_tried() -> None:
    foretold = predict(SHAPE, 600, 24)
    assert foretold is not None
    assert foretold == pytest.approx(1.01 * SHAPE[-DAY:], rel=1e-6)


def test_a_weak_slow_wave_keeps_half_its_height() -> None:
    # Its source clears weak components above one per hour in the whole spectrum, where a slow wave's mirror image lies.
    waves = SHAPE + 0.5 * np.sin(4 * np.pi * TIMES / DAY)
    kept = rebuilt(waves, DAY, 600, Estimator(items_min=1, amplitude_min=1.0, margin=0.0))
    assert kept == pytest.approx((SHAPE + 0.25 * np.sin(4 * np.pi * TIMES / DAY))[-DAY:], abs=1e-6)


def test_a_weak_fast_wave_is_cleared_and_a_strong_one_kept_whole() -> None:
    fast = np.sin(2 * np.pi * 36 * TIMES / DAY)
    one = Estimator(items_min=1, amplitude_min=1.0, margin=0.1)
    assert rebuilt(SHAPE + 0.5 * fast, DAY, 600, one) == pytest.approx(1.1 * SHAPE[-DAY:], abs=1e-6)
    assert rebuilt(SHAPE + 4.0 * fast, DAY, 600, one) == pytest.approx(1.1 * (SHAPE + 4.0 * fast)[-DAY:], abs=1e-6)


def test_an_estimate_of_almost_nothing_does_not_break_the_choice() -> None:
    burst = np.zeros(3 * DAY)
    burst[:DAY] = 1e-17
    burst[2 * DAY :] = 30.0
    foretold = predict(burst, 600, 24)
    assert foretold is not None
    assert np.isfinite(foretold).all()


def test_less_than_two_days_after_the_last_long_gap_foretell_nothing() -> None:
    holed = SHAPE.copy()
    holed[3 * DAY - 20 : 3 * DAY] = np.nan
    assert predict(holed, 600, 24) is None
