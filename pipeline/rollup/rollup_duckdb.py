"""The embedded rollup (`run rollup --engine duckdb`): bus to additive rows of every level, beside the DuckDB warehouse.

One step takes a piece of the bus, of all lanes that this process has, makes one row of all partial rows of a slice or
card and time, takes away what earlier steps have counted, and adds the rest up at all levels at once. The rows are
appended under the offsets of each lane together with an index of what was counted, so a step that was killed is taken
again from the start and a sample that comes again, late or in another order, counts once; also where another process
counts it this very moment. The adding up itself is in `rollup.kernels`: the rows come sorted,
so one walk per level does what SQL would need a hash table and a list aggregate for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleet.errors import Corrupt
from fleet.logs import logger
from fleet.schema import (
    CARD_USAGE,
    MEASURES,
    POD_USAGE,
    USAGE_MEASURES,
    WINDOW_SECONDS,
    Column,
    ColumnKind,
    MeasureColumn,
    Merge,
    Table,
)
from pipeline.bus.bus import Bus, Chunk, DeadLetters
from pipeline.records.rows import Section, unpack
from pipeline.records.sightings import INVENTORY_TABLES
from pipeline.rollup import kernels
from pipeline.rollup.rollup import RollupStep
from pipeline.warehouse.ddl import arrow_schema
from pipeline.warehouse.warehouse import AppendName, Overtaken, Part, SeenRows, SeenStore, Warehouse

DAY_MS = 86_400_000
ROWS_PER_STEP_MAX = 1_000_000
"""Partial rows that one step takes in before it stops reading, whatever their bytes: bounds its memory."""
_BUCKETS_MAX = 1 << 16


class RollupTarget(Warehouse, SeenStore, Protocol):
    """A warehouse that also remembers what was counted."""


class EmbeddedRollup:
    """Rolls a bus up into a warehouse, step by step; mutable: it knows how far each lane was taken in.

    Args:
        lanes: says from which lanes records come now; a lane is committed once its rows are in the warehouse. One that
            was given up and came back is another object.
        warehouse: where rows go; its manifest is the truth about how far each lane was taken in.
        chunk_bytes: most bytes of the bus per step (`rollup.chunk_bytes`).
        window_seconds: length of the finest windows (`rollup.window_seconds`).
        rows_per_step_max: partial rows after which a step stops reading.
        dead_letters: where records go that can't be read; None to pass them over.
    """

    def __init__(
        self,
        lanes: Callable[[], Iterable[Bus]],
        warehouse: RollupTarget,
        *,
        chunk_bytes: int,
        window_seconds: int = WINDOW_SECONDS[0],
        rows_per_step_max: int = ROWS_PER_STEP_MAX,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        self._lanes = lanes
        self._warehouse = warehouse
        self._chunk_bytes = chunk_bytes
        self._levels = (window_seconds, *(level for level in WINDOW_SECONDS if level > window_seconds))
        self._rows_per_step_max = rows_per_step_max
        self._dead_letters = dead_letters
        self._at: dict[Bus, int] = {}
        self._first = 0

    def step(self) -> RollupStep | None:
        """Takes in the next piece of the bus; see `Rollup.step`."""
        lanes = list(self._lanes())
        self._at = {lane: at for lane, at in self._at.items() if lane in lanes}
        try:
            piece, tally = self._taken_in(lanes)
            for lane, end in piece.ends.items():
                self._at[lane] = end
                lane.commit(end)
        except BaseException:
            # It may be in the warehouse or not, with some lanes committed or none: where to go on is asked anew.
            self._at.clear()
            raise
        if not piece.ends:
            return None
        # The lane after the last one that was read has its turn first.
        self._first += len(piece.ends)
        return RollupStep(
            records=piece.records,
            corrupt=piece.corrupt,
            samples=piece.samples,
            repeats=piece.samples - tally.new_samples - tally.late,
            late=tally.late,
            rows=tally.rows,
        )

    def _taken_in(self, lanes: Sequence[Bus]) -> tuple[_Piece, _Tally]:
        """The next piece of some lanes, once its rows are in the warehouse; an empty one where there is none."""
        while True:
            piece, tally = self._read(lanes), _Tally()
            if not piece.ends:
                return piece, tally
            try:
                self._warehouse.append(piece.names, self._parts(piece.sections, tally))
            except Overtaken:
                self._at.clear()
                continue
            return piece, tally

    def _read(self, lanes: Sequence[Bus]) -> _Piece:
        """What lies on some lanes, as much of it as goes into one step."""
        piece = _Piece()
        left = self._chunk_bytes
        for place in range(len(lanes)):
            if left <= 0 or piece.samples >= self._rows_per_step_max:
                break
            lane = lanes[(self._first + place) % len(lanes)]
            chunk = lane.read(self._start(lane), bytes_max=left)
            if chunk is not None:
                left -= sum(map(len, chunk.records))
                self._take(lane, chunk, piece)
        return piece

    def _take(self, lane: Bus, chunk: Chunk, piece: _Piece) -> None:
        taken = 0
        for record, start in zip(chunk.records, chunk.starts or (chunk.start, *chunk.ends), strict=False):
            if piece.samples >= self._rows_per_step_max:
                break
            taken += 1
            try:
                found = unpack(record)
            except Corrupt as exc:
                piece.corrupt += 1
                self._keep(record, str(exc), chunk.source, start)
                continue
            for section in found:
                piece.sections.setdefault(section.table.name, []).append(section)
                piece.samples += len(section.ts_ms) if section.measures else 0
        if taken == len(chunk.records):
            end = chunk.end
            piece.corrupt += chunk.corrupt
        else:
            end = chunk.ends[taken - 1]
        for unreadable in chunk.unreadable:
            if unreadable.offset < end:
                piece.corrupt += 1
                self._keep(unreadable.payload, unreadable.reason, chunk.source, unreadable.offset)
        piece.records += taken
        piece.ends[lane] = end
        piece.names.append(AppendName(source=chunk.source, start=chunk.start, end=end))

    def _parts(self, sections: dict[str, list[Section]], tally: _Tally) -> Iterator[Part]:
        """Every partition's part, made when it is asked for, so that one at a time is in memory."""
        for table in (POD_USAGE, CARD_USAGE):
            for part in self._usage_parts(table, sections.pop(table.name, []), tally):
                tally.add(part)
                yield part
        for table in INVENTORY_TABLES:
            for part in _sighting_parts(table, sections.pop(table.name, [])):
                tally.add(part)
                yield part

    def _keep(self, payload: bytes, reason: str, source: str, offset: int) -> None:
        """Keeps what can't be read before the bus may drop it."""
        if self._dead_letters is not None:
            self._dead_letters.put(payload, reason=reason, source=source, offset=offset)

    def _start(self, lane: Bus) -> int:
        """Where a lane goes on."""
        if lane not in self._at:
            committed = lane.committed()
            chunk = lane.read(committed, bytes_max=1)
            if chunk is None:
                return committed
            applied = self._warehouse.applied_offset(chunk.source)
            if committed > applied:
                _LOG.warning(
                    "the bus is committed beyond what this warehouse has of it: a restored or a new warehouse lacks "
                    "what lies between, until the commit is set back (docs/operations.md)",
                    source=chunk.source, committed=committed, applied=applied,
                )  # fmt: skip
            # Killed between append and commit: the warehouse knows better.
            self._at[lane] = max(committed, applied)
            lane.commit(self._at[lane])
        return self._at[lane]

    def _usage_parts(self, table: Table, sections: list[Section], tally: _Tally) -> Iterator[Part]:
        """Every partition's rows; the sections are let go of once they are merged."""
        if not sections:
            return
        identities, cluster_of, codes = _identities(sections)
        ts_ms = np.concatenate([section.ts_ms for section in sections])
        places, values = _values(sections)
        sections.clear()
        order = _order(codes, ts_ms, len(identities))
        identity, ts_ms, values, mask = kernels.merge_rows(order, codes, ts_ms, values)
        del order, codes
        hashes = identities.column("hash").to_numpy()[identity]
        day = (ts_ms - 1) // DAY_MS
        cluster = cluster_of[identity]
        borders = np.flatnonzero((np.diff(day) != 0) | (np.diff(cluster) != 0)) + 1
        columns = USAGE_MEASURES[table.name]
        bits = np.array([columns.index(MEASURES[place]) for place in places], dtype=np.uint32)
        for start, end in zip([0, *borders.tolist()], [*borders.tolist(), len(identity)], strict=True):
            rows = kernels.SampleRows(
                identity=identity[start:end],
                ts_ms=ts_ms[start:end],
                values=values[:, start:end],
                mask=mask[start:end],
                was_seen=np.zeros(end - start, dtype=np.bool_),
            )
            measures = tuple(MEASURES[place] for place in places)
            date = _date(int(day[start]))
            name = identities.column("cluster")[int(identity[start])].as_py()
            if self._warehouse.is_closed(table, date, name):
                tally.late += end - start
                continue
            first_ms, last_ms = int(rows.ts_ms.min()), int(rows.ts_ms.max())
            for seen in self._warehouse.seen(table, date, name, since_ms=first_ms, until_ms=last_ms):
                local = _translated(seen.measures, bits, np.arange(len(bits), dtype=np.uint32))
                kernels.drop_seen(
                    hashes[start:end], rows.ts_ms, rows.mask, rows.was_seen, seen.hashes, seen.ts_ms, local
                )
            is_new = rows.mask != 0
            if not is_new.any():
                continue
            yield Part(
                table=table,
                date=date,
                cluster=name,
                rows=_window_tables(table, identities, rows, measures, self._levels),
                seen=SeenRows(
                    hashes=hashes[start:end][is_new],
                    ts_ms=rows.ts_ms[is_new],
                    measures=_translated(rows.mask[is_new], np.arange(len(bits), dtype=np.uint32), bits),
                ),
            )


