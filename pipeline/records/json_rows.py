"""Records in the *rows* format: one JSON object with an array of rows per table, for SQL engines.

Integers only, so an engine that reads them has nothing left to do but add: a usage row carries the hash of its identity
(signed), its texts, `ts_ms`, and per measure the integer that the schema stores, `floor(value × scale)`, beside
`<measure>_bin` where the measure has a histogram. Called by the intake (`pack_rows`) where `bus.record_format` is
`rows`; `flink.sql` declares the same columns to Flink, and `unpack_rows` reads them back.

    {"schema_version":1,"body":"9f…","pod_usage":[{"hash":-7,"cluster":"c1",…,"ts_ms":1767571260000,
    "duty_cycle_ratio":250000,"duty_cycle_ratio_bin":25}],"allocations":[{…,"first_seen":1,"last_seen":2}]}
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleet.errors import Corrupt
from fleet.schema import CARD_MEASURES, CARD_USAGE, MEASURES, POD_USAGE, SCHEMA_VERSION, SLICE_MEASURES, TABLES, Table
from pipeline.records import json_kernels as kernels
from pipeline.records.rows import Section, identities_schema

HASH_FIELD = "hash"
"""The identity's 64-bit hash, as a signed integer."""
TIME_FIELD = "ts_ms"
"""End of a usage row's step."""
USAGE_MEASURES = {POD_USAGE.name: SLICE_MEASURES, CARD_USAGE.name: CARD_MEASURES}
"""Measures of a row, by table; tables that are not named hold sightings."""
RECORD_START = f'{{"schema_version":{SCHEMA_VERSION},"body":"'
"""What every record of this version begins with."""

_SIGHTING_FIELDS = ("last_seen", "ended_at")
_DIGITS_MAX = 20
_REMEMBERED_BYTES = 64 << 20


def bin_field(measure: str) -> str:
    """Name of the field with a measure's histogram bin."""
    return f"{measure}_bin"


def pack_rows(sections: tuple[Section, ...], body_hash: bytes) -> bytes:
    """One record for the bus.

    Args:
        sections: what `rows_of` gave.
        body_hash: names the request, so that a repeated record can be recognised by eye.
    """
    fields = [_fields(section) for section in sections]
    starts = [_remembered.starts_of(section) for section in sections]
    head = f'{RECORD_START}{body_hash.hex()}"'.encode()
    room = len(head) + 1
    for section, (names, _, _, _), (_, offsets) in zip(sections, fields, starts, strict=True):
        of_row = int((offsets[1:] - offsets[:-1])[section.identity].sum()) if len(section.identity) else 0
        per_row = int(names[0][-1]) + (2 * len(section.values) + 1) * _DIGITS_MAX + 2
        room += len(section.table.name) + 8 + of_row + per_row * len(section.ts_ms)
    out = np.empty(room, dtype=np.uint8)
    out[: len(head)] = np.frombuffer(head, dtype=np.uint8)
    at = len(head)
    for section, (names, scales, has_bin, _), (texts, offsets) in zip(sections, fields, starts, strict=True):
        opening = np.frombuffer(f',"{section.table.name}":['.encode(), dtype=np.uint8)
        out[at : at + len(opening)] = opening
        at = kernels.write_rows(
            out, at + len(opening), texts, offsets, section.identity, section.ts_ms, section.values,
            names[1], names[0], scales, has_bin,
        )  # fmt: skip
        out[at] = ord("]")
        at += 1
    out[at] = ord("}")
    return out[: at + 1].tobytes()


def unpack_rows(record: bytes) -> tuple[Section, ...]:
    """The sections of one record; values come back as numbers that are stored as the same integers and bins.

    Raises:
        Corrupt: the record is no JSON object of this version, or a row of it is damaged.
    """
    try:
        document = json.loads(record)
    except (ValueError, RecursionError) as exc:
        raise Corrupt(f"cannot read bus record of {len(record)} bytes: {exc}") from exc
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        version = document.get("schema_version") if isinstance(document, dict) else None
        raise Corrupt(
            f"cannot read bus record of schema version {str(version)[:80]!r}: this program reads rows of version "
            f"{SCHEMA_VERSION}"
        )
    sections = []
    for table in TABLES:
        rows = document.get(table.name)
        if not rows:
            continue
        try:
            sections.append(_section(table, rows))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, pa.ArrowException) as exc:
            raise Corrupt(f"cannot read rows of {table.name} in a bus record: {str(exc)[:200]!r}") from exc
    return tuple(sections)


@dataclass(frozen=True, slots=True)
class _Starts:
    identities: pa.RecordBatch
    texts: NDArray[np.uint8]
    offsets: NDArray[np.int64]


