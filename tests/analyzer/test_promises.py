"""Off-peak promises: which hours that were always low are believed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from analyzer.offpeak_hours import AROUND_MIN, PROMISE_CHANCE_MIN, PromiseEvidence, promise_evidence, promised_hours
from fleet.settings.settings import AnalyzerSettings

SETTINGS = AnalyzerSettings()
OFFICE = np.array([0.8 if 8 <= hour < 18 else 0.02 for hour in range(24)], np.float32)


def evidence(peaks: np.ndarray, seen: np.ndarray | None = None, p95: float = 0.8) -> PromiseEvidence:
    """Evidence for one workload from (days, 24) peaks that begin on a Monday."""
    row = peaks.astype(np.float32).reshape(1, -1)
    there = np.ones(row.shape, np.float32) if seen is None else seen.astype(np.float32).reshape(1, -1)
    hour = np.arange(row.shape[1]) % 168
    return promise_evidence(row, there, hour, np.array([p95]), cycle=24, settings=SETTINGS)


def promises(peaks: np.ndarray, seen: np.ndarray | None = None, p95: float = 0.8) -> np.ndarray:
    row = peaks.astype(np.float32).reshape(1, -1)
    there = np.ones(row.shape, np.float32) if seen is None else seen.astype(np.float32).reshape(1, -1)
    hour, seconds = np.arange(row.shape[1]) % 168, 3600.0 * row.shape[1]
    found = promised_hours(row, there, hour, np.array([p95]), history_seconds=seconds, settings=SETTINGS)
    return np.asarray(found[0])


def test_days_that_are_alike_are_a_habit_and_days_that_are_not_are_none() -> None:
    random = np.random.default_rng(1)
    wandering = np.full((7, 24), 0.05)
    for day in range(7):
        wandering[day, random.choice(24, 4, replace=False)] = 0.8
    assert evidence(np.tile(OFFICE, (5, 1))).habit[0] == pytest.approx(1.0)
    assert evidence(wandering).habit[0] < 0.2


def test_habit_is_the_mean_correlation_between_days() -> None:
    days = np.random.default_rng(2).random((6, 24)) + OFFICE
    pairs = np.asarray(np.corrcoef(days.astype(np.float32)))[np.triu_indices(6, 1)]
    assert evidence(days).habit[0] == pytest.approx(pairs.mean(), abs=1e-5)


def test_low_hours_without_a_habit_are_not_promised() -> None:
    bursts = np.full((8, 24), 0.05)
    for day in range(8):
        bursts[day, (5 * day) % 16] = 0.9
    always_low = np.asarray((bursts <= 0.16).all(axis=0))
    assert always_low[16:].all()
    assert not promises(bursts).any()


def test_a_busier_last_day_takes_promises_back() -> None:
    steady = np.tile(OFFICE, (6, 1))
    growing = steady.copy()
    growing[-1] = np.where(OFFICE > 0.5, 1.0, 0.15)
    growing[:-1] = np.where(OFFICE > 0.5, 0.4, 0.05)
    assert promises(steady).sum() > 60
    assert promises(growing).sum() < promises(steady).sum()


def test_hours_beside_busy_ones_are_not_promised() -> None:
    promised = promises(np.tile(OFFICE, (5, 1)))[:24]
    assert not promised[[7, 18]].any()
    assert promised[[0, 6, 19, 23]].all()


def test_an_hour_that_was_high_once_is_not_promised_however_good_its_chance() -> None:
    days = np.tile(OFFICE, (7, 1))
    days[0, 3] = 0.2
    assert not promises(days)[3]
    assert promises(days)[23]


def test_hours_that_were_hardly_seen_are_no_evidence() -> None:
    days, seen = np.tile(OFFICE, (4, 1)), np.ones((4, 24))
    seen[1:3, 3] = 0.5
    assert not promises(days, seen)[3]
    assert promises(days, seen)[23]


def test_what_was_never_seen_promises_nothing() -> None:
    assert not promises(np.full((5, 24), np.nan), np.zeros((5, 24)), p95=np.nan).any()


def test_an_hour_that_was_never_seen_is_no_quiet_neighbour() -> None:
    days = np.tile(OFFICE, (5, 1))
    seen = np.ones((5, 24))
    days[:, 2], seen[:, 2] = np.nan, 0.0
    assert promises(np.tile(OFFICE, (5, 1)))[[1, 3]].all()
    assert not promises(days, seen)[[1, 2, 3]].any()
    assert promises(days, seen)[[0, 4]].all()


def test_two_days_are_no_habit() -> None:
    assert not promises(np.tile(OFFICE, (2, 1))).any()


@examples(max_examples=30)
@given(st.integers(0, 10_000), st.floats(0.0, 0.9), st.integers(3, 20))
def test_a_promised_hour_was_always_low_and_its_chance_is_a_chance(seed: int, lost: float, days: int) -> None:
    random = np.random.default_rng(seed)
    peaks = random.random((days, 24)) ** 3 * OFFICE
    seen = (random.random((days, 24)) >= lost).astype(float)
    peaks[seen == 0] = np.nan
    found = evidence(peaks, seen)
    assert ((found.chance() >= 0) & (found.chance() <= 1)).all()
    assert ((found.habit >= 0) & (found.habit <= 1)).all()
    promised = promises(peaks, seen)[:24]
    if days < 14:
        highest = np.nan_to_num(peaks).max(axis=0)
        assert (highest[promised] <= SETTINGS.off_peak_ratio * 0.8 + 1e-6).all()
        assert (found.chance()[0, promised] >= PROMISE_CHANCE_MIN).all()


def test_nothing_is_learned_below_the_least_margin() -> None:
    silent, whisper = np.where(OFFICE > 0.5, 0.8, 0.0), np.where(OFFICE > 0.5, 0.8, 0.8 * AROUND_MIN / 2)
    first, second = (evidence(np.tile(level, (5, 1))).signals()[0, 3, 0] for level in (silent, whisper))
    assert first == pytest.approx(second, abs=1e-6)
