"""Hour-of-week figures from histograms agree with exact ones to a point, over all rows of an owner."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.rhythm import week_summary


def exact(values, share):
    return np.sort(values)[max(0, int(np.ceil(share * len(values) - 1e-9)) - 1)]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([24, 168]), st.floats(0, 0.6), st.sampled_from([1, 2, 50]))
def test_figures_are_exact_to_one_point(seed: int, cycle: int, missing: float, hour_steps: int) -> None:
    random = np.random.default_rng(seed)
    ratios = random.beta(0.7, 3, (5, 700)).astype(np.float32)
    ratios[random.random(ratios.shape) < missing] = np.nan
    hours = (np.arange(700) // hour_steps + 7) % 168
    borders = np.array([0, 1, 1, 4, 5])
    said = week_summary(ratios, borders, hours, cycle)
    for owner in range(4):
        for phase in range(cycle):
            own = ratios[borders[owner] : borders[owner + 1], hours % cycle == phase]
            own = own[~np.isnan(own)]
            figures = [one[owner, phase] for one in (said.mean, said.p50, said.p95, said.p99, said.max)]
            if not len(own):
                assert np.isnan(figures).all()
                continue
            wanted = [own.mean(dtype=np.float64), *(exact(own, share) for share in (0.5, 0.95, 0.99)), own.max()]
            assert np.allclose(figures, wanted, atol=0.0051)


def test_impossible_values_are_counted_at_the_border() -> None:
    hours = np.zeros(5, np.int64)
    high = week_summary(np.array([[np.inf, 7.0, 0.2, np.nan, np.inf]], np.float32), np.array([0, 1]), hours, 24)
    low = week_summary(np.array([[-np.inf, -1.0, 0.2, np.nan, -7.0]], np.float32), np.array([0, 1]), hours, 24)
    assert (high.p50[0, 0], high.p95[0, 0]) == (1.0, 1.0)
    assert np.isclose(low.p50[0, 0], 0.005)


def test_without_steps_or_rows_nothing_is_known() -> None:
    none = week_summary(np.zeros((2, 0), np.float32), np.array([0, 2]), np.zeros(0, np.int64), 168)
    assert none.mean.shape == (1, 168)
    assert np.isnan(none.max).all()
    assert week_summary(np.zeros((0, 3), np.float32), np.array([0]), np.zeros(3, np.int64), 24).p99.shape == (0, 24)
