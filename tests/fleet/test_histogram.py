"""Histograms merge by adding, and their quantiles lie within a point of the exact ones."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet import histogram
from fleet.errors import Corrupt

RATIOS = st.lists(st.floats(0.0, 1.0), max_size=60)


@given(RATIOS, RATIOS, RATIOS)
def test_merging_is_associative_and_commutative(first: list[float], second: list[float], third: list[float]) -> None:
    a, b, c = (histogram.from_ratios(ratios) for ratios in (first, second, third))
    left = histogram.merge(np.stack([histogram.merge(np.stack([a, b])), c]))
    right = histogram.merge(np.stack([histogram.merge(np.stack([c, b])), a]))
    assert np.array_equal(left, right)


@given(RATIOS, st.integers(0, 60))
def test_any_split_of_the_samples_gives_the_same_histogram(ratios: list[float], at: int) -> None:
    parts = np.stack([histogram.from_ratios(ratios[:at]), histogram.from_ratios(ratios[at:])])
    assert np.array_equal(histogram.merge(parts), histogram.from_ratios(ratios))


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=200), st.floats(0.0, 1.0))
def test_a_quantile_lies_within_a_point_of_the_exact_one(ratios: list[float], probability: float) -> None:
    exact = float(np.quantile(ratios, probability, method="inverted_cdf"))
    found = float(histogram.quantile(histogram.from_ratios(ratios), probability))
    neighbours = np.quantile(ratios, np.clip([probability - 1e-6, probability + 1e-6], 0, 1), method="inverted_cdf")
    assert min(abs(found - value) for value in (exact, *neighbours)) <= histogram.QUANTILE_ERROR_MAX


@given(st.lists(st.one_of(st.none(), st.dictionaries(st.integers(0, 100), st.integers(1, 10**9))), max_size=8))
def test_the_sparse_form_is_the_same_after_a_round_trip(maps: Sequence[dict[int, int] | None]) -> None:
    assert histogram.to_sparse(histogram.from_sparse(maps)) == [entry or {} for entry in maps]


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0.0, 1.0)), max_size=60))
def test_rows_are_binned_as_if_each_stood_alone(samples: list[tuple[int, float]]) -> None:
    rows = [row for row, _ in samples]
    together = histogram.from_rows(rows, [ratio for _, ratio in samples], row_count=5)
    alone = np.stack([histogram.from_ratios([ratio for row, ratio in samples if row == number]) for number in range(5)])
    assert np.array_equal(together, alone)


def test_groups_are_merged_and_a_group_without_rows_is_empty() -> None:
    counts = histogram.from_rows([0, 1, 2], [0.1, 0.1, 0.9], row_count=3)
    merged = histogram.merge_groups(counts, [0, 0, 2], group_count=3)
    assert histogram.to_sparse(merged) == [{10: 2}, {}, {90: 1}]


def test_quantiles_are_taken_for_many_rows_at_once_and_are_absent_for_empty_ones() -> None:
    counts = histogram.from_rows([0] * 100 + [2], [index / 100 for index in range(100)] + [1.0], row_count=3)
    found = histogram.quantile(counts.reshape(3, 1, histogram.BINS), 0.95)
    assert found.shape == (3, 1)
    assert found[0, 0] == pytest.approx(0.945)
    assert np.isnan(found[1, 0])
    assert found[2, 0] == 1.0


def test_ratios_outside_are_clipped_into_the_outer_bins() -> None:
    assert histogram.bin_of([-0.5, 0.0, 0.999, 1.0, 7.0]).tolist() == [0, 0, 99, 100, 100]


def test_a_missing_sample_has_no_bin() -> None:
    with pytest.raises(ValueError, match="not finite"):
        histogram.bin_of([0.5, float("nan")])


@pytest.mark.parametrize("entry", [{101: 1}, {-1: 1}, {5: -1}])
def test_a_stored_histogram_outside_its_range_is_corrupt(entry: dict[int, int]) -> None:
    with pytest.raises(Corrupt):
        histogram.from_sparse([entry])


def test_the_share_above_and_the_mean_come_from_the_bins() -> None:
    counts = histogram.from_ratios([0.105, 0.105, 0.505, 0.905])
    assert float(histogram.share_above(counts, 0.5)) == 0.25
    assert float(histogram.mean(counts)) == pytest.approx(0.405)
