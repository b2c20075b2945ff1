"""Periods of labelled series with gaps and outliers."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from analyzer.period import periods
from analyzer.presence import Timeline
from bench.labelled_series import STEP_SECONDS, labelled_series


def found(values, step_seconds: int = STEP_SECONDS):
    since = datetime(2026, 1, 5, tzinfo=UTC)
    seconds = values.shape[1] * step_seconds
    return periods(
        values,
        Timeline(since=since, step_seconds=step_seconds, steps=values.shape[1], now=since + timedelta(seconds=seconds)),
    )


@pytest.mark.parametrize("days", [7, 21, 28])
def test_labelled_series_get_their_period(days: int) -> None:
    given = labelled_series(11, days=days, per_kind=12)
    said = found(given.values)
    right = [one == label for one, label in zip(said, given.periods, strict=True)]
    assert np.mean(right) > 0.95
    assert [one for one, label in zip(said, given.periods, strict=True) if label is None and one] == []


@pytest.mark.parametrize("days", [1, 2, 2.9])
def test_below_three_days_nothing_repeats(days: float) -> None:
    assert set(found(labelled_series(1, days=4, per_kind=2).values[:, : round(days * 144)])) == {None}


def test_a_week_needs_two() -> None:
    given = labelled_series(2, days=21, per_kind=5)
    assert 168 not in found(given.values[:, : 13 * 144])


@pytest.mark.parametrize("step_seconds", [60, 300, 900, 1800, 3600])
def test_the_step_of_the_source_does_not_matter(step_seconds: int) -> None:
    hour = np.arange(28 * 24)
    week = np.where((hour % 24 >= 8) & (hour % 24 < 18) & (hour % 168 < 120), 0.8, 0.1)
    series = np.stack([week, np.where((hour % 24 >= 8) & (hour % 24 < 18), 0.8, 0.1), np.full(len(hour), 0.4)])
    values = np.repeat(series, 3600 // step_seconds, axis=1).astype(np.float32)
    values *= np.random.default_rng(1).uniform(0.9, 1.1, values.shape).astype(np.float32)
    assert found(values, step_seconds) == [168, 24, None]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_impossible_series_have_no_period(bad: float) -> None:
    values = np.full((2, 14 * 144), bad, np.float32)
    values[1] = 0.5
    assert found(values) == [None, None]


def test_no_series_have_no_periods() -> None:
    assert found(np.zeros((0, 2000), np.float32)) == []