@dataclass(slots=True)
class _Piece:
    """What one step takes in; mutable: filled lane by lane.

    Attributes:
        sections: by name of their table.
        names: what the append is named by, a piece of each lane that had one.
        ends: where each of those lanes goes on.
    """

    sections: dict[str, list[Section]] = field(default_factory=dict)
    names: list[AppendName] = field(default_factory=list)
    ends: dict[Bus, int] = field(default_factory=dict)
    records: int = 0
    corrupt: int = 0
    samples: int = 0


class _Tally:
    """What the parts of one step amount to."""

    def __init__(self) -> None:
        self.new_samples = 0
        self.late = 0
        self.rows = 0

    def add(self, part: Part) -> None:
        self.rows += sum(piece.num_rows for piece in part.rows)
        self.new_samples += 0 if part.seen is None else len(part.seen.ts_ms)


def _identities(sections: Sequence[Section]) -> tuple[pa.RecordBatch, NDArray[np.int64], NDArray[np.int32]]:
    """All identities once, sorted by cluster and hash; the number of each one's cluster; the identity of each row."""
    # Senders repeat themselves, and the same set of identities is read as the same batch.
    batches = {id(section.identities): section.identities for section in sections}
    firsts_of = np.cumsum([0, *(batch.num_rows for batch in batches.values())]).tolist()
    start_of = dict(zip(batches, firsts_of, strict=False))
    together = pa.Table.from_batches(list(batches.values()))
    _, firsts, inverse = np.unique(together.column("hash").to_numpy(), return_index=True, return_inverse=True)
    distinct = together.take(pa.array(firsts)).combine_chunks()
    clusters = distinct.column("cluster").combine_chunks().dictionary_encode().indices.to_numpy()
    by_cluster = np.argsort(clusters, kind="stable")
    rank = np.empty(len(firsts), dtype=np.int32)
    rank[by_cluster] = np.arange(len(firsts), dtype=np.int32)
    number = rank[inverse]
    codes = np.concatenate([number[start_of[id(section.identities)] + section.identity] for section in sections])
    return (
        distinct.take(pa.array(by_cluster)).combine_chunks().to_batches()[0],
        clusters[by_cluster].astype(np.int64),
        codes,
    )


