"""Records in the *rows* format: one JSON object with an array of rows per table, for SQL engines.

Integers only, so an engine that reads them has nothing left to do but add: a usage row carries the hash of its identity
(signed), its texts, `ts_ms`, and per measure the integer that the schema stores, `floor(value × scale)`, beside
`<measure>_bin` where the measure has a histogram. Called by the intake (`pack_rows`) where `bus.record_format` is
`rows`; `flink.sql` declares the same columns to Flink, which reads them. The inner loop is compiled by numba and cached
beside this file.

    {"schema_version":1,"body":"9f…","pod_usage":[{"hash":-7,"cluster":"c1",…,"ts_ms":1767571260000,
    "duty_cycle_ratio":250000,"duty_cycle_ratio_bin":25}],"allocations":[{…,"first_seen":1,"last_seen":2}]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from fleet.schema import MEASURES, SCHEMA_VERSION, USAGE_MEASURES
from pipeline.records.label_rows import text_places
from pipeline.records.rows import Section
from pipeline.remote_write.byte_words import Texts, address, joined_texts, load8, load32, load64, store8, store64

HASH_FIELD = "hash"
"""The identity's 64-bit hash, as a signed integer."""
TIME_FIELD = "ts_ms"
"""End of a usage row's step."""
RECORD_START = f'{{"schema_version":{SCHEMA_VERSION},"body":"'
"""What every record of this version begins with."""

_SIGHTING_FIELDS = ("last_seen", "ended_at")
_DIGITS_MAX = 20
_DIGITS_MEAN = 8


def bin_field(measure: str) -> str:
    """Name of the field with a measure's histogram bin."""
    return f"{measure}_bin"


def pack_rows(sections: tuple[Section, ...], body_hash: bytes) -> bytes:
    """One record for the bus.

    Args:
        body_hash: names the request, so that a repeated record can be recognised by eye.
    """
    return pack_lanes({0: sections}, body_hash)[0]


def pack_lanes(by_lane: Mapping[int, tuple[Section, ...]], body_hash: bytes) -> dict[int, bytes]:
    """Records for the bus, one per lane; sections that share identities and measures are written in one go.

    Args:
        body_hash: names the request; see `pack_rows`.
    """
    head = f'{RECORD_START}{body_hash.hex()}"'.encode()
    parts: dict[int, list[bytes | memoryview]] = {lane: [head] for lane in by_lane}
    alike: dict[tuple[str, int, tuple[int, ...]], list[tuple[int, Section]]] = {}
    for lane, sections in by_lane.items():
        for section in sections:
            key = section.table.name, id(section.identities), section.measures
            alike.setdefault(key, []).append((lane, section))
    for (table, *_), found in alike.items():
        data, ends = _written([section for _, section in found])
        start = 0
        for (lane, _), end in zip(found, ends, strict=True):
            parts[lane] += (f',"{table}":['.encode(), data[start:end], b"]")
            start = end
    return {lane: b"".join((*pieces, b"}")) for lane, pieces in parts.items()}


def rendered_bytes(section: Section) -> int:
    """About how many bytes the rows of a section take in a record: texts as they are, numbers by a mean."""
    taken = section.identity_set
    lengths = _text_bytes(section.identities) if taken is None else taken.lengths(_text_bytes)
    first = _start_names(tuple(section.identities.schema.names[1:]), TIME_FIELD)
    names_bytes = len(first.data) + len(_fields(section).names.data)
    numbers = 2 * len(section.values) + 1
    return int(lengths[section.identity].sum()) + len(section.ts_ms) * (names_bytes + numbers * _DIGITS_MEAN)


def _written(sections: Sequence[Section]) -> tuple[memoryview, list[int]]:
    """Rows of sections that share identities and measures, and where those of each end."""
    first = sections[0]
    identity, ts_ms, values = first.identity, first.ts_ms, np.ascontiguousarray(first.values)
    if len(sections) > 1:
        identity = np.concatenate([section.identity for section in sections])
        ts_ms = np.concatenate([section.ts_ms for section in sections])
        values = np.concatenate([section.values for section in sections], axis=1)
    rows = np.cumsum([len(section.ts_ms) for section in sections])
    columns, starts = _fields(first), _starts_of(first.identities, first.table.name)
    lengths = _lengths(starts.places, first.identities.num_rows) + len(starts.names.data) + _DIGITS_MAX + 1
    of_row = int(lengths[identity].sum())
    per_row = len(columns.names.data) + (2 * len(values) + 1) * _DIGITS_MAX + 2
    out = np.empty(of_row + len(ts_ms) * per_row + 8, dtype=np.uint8)
    ends = _write_rows(out, rows, tuple(starts), lengths, identity, ts_ms, values, columns)
    return out.data, ends.tolist()


