"""From the files that a Flink job has finished to the parts of an append: equal keys merged, coarser levels added.

The job's rows are additive and of the finest level only; files of several subtasks and flushes are merged here into one
row per key, level and partition, so that the warehouse takes in what the embedded rollup would give it. Called by
`flink.publish`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fleet.errors import Corrupt
from fleet.schema import WINDOW_SECONDS, ColumnKind, Merge, Table
from pipeline.records.sightings import INVENTORY_TABLES
from pipeline.warehouse.ddl import arrow_schema
from pipeline.warehouse.warehouse import Part

_DAY_MS = 86_400_000
_BINS = 101


def merged_parts(table: Table, paths: Sequence[Path]) -> Iterator[Part]:
    """The parts that some files of one table amount to, one per date and cluster.

    Args:
        paths: Parquet files with its columns; text is plain, histograms are map<int, int>.

    Raises:
        Corrupt: a file can't be read, or is of another schema.
    """
    rows = _read(table, paths)
    if rows is None:
        return
    is_sighting = table in INVENTORY_TABLES
    texts = [column.name for column in table.columns if column.kind is ColumnKind.TEXT]
    codes = {name: rows.column(name).combine_chunks().dictionary_encode() for name in texts}
    identity = _combined([codes[name].indices.to_numpy() for name in texts])
    moment = rows.column("last_seen" if is_sighting else "window_start").to_numpy()
    # A sighting's time is the end of a step, a window's is its start.
    day = (moment - (1 if is_sighting else 0)) // _DAY_MS
    cluster = codes["cluster"].indices.to_numpy()
    for date, place in sorted(set(zip(day.tolist(), cluster.tolist(), strict=True))):
        picked = np.flatnonzero((day == date) & (cluster == place))
        part = rows.take(pa.array(picked))
        own = identity[picked]
        pieces = (
            (_merged(table, part, codes, picked, own, np.zeros(len(own), dtype=np.int64), None),)
            if is_sighting
            else _levels(table, part, codes, picked, own)
        )
        yield Part(
            table=table,
            date=datetime.fromtimestamp(date * 86400, UTC).date().isoformat(),
            cluster=codes["cluster"].dictionary[place].as_py(),
            rows=pieces,
        )


def _levels(
    table: Table,
    part: pa.Table,
    codes: dict[str, pa.DictionaryArray],
    picked: NDArray[np.int64],
    identity: NDArray[np.int64],
) -> tuple[pa.Table, ...]:
    starts = part.column("window_start").to_numpy()
    finest = np.unique(part.column("window_seconds").to_numpy()).tolist()
    pieces = []
    # Levels of more than one finest length occur where the setting was changed while rows were on their way.
    for level in (*finest, *(level for level in WINDOW_SECONDS if level > max(finest))):
        windows = starts // (level * 1000) * (level * 1000)
        is_own = part.column("window_seconds").to_numpy() == level if level in finest else slice(None)
        rows = np.arange(len(starts))[is_own]
        pieces.append(
            _merged(table, part.take(pa.array(rows)), codes, picked[rows], identity[rows], windows[rows], level)
        )
    return tuple(pieces)


def _merged(
    table: Table,
    part: pa.Table,
    codes: dict[str, pa.DictionaryArray],
    picked: NDArray[np.int64],
    identity: NDArray[np.int64],
    window: NDArray[np.int64],
    level: int | None,
) -> pa.Table:
    """One row per identity and window, in this order."""
    order = np.lexsort((window, identity))
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (np.diff(identity[order]) != 0) | (np.diff(window[order]) != 0)
    starts = np.flatnonzero(is_first)
    group = np.empty(len(order), dtype=np.int64)
    group[order] = np.cumsum(is_first) - 1
    firsts = order[starts]
    schema = arrow_schema(table)
    arrays = []
    for column in table.columns:
        if column.kind is ColumnKind.TEXT:
            text = codes[column.name]
            arrays.append(pa.DictionaryArray.from_arrays(text.indices.take(pa.array(picked[firsts])), text.dictionary))
        elif column.name == "window_start":
            arrays.append(pa.array(window[firsts]))
        elif column.name == "window_seconds":
            arrays.append(pa.array(np.full(len(firsts), level, dtype=np.int64)))
        elif column.merge is Merge.HISTOGRAM:
            arrays.append(_histograms(part.column(column.name), group, len(starts)))
        else:
            arrays.append(_reduced(part.column(column.name), column.merge, order, starts))
    return pa.Table.from_arrays(arrays, schema=schema)


_NEUTRAL = {Merge.SUM: 0, Merge.MAX: np.iinfo(np.int64).min, Merge.MIN: np.iinfo(np.int64).max}
_OPERATION = {Merge.SUM: np.add, Merge.MAX: np.maximum, Merge.MIN: np.minimum}


def _reduced(column: pa.ChunkedArray, merge: Merge, order: NDArray[np.int64], starts: NDArray[np.int64]) -> pa.Array:
    """Null where all values of a group are."""
    values = column.fill_null(int(_NEUTRAL[merge])).to_numpy()[order]
    is_known = column.is_valid().to_numpy()[order]
    known = np.add.reduceat(is_known.astype(np.int64), starts)
    return pa.array(_OPERATION[merge].reduceat(values, starts), mask=known == 0)


def _histograms(column: pa.ChunkedArray, group: NDArray[np.int64], groups: int) -> pa.Array:
    """Bin counts of each group, bins ascending; null where a group has none."""
    maps = column.combine_chunks()
    offsets = maps.offsets.to_numpy().astype(np.int64)
    lengths = np.where(maps.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets), 0)
    row = np.repeat(np.arange(len(maps)), lengths)
    at = np.repeat(offsets[:-1] - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths) + np.arange(lengths.sum())
    bins = maps.keys.to_numpy().astype(np.int64)[at]
    counts = maps.items.to_numpy().astype(np.int64)[at]
    if len(bins) and not 0 <= int(bins.min()) <= int(bins.max()) < _BINS:
        raise Corrupt(f"cannot merge histograms: bins {bins.min()} to {bins.max()} are not within 0 to {_BINS - 1}")
    key = group[row] * _BINS + bins
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    distinct = key[order][starts]
    added = np.add.reduceat(counts[order], starts) if len(starts) else np.empty(0, dtype=np.int64)
    per_group = np.bincount(distinct // _BINS, minlength=groups)
    ends = np.concatenate(([0], np.cumsum(per_group))).astype(np.int32)
    places = pa.array(ends, mask=np.append(per_group == 0, False) if (per_group == 0).any() else None)
    return pa.MapArray.from_arrays(places, pa.array((distinct % _BINS).astype(np.int32)), pa.array(added))


def _combined(codes: Sequence[NDArray[np.int32]]) -> NDArray[np.int64]:
    """One number per distinct row of several columns of codes."""
    together = np.zeros(len(codes[0]), dtype=np.int64)
    for code in codes:
        _, together = np.unique(together * (int(code.max(initial=0)) + 1) + code, return_inverse=True)
    return together


def _read(table: Table, paths: Sequence[Path]) -> pa.Table | None:
    wanted = [column.name for column in table.columns]
    found = []
    for path in paths:
        try:
            rows = pq.ParquetFile(path).read()
        except (OSError, pa.ArrowException) as exc:
            raise Corrupt(f"cannot read {path}: {exc}") from exc
        if rows.column_names != wanted:
            raise Corrupt(f"cannot read {path}: its columns are not those of {table.name}")
        if rows.num_rows:
            found.append(rows)
    return pa.concat_tables(found).combine_chunks() if found else None