def _values(sections: Sequence[Section]) -> tuple[tuple[int, ...], NDArray[np.float64]]:
    """The measures that occur (places in `MEASURES`), and a row of values for each, NaN where a section has none."""
    places = tuple(sorted({measure for section in sections for measure in section.measures}))
    values = np.empty((len(places), sum(len(section.ts_ms) for section in sections)))
    at = 0
    for section in sections:
        end = at + len(section.ts_ms)
        if section.measures == places:
            values[:, at:end] = section.values
        else:
            values[:, at:end] = np.nan
            for row, measure in enumerate(section.measures):
                values[places.index(measure), at:end] = section.values[row]
        at = end
    return places, values


def _order(identity: NDArray[np.int32], ts_ms: NDArray[np.int64], identities: int) -> NDArray[np.int64]:
    """Rows sorted by day, identity and time: by counting where times come in order, else by a key."""
    day, in_day = np.divmod(ts_ms - 1, DAY_MS)
    day -= day.min()
    buckets = (int(day.max()) + 1) * identities
    if buckets <= len(identity) + _BUCKETS_MAX:
        order, is_sorted = kernels.order_rows(day * identities + identity, buckets, ts_ms)
        if is_sorted:
            in_order: NDArray[np.int64] = order
            return in_order
    identity_bits, in_day_bits = identities.bit_length(), 27
    if int(day.max()).bit_length() + identity_bits + in_day_bits > 63:
        return np.lexsort((in_day, identity, day))
    key = (day << (identity_bits + in_day_bits)) | (identity.astype(np.int64) << in_day_bits) | in_day
    by_key: NDArray[np.int64] = np.argsort(key)
    return by_key


