"""From decoded samples to what travels over the bus: few, wide rows, and sightings.

A usage row holds all measures of one slice or card at one time; rows may be partial (a request holds what it holds) and
the rollup merges them by maximum. A record is self-contained: its identities travel beside its rows, and it carries the
schema's version and the hash of the request's body. Called by the receiver (`rows_of`, `pack`) and the rollup
(`unpack`); a job on Flink reads the same by `pipeline/flink/java/gputide/Record.java`, which changes with this file.

Layout of a record: magic `GTR2`, schema version u16, number of sections u16, hash of the body (16 bytes), bytes of the
blocks u64; per section kind u8, mask of measures u32, rows u32, bytes of its identities u32; then the identities of
each section (`label_rows.pack_identities`); then LZ4 (block format) over the blocks of all
sections (`records.blocks`). Integers are
little-endian. The columns follow from `fleet.schema`, so they don't travel.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

import cramjam
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleet.errors import Corrupt
from fleet.schema import CARD_USAGE, MEASURES, POD_USAGE, SCHEMA_VERSION, Table
from pipeline.records import blocks
from pipeline.records import rows_kernels as kernels
from pipeline.records.label_rows import IdentitySet, LabelRows, pack_identities, unpack_identities
from pipeline.records.sightings import INVENTORY_TABLES
from pipeline.remote_write import kernels as wire
from pipeline.remote_write.decode import DecodedBody
from pipeline.remote_write.named_rows import SIGHTED_TABLES
from pipeline.remote_write.series_columns import NOWHERE, Verdict
from pipeline.remote_write.series_table import IDENTITY_TABLES, SeriesTable

TS_MIN_MS = 946_684_800_000
"""2000-01-01: a sample from before it has a broken clock."""
TS_MAX_MS = 4_102_444_800_000
"""2100-01-01: so does one from after it."""
STALE_BITS = 0x7FF0000000000002
"""The NaN by which Prometheus says that a series has ended (prometheus/prometheus:model/value/value.go)."""

_DAY_MS = 86_400_000
_MAGIC = b"GTR2"
_HEADER = struct.Struct("<4sHH16sQ")
_SECTION = struct.Struct("<BIII")
_BLOCKS_BYTES_MAX = 1 << 28
_IDENTITY_SETS = 1024

KINDS: tuple[Table, ...] = (POD_USAGE, CARD_USAGE, *INVENTORY_TABLES)
_KIND_OF = {table.name: kind for kind, table in enumerate(KINDS)}
_LOWEST, _HIGHEST = (
    np.array([column.value_min for column in MEASURES]),
    np.array([column.value_max for column in MEASURES]),
)
# By what sources' decimals are multiplied: percent to ratios, MiB to bytes. A guess that fails costs bytes, no bit.
_FACTORS = np.array([[1.0, 0.01] if column.value_max == 1.0 else [1.0, 1024.0**2] for column in MEASURES])


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows of one table.

    Attributes:
        table: `POD_USAGE`, `CARD_USAGE`, or a table of sightings.
        identities: column `hash` (uint64), then the table's text keys; one row per identity.
        identity: place in `identities`, shape (rows,).
        ts_ms: usage: end of the sample's step, shape (rows,); sightings: first seen.
        measures: usage: places in `fleet.schema.MEASURES` of the rows of `values`; sightings: empty.
        values: usage: shape (measures, rows), NaN = missing; sightings: last seen and ended (NaN = it lasts), epoch
            milliseconds, shape (2, rows).
        identity_set: what `identities` was taken from, where it is remembered.
    """

    table: Table
    identities: pa.RecordBatch
    identity: NDArray[np.int32]
    ts_ms: NDArray[np.int64]
    measures: tuple[int, ...]
    values: NDArray[np.float64]
    identity_set: IdentitySet | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DealtSection:
    """Rows of one table that go into several records, those of a record together.

    Attributes:
        packed: per record, its identities as they stand there.
        counts: how many these are, shape (records,), int64.
        starts: first row of each record, and the end of the last one, shape (records + 1,), int64.
        place: place among the identities of its record, shape (rows,), int32.
        ts_ms: as in `Section`; so are `table`, `measures` and `values`.
    """

    table: Table
    packed: tuple[bytes, ...]
    counts: NDArray[np.int64]
    starts: NDArray[np.int64]
    place: NDArray[np.int32]
    ts_ms: NDArray[np.int64]
    measures: tuple[int, ...]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of a body's samples.

    Attributes:
        written: samples that go to the bus, stale markers and missing values included.
        unwanted: samples of series that nobody asked for.
        dropped: samples of series whose labels pass the limits or can't be read back.
        bad_values: samples outside their measure's range.
        bad_times: samples from before 2000 or after the latest time that may be.
        invalid: samples of series that break the protocol's rules; these make the answer a 400.
        beyond: samples of wanted series that there was no room for; these do, too.
        fault: the first invalid series' fault in words, None where there is none.
    """

    written: int
    unwanted: int
    dropped: int
    bad_values: int
    bad_times: int
    invalid: int
    beyond: int
    fault: str | None


def rows_of(
    body: DecodedBody, table: SeriesTable, series: NDArray[np.int32] | None = None, *, ts_max_ms: int = TS_MAX_MS
) -> tuple[tuple[Section, ...], Tally]:
    """The wide rows and sightings of one body.

    Args:
        body: the decoded body; its values are not changed.
        series: the table's number of each series, where they were looked up already.
        ts_max_ms: latest time of a sample, epoch milliseconds.

    Raises:
        TooLarge: what its series name takes too much.
    """
    if series is None:
        series = table.lookup(body)
    columns, units, samples = table.columns, table.units, len(body.ts_ms)
    starts, ends = body.series[:, wire.SAMPLES_START], body.series[:, wire.SAMPLES_END]
    histograms = body.series[:, wire.HISTOGRAMS]
    counts = np.zeros(len(Verdict), dtype=np.int64)
    cells = kernels.Cells(
        series=np.empty(samples, dtype=np.int32),
        measure=np.empty(samples, dtype=np.int32),
        ts_ms=np.empty(samples, dtype=np.int64),
        value=np.empty(samples, dtype=np.float64),
    )
    valid = _LOWEST, _HIGHEST, TS_MIN_MS, ts_max_ms
    runs = kernels.SampleRuns(series, starts, ends, histograms, body.ts_ms, body.values)
    kept, bad_values, bad_times, first_invalid = kernels.check_samples(
        tuple(runs), columns.verdict, columns.unit, tuple(units), valid, counts, tuple(cells),
        columns.seen, table.tick,
    )  # fmt: skip
    by_verdict = counts.tolist()
    sections = []
    if kept:
        kept_cells = kernels.Cells(cells.series[:kept], cells.measure[:kept], cells.ts_ms[:kept], cells.value[:kept])
        for kind, rows, identity in (
            (POD_USAGE, table.rows.slices, columns.slice_identity),
            (CARD_USAGE, table.rows.cards, columns.card_identity),
        ):
            section = _usage(kind, rows, kept_cells, identity)
            if section is not None:
                sections.append(section)
    if by_verdict[Verdict.SIGHTING]:
        sighted, silent, untimely = _sightings(body, table, series, starts, ends, histograms, ts_max_ms)
        sections += sighted
        bad_values += silent
        bad_times += untimely
    return tuple(sections), Tally(
        written=by_verdict[Verdict.USAGE] + by_verdict[Verdict.SIGHTING] - bad_values - bad_times,
        unwanted=by_verdict[Verdict.UNWANTED],
        dropped=by_verdict[Verdict.DROPPED],
        bad_values=bad_values,
        bad_times=bad_times,
        invalid=by_verdict[Verdict.INVALID],
        beyond=by_verdict[Verdict.BEYOND],
        fault=None if first_invalid < 0 else _fault(table, int(series[first_invalid]), int(histograms[first_invalid])),
    )


def _usage(kind: Table, rows: LabelRows, cells: kernels.Cells, identity: NDArray[np.int32]) -> Section | None:
    serial, stamp, scratch = rows.scratch()
    met, place, ts_ms, measures, values = kernels.pivot(tuple(cells), identity, len(MEASURES), serial, stamp, scratch)
    if not len(place):
        return None
    taken = rows.take(met)
    return Section(
        table=kind,
        identities=taken.batch,
        identity=place,
        ts_ms=ts_ms,
        measures=tuple(measures.tolist()),
        values=values,
        identity_set=taken,
    )


def _sightings(
    body: DecodedBody,
    table: SeriesTable,
    series: NDArray[np.int32],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    histograms: NDArray[np.int32],
    ts_max_ms: int,
) -> tuple[list[Section], int, int]:
    """One row per info series and day: when it was first and last seen, and when it ended.

    Where a value is part of the sighting, a day's last one counts. The numbers are of values that say nothing, and of
    samples with a time out of range.
    """
    is_sighting = (series >= 0) & (table.columns.verdict[series] == Verdict.SIGHTING)
    runs = np.flatnonzero(is_sighting & (ends > starts) & (histograms == 0))
    lengths = ends[runs] - starts[runs]
    before = np.cumsum(lengths) - lengths
    cells = np.repeat(starts[runs] - before, lengths) + np.arange(lengths.sum())
    times, values = body.ts_ms[cells], body.values[cells]
    is_timely = (times >= TS_MIN_MS) & (times <= ts_max_ms)
    is_stale = values.view(np.uint64) == STALE_BITS
    is_seen = ~np.isnan(values)
    kept = np.flatnonzero(is_timely & (is_seen | is_stale))
    bad_times = len(cells) - int(np.count_nonzero(is_timely))
    if not len(kept):
        return [], 0, bad_times
    number = np.repeat(series[runs], lengths)[kept]
    day = (times[kept] - 1) // _DAY_MS
    order = np.lexsort((times[kept], day, number))
    kept, number, day = kept[order], number[order], day[order]
    groups = np.flatnonzero((np.diff(number, prepend=-1) != 0) | (np.diff(day, prepend=day[0]) != 0))
    times, is_seen = times[kept], is_seen[kept]
    last_seen = np.maximum.reduceat(np.where(is_seen, np.arange(len(kept)), -1), groups)
    value = np.where(last_seen >= 0, values[kept[last_seen]], np.nan)
    ended = np.maximum.reduceat(np.where(is_seen, -np.inf, times), groups)
    # A marker without a sighting beside it: the grant was last known to be there just then.
    last = np.where(last_seen >= 0, times[last_seen], ended)
    first = np.minimum(np.minimum.reduceat(np.where(is_seen, times, np.inf), groups), last)
    kinds, rows = table.rows.sightings(table.columns, number[groups], value)
    is_silent = rows < 0
    silent = int(np.add.reduceat(is_seen.astype(np.int64), groups)[is_silent].sum()) if is_silent.any() else 0
    sections = []
    for place, kind in enumerate(SIGHTED_TABLES):
        own = np.flatnonzero((kinds == place) & ~is_silent)
        if not len(own):
            continue
        named, local = np.unique(rows[own], return_inverse=True)
        taken = table.rows.sighted[kind.name].take(named)
        sections.append(
            Section(
                table=kind,
                identities=taken.batch,
                identity=local.astype(np.int32),
                ts_ms=first[own].astype(np.int64),
                measures=(),
                values=np.stack((last[own], np.where(ended[own] > 0, ended[own], np.nan))),
                identity_set=taken,
            )
        )
    return sections, silent, bad_times


def _fault(table: SeriesTable, number: int, histograms: int) -> str:
    if number == NOWHERE:
        return "a series refers to a symbol that does not exist"
    if number >= 0 and (table.columns.verdict[number] == Verdict.INVALID or not histograms):
        return table.fault(number)
    return "a series has both samples and histograms"


def pack(sections: tuple[Section, ...], body_hash: bytes) -> bytes:
    """One record for the bus.

    Args:
        body_hash: 16 bytes (`intake.BodyHash`).
    """
    return pack_dealt(tuple(_undealt(section) for section in sections), 1, body_hash)[0]


def pack_dealt(sections: tuple[DealtSection, ...], records: int, body_hash: bytes) -> dict[int, bytes]:
    """Some records for the bus, by their number; those without rows are left out, unless it is the only one.

    Args:
        body_hash: 16 bytes, the same for all of them.
    """
    room, most = np.zeros(records, dtype=np.int64), np.zeros(records, dtype=np.int64)
    for section in sections:
        rows, columns = np.diff(section.starts), len(section.values)
        room += (2 + 2 * columns) * blocks.BLOCK_BYTES_MAX + 9 * (2 + columns) * rows
        np.maximum(most, rows, out=most)
    plain = np.empty(int(room.sum()), dtype=np.uint8)
    begins = np.cumsum(room) - room
    ends = begins.copy()
    before = tuple(blocks.nothing_written(len(MEASURES), most))
    parts: list[list[tuple[bytes, bytes]]] = [[] for _ in range(records)]
    for section in sections:
        mask = sum(1 << measure for measure in section.measures)
        kind = _KIND_OF[section.table.name]
        into = blocks.SectionRows(section.place, section.ts_ms, _columns(kind, mask), section.values)
        blocks.write_sections(plain, ends, section.counts, section.starts, tuple(into), _FACTORS, before)
        for record, rows in enumerate(np.diff(section.starts).tolist()):
            if rows:
                packed = section.packed[record]
                parts[record].append((_SECTION.pack(kind, mask, rows, len(packed)), packed))
    return {
        record: _record(own, body_hash, plain[begin:end])
        for record, (own, begin, end) in enumerate(zip(parts, begins.tolist(), ends.tolist(), strict=True))
        if own or records == 1
    }


def _undealt(section: Section) -> DealtSection:
    """All rows of a section for one record."""
    taken = section.identity_set
    return DealtSection(
        table=section.table,
        packed=(pack_identities(section.identities) if taken is None else taken.packed,),
        counts=np.array([section.identities.num_rows]),
        starts=np.array([0, len(section.ts_ms)]),
        place=section.identity,
        ts_ms=section.ts_ms,
        measures=section.measures,
        values=section.values,
    )


def _record(parts: list[tuple[bytes, bytes]], body_hash: bytes, plain: NDArray[np.uint8]) -> bytes:
    header = _HEADER.pack(_MAGIC, SCHEMA_VERSION, len(parts), body_hash, len(plain))
    # Blocks are small numbers in long runs: LZ4 finds nearly all that zstd does, for a third of the time.
    packed_blocks = bytes(cramjam.lz4.compress_block(plain.data, store_size=False))
    return b"".join((header, *(head for head, _ in parts), *(packed for _, packed in parts), packed_blocks))


def unpack(record: bytes) -> tuple[Section, ...]:
    """The sections of one record of the bus.

    Raises:
        Corrupt: the record is none of ours, damaged, or of a newer schema.
    """
    if len(record) < _HEADER.size or record[:4] != _MAGIC:
        raise Corrupt(f"cannot read bus record of {len(record)} bytes: it does not begin with {_MAGIC!r}")
    _, schema_version, count, _, length = _HEADER.unpack_from(record)
    if schema_version > SCHEMA_VERSION:
        raise Corrupt(
            f"cannot read bus record of schema version {schema_version}: this program knows versions up to "
            f"{SCHEMA_VERSION}"
        )
    if length > _BLOCKS_BYTES_MAX:
        raise Corrupt(f"cannot read bus record that declares {length} bytes: more than {_BLOCKS_BYTES_MAX}")
    at = _HEADER.size + count * _SECTION.size
    try:
        heads = [_SECTION.unpack_from(record, _HEADER.size + place * _SECTION.size) for place in range(count)]
        start_of_blocks = at + sum(head[3] for head in heads)
        plain = np.empty(length, dtype=np.uint8)
        packed = memoryview(record)[start_of_blocks:]
        written = cramjam.lz4.decompress_block_into(packed, plain.data, output_len=length) if length else 0
    except (cramjam.DecompressionError, struct.error) as exc:
        raise Corrupt(f"cannot read bus record of {len(record)} bytes: {exc}") from exc
    if written != length:
        raise Corrupt(f"cannot read bus record of {len(record)} bytes: it holds {written} bytes and declares {length}")
    before = blocks.no_blocks(len(MEASURES))
    sections, block = [], 0
    for head in heads:
        section, block = _section(head, record[at : at + head[3]], plain, block, before)
        sections.append(section)
        at += head[3]
    return tuple(sections)


def _section(
    head: tuple[int, int, int, int], packed: bytes, plain: NDArray[np.uint8], at: int, before: NDArray[np.int64]
) -> tuple[Section, int]:
    kind, mask, rows, _ = head
    # A row has a value at least, and a value takes a byte at least: no memory for a number that is a lie.
    if kind >= len(KINDS) or mask >> len(MEASURES) or not 0 < rows <= len(plain):
        raise Corrupt(f"cannot read section of kind {kind} with measures {mask:#x} and {rows} rows")
    table = KINDS[kind]
    columns = _columns(kind, mask)
    identities = _remembered_identities(kind, packed)
    identity, ts_ms = np.empty(rows, dtype=np.int32), np.empty(rows, dtype=np.int64)
    values = np.empty((len(columns), rows), dtype=np.float64)
    into = blocks.SectionRows(identity, ts_ms, columns, values)
    end = blocks.read_section(plain, at, identities.num_rows, tuple(into), before)
    if end < 0:
        raise Corrupt(f"cannot read rows of {table.name}: their blocks are damaged at byte {at} of {len(plain)}")
    times = (ts_ms,) if table.name in IDENTITY_TABLES else (ts_ms, values[0], values[1][~np.isnan(values[1])])
    if not all(np.all((part >= TS_MIN_MS) & (part <= TS_MAX_MS)) for part in times):
        raise Corrupt(f"cannot read rows of {table.name}: one has a time that no receiver takes")
    section = Section(
        table=table,
        identities=identities,
        identity=identity,
        ts_ms=ts_ms,
        measures=tuple(columns.tolist()) if mask else (),
        values=values,
    )
    return section, end


@lru_cache(maxsize=_IDENTITY_SETS)
def _remembered_identities(kind: int, packed: bytes) -> pa.RecordBatch:
    return unpack_identities(packed, identities_schema(KINDS[kind]))


@lru_cache(maxsize=1024)
def _columns(kind: int, mask: int) -> NDArray[np.int64]:
    """What the columns of values of a section are; those of sightings, last seen and ended, are 0 and 1."""
    if KINDS[kind].name not in IDENTITY_TABLES:
        return np.arange(2)
    return np.array([place for place in range(len(MEASURES)) if mask >> place & 1], dtype=np.int64)


def identities_schema(table: Table) -> pa.Schema:
    """Arrow schema of the identities of a section: the hash, then the text keys."""
    names = IDENTITY_TABLES.get(table.name, table.keys)
    return pa.schema([("hash", pa.uint64()), *((name, pa.string()) for name in names)])
