"""Windows of one level as an Arrow table in the schema's columns. Called by the rollup per level and partition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleet.schema import Column, ColumnKind, MeasureColumn, Merge, Table
from pipeline import rollup_kernels as kernels
from pipeline.ddl import arrow_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRows:
    """Samples of one partition, sorted by identity and time, each (identity, time) once.

    Attributes:
        identity: place in the identities, shape (samples,).
        ts_ms: end of each sample's step, shape (samples,).
        values: shape (measures, samples), NaN = missing.
        mask: which measures are new, bit i for row i of `values`, shape (samples,).
        was_seen: whether the sample was counted before, shape (samples,).
        measures: what the rows of `values` are.
    """

    identity: NDArray[np.int32]
    ts_ms: NDArray[np.int64]
    values: NDArray[np.float64]
    mask: NDArray[np.uint32]
    was_seen: NDArray[np.bool_]
    measures: tuple[MeasureColumn, ...]


def window_table(table: Table, identities: pa.RecordBatch, rows: WindowRows, level_seconds: int) -> pa.Table:
    """The windows that the new measures of some samples fall into.

    Args:
        table: `POD_USAGE` or `CARD_USAGE`.
        identities: text columns of the identities.
        rows: the samples.
        level_seconds: length of the windows.
    """
    level_ms = level_seconds * 1000
    count = kernels.count_windows(rows.identity, rows.ts_ms, rows.mask, level_ms)
    measures, samples = len(rows.measures), len(rows.identity)
    with_histogram = [place for place, column in enumerate(rows.measures) if column.has_histogram]
    histogram_of = np.full(measures, -1, dtype=np.int64)
    histogram_of[with_histogram] = np.arange(len(with_histogram))
    identity = np.empty(count, dtype=np.int32)
    window = np.empty(count, dtype=np.int64)
    sample_count = np.empty(count, dtype=np.int64)
    counts, sums, maxima = (np.empty((measures, count), dtype=np.int64) for _ in range(3))
    offsets = np.zeros((len(with_histogram), count + 1), dtype=np.int64)
    bins = np.empty((len(with_histogram), samples), dtype=np.int32)
    bin_counts = np.empty((len(with_histogram), samples), dtype=np.int64)
    scales = np.array([column.scale for column in rows.measures], dtype=np.float64)
    kernels.add_windows(
        rows.identity, rows.ts_ms, rows.values, rows.mask, rows.was_seen, level_ms, scales, histogram_of,
        identity, window, sample_count, counts, sums, maxima, offsets, bins, bin_counts,
    )  # fmt: skip
    filled: dict[str, pa.Array] = {
        "window_start": pa.array(window),
        "window_seconds": pa.array(np.full(count, level_seconds, dtype=np.int64)),
        "samples": pa.array(sample_count),
    }
    for place, column in enumerate(rows.measures):
        name, is_absent = column.measure.value, counts[place] == 0
        filled[f"{name}_count"] = pa.array(counts[place])
        filled[f"{name}_sum"] = pa.array(sums[place], mask=is_absent)
        filled[f"{name}_max"] = pa.array(maxima[place], mask=is_absent)
        histogram = histogram_of[place]
        if histogram >= 0:
            filled[f"{name}_histogram"] = _maps(offsets[histogram], bins[histogram], bin_counts[histogram], is_absent)
    schema = arrow_schema(table)
    arrays = [
        filled[column.name] if column.name in filled else _unfilled(column, identities, identity, schema)
        for column in table.columns
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _unfilled(column: Column, identities: pa.RecordBatch, identity: NDArray[np.int32], schema: pa.Schema) -> pa.Array:
    """An identity column, or a column of a measure that no sample here has."""
    if column.merge is Merge.KEY:
        texts = identities.column(column.name).dictionary_encode()
        return pa.DictionaryArray.from_arrays(pa.array(texts.indices.to_numpy()[identity]), texts.dictionary)
    if column.kind is ColumnKind.INTEGER and not column.is_optional:
        return pa.array(np.zeros(len(identity), dtype=np.int64))
    return pa.nulls(len(identity), schema.field(column.name).type)


def _maps(
    offsets: NDArray[np.int64], bins: NDArray[np.int32], counts: NDArray[np.int64], is_absent: NDArray[np.bool_]
) -> pa.MapArray:
    entries = int(offsets[-1])
    places = pa.array(offsets.astype(np.int32), mask=np.append(is_absent, False) if is_absent.any() else None)
    return pa.MapArray.from_arrays(places, pa.array(bins[:entries]), pa.array(counts[:entries]))