class _StartsOfRows:
    """What rows of each identity begin with; senders repeat their series, so it is rendered once per set of them."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, bytes], _Starts] = OrderedDict()

    def starts_of(self, section: Section) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        key = section.table.name, section.identities.column(HASH_FIELD).to_numpy().tobytes()
        with self._lock:
            found = self._known.get(key)
            # Who can choose labels can, with much work, make two rows of one hash: they don't speak for each other.
            if found is not None and found.identities.equals(section.identities):
                self._known.move_to_end(key)
                return found.texts, found.offsets
        found = _rendered(section)
        with self._lock:
            replaced = self._known.pop(key, None)
            self._known[key] = found
            self._bytes += found.texts.nbytes - (0 if replaced is None else replaced.texts.nbytes)
            while self._bytes > self._bytes_max and len(self._known) > 1:
                _, dropped = self._known.popitem(last=False)
                self._bytes -= dropped.texts.nbytes
        return found.texts, found.offsets


def _rendered(section: Section) -> _Starts:
    batch = section.identities
    names = batch.schema.names[1:]
    hashes = batch.column(HASH_FIELD).to_numpy().view(np.int64).tolist()
    time_field = TIME_FIELD if section.table.name in USAGE_MEASURES else "first_seen"
    columns = [
        [f',"{name}":{json.dumps(text, ensure_ascii=False)}' for text in batch.column(name).to_pylist()]
        for name in names
    ]
    pieces = [
        f'{{"{HASH_FIELD}":{number}{"".join(texts)},"{time_field}":'.encode()
        for number, texts in zip(hashes, zip(*columns, strict=True), strict=True)
    ]
    offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    return _Starts(batch, np.frombuffer(b"".join(pieces), dtype=np.uint8), offsets)


_remembered = _StartsOfRows(_REMEMBERED_BYTES)


def _fields(
    section: Section,
) -> tuple[tuple[NDArray[np.int64], NDArray[np.uint8]], NDArray[np.float64], NDArray[np.bool_], int]:
    """Names of a section's values and bins as they stand in JSON, scale of each value, and whether it has a bin."""
    if section.table.name in USAGE_MEASURES:
        columns = [MEASURES[place] for place in section.measures]
        names = [column.measure.value for column in columns]
        scales = [float(column.scale) for column in columns]
        has_bin = [column.has_histogram for column in columns]
    else:
        names, scales, has_bin = list(_SIGHTING_FIELDS), [1.0, 1.0], [False, False]
    pieces = [piece for name in names for piece in (f',"{name}":'.encode(), f',"{bin_field(name)}":'.encode())]
    offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    texts = np.frombuffer(b"".join(pieces), dtype=np.uint8)
    return (offsets, texts), np.array(scales), np.array(has_bin, dtype=np.bool_), len(names)


def _section(table: Table, rows: list[dict[str, Any]]) -> Section:
    schema = identities_schema(table)
    hashes = np.array([_whole(row[HASH_FIELD]) for row in rows], dtype=np.int64).view(np.uint64)
    named, firsts, identity = np.unique(hashes, return_index=True, return_inverse=True)
    texts = [[rows[place][name] for place in firsts.tolist()] for name in schema.names[1:]]
    if not all(isinstance(text, str) for column in texts for text in column):
        raise TypeError("an identity's text is missing")
    is_usage = table.name in USAGE_MEASURES
    if is_usage:
        columns = [column for column in USAGE_MEASURES[table.name] if any(column.measure.value in row for row in rows)]
        measures = tuple(MEASURES.index(column) for column in columns)
        values = np.array([_values_of(column.measure.value, column.scale, rows) for column in columns])
    else:
        measures = ()
        values = np.array([_integers(name, rows) for name in _SIGHTING_FIELDS])
        if np.isnan(values[0]).any():
            raise KeyError("last_seen")
    time_field = TIME_FIELD if is_usage else "first_seen"
    return Section(
        table=table,
        identities=pa.RecordBatch.from_arrays(
            [pa.array(named), *(pa.array(column, pa.string()) for column in texts)], schema=schema
        ),
        identity=identity.astype(np.int32),
        ts_ms=np.array([_whole(row[time_field]) for row in rows], dtype=np.int64),
        measures=measures,
        values=values.reshape(-1, len(rows)),
    )


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _integers(name: str, rows: list[dict[str, Any]]) -> NDArray[np.float64]:
    return np.array([np.nan if row.get(name) is None else float(_whole(row[name])) for row in rows])


def _values_of(name: str, scale: int, rows: list[dict[str, Any]]) -> NDArray[np.float64]:
    """A value that is stored as the integer given and falls into the bin given."""
    stored, bins = _integers(name, rows), _integers(bin_field(name), rows)
    values = stored / scale
    too_low = np.floor(values * scale) < stored
    values[too_low] = np.nextafter(values[too_low], np.inf)
    other_bin = ~np.isnan(bins) & (np.minimum(100, np.floor(100 * values)) != bins)
    values[other_bin] = (stored[other_bin] + 0.5) / scale
    return values
