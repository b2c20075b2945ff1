"""Which row goes to which lane of a bus.

Rows are spread by their card, so that a card's series keep their order and cards spread evenly; a file bus has a lane
per receiver instead, whatever is in its rows. Called by the record writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from pipeline.records.label_rows import IdentitySet, text_places
from pipeline.records.rows import DealtSection, Section, pack, pack_dealt
from pipeline.remote_write.byte_words import load8, load32


def lane_records(sections: tuple[Section, ...], lanes: int, body_hash: bytes) -> dict[int, bytes]:
    """A record for each lane that has rows of some sections; those of a table go through each step together.

    Args:
        body_hash: 16 bytes, see `pack`.
    """
    if not sections:
        return {}
    if lanes == 1:
        return {0: pack(sections, body_hash)}
    return pack_dealt(tuple(_dealt_out(section, lanes) for section in sections), lanes, body_hash)


def cut_sections(sections: tuple[Section, ...], rows_max: int) -> Iterator[tuple[Section, ...]]:
    """Sections in pieces of at most so many rows; as they are where they have no more."""
    if sum(len(section.ts_ms) for section in sections) <= rows_max:
        yield sections
        return
    for section in sections:
        for start in range(0, len(section.ts_ms), rows_max):
            yield (_rows_of(section, slice(start, start + rows_max)),)


def _lane_of_identity(identities: pa.RecordBatch, lanes: int) -> NDArray[np.int64]:
    """The lane of each identity: by its card where it has one, else by all of its texts."""
    hashes: NDArray[np.uint64] = identities.column("hash").to_numpy()
    lane = (hashes % np.uint64(lanes)).astype(np.int64)
    if "card" in identities.schema.names:
        offsets, data = text_places(identities)[identities.schema.get_field_index("card") - 1].tolist()
        _lane_by_text(lane, lanes, offsets, data, _CRC32)
    return lane


@njit(cache=True, nogil=True)
def _lane_by_text(lane: Any, lanes: int, offsets: int, data: int, table: Any) -> None:
    """Replaces the lanes of those that have a text by its CRC-32 (as `zlib.crc32`) modulo the number of lanes."""
    for row in range(len(lane)):
        start, end = np.int64(load32(offsets + 4 * row)), np.int64(load32(offsets + 4 * row + 4))
        if start == end:
            continue
        code = np.uint32(0xFFFFFFFF)
        for place in range(start, end):
            code = table[(code ^ load8(data + place)) & np.uint32(0xFF)] ^ (code >> np.uint32(8))
        lane[row] = np.int64(code ^ np.uint32(0xFFFFFFFF)) % lanes


def _crc32_table() -> NDArray[np.uint32]:
    """The code of each byte, for the polynomial of IEEE 802.3, bits reversed."""
    code = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        code = np.where(code & 1, (code >> 1) ^ np.uint32(0xEDB88320), code >> 1).astype(np.uint32)
    return code


_CRC32 = _crc32_table()


def _dealt_out(section: Section, lanes: int) -> DealtSection:
    taken = IdentitySet(section.identities) if section.identity_set is None else section.identity_set
    parts = taken.parts(lanes, _lane_of_identity)
    starts, place, ts_ms, values = _rows_by_lane(
        section.identity, section.ts_ms, section.values, parts.part, parts.place, lanes
    )
    return DealtSection(
        table=section.table, packed=parts.packed, counts=parts.counts, starts=starts, place=place, ts_ms=ts_ms,
        measures=section.measures, values=values,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _rows_by_lane(identity: Any, ts_ms: Any, values: Any, lane: Any, place: Any, lanes: int) -> Any:
    """Rows by lane, those of a lane in their order: where each lane's begin; places, times and values.

    Args:
        identity: (rows,) identity of each.
        lane: (identities,) the lane of each.
        place: (identities,) its place there.
    """
    rows = len(identity)
    starts = np.zeros(lanes + 1, dtype=np.int64)
    for row in range(rows):
        starts[lane[identity[row]] + 1] += 1
    starts = np.cumsum(starts)
    free = starts.copy()
    to = np.empty(rows, dtype=np.int64)
    places, times, cells = np.empty(rows, dtype=np.int32), np.empty(rows, dtype=np.int64), np.empty(values.shape)
    for row in range(rows):
        own = lane[identity[row]]
        to[row] = free[own]
        free[own] += 1
        places[to[row]], times[to[row]] = place[identity[row]], ts_ms[row]
    for column in range(len(values)):
        for row in range(rows):
            cells[column, to[row]] = values[column, row]
    return starts, places, times, cells


def _rows_of(section: Section, rows: slice) -> Section:
    """Some rows of a section, with those of its identities that they are of."""
    named, local = np.unique(section.identity[rows], return_inverse=True)
    return replace(
        section, identities=section.identities.take(pa.array(named)), identity=local.astype(np.int32),
        ts_ms=section.ts_ms[rows], values=np.ascontiguousarray(section.values[:, rows]), identity_set=None,
    )  # fmt: skip
