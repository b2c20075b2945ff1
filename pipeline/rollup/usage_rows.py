"""Windows of all levels as Arrow tables in the schema's columns. Called by the rollup per partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleet.schema import Column, ColumnKind, MeasureColumn, Merge, Table
from pipeline.rollup import kernels
from pipeline.warehouse.ddl import arrow_schema


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Windows:
    """Windows of one level: what `rollup_kernels.add_windows` fills, in its order."""

    identity: NDArray[np.int32]
    start: NDArray[np.int64]
    samples: NDArray[np.int64]
    count: NDArray[np.int64]
    total: NDArray[np.int64]
    maximum: NDArray[np.int64]
    offsets: NDArray[np.int64]
    bins: NDArray[np.int32]
    bin_counts: NDArray[np.int64]

    def merged(self, level_ms: int) -> _Windows:
        """Coarser windows, each of which holds finer ones wholly."""
        identity, start, samples, count, total, maximum, offsets, bins, bin_counts = kernels.merge_windows(
            self.identity, self.start, self.samples, self.count, self.total, self.maximum, self.offsets, self.bins,
            self.bin_counts, level_ms,
        )  # fmt: skip
        return _Windows(
            identity=identity,
            start=start,
            samples=samples,
            count=count,
            total=total,
            maximum=maximum,
            offsets=offsets,
            bins=bins,
            bin_counts=bin_counts,
        )


def window_tables(
    table: Table, identities: pa.RecordBatch, rows: WindowRows, levels_seconds: Sequence[int]
) -> tuple[pa.Table, ...]:
    """The windows that the new measures of some samples fall into, one table per level.

    Args:
        table: `POD_USAGE` or `CARD_USAGE`.
        identities: text columns of the identities.
        rows: the samples.
        levels_seconds: length of the windows of each level, finest first.
    """
    tables: list[pa.Table] = []
    texts = {
        name: identities.column(name).dictionary_encode() for name in table.keys if name in identities.schema.names
    }
    finer: tuple[int, _Windows] | None = None
    for level in levels_seconds:
        if finer is not None and level % finer[0] == 0:
            windows = finer[1].merged(level * 1000)
        else:
            windows = _added(rows, level * 1000)
        finer = (level, windows)
        tables.append(_table(table, texts, rows.measures, windows, level))
    return tuple(tables)


def _added(rows: WindowRows, level_ms: int) -> _Windows:
    count = kernels.count_windows(rows.identity, rows.ts_ms, rows.mask, level_ms)
    measures, samples = len(rows.measures), len(rows.identity)
    histogram_of = np.full(measures, -1, dtype=np.int64)
    with_histogram = _with_histogram(rows.measures)
    histogram_of[with_histogram] = np.arange(len(with_histogram))
    windows = _Windows(
        identity=np.empty(count, dtype=np.int32),
        start=np.empty(count, dtype=np.int64),
        samples=np.empty(count, dtype=np.int64),
        count=np.empty((measures, count), dtype=np.int64),
        total=np.empty((measures, count), dtype=np.int64),
        maximum=np.empty((measures, count), dtype=np.int64),
        offsets=np.zeros((len(with_histogram), count + 1), dtype=np.int64),
        bins=np.empty((len(with_histogram), samples), dtype=np.int32),
        bin_counts=np.empty((len(with_histogram), samples), dtype=np.int64),
    )
    scales = np.array([column.scale for column in rows.measures], dtype=np.float64)
    kernels.add_windows(
        rows.identity, rows.ts_ms, rows.values, rows.mask, rows.was_seen, level_ms, scales, histogram_of,
        windows.identity, windows.start, windows.samples, windows.count, windows.total, windows.maximum,
        windows.offsets, windows.bins, windows.bin_counts,
    )  # fmt: skip
    return windows


def _with_histogram(measures: Sequence[MeasureColumn]) -> list[int]:
    return [place for place, column in enumerate(measures) if column.has_histogram]


def _table(
    table: Table,
    texts: Mapping[str, pa.DictionaryArray],
    measures: Sequence[MeasureColumn],
    windows: _Windows,
    level_seconds: int,
) -> pa.Table:
    filled: dict[str, pa.Array] = {
        "window_start": pa.array(windows.start),
        "window_seconds": pa.array(np.full(len(windows.start), level_seconds, dtype=np.int64)),
        "samples": pa.array(windows.samples),
    }
    for place, column in enumerate(measures):
        name, is_absent = column.measure.value, windows.count[place] == 0
        filled[f"{name}_count"] = pa.array(windows.count[place])
        filled[f"{name}_sum"] = pa.array(windows.total[place], mask=is_absent)
        filled[f"{name}_max"] = pa.array(windows.maximum[place], mask=is_absent)
    for histogram, place in enumerate(_with_histogram(measures)):
        filled[f"{measures[place].measure.value}_histogram"] = _maps(
            windows.offsets[histogram],
            windows.bins[histogram],
            windows.bin_counts[histogram],
            windows.count[place] == 0,
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
