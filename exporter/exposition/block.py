"""All families of a snapshot as text in one format, rendered anew only where something changed.

What stands before a value (the heads of a family, name and labels of a series) is made once and kept. The values of a
new snapshot are laid end to end and compared bit by bit with the last ones; what differs is formatted and put in its
place, and only the families concerned are joined anew. Called by `exporter.exposition.rendering`, one object per
format.

Formats: prometheus/docs:content/docs/instrumenting/exposition_formats.md,
prometheus/OpenMetrics:specification/OpenMetrics.md (1.0.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from operator import is_

import numpy as np
from numpy.typing import NDArray

from exporter.exposition.lines import formatted, head, prefix
from exporter.families import CataloguedFamily, Column, Family

_Labels = tuple[tuple[str, ...], ...]
_Prefixes = tuple[tuple[str, ...], _Labels, dict[tuple[str, ...], bytes]]
"""Label names and labels of a family, and what stands before the value of each series."""


class TextBlock:
    """The text of the latest snapshot in one format.

    A line feed stands between two lines and none after the last.
    """

    def __init__(self, *, is_openmetrics: bool) -> None:
        self._is_openmetrics = is_openmetrics
        self._names: list[str] = []
        self._labels: list[_Labels] = []
        self._values: NDArray[np.float64] = np.empty(0)
        # Name and labels of the series of each family, for as long as the family is there.
        self._prefixes: dict[tuple[str, int], _Prefixes] = {}
        # Heads, prefixes and values in the order of the text; where the value of each series stands, -1 for nowhere.
        self._parts: list[bytes] = []
        self._places: NDArray[np.int64] = np.empty(0, np.int64)
        # Where each family begins among the parts.
        self._first_part: NDArray[np.int64] = np.zeros(1, np.int64)
        # What is made of the parts when asked for; None where it is to be made anew.
        self._text: bytes | None = b""
        self._pieces: list[bytes] = []
        self._is_touched: NDArray[np.bool_] = np.empty(0, np.bool_)

    def show(self, columns: Sequence[Column]) -> bool:
        """Takes the families of a new snapshot; False where the text is the same as before.

        A value that isn't finite is left out: NaN means not there, and nothing that we measure is infinite.

        Args:
            columns: the families; those of one name follow each other and share one head.
        """
        names = [family.name for family, _, _ in columns]
        labels = [labels for _, labels, _ in columns]
        values = np.concatenate([values for _, _, values in columns], dtype=np.float64) if columns else np.empty(0)
        if names == self._names and all(map(is_, labels, self._labels)):
            changed = np.flatnonzero(values.view(np.int64) != self._values.view(np.int64))
            if not len(changed):
                return False
            places = self._places[changed]
            if np.array_equal(np.isfinite(values[changed]), places >= 0):
                self._put(values[changed], places)
                self._values = values
                return True
        self._names, self._labels, self._values = names, labels, values
        self._lay_out(columns, values)
        return True

    def text(self) -> bytes:
        """The whole text; the same object again while nothing changed."""
        if self._text is None:
            self._text = b"".join(self._parts)
        return self._text

    def pieces(self) -> list[bytes]:
        """The text in one piece per family; the piece of a family that did not change is the same object again."""
        touched = np.flatnonzero(self._is_touched)
        # A set, for numpy's own loads five megabytes of modules at its first call.
        for number in set((np.searchsorted(self._first_part, touched, side="right") - 1).tolist()):
            start, end = self._first_part[number : number + 2].tolist()
            self._pieces[number] = b"".join(self._parts[start:end])
        self._is_touched[touched] = False
        return self._pieces

    def _put(self, values: NDArray[np.float64], places: NDArray[np.int64]) -> None:
        """Formats values in their places.

        Args:
            values: values that changed, shape `(changed,)`; NaN where a series was and is not there.
            places: their places among the parts, shape `(changed,)`; -1 for nowhere.
        """
        is_there = places >= 0
        if not is_there.all():
            values, places = values[is_there], places[is_there]
        if len(places):
            self._fill(values, places)
            self._text = None
            self._is_touched[places] = True

    def _lay_out(self, columns: Sequence[Column], values: NDArray[np.float64]) -> None:
        """Makes the order of the text anew; a family without a value has no line."""
        present = np.isfinite(values)
        ends = np.cumsum([0, *(len(labels) for _, labels, _ in columns)])
        kept: dict[tuple[str, int], _Prefixes] = {}
        parts: list[bytes] = []
        first_part = [0]
        places = np.full(len(values), -1, np.int64)
        shown_name, number = "", 0
        for (family, labels, _), (start, end) in zip(columns, pairwise(ends.tolist()), strict=True):
            number = number + 1 if kept and family.name == next(reversed(kept))[0] else 0
            prefixes = self._prefixes_of(family, labels, number)
            kept[family.name, number] = family.label_names, labels, prefixes
            rows = np.flatnonzero(present[start:end])
            if len(rows):
                if family.name != shown_name:
                    lines = head(family, is_openmetrics=self._is_openmetrics)
                    parts.append(lines if parts else lines[1:])
                shown_name = family.name
                places[start + rows] = len(parts) + 1 + 2 * np.arange(len(rows))
                parts.extend(chain.from_iterable((prefixes[labels[row]], b"") for row in rows.tolist()))
            first_part.append(len(parts))
        self._prefixes, self._parts, self._places = kept, parts, places
        self._first_part = np.array(first_part, np.int64)
        self._text, self._pieces, self._is_touched = None, [b""] * len(columns), np.ones(len(parts), np.bool_)
        self._fill(values[present], places[present])

    def _fill(self, values: NDArray[np.float64], places: NDArray[np.int64]) -> None:
        parts = self._parts
        for rows, texts in formatted(values):
            for place, text in zip(places[rows].tolist(), texts, strict=True):
                parts[place] = text

    def _prefixes_of(
        self, family: Family | CataloguedFamily, labels: _Labels, number: int
    ) -> dict[tuple[str, ...], bytes]:
        """What stands before the values; series that are gone are forgotten with their text."""
        names, before, known = self._prefixes.get((family.name, number), (family.label_names, (), {}))
        if names != family.label_names:
            known = {}
        elif before is labels:
            return known
        return {row: known.get(row) or prefix(family.name, family.label_names, row) for row in labels}
