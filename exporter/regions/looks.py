"""Looks at many regions, again where a writer was at work, until what was seen holds together.

One look at a region is believed when its sums hold, no writer was seen in it and its process table is the one seen
before; or when two looks in a row saw the same. The library moves processes between slots and takes no lock that a
reader could take, so a changed table is always looked at twice. Called by `exporter.regions.reader` for all regions of
a node.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from exporter.regions.batch import RegionBatch, RowShape, Scratch, read_rows
from exporter.regions.decode import Figures, take_apart
from exporter.regions.followed import SLOTS_FOR_LAYOUT, FollowedRegion
from fleet.errors import Unavailable
from fleet.regions.doubts import RegionDoubt, bit_of
from fleet.regions.layouts import LayoutName, find_layout

LOOKS_MAX = 4
"""Looks at one region in one reading; a writer is done after some hundred nanoseconds."""
SLOTS_MAX = 16384
"""Process slots of all regions together in one reading (32 MiB to copy); who claims the most is refused first."""

NOBODY = np.zeros(0, dtype=np.int32)
"""Host pids of no processes."""

_SAME_LABEL = (LayoutName.V1_1, LayoutName.V1_1_DEV)
_OTHER_FILE_BITS = bit_of(RegionDoubt.UNINITIALISED) | bit_of(RegionDoubt.UNKNOWN_VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Regions of one batch that were seen to the end.

    Attributes:
        regions: one per row of the batch.
        is_final: per row: this look counts; others are looked at again.
        doubts: per row: all doubts, those about the cards included.
        batch: the rows' bytes, until the next look.
    """

    regions: Sequence[FollowedRegion]
    is_final: NDArray[np.bool_]
    doubts: NDArray[np.uint32]
    batch: RegionBatch
    figures: Figures


class RegionLooks:
    """Looks at regions; keeps the memory that they are read into."""

    def __init__(self) -> None:
        self._scratch = Scratch()

    def at(
        self,
        regions: Sequence[FollowedRegion],
        *,
        framebuffers: Mapping[str, float],
        now_seconds: float,
        deadline_at: float,
        gone: NDArray[np.int32] = NOBODY,
    ) -> Iterator[Look]:
        """Looks at each region until it holds together; regions that end up `refused` are in no look.

        Args:
            framebuffers: framebuffer of the cards of which it is known, bytes; the same object as long as it is equal.
            deadline_at: when to give up, by the clock of `time.monotonic`.
            gone: host pids of processes that live no more, whatever their slots say.

        Raises:
            Unavailable: the deadline is over.
        """
        pending = list(regions)
        for region in pending:
            region.refused = 0
        for number in range(LOOKS_MAX):
            again: list[FollowedRegion] = []
            for shape, rows in _batches(pending):
                if time.monotonic() > deadline_at:
                    raise Unavailable("cannot read the containers' regions in time; HAMi's figures keep their age")
                filled = self._fill(shape, rows, again)
                if filled:
                    batch = RegionBatch(self._scratch, shape, len(filled))
                    _take_cards(batch, filled, framebuffers)
                    yield _look(batch, filled, again, number, now_seconds=now_seconds, gone=gone)
            if not again:
                return
            pending = again
        for region in pending:
            region.refused = bit_of(RegionDoubt.KEEPS_CHANGING)

    def _fill(self, shape: RowShape, rows: list[FollowedRegion], again: list[FollowedRegion]) -> list[FollowedRegion]:
        """Reads the rows; those that can't be read in this shape are left out and tried again."""
        read = read_rows(self._scratch, shape, [region.fd for region in rows])
        if len(read) == len(rows):
            return rows
        for number in sorted(set(range(len(rows))).difference(read)):
            rows[number].layout = None
            again.append(rows[number])
        return [rows[number] for number in read]