def _text_bytes(identities: pa.RecordBatch) -> NDArray[np.int64]:
    """Bytes of all texts of each identity as JSON, quotes included."""
    found: NDArray[np.int64] = _lengths(text_places(identities), identities.num_rows)
    return found


class _Starts(NamedTuple):
    """What rows begin with: hash, texts and the name of the time.

    Attributes:
        hashes: (identities,) int64.
        places: see `text_places`.
        names: what stands before each text, and before the time, in turn; texts are quoted.
    """

    hashes: NDArray[np.int64]
    places: NDArray[np.int64]
    names: Texts


def _starts_of(identities: pa.RecordBatch, table: str) -> _Starts:
    names = _start_names(tuple(identities.schema.names[1:]), TIME_FIELD if table in USAGE_MEASURES else "first_seen")
    hashes = identities.column(HASH_FIELD).to_numpy().view(np.int64)
    return _Starts(hashes=hashes, places=text_places(identities), names=names)


@lru_cache(maxsize=64)
def _start_names(texts: tuple[str, ...], time_field: str) -> Texts:
    first = [f'{{"{HASH_FIELD}":'] + [f',"{name}":' for name in (*texts, time_field)]
    return joined_texts([piece.encode() for piece in first])


class _JsonColumns(NamedTuple):
    """How the values of a section stand in JSON.

    Attributes:
        names: `,"name":` of each column and of its bin, in turn.
        scales: (columns,) what is written is floor(value × scale).
        has_bin: (columns,) whether min(100, floor(100 × value)) follows.
    """

    names: Texts
    scales: NDArray[np.float64]
    has_bin: NDArray[np.bool_]


def _fields(section: Section) -> _JsonColumns:
    return _columns_of(section.measures if section.table.name in USAGE_MEASURES else None)


@lru_cache(maxsize=4096)
def _columns_of(measures: tuple[int, ...] | None) -> _JsonColumns:
    """The columns of usage with some measures, or of sightings."""
    if measures is not None:
        columns = [MEASURES[place] for place in measures]
        names = [column.measure.value for column in columns]
        scales = [float(column.scale) for column in columns]
        has_bin = [column.has_histogram for column in columns]
    else:
        names, scales, has_bin = list(_SIGHTING_FIELDS), [1.0, 1.0], [False, False]
    pieces = [piece for name in names for piece in (f',"{name}":'.encode(), f',"{bin_field(name)}":'.encode())]
    return _JsonColumns(names=joined_texts(pieces), scales=np.array(scales), has_bin=np.array(has_bin, dtype=np.bool_))


@njit(cache=True, nogil=True)
def _lengths(places: Any, identities: int) -> Any:
    """Bytes of all texts of each identity as JSON, quotes included."""
    found = np.zeros(identities, dtype=np.int64)
    for column in range(len(places)):
        offsets, data = places[column]
        for row in range(identities):
            start, end = np.int64(load32(offsets + 4 * row)), np.int64(load32(offsets + 4 * row + 4))
            size = 2 + end - start
            for place in range(start, end):
                byte = load8(data + place)
                if byte < 32:
                    size += 5 if _short_escape(byte) == 0 else 1
                elif byte in (34, 92):  # " \
                    size += 1
            found[row] += size
    return found


@njit(cache=True, nogil=True)
def _short_escape(byte: int) -> int:
    """The letter that stands for a control character behind a backslash (RFC 8259, section 7); 0 for none."""
    if byte == 10:
        return 110  # n
    if byte == 13:
        return 114  # r
    if byte == 9:
        return 116  # t
    if byte == 8:
        return 98  # b
    if byte == 12:
        return 102  # f
    return 0


