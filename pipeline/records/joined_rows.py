"""The rows of several bodies as those of one: what they say of one identity and time stands in one row again.

A sender that spreads its series over many requests spreads the measures of a slice as well, and a row with one measure
costs a roll-up nearly as much as one with all. Called by the receiver for bodies that go into one record. No sample is
lost or made: one that comes with two values keeps both, the first one first, in a row each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from fleet.schema import USAGE_MEASURES
from pipeline.records.label_rows import batch_of_texts, gathered_texts, text_places
from pipeline.records.rows import Section
from pipeline.remote_write.byte_words import load8, load32, load64

_DAY_MS = 86_400_000


def joined_sections(bodies: Sequence[tuple[Section, ...]]) -> tuple[Section, ...]:
    """One section per table, of the rows of some bodies in their order; a single body's sections as they are."""
    if len(bodies) == 1:
        return bodies[0]
    by_table: dict[str, list[Section]] = {}
    for sections in bodies:
        for section in sections:
            by_table.setdefault(section.table.name, []).append(section)
    return tuple(found[0] if len(found) == 1 else _joined(found) for found in by_table.values())


def _joined(sections: Sequence[Section]) -> Section:
    identities, places = _united([section.identities for section in sections])
    identity = np.concatenate([place[section.identity] for place, section in zip(places, sections, strict=True)])
    ts_ms = np.concatenate([section.ts_ms for section in sections])
    if sections[0].table.name in USAGE_MEASURES:
        measures = tuple(sorted({measure for section in sections for measure in section.measures}))
        values = np.full((len(measures), len(ts_ms)), np.nan)
        start = 0
        for section in sections:
            end = start + len(section.ts_ms)
            values[[measures.index(measure) for measure in section.measures], start:end] = section.values
            start = end
        rows = _fold(_first_rows(identity, ts_ms, identities.num_rows), identity, ts_ms, values)
        identity, ts_ms, values = identity[:rows], ts_ms[:rows], np.ascontiguousarray(values[:, :rows])
    else:
        measures = ()
        values = np.concatenate([section.values for section in sections], axis=1)
        identity, ts_ms, values = _folded_sightings(identity, ts_ms, values)
    return Section(
        table=sections[0].table,
        identities=identities,
        identity=identity,
        ts_ms=ts_ms,
        measures=measures,
        values=values,
    )


def _united(batches: Sequence[pa.RecordBatch]) -> tuple[pa.RecordBatch, list[NDArray[np.int32]]]:
    """All identities once, in order of first occurrence, and where those of each batch stand among them.

    A sender can, with much work, choose labels of two rows that hash alike: texts are compared as well.
    """
    distinct = list({id(batch): batch for batch in batches}.values())
    hashes = np.concatenate([batch.column("hash").to_numpy() for batch in distinct])
    ends = np.cumsum([batch.num_rows for batch in distinct])
    texts = np.stack([text_places(batch) for batch in distinct])
    place, first, (batch_of, row_of) = _same_rows(hashes, ends, texts)
    columns = gathered_texts(texts, batch_of[first], row_of[first])
    by_batch: dict[int, NDArray[np.int32]] = dict(zip(map(id, distinct), np.split(place, ends[:-1]), strict=True))
    return batch_of_texts(hashes[first], columns, distinct[0].schema), [by_batch[id(batch)] for batch in batches]


@njit(cache=True, nogil=True)
def _same_rows(hashes: Any, ends: Any, texts: Any) -> Any:
    """Which rows of several batches are the same.

    Args:
        hashes: (rows,) of all batches, one after another.
        ends: (batches,) where the rows of each end.
        texts: (batches, columns, 2), see `text_places`.

    Returns:
        (rows,) int32 number of each among the distinct ones; (distinct,) where each stands first; batch of each row
        and its place there.
    """
    count = len(hashes)
    batch_of, row_of = np.empty(count, dtype=np.int32), np.empty(count, dtype=np.int32)
    place, first = np.empty(count, dtype=np.int32), np.empty(count, dtype=np.int32)
    size = 16
    while size < 2 * count:
        size *= 2
    mask = np.uint64(size - 1)
    slots = np.full(size, -1, dtype=np.int32)
    met, batch, start = 0, 0, 0
    for row in range(count):
        while row >= ends[batch]:
            start = ends[batch]
            batch += 1
        batch_of[row], row_of[row] = batch, row - start
        slot = hashes[row] & mask
        number = slots[slot]
        while number >= 0:
            other = first[number]
            if hashes[other] == hashes[row] and _is_alike(
                texts[batch], row_of[row], texts[batch_of[other]], row_of[other]
            ):
                break
            slot = (slot + np.uint64(1)) & mask
            number = slots[slot]
        if number < 0:
            number = slots[slot] = np.int32(met)
            first[met] = row
            met += 1
        place[row] = number
    return place, first[:met], (batch_of, row_of)


