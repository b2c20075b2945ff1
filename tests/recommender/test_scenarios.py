"""Days that may come: what history teaches about surprises, and how scenarios use it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fleet.usage import Float32
from recommender.demand import demand_of
from recommender.harm.scenarios import daily_blocks, draw_scenarios, type_means
from recommender.harm.surprise import (
    CLASSES,
    SHAPES_MAX,
    SHIFT_RATIO_MIN,
    Surprises,
    learn_surprises,
    shift_ratio,
)
from tests.recommender.second_fleet import second_fleet

STEPS = 48


def days_of(peaks: NDArray[np.float64]) -> Float32:
    """Days with one step at the peak and a tenth of it else, (types, days, steps)."""
    daily = np.repeat(peaks[:, :, None] * 0.1, STEPS, axis=2)
    daily[:, :, 20] = peaks
    return daily.astype(np.float32)


def middle_hazard(days: int, *, seed: int = 1) -> float:
    """What is learned of 400 services of the middle class whose days are all alike."""
    random = np.random.default_rng(seed)
    found = learn_surprises(days_of(random.uniform(0.16, 0.39, (400, days))))
    return float(found.hazard[2])


def test_longer_record_is_broken_more_seldom() -> None:
    hazards = [middle_hazard(days) for days in (3, 6, 12)]
    assert hazards == sorted(hazards, reverse=True)
    assert hazards[2] < hazards[0] / 2


def test_what_happened_last_weighs_more() -> None:
    calm = np.full((50, 8), 0.3)
    late, early = calm.copy(), calm.copy()
    late[:25, 7] = 0.39
    early[:25, 2] = 0.39
    assert learn_surprises(days_of(late)).hazard[2] > 5 * learn_surprises(days_of(early)).hazard[2]


def test_service_born_yesterday_is_no_surprise() -> None:
    daily = days_of(np.full((20, 6), 0.3))
    daily[:10, :5] = np.nan
    assert learn_surprises(daily).hazard[0] == learn_surprises(daily[:0]).hazard[0]


@given(types=st.integers(0, 6), days=st.integers(0, 5), seed=st.integers(0, 99))
def test_anything_teaches_finite_hazards_and_shapes(types: int, days: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    daily = random.uniform(0, 1, (types, days, STEPS)).astype(np.float32)
    daily[random.uniform(size=daily.shape) < 0.3] = np.nan
    found = learn_surprises(daily)
    assert np.isfinite(found.hazard).all()
    assert ((found.hazard >= 0) & (found.hazard <= 1)).all()
    assert len(found.shapes) == len(found.weights) == CLASSES
    for shapes, weights in zip(found.shapes, found.weights, strict=True):
        assert len(shapes) == len(weights) <= SHAPES_MAX + 1
        assert weights.sum() == pytest.approx(1.0)


def never() -> Surprises:
    """Nobody ever surprises."""
    found = learn_surprises(days_of(np.full((2, 4), 0.3)))
    return Surprises(
        hazard=np.zeros(CLASSES), shapes=found.shapes, weights=found.weights, record=found.record,
        type_class=found.type_class,
    )  # fmt: skip


def test_days_on_which_a_service_was_not_seen_never_come_again() -> None:
    blocks = np.full((2, 4, STEPS), 0.3, np.float32)
    blocks[0, :2] = np.nan
    blocks[0, 2:] = 0.2
    drawn = draw_scenarios(blocks, np.arange(2, dtype=np.int32), never(), draws=8, seed=1)
    assert set(np.unique(drawn[0]).tolist()) == {np.float32(0.2)}


def test_latest_days_come_again_most_often() -> None:
    blocks = np.repeat(np.linspace(0.1, 0.8, 8, dtype=np.float32)[None, :, None], STEPS, axis=2).repeat(2, axis=0)
    drawn = draw_scenarios(blocks, np.arange(2, dtype=np.int32), never(), draws=40, seed=1)
    later = drawn[0, 8 * STEPS :]  # the first draw replays
    assert (later > 0.75).sum() > 1.4 * (later < 0.15).sum() > 0


def test_certain_surge_rises_above_the_record() -> None:
    blocks = days_of(np.array([[0.2, 0.2, 0.4, 0.2]] * 2))
    surprises = learn_surprises(type_means(blocks, np.arange(2, dtype=np.int32)))
    sure = Surprises(
        hazard=np.ones(CLASSES), shapes=surprises.shapes, weights=surprises.weights, record=surprises.record,
        type_class=surprises.type_class,
    )  # fmt: skip
    drawn = draw_scenarios(blocks, np.arange(2, dtype=np.int32), sure, draws=20, seed=3)
    assert drawn.max() > 0.41


def test_surges_come_about_as_often_in_every_set_of_scenarios() -> None:
    days, draws, chance = 4, 15, 0.2
    blocks = np.full((1, days, STEPS), 0.3, np.float32)
    usual = never()
    surprises = Surprises(
        hazard=np.full(CLASSES, chance), shapes=(np.full((1, STEPS), 2.0, np.float32),) * CLASSES,
        weights=(np.ones(1),) * CLASSES, record=np.full(1, 0.3), type_class=usual.type_class[:1],
    )  # fmt: skip
    one = np.zeros(1, np.int32)
    sets = [draw_scenarios(blocks, one, surprises, draws=draws, seed=seed) for seed in range(100)]
    risen = [int((drawn.reshape(-1, STEPS).max(axis=1) > 0.5).sum()) for drawn in sets]
    drawn_days = (draws - 1) * days  # the first draw replays
    assert np.mean(risen) == pytest.approx(chance * drawn_days, rel=0.05)
    # Of independent days the standard deviation would be that of a binomial distribution.
    assert np.std(risen) < 0.5 * np.sqrt(drawn_days * chance * (1 - chance))


def test_first_day_counts_from_half_of_it_on_and_begins_as_the_next() -> None:
    seen = demand_of(second_fleet(4, 20, 5, "mixed", step_seconds=1800))
    rows, per_day = np.arange(4), seen.steps_per_day

    def days(steps: int) -> int:
        return int(daily_blocks(replace(seen, compute=seen.compute[:, -steps:]), rows).shape[1])

    assert days(5 * per_day) == days(5 * per_day - 1) == days(4 * per_day + per_day // 2) == 5
    assert days(4 * per_day + per_day // 2 - 1) == days(4 * per_day) == 4
    assert days(1) == 1
    short = daily_blocks(replace(seen, compute=seen.compute[:, 1:]), rows)
    assert short[:, 0, 0].tobytes() == short[:, 1, 0].tobytes()
    assert short[:, 0, 1:].tobytes() == daily_blocks(seen, rows)[:, 0, 1:].tobytes()


def test_half_a_first_day_is_no_surprise() -> None:
    """A service that works in the mornings alone, of which the history begins at noon, has not begun to work."""
    blocks = np.zeros((2, 4, STEPS), np.float32)
    blocks[:, :, :10] = 0.3
    seen = demand_of(second_fleet(4, 20, 5, "mixed", step_seconds=1800))
    half = replace(seen, compute=blocks.reshape(2, -1)[:, STEPS // 2 :])
    assert half.steps_per_day == STEPS
    shown = learn_surprises(type_means(daily_blocks(half, np.arange(2)), np.arange(2, dtype=np.int32)))
    assert shown.hazard.tolist() == learn_surprises(type_means(blocks, np.arange(2, dtype=np.int32))).hazard.tolist()


def test_replays_are_spread_over_the_draws() -> None:
    blocks = np.repeat(np.linspace(0.1, 0.4, 4, dtype=np.float32)[None, :, None], STEPS, axis=2).repeat(2, axis=0)
    drawn = draw_scenarios(blocks, np.arange(2, dtype=np.int32), never(), draws=12, seed=1, replays=3)
    days = drawn[0].reshape(12, 4, STEPS)[:, :, 0]
    as_it_was = [draw for draw in range(12) if np.allclose(days[draw], [0.1, 0.2, 0.3, 0.4])]
    assert {0, 4, 8} <= set(as_it_was)
    assert len(as_it_was) < 12


def test_no_sunday_of_one_service_stands_beside_a_monday_of_another() -> None:
    """Both work on weekdays alone, at levels of which each belongs to one day."""
    weeks = np.array([[0.6, 0.62, 0.64, 0.66, 0.68, 0.03, 0.02] * 2, [0.3, 0.31, 0.32, 0.33, 0.34, 0.015, 0.01] * 2])
    blocks = np.repeat(weeks[:, :, None], STEPS, axis=2).astype(np.float32)
    drawn = draw_scenarios(blocks, np.arange(2, dtype=np.int32), never(), draws=40, seed=1)
    works = drawn > 0.1
    assert works.any()
    assert not works.all()
    assert works[0].tolist() == works[1].tolist()
    # Which weekday each has is its own affair.
    assert len({*zip(drawn[0].tolist(), drawn[1].tolist(), strict=True)}) > 14


def test_fleet_may_get_as_much_busier_as_it_once_did_or_as_others_did() -> None:
    def week(*daily: float) -> Float32:
        return np.repeat(np.array([daily, daily]), STEPS, axis=1).astype(np.float32)

    calm = (0.2, 0.2, 0.2, 0.2, 0.2, 0.02, 0.02)
    assert shift_ratio(week(*calm[:3]), STEPS) == SHIFT_RATIO_MIN
    assert shift_ratio(week(*calm[5:], *calm[:5], *calm), STEPS) == SHIFT_RATIO_MIN
    launched = week(*calm, *calm[:4], 0.5, 0.3)
    assert shift_ratio(launched, STEPS) == pytest.approx(2.5, rel=1e-6)
    newcomer = np.full((1, launched.shape[1]), np.nan, np.float32)
    newcomer[:, -STEPS:] = 1.0
    assert shift_ratio(np.concatenate([launched, newcomer]), STEPS) == pytest.approx(2.5, rel=1e-6)
    assert shift_ratio(np.zeros((0, 20 * STEPS), np.float32), STEPS) == SHIFT_RATIO_MIN


def test_seed_decides_the_scenarios() -> None:
    blocks = days_of(np.random.default_rng(2).uniform(0, 1, (6, 5)))
    types = np.array([0, 0, 1, 1, 2, 2], np.int32)
    surprises = learn_surprises(type_means(blocks, types))
    first, again, other = (draw_scenarios(blocks, types, surprises, draws=3, seed=seed) for seed in (1, 1, 2))
    assert first.tobytes() == again.tobytes() != other.tobytes()


@given(seed=st.integers(0, 99))
def test_mean_of_a_type_is_that_of_its_seen_replicas(seed: int) -> None:
    random = np.random.default_rng(seed)
    blocks = random.uniform(0, 1, (7, 2, 5)).astype(np.float32)
    blocks[random.uniform(size=blocks.shape) < 0.4] = np.nan
    types = np.sort(random.integers(0, 3, 7)).astype(np.int32)
    means = type_means(blocks, types)
    for number in range(len(means)):
        mine = blocks[types == number]
        seen = np.isfinite(mine).any(axis=0)
        assert (np.isfinite(means[number]) == seen).all()
        if seen.any():
            assert means[number][seen] == pytest.approx(np.nanmean(mine[:, seen], axis=0), rel=1e-5)
