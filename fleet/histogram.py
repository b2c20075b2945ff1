"""The mergeable histogram of a ratio: 101 fixed bins, so that any span of time and any set of rows merge by adding.

A ratio of 0-1 falls into bin `floor(100 * ratio)`, clipped to 0-100; bin 100 holds 1.0 and everything above. The rollup
engines store a row's histogram sparsely (bin → count); the analyzer merges and asks for quantiles over dense arrays
whose last axis has `BINS` entries, one histogram per row.

Error bound: `quantile` answers with the middle of the bin that holds the exact quantile (lower definition, see there),
so it lies within half a point (0.005) of it for ratios of 0-1; stated to callers as *one point*, since an engine may
have put a ratio that lies on a bin's edge one bin lower (0.29 * 100 is 28.999… in binary).

Called by the exporter's and pipeline's adapters (binning, sparse form) and by the analyzer (merging, quantiles). Needs
numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fleet.errors import Corrupt

BINS = 101
"""Bins of every histogram: one per point of a percentage, and one for 100 % and more."""

QUANTILE_ERROR_MAX = 0.01
"""How far `quantile` may lie from the exact quantile of the same ratios, for ratios of 0-1."""

Counts = npt.NDArray[np.int64]
"""Dense histograms: shape `(…, BINS)`, counts of 0 or more."""

Floats = npt.NDArray[np.float64]


def bin_of(ratios: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """The bin of each ratio.

    Args:
        ratios: any shape; finite (a missing sample has no bin: leave it out before).

    Returns:
        Same shape, 0-100.

    Raises:
        ValueError: a ratio is NaN or infinite.
    """
    values = np.asarray(ratios, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("a ratio that is not finite has no bin: leave missing samples out")
    return np.clip(np.floor(100.0 * values), 0, BINS - 1).astype(np.int64)


def from_ratios(ratios: npt.ArrayLike) -> Counts:
    """One histogram over all given ratios, of any shape; shape `(BINS,)`."""
    return np.bincount(bin_of(ratios).ravel(), minlength=BINS).astype(np.int64)


def from_rows(rows: npt.ArrayLike, ratios: npt.ArrayLike, *, row_count: int) -> Counts:
    """One histogram per row from long form.

    Args:
        rows: row number of each sample, 0 to `row_count - 1`; shape `(samples,)`.
        ratios: the samples; shape `(samples,)`, finite.
        row_count: how many histograms to make.

    Returns:
        Shape `(row_count, BINS)`.
    """
    flat = np.asarray(rows, dtype=np.int64) * BINS + bin_of(ratios)
    return np.bincount(flat, minlength=row_count * BINS).astype(np.int64).reshape(row_count, BINS)


def from_long(rows: npt.ArrayLike, bins: npt.ArrayLike, counts: npt.ArrayLike, *, row_count: int) -> Counts:
    """Dense histograms from a flattened sparse form, such as the unnested map column of an Arrow table.

    Args:
        rows: row number of each entry; shape `(entries,)`; entries that name the same row and bin are added.
        bins: bin of each entry, 0-100; shape `(entries,)`.
        counts: count of each entry, 0 or more; shape `(entries,)`.
        row_count: how many histograms to make.

    Returns:
        Shape `(row_count, BINS)`.

    Raises:
        Corrupt: a bin or a count lies outside its range.
    """
    bin_numbers = np.asarray(bins, dtype=np.int64)
    weights = np.asarray(counts, dtype=np.int64)
    if bin_numbers.size and (bin_numbers.min() < 0 or bin_numbers.max() >= BINS):
        raise Corrupt(
            f"cannot read histogram: bins {bin_numbers.min()} to {bin_numbers.max()} are not all within 0 to {BINS - 1}"
        )
    if weights.size and weights.min() < 0:
        raise Corrupt(f"cannot read histogram: a bin holds {weights.min()} samples")
    dense = np.zeros(row_count * BINS, dtype=np.int64)
    np.add.at(dense, np.asarray(rows, dtype=np.int64) * BINS + bin_numbers, weights)
    return dense.reshape(row_count, BINS)


def from_sparse(maps: Sequence[Mapping[int, int] | Iterable[tuple[int, int]] | None]) -> Counts:
    """Dense histograms from one sparse map (or its pairs) per row; `None` is an empty one.

    Returns:
        Shape `(len(maps), BINS)`.

    Raises:
        Corrupt: a bin or a count lies outside its range.
    """
    entries = [
        (row, key, count)
        for row, pairs in enumerate(maps)
        for key, count in (pairs.items() if isinstance(pairs, Mapping) else pairs or ())
    ]
    columns = np.array(entries, dtype=np.int64).reshape(-1, 3)
    return from_long(columns[:, 0], columns[:, 1], columns[:, 2], row_count=len(maps))


def to_sparse(counts: Counts) -> list[dict[int, int]]:
    """The sparse maps of dense histograms of shape `(rows, BINS)`: bins that hold something, in order."""
    maps: list[dict[int, int]] = [{} for _ in range(len(counts))]
    rows, bins = np.nonzero(counts)
    for row, key, count in zip(rows.tolist(), bins.tolist(), counts[rows, bins].tolist(), strict=True):
        maps[row][key] = count
    return maps


def merge(counts: Counts, *, axis: int | tuple[int, ...] = 0) -> Counts:
    """Merges histograms along an axis of rows (never the last one, which holds the bins) by adding them."""
    merged: Counts = np.sum(counts, axis=axis, dtype=np.int64)
    return merged


def merge_groups(counts: Counts, groups: npt.ArrayLike, *, group_count: int) -> Counts:
    """Merges rows that belong together.

    Args:
        counts: shape `(rows, BINS)`.
        groups: group number of each row, 0 to `group_count - 1`; shape `(rows,)`.
        group_count: how many groups there are; one without rows gets an empty histogram.

    Returns:
        Shape `(group_count, BINS)`.
    """
    merged = np.zeros((group_count, BINS), dtype=np.int64)
    np.add.at(merged, np.asarray(groups, dtype=np.int64), counts)
    return merged


def quantile(counts: Counts, probability: float) -> Floats:
    """The quantile of every histogram.

    It is the smallest ratio with at least `probability` of the samples at or below it (numpy's `inverted_cdf`), seen at
    the bins' resolution: the middle of its bin, and 1.0 for the last one.

    Args:
        counts: shape `(…, BINS)`.
        probability: 0-1.

    Returns:
        Shape `(…,)`, 0-1; NaN where a histogram is empty (absent, never to be stored or printed).

    Raises:
        ValueError: the probability lies outside 0-1.
    """
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"a probability lies within 0 and 1, not {probability}")
    cumulative = np.cumsum(counts, axis=-1)
    totals = cumulative[..., -1:]
    # The product of a probability and a count can fall just beside a whole number; a millionth of a sample is no
    # sample.
    ranks = np.maximum(np.ceil(probability * totals - 1e-6), 1.0)
    found = np.argmax(cumulative >= ranks, axis=-1)
    middles = np.minimum((found + 0.5) / 100.0, 1.0)
    result: Floats = np.where(totals[..., 0] > 0, middles, np.nan)
    return result


def share_above(counts: Counts, ratio: float) -> Floats:
    """The share of samples in bins above the one that holds `ratio`; NaN where a histogram is empty. Shape `(…,)`."""
    first = int(bin_of(ratio)) + 1
    totals = counts.sum(axis=-1)
    above = counts[..., first:].sum(axis=-1)
    return _divided(above, totals)


def mean(counts: Counts) -> Floats:
    """The mean of every histogram by the bins' middles, within half a point; NaN where empty. Shape `(…,)`.

    Rows that carry an exact sum are better served by it; this is for histograms that travel alone.
    """
    middles = np.minimum((np.arange(BINS) + 0.5) / 100.0, 1.0)
    return _divided(counts @ middles, counts.sum(axis=-1))


def _divided(numerator: npt.NDArray[Any], denominator: npt.NDArray[np.int64]) -> Floats:
    result: Floats = np.full(np.shape(denominator), np.nan, dtype=np.float64)
    np.divide(numerator, denominator, out=result, where=np.asarray(denominator) > 0)
    return result
