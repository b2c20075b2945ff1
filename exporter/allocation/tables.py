"""Rows of the scheduler layer's families, kept from one reading to the next: one change moves one row.

At 50,000 pods a family is never made anew: its rows stand in a table, and what is handed out shares the label tuples.
Called by `exporter.allocation.state`.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable

import numpy as np

from exporter.families import CataloguedFamily, Family

Labels = tuple[str, ...]


Row = tuple[CataloguedFamily, Labels, float]
"""One row: its family, its labels, its value."""


class RowTables:
    """All families' tables, and which rows stand there on whose behalf."""

    def __init__(self, families: Iterable[CataloguedFamily]) -> None:
        self._tables = {catalogued.name: RowTable(catalogued) for catalogued in families}
        self._rows: dict[Hashable, tuple[tuple[str, Labels], ...]] = {}

    def replace(self, subject: Hashable, rows: Iterable[Row]) -> None:
        """Sets the rows of a subject, and drops those that it had and has no more."""
        after = {(catalogued.name, labels): value for catalogued, labels, value in rows}
        before = self._rows.get(subject, ())
        for name, labels in before:
            if (name, labels) not in after:
                self._tables[name].drop(labels)
        for (name, labels), value in after.items():
            self._tables[name].put(labels, value)
        if after:
            # What stays is kept as the very objects that the tables hold.
            held = {row: row for row in before}
            self._rows[subject] = tuple(held.get(row, row) for row in after)
        else:
            self._rows.pop(subject, None)

    def family(self, catalogued: CataloguedFamily) -> Family:
        """A family as it stands."""
        return self._tables[catalogued.name].family()


class RowTable:
    """The rows of one family, found by their labels."""

    def __init__(self, catalogued: CataloguedFamily) -> None:
        self._catalogued = catalogued
        self._places: dict[Labels, int] = {}
        self._labels: list[Labels] = []
        self._values = array("d")
        self._family: Family | None = None
        self._labels_shown: tuple[Labels, ...] | None = None

    def __len__(self) -> int:
        return len(self._labels)

    def put(self, labels: Labels, value: float = 1.0) -> None:
        """Sets the value of a row, which is made where there is none."""
        place = self._places.get(labels)
        if place is None:
            self._places[labels] = len(self._labels)
            self._labels.append(labels)
            self._values.append(value)
            self._family = self._labels_shown = None
        elif self._values[place] != value:
            self._values[place] = value
            self._family = None

    def drop(self, labels: Labels) -> None:
        """Takes a row out; one that is not there is no matter."""
        place = self._places.pop(labels, None)
        if place is None:
            return
        # The last row takes its place, so that nothing else moves.
        last_labels, last_value = self._labels.pop(), self._values.pop()
        if place < len(self._labels):
            self._labels[place], self._values[place] = last_labels, last_value
            self._places[last_labels] = place
        self._family = self._labels_shown = None

    def family(self) -> Family:
        """The family as it stands; the same object while nothing changes, the same labels while only values do."""
        if self._family is None:
            if self._labels_shown is None:
                self._labels_shown = tuple(self._labels)
            self._family = self._catalogued.of(self._labels_shown, np.array(self._values, dtype=np.float64))
        return self._family