def _translated(
    mask: NDArray[np.uint32], from_bits: NDArray[np.uint32], to_bits: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    translated = np.zeros(len(mask), dtype=np.uint32)
    for source, target in zip(from_bits, to_bits, strict=True):
        translated |= ((mask >> source) & np.uint32(1)) << target
    return translated


def _sighting_parts(table: Table, sections: Sequence[Section]) -> list[Part]:
    if not sections:
        return []
    identities, cluster_of, identity = _identities(sections)
    first = np.concatenate([section.ts_ms for section in sections])
    last = np.concatenate([section.values[0] for section in sections]).astype(np.int64)
    ended = np.concatenate([section.values[1] for section in sections])
    day = (last - 1) // DAY_MS
    order = np.lexsort((identity, day))
    identity, day, first, last, ended = identity[order], day[order], first[order], last[order], ended[order]
    starts = np.flatnonzero(np.diff(identity, prepend=-1) | np.diff(day, prepend=-1))
    first, last = np.minimum.reduceat(first, starts), np.maximum.reduceat(last, starts)
    ended = np.fmax.reduceat(ended, starts)
    identity, day = identity[starts], day[starts]
    cluster = cluster_of[identity]
    borders = np.flatnonzero((np.diff(day) != 0) | (np.diff(cluster) != 0)) + 1
    parts = []
    for start, end in zip([0, *borders.tolist()], [*borders.tolist(), len(identity)], strict=True):
        texts = identities.take(pa.array(identity[start:end]))
        columns = [texts.column(name).dictionary_encode() for name in table.keys]
        is_open = np.isnan(ended[start:end])
        times = [
            pa.array(first[start:end]),
            pa.array(last[start:end]),
            pa.array(np.nan_to_num(ended[start:end]).astype(np.int64), mask=is_open),
        ]
        rows = pa.Table.from_arrays([*columns, *times], schema=arrow_schema(table))
        name = texts.column("cluster")[0].as_py()
        parts.append(Part(table=table, date=_date(int(day[start])), cluster=name, rows=(rows,)))
    return parts


def _date(day: int) -> str:
    return datetime.fromtimestamp(day * 86400, UTC).date().isoformat()


def _window_tables(
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


_LOG = logger(__name__)
