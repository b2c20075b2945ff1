"""Many regions of one layout side by side in one piece of memory, and every field of them as a column.

A row of the batch holds a region's head, as many process slots as its turn needs, and its tail. The memory is bounded
and used again for every batch, so a tenant who claims a thousand processes costs time but no memory. Filled by
`exporter.regions.looks`; `exporter.regions.decode` takes the columns apart.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.regions.fields import FieldKind, RegionField
from fleet.regions.layouts import Layout

SCRATCH_BYTES = 1 << 22
"""Memory for one batch: two of the largest regions, or a thousand with one process each."""

_NUMPY_TYPES = {FieldKind.I32: "<i4", FieldKind.U32: "<u4", FieldKind.U64: "<u8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape:
    """How a region of this layout lies in its row.

    Attributes:
        slots: process slots that are read.
    """

    layout: Layout
    slots: int

    @property
    def head_bytes(self) -> int:
        """Head and slots, which follow each other in the file."""
        return self.layout.slots_offset + self.slots * self.layout.slot_bytes

    @property
    def tail_bytes(self) -> int:
        """Tail, up to the end of the file."""
        return self.layout.file_bytes - self.layout.tail_offset

    @property
    def row_bytes(self) -> int:
        """A row, with one byte more than the tail has, so that a file that grew is seen; a multiple of 8."""
        return self.head_bytes + (self.tail_bytes + 8) // 8 * 8

    @property
    def rows_max(self) -> int:
        """Rows that the scratch memory has room for; at least 2."""
        return SCRATCH_BYTES // self.row_bytes


class Scratch:
    """The memory that batches are read into, one after the other, and the views of its rows."""

    def __init__(self) -> None:
        self.data = bytearray(SCRATCH_BYTES)
        self._view = memoryview(self.data)
        self._rows: dict[tuple[str, int], list[tuple[memoryview, memoryview]]] = {}

    def rows(self, shape: RowShape, count: int) -> list[tuple[memoryview, memoryview]]:
        """At least so many rows of a shape, each as its head and its tail with one byte more; made once."""
        views = self._rows.setdefault((shape.layout.name, shape.slots), [])
        for start in range(len(views) * shape.row_bytes, count * shape.row_bytes, shape.row_bytes):
            tail = start + shape.head_bytes
            views.append((self._view[start:tail], self._view[tail : tail + shape.tail_bytes + 1]))
        return views


def read_rows(scratch: Scratch, shape: RowShape, fds: Sequence[int]) -> list[int]:
    """Reads regions into the rows of the scratch memory, one after the other without a gap.

    The tail is read last: it says how many slots are in use, and the library takes a process out of that number before
    it moves its slots together.

    Args:
        fds: open regions, at most `shape.rows_max`.

    Returns:
        Which of the regions were read, as numbers into `fds`; the others aren't, or are no longer, of the layout's
        size, or can't be read.
    """
    read: list[int] = []
    views = scratch.rows(shape, len(fds))
    head_bytes, tail_bytes, tail_offset = shape.head_bytes, shape.tail_bytes, shape.layout.tail_offset
    preadv = os.preadv
    for number, fd in enumerate(fds):
        head, tail = views[len(read)]
        try:
            if preadv(fd, (head,), 0) == head_bytes and preadv(fd, (tail,), tail_offset) == tail_bytes:
                read.append(number)
        except OSError:
            continue
    return read


class RegionBatch:
    """Rows of one shape; a view of the scratch memory that the next batch writes over.

    Args:
        rows: how many, at most `shape.rows_max`.
    """

    def __init__(self, scratch: Scratch, shape: RowShape, rows: int) -> None:
        self.shape = shape
        self.rows = rows
        self._scratch = scratch
        self._row_bytes = shape.row_bytes
        self._head_bytes = shape.head_bytes

    def head(self, row: int) -> bytes:
        """A region's head and slots."""
        start = row * self._row_bytes
        return bytes(self._scratch.data[start : start + self._head_bytes])

    def card_bytes(self) -> list[bytearray]:
        """Per row the number of cards and all their ids, as they stand there; copies."""
        fields = self.shape.layout.fields
        begin, end = fields[RegionField.DEVICE_NUM].offset, fields[RegionField.LIMIT].offset
        data, row_bytes = self._scratch.data, self._row_bytes
        return [data[start + begin : start + end] for start in range(0, self.rows * row_bytes, row_bytes)]

    def column(self, field: RegionField, cards: int = 0, neighbours: int = 0) -> NDArray[np.generic]:
        """All values of a field, still in the scratch memory.

        Args:
            field: a field that the layout has, of a number's kind.
            cards: for a field with a value per card, how many cards.
            neighbours: how many fields of its kind, itself included, follow each other in one more axis; 0 for none.

        Returns:
            Shape `(rows,)`; `(rows, slots)` for a field of the slots; with an axis `(…, cards)` and an axis
            `(…, neighbours)` where asked for.
        """
        place = self.shape.layout.fields[field]
        shape: tuple[int, ...] = (self.rows,)
        strides: tuple[int, ...] = (self._row_bytes,)
        offset = place.offset
        if place.in_slot:
            shape, strides = (*shape, self.shape.slots), (*strides, self.shape.layout.slot_bytes)
            offset += self.shape.layout.slots_offset
        elif offset >= self.shape.layout.tail_offset:
            offset += self._head_bytes - self.shape.layout.tail_offset
        if place.count > 1:
            shape, strides = (*shape, cards), (*strides, place.stride)
        if neighbours:
            shape, strides = (*shape, neighbours), (*strides, place.kind.size)
        return np.ndarray(shape, _NUMPY_TYPES[place.kind], self._scratch.data, offset, strides)
