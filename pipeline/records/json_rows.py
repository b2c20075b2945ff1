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

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit
from numpy.typing import NDArray

from fleet.schema import MEASURES, SCHEMA_VERSION, USAGE_MEASURES
from pipeline.records.rows import Section
from pipeline.remote_write.byte_words import Texts, joined_texts

HASH_FIELD = "hash"
"""The identity's 64-bit hash, as a signed integer."""
TIME_FIELD = "ts_ms"
"""End of a usage row's step."""
RECORD_START = f'{{"schema_version":{SCHEMA_VERSION},"body":"'
"""What every record of this version begins with."""

_SIGHTING_FIELDS = ("last_seen", "ended_at")
_DIGITS_MAX = 20
_DIGITS_MEAN = 8
_SHORT_BYTES = 512
"""Texts of a row that may be escaped and still be harmless."""
_REMEMBERED_BYTES = 64 << 20


def bin_field(measure: str) -> str:
    """Name of the field with a measure's histogram bin."""
    return f"{measure}_bin"


def pack_rows(sections: tuple[Section, ...], body_hash: bytes) -> bytes:
    """One record for the bus.

    Args:
        body_hash: names the request, so that a repeated record can be recognised by eye.
    """
    fields = [_fields(section) for section in sections]
    starts = [_remembered.starts_of(section) for section in sections]
    head = f'{RECORD_START}{body_hash.hex()}"'.encode()
    room = len(head) + 1
    for section, columns, texts in zip(sections, fields, starts, strict=True):
        of_row = int(np.diff(texts.starts)[section.identity].sum()) if len(section.identity) else 0
        per_row = len(columns.names.data) + (2 * len(section.values) + 1) * _DIGITS_MAX + 2
        room += len(section.table.name) + 8 + of_row + per_row * len(section.ts_ms)
    out = np.empty(room, dtype=np.uint8)
    out[: len(head)] = np.frombuffer(head, dtype=np.uint8)
    at = len(head)
    for section, columns, texts in zip(sections, fields, starts, strict=True):
        opening = np.frombuffer(f',"{section.table.name}":['.encode(), dtype=np.uint8)
        out[at : at + len(opening)] = opening
        at = _write_rows(out, at + len(opening), texts, section.identity, section.ts_ms, section.values, columns)
        out[at] = ord("]")
        at += 1
    out[at] = ord("}")
    return out[: at + 1].tobytes()


def rendered_bytes(section: Section) -> int:
    """About how many bytes the rows of a section take in a record; at most 6 times more where texts are escaped.

    Texts that are long are rendered to count them as they are.
    """
    rows, names = len(section.ts_ms), section.identities.schema.names[1:]
    texts = [pc.binary_length(section.identities.column(name)).fill_null(0).to_numpy(False) for name in names]
    of_rows = int(sum(texts, np.zeros(section.identities.num_rows, dtype=np.int64))[section.identity].sum())
    if of_rows > _SHORT_BYTES * rows:
        of_rows = int(np.diff(_remembered.starts_of(section).starts)[section.identity].sum())
    names_bytes = sum(len(name) + 6 for name in names) + len(_fields(section).names.data)
    return of_rows + rows * (names_bytes + (2 * len(section.values) + 1) * _DIGITS_MEAN)


@dataclass(frozen=True, slots=True)
class _Starts:
    identities: pa.RecordBatch
    texts: Texts


class _StartsOfRows:
    """What rows of each identity begin with; senders repeat their series, so it is rendered once per set of them."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, bytes], _Starts] = OrderedDict()

    def starts_of(self, section: Section) -> Texts:
        key = section.table.name, section.identities.column(HASH_FIELD).to_numpy().tobytes()
        with self._lock:
            found = self._known.get(key)
            # A sender can, with much work, choose labels of two rows that hash alike: compare the rows themselves.
            if found is not None and found.identities.equals(section.identities):
                self._known.move_to_end(key)
                return found.texts
        found = _rendered(section)
        with self._lock:
            replaced = self._known.pop(key, None)
            self._known[key] = found
            self._bytes += found.texts.data.nbytes - (0 if replaced is None else replaced.texts.data.nbytes)
            while self._bytes > self._bytes_max and len(self._known) > 1:
                _, dropped = self._known.popitem(last=False)
                self._bytes -= dropped.texts.data.nbytes
        return found.texts


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
    return _Starts(batch, joined_texts(pieces))


_remembered = _StartsOfRows(_REMEMBERED_BYTES)


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
    if section.table.name in USAGE_MEASURES:
        columns = [MEASURES[place] for place in section.measures]
        names = [column.measure.value for column in columns]
        scales = [float(column.scale) for column in columns]
        has_bin = [column.has_histogram for column in columns]
    else:
        names, scales, has_bin = list(_SIGHTING_FIELDS), [1.0, 1.0], [False, False]
    pieces = [piece for name in names for piece in (f',"{name}":'.encode(), f',"{bin_field(name)}":'.encode())]
    return _JsonColumns(names=joined_texts(pieces), scales=np.array(scales), has_bin=np.array(has_bin, dtype=np.bool_))


@njit(cache=True, nogil=True)
def _write_rows(out: Any, at: int, starts: Any, identity: Any, ts_ms: Any, values: Any, columns: Any) -> int:
    """Writes JSON objects, a comma between them; returns the byte after the last one.

    Args:
        out: (bytes,) uint8, large enough.
        starts: what a row of each identity begins with, up to its time, `Texts`.
        identity: (rows,) place of each row's identity.
        values: (columns, rows), NaN = missing.
    """
    (texts, text_starts), ((names, name_starts), scales, has_bin) = starts, columns
    for row in range(len(identity)):
        if row > 0:
            out[at] = 44  # ,
            at += 1
        at = _copy(out, at, texts, text_starts[identity[row]], text_starts[identity[row] + 1])
        at = _write_integer(out, at, ts_ms[row])
        for column in range(len(values)):
            value = values[column, row]
            if np.isnan(value):
                continue
            at = _copy(out, at, names, name_starts[2 * column], name_starts[2 * column + 1])
            at = _write_integer(out, at, np.int64(np.floor(value * scales[column])))
            if has_bin[column]:
                at = _copy(out, at, names, name_starts[2 * column + 1], name_starts[2 * column + 2])
                at = _write_integer(out, at, min(np.int64(100), np.int64(np.floor(100.0 * value))))
        out[at] = 125  # }
        at += 1
    return at


@njit(cache=True, nogil=True)
def _copy(out: Any, at: int, source: Any, start: int, end: int) -> int:
    for place in range(start, end):
        out[at] = source[place]
        at += 1
    return at


@njit(cache=True, nogil=True)
def _write_integer(out: Any, at: int, value: Any) -> int:
    left = np.uint64(value)
    if value < 0:
        out[at] = 45  # -
        at += 1
        left = np.uint64(-value)
    digits = 1
    bound = np.uint64(10)
    while digits < 19 and left >= bound:
        digits += 1
        bound *= np.uint64(10)
    for place in range(at + digits - 1, at - 1, -1):
        rest = left // np.uint64(10)
        out[place] = 48 + np.uint8(left - rest * np.uint64(10))
        left = rest
    return at + digits