@njit(cache=True, nogil=True)
def _is_alike(texts: Any, row: int, others: Any, other: int) -> bool:
    """Whether two rows have the same texts."""
    for column in range(len(texts)):
        offsets, data = texts[column]
        other_offsets, other_data = others[column]
        start, other_start = np.int64(load32(offsets + 4 * row)), np.int64(load32(other_offsets + 4 * other))
        length = np.int64(load32(offsets + 4 * row + 4)) - start
        if length != np.int64(load32(other_offsets + 4 * other + 4)) - other_start:
            return False
        at, end, step = data + start, data + start + length, other_data + other_start - data - start
        while at + 8 <= end:
            if load64(at) != load64(at + step):
                return False
            at += 8
        while at < end:
            if load8(at) != load8(at + step):
                return False
            at += 1
    return True


def _folded_sightings(
    identity: NDArray[np.int32], first: NDArray[np.int64], values: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]]:
    """One row per identity and day of its last sight."""
    day = (values[0].astype(np.int64) - 1) // _DAY_MS
    order = np.lexsort((day, identity))
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (np.diff(identity[order]) != 0) | (np.diff(day[order]) != 0)
    starts = np.flatnonzero(is_new)
    last, ended = np.maximum.reduceat(values[0][order], starts), np.fmax.reduceat(values[1][order], starts)
    return identity[order][starts], np.minimum.reduceat(first[order], starts), np.stack((last, ended))


@njit(cache=True, nogil=True)
def _first_rows(identity: Any, ts_ms: Any, identities: int) -> Any:
    """The first row that speaks of each row's identity and time: (rows,), itself where it is the first."""
    count = len(identity)
    size = 16
    while size < 2 * count:
        size *= 2
    mask = np.uint64(size - 1)
    slots = np.full(size, -1, dtype=np.int32)
    newest = np.full(identities, -1, dtype=np.int32)
    first = np.empty(count, dtype=np.int32)
    for row in range(count):
        owner, ts = identity[row], ts_ms[row]
        found = newest[owner]
        if found < 0 or ts_ms[found] != ts:
            code = (np.uint64(ts) + np.uint64(owner) * np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xFF51AFD7ED558CCD)
            slot = (code ^ (code >> np.uint64(32))) & mask
            found = slots[slot]
            while found >= 0 and (identity[found] != owner or ts_ms[found] != ts):
                slot = (slot + np.uint64(1)) & mask
                found = slots[slot]
            if found < 0:
                found = slots[slot] = np.int32(row)
        first[row] = newest[owner] = found
    return first


@njit(cache=True, nogil=True)
def _fold(first: Any, identity: Any, ts_ms: Any, values: Any) -> int:
    """Moves values into the first row of their identity and time; returns how many rows remain.

    The rows that remain stand in front afterwards, in their order, in all arrays but `first`.

    Args:
        first: (rows,) see `_first_rows`.
        values: (measures, rows), NaN = missing.
    """
    place = np.empty(len(first), dtype=np.int32)
    rows = 0
    for row in range(len(first)):
        if first[row] < row and not _leaves_values(values, row, place[first[row]]):
            continue
        place[row] = rows
        identity[rows], ts_ms[rows] = identity[row], ts_ms[row]
        for measure in range(len(values)):
            values[measure, rows] = values[measure, row]
        rows += 1
    return rows


@njit(cache=True, nogil=True)
def _leaves_values(values: Any, row: int, into: int) -> bool:
    """Moves one row's values into another; says whether some stay because there are other ones already."""
    stays = False
    for measure in range(len(values)):
        value = values[measure, row]
        if np.isnan(value):
            continue
        if np.isnan(values[measure, into]):
            values[measure, into] = value
        elif values[measure, into] != value:
            stays = True
            continue
        values[measure, row] = np.nan
    return stays
