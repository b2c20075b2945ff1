"""From decoded samples to what travels over the bus: few, wide rows, and sightings.

A usage row holds all measures of one slice or card at one time; rows may be partial (a request holds what it holds) and
the rollup merges them by maximum. A record is self-contained: its identities travel beside its rows, and it carries the
schema's version and the hash of the request's body. Called by the receiver (`rows_of`, `pack`) and the rollup
(`unpack`).

Layout of a record: magic `GTR1`, schema version u16, number of sections u16, hash of the body (16 bytes), length of
what follows u64; then zstd over the sections. A section: kind u8, mask of measures u32, lengths of two Arrow
record-batch messages u64 each, then both: identities (hash, texts) and rows (identity, ts_ms, one float64 column per
measure of the mask, null = missing). Integers little-endian. The Arrow schemas follow from `fleet.schema`, so they
don't travel.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleet.errors import Corrupt
from fleet.schema import CARD_USAGE, MEASURES, POD_USAGE, SCHEMA_VERSION, Table
from pipeline import remote_write_kernels as wire
from pipeline import rows_kernels as kernels
from pipeline.remote_write import DecodedBody
from pipeline.series_table import IDENTITY_TABLES, LabelRows, SeriesTable, Verdict
from pipeline.sightings import INVENTORY_TABLES

TS_MIN_MS = 946_684_800_000
"""2000-01-01: a sample from before it has a broken clock."""
TS_MAX_MS = 4_102_444_800_000
"""2100-01-01: so does one from after it."""
STALE_BITS = 0x7FF0000000000002
"""The NaN by which Prometheus says that a series has ended (prometheus/prometheus:model/value/value.go)."""

BODY_HASH_BYTES = 16
_MAGIC = b"GTR1"
_HEADER = struct.Struct("<4sHH16sQ")
_SECTION = struct.Struct("<BIQQ")
_ZSTD = pa.Codec("zstd", compression_level=1)
_RECORD_BYTES_MAX = 1 << 32

_KINDS: tuple[Table, ...] = (POD_USAGE, CARD_USAGE, *INVENTORY_TABLES)
_LOW = np.array([column.value_min for column in MEASURES] + [0.0])
_HIGH = np.array([column.value_max for column in MEASURES] + [0.0])


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
    """

    table: Table
    identities: pa.RecordBatch
    identity: NDArray[np.int32]
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
        bad_times: samples from before 2000 or after 2100.
        invalid: samples of series that break the protocol's rules; these make the answer a 400.
        fault: the first such series' fault in words, None where there is none.
    """

    written: int
    unwanted: int
    dropped: int
    bad_values: int
    bad_times: int
    invalid: int
    fault: str | None


def rows_of(body: DecodedBody, table: SeriesTable) -> tuple[tuple[Section, ...], Tally]:
    """The wide rows and sightings of one body.

    Args:
        body: the decoded body; its values are not changed.
        table: the receiver's series.

    Raises:
        Unavailable: the body passes a bound of the series table.
    """
    series = table.lookup(body)
    starts = np.ascontiguousarray(body.series[:, wire.SAMPLES_START])
    ends = np.ascontiguousarray(body.series[:, wire.SAMPLES_END])
    verdict = np.where(series >= 0, table.columns.verdict[series], np.int8(Verdict.INVALID))
    mixed = (body.series[:, wire.HISTOGRAMS] > 0) & (ends > starts)
    verdict[mixed] = Verdict.INVALID
    numbers = np.where(verdict == Verdict.USAGE, series, np.int32(-1))
    columns = table.columns
    measure = columns.measure[: len(table)]
    values = body.values.copy()
    _, bad_values, bad_times = kernels.check_values(
        numbers, starts, ends, measure >= 0, columns.factor, columns.clamp_max, _LOW[measure], _HIGH[measure],
        body.ts_ms, TS_MIN_MS, TS_MAX_MS, values,
    )  # fmt: skip
    sections = [
        section
        for section in (
            _usage(POD_USAGE, table.slices, columns.slice_identity[: len(table)], numbers, starts, ends, measure, body,
                   values),
            _usage(CARD_USAGE, table.cards, columns.card_identity[: len(table)], numbers, starts, ends, measure, body,
                   values),
            *_sightings(body, table, series, verdict, starts, ends),
        )
        if section is not None
    ]  # fmt: skip
    counts = np.bincount(verdict, weights=ends - starts, minlength=len(Verdict)).astype(np.int64)
    return tuple(sections), Tally(
        written=int(counts[Verdict.USAGE] + counts[Verdict.SIGHTING]) - bad_values - bad_times,
        unwanted=int(counts[Verdict.UNWANTED]),
        dropped=int(counts[Verdict.DROPPED]),
        bad_values=int(bad_values),
        bad_times=int(bad_times),
        invalid=int(counts[Verdict.INVALID]),
        fault=_first_fault(table, series, verdict, mixed),
    )


def _usage(
    kind: Table,
    rows: LabelRows,
    identity: NDArray[np.int32],
    numbers: NDArray[np.int32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    measure: NDArray[np.int32],
    body: DecodedBody,
    values: NDArray[np.float64],
) -> Section | None:
    taking = numbers[numbers >= 0]
    taking = taking[identity[taking] >= 0]
    present = np.unique(measure[taking])
    if not len(present):
        return None
    place = np.zeros(len(MEASURES) + 1, dtype=np.int32)
    place[present] = np.arange(len(present), dtype=np.int32)
    row_identity, row_ts, wide = kernels.pivot(
        numbers, starts, ends, identity, place[measure], len(present), body.ts_ms, values
    )
    if not len(row_identity):
        return None
    named, local = np.unique(row_identity, return_inverse=True)
    return Section(
        table=kind,
        identities=rows.take(named.astype(np.int64)),
        identity=local.astype(np.int32),
        ts_ms=row_ts,
        measures=tuple(present.tolist()),
        values=wide,
    )


def _sightings(
    body: DecodedBody,
    table: SeriesTable,
    series: NDArray[np.int32],
    verdict: NDArray[np.int8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> list[Section]:
    """One row per info series and day: when it was first and last seen, and when it ended."""
    places = np.flatnonzero((verdict == Verdict.SIGHTING) & (ends > starts))
    if not len(places):
        return []
    numbers = series[places]
    found: dict[str, list[tuple[int, int, int, float]]] = {}
    bits = body.values.view(np.uint64)
    for number, start, end in zip(numbers.tolist(), starts[places].tolist(), ends[places].tolist(), strict=True):
        times = body.ts_ms[start:end]
        valid = (times >= TS_MIN_MS) & (times <= TS_MAX_MS)
        stale = times[valid & (bits[start:end] == STALE_BITS)]
        seen = times[valid & ~np.isnan(body.values[start:end])]
        kind, row = table.sightings[number]
        days = np.unique((np.concatenate((seen, stale)) - 1) // 86_400_000)
        for day in days.tolist():
            seen_then = seen[(seen - 1) // 86_400_000 == day]
            stale_then = stale[(stale - 1) // 86_400_000 == day]
            ended = float(stale_then.max()) if len(stale_then) else np.nan
            # A marker without a sighting beside it: the grant was last known to be there just then.
            first = int(seen_then.min()) if len(seen_then) else int(ended)
            last = int(seen_then.max()) if len(seen_then) else int(ended)
            found.setdefault(kind.name, []).append((row, first, last, ended))
    sections = []
    for kind in INVENTORY_TABLES:
        if kind.name not in found:
            continue
        rows = np.array(found[kind.name], dtype=np.float64)
        named, local = np.unique(rows[:, 0].astype(np.int64), return_inverse=True)
        sections.append(
            Section(
                table=kind,
                identities=table.sighting_rows[kind.name].take(named),
                identity=local.astype(np.int32),
                ts_ms=rows[:, 1].astype(np.int64),
                measures=(),
                values=np.ascontiguousarray(rows[:, 2:].T),
            )
        )
    return sections


def _first_fault(
    table: SeriesTable, series: NDArray[np.int32], verdict: NDArray[np.int8], mixed: NDArray[np.bool_]
) -> str | None:
    invalid = np.flatnonzero(verdict == Verdict.INVALID)
    if not len(invalid):
        return None
    first = int(invalid[0])
    if mixed[first]:
        return "a series has both samples and histograms"
    number = int(series[first])
    return "a series refers to a symbol that does not exist" if number < 0 else table.fault(number)


def pack(sections: tuple[Section, ...], body_hash: bytes) -> bytes:
    """One record for the bus.

    Args:
        sections: what `rows_of` gave.
        body_hash: `BODY_HASH_BYTES` bytes.
    """
    parts = []
    for section in sections:
        mask = sum(1 << measure for measure in section.measures)
        identities = _message(section.identities)
        rows = _message(
            pa.RecordBatch.from_arrays(
                [
                    pa.array(section.identity),
                    pa.array(section.ts_ms),
                    *(pa.array(values, from_pandas=True) for values in section.values),
                ],
                schema=_rows_schema(section.table, mask),
            )
        )
        parts += [_SECTION.pack(_KINDS.index(section.table), mask, len(identities), len(rows)), identities, rows]
    plain = b"".join(parts)
    return _HEADER.pack(_MAGIC, SCHEMA_VERSION, len(sections), body_hash, len(plain)) + bytes(
        _ZSTD.compress(plain, asbytes=True)
    )


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
    if length > _RECORD_BYTES_MAX:
        raise Corrupt(f"cannot read bus record that declares {length} bytes: more than {_RECORD_BYTES_MAX}")
    try:
        plain = _ZSTD.decompress(pa.py_buffer(record).slice(_HEADER.size), decompressed_size=length)
        sections, at = [], 0
        for _ in range(count):
            section, at = _section(plain, at)
            sections.append(section)
    except (pa.ArrowException, OSError, struct.error, IndexError) as exc:
        raise Corrupt(f"cannot read bus record of {len(record)} bytes: {exc}") from exc
    return tuple(sections)


def _section(plain: pa.Buffer, at: int) -> tuple[Section, int]:
    kind, mask, identity_bytes, row_bytes = _SECTION.unpack_from(plain, at)
    table = _KINDS[kind]
    at += _SECTION.size
    identities = pa.ipc.read_record_batch(plain.slice(at, identity_bytes), identities_schema(table))
    at += identity_bytes
    rows = pa.ipc.read_record_batch(plain.slice(at, row_bytes), _rows_schema(table, mask))
    values = np.empty((rows.num_columns - 2, rows.num_rows), dtype=np.float64)
    for place in range(len(values)):
        values[place] = rows.column(place + 2).to_numpy(zero_copy_only=False)
    section = Section(
        table=table,
        identities=identities,
        identity=rows.column(0).to_numpy(),
        ts_ms=rows.column(1).to_numpy(),
        measures=tuple(place for place in range(len(MEASURES)) if mask >> place & 1),
        values=values,
    )
    return section, at + row_bytes


def identities_schema(table: Table) -> pa.Schema:
    """Arrow schema of the identities of a section: the hash, then the text keys."""
    names = IDENTITY_TABLES.get(table.name, table.keys)
    return pa.schema([("hash", pa.uint64()), *((name, pa.string()) for name in names)])


def _rows_schema(table: Table, mask: int) -> pa.Schema:
    values = (
        [column.measure.value for place, column in enumerate(MEASURES) if mask >> place & 1]
        if table.name in IDENTITY_TABLES
        else ["last_seen", "ended_at"]
    )
    return pa.schema([("identity", pa.int32()), ("ts_ms", pa.int64()), *((name, pa.float64()) for name in values)])


def _message(batch: pa.RecordBatch) -> bytes:
    return bytes(batch.serialize())
