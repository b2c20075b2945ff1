"""Windows of all levels as Arrow tables in the schema's columns. Called by the rollup per partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleet.schema import Column, ColumnKind, MeasureColumn, Merge, Table
from pipeline.rollup import kernels
from pipeline.warehouse.ddl import arrow_schema


def window_tables(
    table: Table,
    identities: pa.RecordBatch,
    rows: kernels.SampleRows,
    measures: Sequence[MeasureColumn],
    levels_seconds: Sequence[int],
) -> tuple[pa.Table, ...]:
    """The windows that the new measures of some samples fall into, one table per level.

    Args:
        table: `POD_USAGE` or `CARD_USAGE`.
        identities: text columns of the identities.
        measures: what the rows of their values are.
        levels_seconds: length of the windows of each level, finest first.
    """
    tables: list[pa.Table] = []
    texts = {
        name: identities.column(name).dictionary_encode() for name in table.keys if name in identities.schema.names
    }
    finer: tuple[int, kernels.Windows] | None = None
    for level in levels_seconds:
        if finer is not None and level % finer[0] == 0:
            windows: kernels.Windows = kernels.merge_windows(finer[1], level * 1000)
        else:
            windows = _added(rows, measures, level * 1000)
        finer = (level, windows)
        tables.append(_table(table, texts, measures, windows, level))
    return tuple(tables)


def _added(rows: kernels.SampleRows, measures: Sequence[MeasureColumn], level_ms: int) -> kernels.Windows:
    count = kernels.count_windows(rows.identity, rows.ts_ms, rows.mask, level_ms)
    samples, with_histogram = len(rows.identity), _with_histogram(measures)
    histogram_of = np.full(len(measures), -1, dtype=np.int64)
    histogram_of[with_histogram] = np.arange(len(with_histogram))
    windows = kernels.Windows(
        identity=np.empty(count, dtype=np.int32),
        start=np.empty(count, dtype=np.int64),
        samples=np.empty(count, dtype=np.int64),
        counts=np.empty((len(measures), count), dtype=np.int64),
        totals=np.empty((len(measures), count), dtype=np.int64),
        maxima=np.empty((len(measures), count), dtype=np.int64),
        offsets=np.zeros((len(with_histogram), count + 1), dtype=np.int64),
        bins=np.empty((len(with_histogram), samples), dtype=np.int32),
        bin_counts=np.empty((len(with_histogram), samples), dtype=np.int64),
    )
    scales = np.array([column.scale for column in measures], dtype=np.float64)
    kernels.add_windows(rows, level_ms, scales, histogram_of, windows)
    return windows


def _with_histogram(measures: Sequence[MeasureColumn]) -> list[int]:
    return [place for place, column in enumerate(measures) if column.has_histogram]


def _table(
    table: Table,
    texts: Mapping[str, pa.DictionaryArray],
    measures: Sequence[MeasureColumn],
    windows: kernels.Windows,
    level_seconds: int,
) -> pa.Table:
    filled: dict[str, pa.Array] = {
        "window_start": pa.array(windows.start),
        "window_seconds": pa.array(np.full(len(windows.start), level_seconds, dtype=np.int64)),
        "samples": pa.array(windows.samples),
    }
    for place, column in enumerate(measures):
        name, is_absent = column.measure.value, windows.counts[place] == 0
        filled[f"{name}_count"] = pa.array(windows.counts[place])
        filled[f"{name}_sum"] = pa.array(windows.totals[place], mask=is_absent)
        filled[f"{name}_max"] = pa.array(windows.maxima[place], mask=is_absent)
    for histogram, place in enumerate(_with_histogram(measures)):
        filled[f"{measures[place].measure.value}_histogram"] = _maps(
            windows.offsets[histogram],
            windows.bins[histogram],
            windows.bin_counts[histogram],
            windows.counts[place] == 0,
        )
    schema = arrow_schema(table)
    arrays = [
        filled[column.name] if column.name in filled else _unfilled(column, texts, windows.identity, schema)
        for column in table.columns
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _unfilled(
    column: Column, texts: Mapping[str, pa.DictionaryArray], identity: NDArray[np.int32], schema: pa.Schema
) -> pa.Array:
    """An identity column, or a column of a measure that no sample here has."""
    if column.merge is Merge.KEY:
        found = texts[column.name]
        return pa.DictionaryArray.from_arrays(pa.array(found.indices.to_numpy()[identity]), found.dictionary)
    if column.kind is ColumnKind.INTEGER and not column.is_optional:
        return pa.array(np.zeros(len(identity), dtype=np.int64))
    return pa.nulls(len(identity), schema.field(column.name).type)


def _maps(
    offsets: NDArray[np.int64], bins: NDArray[np.int32], counts: NDArray[np.int64], is_absent: NDArray[np.bool_]
) -> pa.MapArray:
    entries = int(offsets[-1])
    places = pa.array(offsets.astype(np.int32), mask=np.append(is_absent, False) if is_absent.any() else None)
    return pa.MapArray.from_arrays(places, pa.array(bins[:entries]), pa.array(counts[:entries]))