def _batches(regions: Sequence[FollowedRegion]) -> Iterator[tuple[RowShape, list[FollowedRegion]]]:
    """Regions by the shape of their row, smallest first, in batches that fit the memory."""
    by_shape: dict[tuple[int, str], list[FollowedRegion]] = {}
    for region in regions:
        if region.layout is None:
            region.find_layout()
        if region.layout is not None:
            by_shape.setdefault((region.slots, region.layout.name), []).append(region)
    slots_left = SLOTS_MAX
    for (slots, _), rows in sorted(by_shape.items(), key=lambda shape: shape[0]):
        affordable = slots_left // slots
        for region in rows[affordable:]:
            region.refused = bit_of(RegionDoubt.TOO_MANY_PROCESSES)
            region.layout = None
        afforded = rows[:affordable]
        slots_left -= slots * len(afforded)
        if not afforded or afforded[0].layout is None:
            continue
        shape = RowShape(layout=afforded[0].layout, slots=slots)
        for start in range(0, len(afforded), shape.rows_max):
            yield shape, afforded[start : start + shape.rows_max]


def _take_cards(batch: RegionBatch, rows: list[FollowedRegion], framebuffers: Mapping[str, float]) -> None:
    """Has every region whose cards are others than before take them."""
    for region, raw in zip(rows, batch.card_bytes(), strict=True):
        if raw != region.card_bytes or framebuffers is not region.framebuffers:
            region.take_cards(raw, framebuffers)


def _look(
    batch: RegionBatch,
    rows: list[FollowedRegion],
    again: list[FollowedRegion],
    number: int,
    *,
    now_seconds: float,
    gone: NDArray[np.int32],
) -> Look:
    """Takes a batch apart, and says which of its regions have to be looked at again."""
    counts = np.fromiter((len(region.cards) for region in rows), dtype=np.int64, count=len(rows))
    framebuffer_max = np.full((len(rows), int(counts.max())), np.nan)
    framebuffer_max[np.arange(framebuffer_max.shape[1]) < counts[:, None]] = np.fromiter(
        chain.from_iterable(region.card_framebuffers for region in rows), dtype=np.float64
    )
    figures = take_apart(batch, card_counts=counts, framebuffer_max=framebuffer_max, now_seconds=now_seconds, gone=gone)
    doubts = figures.doubts | np.fromiter((region.doubts_of_cards for region in rows), dtype=np.uint32)
    is_same_table = np.fromiter((region.table for region in rows), dtype=np.uint64) == figures.table
    is_final = ~figures.needs_another_look
    if number > 0:
        is_final |= np.fromiter((region.usage for region in rows), dtype=np.uint64) == figures.usage
    if number == LOOKS_MAX - 1:
        is_final[:] = True
    is_final &= is_same_table & (figures.process_count <= batch.shape.slots)
    is_final &= _has_its_layout(batch, rows, figures, doubts)
    for region, table, usage in zip(rows, figures.table.tolist(), figures.usage.tolist(), strict=True):
        region.table, region.usage = table, usage
    needs_other_room = (figures.process_count > batch.shape.slots) | (figures.process_count * 8 < batch.shape.slots)
    for row in np.flatnonzero(needs_other_room).tolist():
        rows[row].make_room(int(figures.process_count[row]))
    again.extend(rows[row] for row in np.flatnonzero(~is_final).tolist())
    return Look(regions=rows, is_final=is_final, doubts=doubts, batch=batch, figures=figures)


def _has_its_layout(
    batch: RegionBatch, rows: list[FollowedRegion], figures: Figures, doubts: NDArray[np.uint32]
) -> NDArray[np.bool_]:
    """Per row, whether it still looks like the layout it was read by; another one is found at the next look."""
    is_so = doubts & np.uint32(_OTHER_FILE_BITS) == 0
    for row in np.flatnonzero(~is_so).tolist():
        rows[row].layout = None
    if batch.shape.layout.name in _SAME_LABEL:
        for row in np.flatnonzero(figures.has_stateless_process & is_so).tolist():
            asked = min(int(figures.process_count[row]), batch.shape.slots, SLOTS_FOR_LAYOUT)
            found = find_layout(batch.shape.layout.file_bytes, batch.head(row), asked)
            is_so[row] = found is batch.shape.layout
            rows[row].layout = found
    return np.asarray(is_so)
