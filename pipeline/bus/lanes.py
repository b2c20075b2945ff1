"""Which row goes to which lane of a bus.

Rows are spread by their card, so that a card's series keep their order and cards spread evenly; a file bus has a lane
per receiver instead, whatever is in its rows. Called by the intake, which splits what a request holds.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.records.label_rows import IdentitySet
from pipeline.records.rows import Section


def split_sections(sections: tuple[Section, ...], lanes: int) -> dict[int, tuple[Section, ...]]:
    """The rows of some sections by lane; lanes without any row are left out."""
    if lanes == 1:
        return {0: sections} if sections else {}
    found: dict[int, list[Section]] = {}
    for section in sections:
        if section.identity_set is not None:
            for lane, part in _dealt_out(section, section.identity_set, lanes):
                found.setdefault(lane, []).append(part)
            continue
        lane_of_row = _lane_of_identity(section.identities, lanes)[section.identity]
        for lane in np.unique(lane_of_row).tolist():
            found.setdefault(lane, []).append(_selected(section, lane_of_row == lane))
    return {lane: tuple(parts) for lane, parts in sorted(found.items())}


def cut_sections(sections: tuple[Section, ...], rows_max: int) -> Iterator[tuple[Section, ...]]:
    """Sections in pieces of at most so many rows; as they are where they have no more."""
    if sum(len(section.ts_ms) for section in sections) <= rows_max:
        yield sections
        return
    for section in sections:
        places = np.arange(len(section.ts_ms))
        for start in range(0, len(places), rows_max):
            yield (_selected(section, (places >= start) & (places < start + rows_max)),)


def _lane_of_identity(identities: pa.RecordBatch, lanes: int) -> NDArray[np.int64]:
    """The lane of each identity: by its card where it has one, else by all of its texts."""
    hashes: NDArray[np.uint64] = identities.column("hash").to_numpy()
    lane = (hashes % np.uint64(lanes)).astype(np.int64)
    if "card" in identities.schema.names:
        cards = identities.column("card").to_pylist()
        for place, card in enumerate(cards):
            if card:
                lane[place] = zlib.crc32(card.encode()) % lanes
    return lane


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


def _selected(section: Section, is_taken: NDArray[np.bool_]) -> Section:
    named, local = np.unique(section.identity[is_taken], return_inverse=True)
    return Section(
        table=section.table,
        identities=section.identities.take(pa.array(named)),
        identity=local.astype(np.int32),
        ts_ms=section.ts_ms[is_taken],
        measures=section.measures,
        values=np.ascontiguousarray(section.values[:, is_taken]),
    )