@njit(cache=True, nogil=True)
def _write_text(at: int, start: int, end: int) -> int:
    """Writes the bytes between two addresses as a JSON string to an address; returns the address after it."""
    store8(at, np.uint8(34))
    at += 1
    for place in range(start, end):
        byte = load8(place)
        if byte >= 32 and byte not in (34, 92):
            store8(at, byte)
            at += 1
            continue
        store8(at, np.uint8(92))
        letter = byte if byte >= 32 else _short_escape(byte)
        if letter != 0:
            store8(at + 1, np.uint8(letter))
            at += 2
            continue
        low = byte & 15
        store8(at + 1, np.uint8(117))  # u00XX
        store8(at + 2, np.uint8(48))
        store8(at + 3, np.uint8(48))
        store8(at + 4, np.uint8(48 + (byte >> 4)))
        store8(at + 5, np.uint8(48 + low if low < 10 else 87 + low))
        at += 6
    store8(at, np.uint8(34))
    return at + 1


@njit(cache=True, nogil=True)
def _rendered(starts: Any, lengths: Any) -> Any:
    """What rows of each identity begin with, as `Texts`, and room for a word behind the last one."""
    hashes, places, (names, name_starts) = starts
    data = np.empty(lengths.sum() + 8, dtype=np.uint8)
    ends = np.zeros(len(hashes) + 1, dtype=np.int64)
    base, name = address(data), address(names)
    at = base
    for row in range(len(hashes)):
        at = _copy(at, name, name_starts[1])
        at = _write_integer(at, hashes[row])
        for column in range(len(places)):
            at = _copy(at, name + name_starts[column + 1], name_starts[column + 2] - name_starts[column + 1])
            offsets, texts = places[column]
            start, end = load32(offsets + 4 * row), load32(offsets + 4 * row + 4)
            at = _write_text(at, texts + np.int64(start), texts + np.int64(end))
        last = len(places) + 1
        at = _copy(at, name + name_starts[last], name_starts[last + 1] - name_starts[last])
        ends[row + 1] = at - base
    return data, ends


@njit(cache=True, nogil=True)
def _write_rows(
    out: Any, rows: Any, starts: Any, lengths: Any, identity: Any, ts_ms: Any, values: Any, columns: Any
) -> Any:
    """Writes JSON objects, a comma between those of one section; returns the byte after each section.

    Args:
        out: (bytes,) uint8, large enough, and eight bytes more.
        rows: (sections,) where the rows of each end.
        starts: see `_Starts`.
        lengths: (identities,) at least what the start of each takes.
        identity: (rows,) place of each row's identity.
        values: (columns, rows), NaN = missing.
    """
    texts, text_starts = _rendered(starts, lengths)
    (names, name_starts), scales, has_bin = columns
    ends = np.empty(len(rows), dtype=np.int64)
    base, text, name = address(out), address(texts), address(names)
    at, row = base, 0
    for section in range(len(rows)):
        first = row
        while row < rows[section]:
            if row > first:
                store8(at, np.uint8(44))  # ,
                at += 1
            start = text_starts[identity[row]]
            at = _copy(at, text + start, text_starts[identity[row] + 1] - start)
            at = _write_integer(at, ts_ms[row])
            for column in range(len(values)):
                value = values[column, row]
                if np.isnan(value):
                    continue
                start, middle, end = name_starts[2 * column], name_starts[2 * column + 1], name_starts[2 * column + 2]
                at = _copy(at, name + start, middle - start)
                at = _write_integer(at, np.int64(np.floor(value * scales[column])))
                if has_bin[column]:
                    at = _copy(at, name + middle, end - middle)
                    at = _write_integer(at, min(np.int64(100), np.int64(np.floor(100.0 * value))))
            store8(at, np.uint8(125))  # }
            at += 1
            row += 1
        ends[section] = at - base
    return ends


@njit(cache=True, nogil=True)
def _copy(at: int, source: int, size: int) -> int:
    """Copies bytes from one address to another, in words: up to seven bytes more; returns the address after them."""
    for place in range(0, size, 8):
        store64(at + place, load64(source + place))
    return at + size


@njit(cache=True, nogil=True)
def _write_integer(at: int, value: Any) -> int:
    """Writes a number in decimals to an address; returns the address after it."""
    left = np.uint64(value)
    if value < 0:
        store8(at, np.uint8(45))  # -
        at += 1
        left = np.uint64(-value)
    digits = 1
    bound = np.uint64(10)
    while digits < 19 and left >= bound:
        digits += 1
        bound *= np.uint64(10)
    for place in range(at + digits - 1, at - 1, -1):
        rest = left // np.uint64(10)
        store8(place, np.uint8(48 + left - rest * np.uint64(10)))
        left = rest
    return at + digits
