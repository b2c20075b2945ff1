"""Hour-of-week figures from histograms agree with exact ones to a point, in both forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.week_histograms import week_counts, week_summary, week_summary_of_samples

SINCE_MS = 1_767_571_200_000


def exact(values, share):
    return np.sort(values)[max(0, int(np.ceil(share * len(values) - 1e-9)) - 1)]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([24, 168]), st.floats(0, 0.6))
def test_figures_are_exact_to_one_point(seed: int, cycle: int, missing: float) -> None:
    random = np.random.default_rng(seed)
    ratios = random.beta(0.7, 3, (3, 700)).astype(np.float32)
    ratios[random.random(ratios.shape) < missing] = np.nan
    hours = np.arange(700) // 2 % 168
    said = week_summary(ratios, hours, cycle)
    for row in range(3):
        for phase in range(cycle):
            own = ratios[row, hours % cycle == phase]
            own = own[~np.isnan(own)]
            figures = [one[row, phase] for one in (said.mean, said.p50, said.p95, said.p99, said.max)]
            if not len(own):
                assert np.isnan(figures).all()
                continue
            wanted = [own.mean(dtype=np.float64), *(exact(own, share) for share in (0.5, 0.95, 0.99)), own.max()]
            assert np.allclose(figures, wanted, atol=0.0051)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_samples_in_any_order_give_what_the_grid_gives(seed: int, shuffled: bool) -> None:
    random = np.random.default_rng(seed)
    ratios = random.uniform(0, 1, (4, 500)).astype(np.float32)
    ratios[random.random(ratios.shape) < 0.2] = np.nan
    rows, steps = np.nonzero(~np.isnan(ratios))
    order = random.permutation(len(rows)) if shuffled else np.arange(len(rows))
    hours = np.arange(500) // 60 % 168
    long = week_summary_of_samples(
        ratios[rows, steps][order],
        rows[order].astype(np.int32),
        (SINCE_MS + (steps[order] + 1) * 60_000).astype(np.int64),
        rows=4,
        since_ms=SINCE_MS,
        step_ms=60_000,
        hour_of_step=hours,
        cycle=168,
    )
    grid = week_summary(ratios, hours, 168)
    for name in ("mean", "p50", "p95", "p99", "max"):
        assert np.allclose(getattr(long, name), getattr(grid, name), atol=1e-6, equal_nan=True)


def test_samples_outside_the_steps_or_of_nobody_are_left_out() -> None:
    said = week_summary_of_samples(
        np.array([0.9, 0.9, 0.9, 0.3, np.nan], np.float32),
        np.array([0, 0, 7, 0, 0], np.int32),
        SINCE_MS + np.array([-60_000, 61 * 60_000, 60_000, 60_000, 120_000]),
        rows=1,
        since_ms=SINCE_MS,
        step_ms=60_000,
        hour_of_step=np.zeros(60, np.int64),
        cycle=24,
    )
    assert said.max[0, 0] == pytest.approx(0.3)
    assert np.isnan(said.max[0, 1:]).all()


def test_impossible_values_are_counted_at_the_border() -> None:
    counts = week_counts(
        np.array([[np.inf, -np.inf, 7.0, -1.0, np.nan]], np.float32), np.array([0]), 1, np.zeros(5, np.int64), 24
    )
    assert (counts[0, 0, 0], counts[0, 0, 100], counts.sum()) == (2, 2, 4)
