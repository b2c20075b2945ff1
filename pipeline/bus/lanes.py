"""Which row goes to which lane of a bus.

Rows are spread by their card, so that a card's series keep their order and cards spread evenly; a file bus has a lane
per receiver instead, whatever is in its rows. Called by the intake, which splits what a request holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from pipeline.records.label_rows import IdentitySet, text_places
from pipeline.records.rows import Section
from pipeline.remote_write.byte_words import load8, load32


def split_sections(sections: tuple[Section, ...], lanes: int) -> dict[int, tuple[Section, ...]]:
    """The rows of some sections by lane, each part with its own identities; lanes without any row are left out."""
    if lanes == 1:
        return {0: sections} if sections else {}
    found: dict[int, list[Section]] = {}
    for section in sections:
        if section.identity_set is not None:
            parts = _dealt_out(section, section.identity_set, lanes)
        else:
            parts = ((lane, _own_identities(part)) for lane, part in _sorted_out(section, lanes))
        for lane, part in parts:
            found.setdefault(lane, []).append(part)
    return {lane: tuple(parts) for lane, parts in sorted(found.items())}


def cut_sections(sections: tuple[Section, ...], rows_max: int) -> Iterator[tuple[Section, ...]]:
    """Sections in pieces of at most so many rows; as they are where they have no more."""
    if sum(len(section.ts_ms) for section in sections) <= rows_max:
        yield sections
        return
    for section in sections:
        for start in range(0, len(section.ts_ms), rows_max):
            yield (_own_identities(_rows_of(section, slice(start, start + rows_max))),)


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


def _sorted_out(section: Section, lanes: int) -> Iterator[tuple[int, Section]]:
    """A section's rows by lane, in their order, all with the section's identities."""
    lane_of_row = _lane_of_identity(section.identities, lanes)[section.identity]
    order = np.argsort(lane_of_row, kind="stable")
    by_lane = _rows_of(section, order)
    starts = np.searchsorted(lane_of_row[order], np.arange(lanes + 1)).tolist()
    for lane, (start, end) in enumerate(pairwise(starts)):
        if start < end:
            yield lane, _rows_of(by_lane, slice(start, end))


def _dealt_out(section: Section, taken: IdentitySet, lanes: int) -> Iterator[tuple[int, Section]]:
    """A section's rows by lane; which identities a lane gets, and their bytes in a record, are found out once."""
    parts = taken.parts(lanes, _lane_of_identity)
    lane_of_row = parts.part[section.identity]
    for lane, named in parts.sets.items():
        rows = np.flatnonzero(lane_of_row == lane)
        yield (
            lane,
            Section(
                table=section.table,
                identities=named.batch,
                identity=parts.place[section.identity[rows]],
                ts_ms=section.ts_ms[rows],
                measures=section.measures,
                values=np.ascontiguousarray(section.values[:, rows]),
                identity_set=named,
            ),
        )


def _rows_of(section: Section, rows: slice | NDArray[np.int64]) -> Section:
    """Some rows of a section, with all of its identities."""
    return replace(
        section, identity=section.identity[rows], ts_ms=section.ts_ms[rows], values=section.values[:, rows],
        identity_set=None,
    )  # fmt: skip


def _own_identities(section: Section) -> Section:
    """A section with those of its identities that it has rows of."""
    named, local = np.unique(section.identity, return_inverse=True)
    return replace(
        section, identities=section.identities.take(pa.array(named)), identity=local.astype(np.int32),
        values=np.ascontiguousarray(section.values), identity_set=None,
    )  # fmt: skip
