"""Rows of a large table of which the browser holds a screenful: sorted, filtered and cut into pages on the server.

A table is columns of what the fleet already holds; a column becomes an array when somebody first sorts or filters by
it, and a row becomes a dict when it is shown. Requests are those of ag-grid's infinite row model
(ag-grid.com/javascript-data-grid/infinite-scrolling, filter models as on its pages of the text and the number filter).
They come from a browser: what they name is looked up, compared and bounded, never run. Pure; called by `pages.fleet`
and `pages.workloads`, which say whose rows these are.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fleet.errors import Refused

Item = TypeVar("Item")
Row = dict[str, Any]
Places = NDArray[np.int64]
"""Places of rows in the table, in the order in which they are shown."""

PAGE_ROWS_MAX = 500
"""Rows of one answer."""
_CONDITIONS_MAX = 4
_TEXT_LENGTH_MAX = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class GridColumn(Generic[Item]):
    """One column.

    Attributes:
        field: its name in rows and requests.
        value: its value of one item: text, a number, or None where nothing was collected.
    """

    field: str
    value: Callable[[Item], str | float | None]
    is_number: bool = False


class GridRows(Generic[Item]):
    """A table.

    Args:
        items: what the rows are of, in the order that is shown until somebody sorts.
    """

    def __init__(self, items: Sequence[Item], columns: Iterable[GridColumn[Item]]) -> None:
        self._items = items
        self._columns = {column.field: column for column in columns}
        self._numbers: dict[str, NDArray[np.float64]] = {}
        self._texts: dict[str, tuple[str | None, ...]] = {}
        self._ranks: dict[str, NDArray[np.float64]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def page(self, request: object, *, among: Places | None = None) -> Row:
        """One page as the grid takes it: `rowData`, and `rowCount` of all that pass the filter.

        Args:
            request: `startRow`, `endRow`, `filterModel`, `sortModel`.
            among: rows that are meant at all, in order; None for all.

        Raises:
            Refused: it is no request of this table.
        """
        asked = request if isinstance(request, Mapping) else {}
        start, end = _whole(asked.get("startRow", 0)), _whole(asked.get("endRow", PAGE_ROWS_MAX))
        chosen = self.chosen(asked, among=among)
        return {
            "rowData": [self.row(int(place)) for place in chosen[start : min(end, start + PAGE_ROWS_MAX)]],
            "rowCount": len(chosen),
        }

    def chosen(self, request: object, *, among: Places | None = None) -> Places:
        """All rows that pass a request's filter, sorted as it says.

        Raises:
            Refused: it is no request of this table.
        """
        asked = request if isinstance(request, Mapping) else {}
        places = np.arange(len(self._items)) if among is None else among
        model = asked.get("filterModel") or {}
        if not isinstance(model, Mapping) or len(model) > len(self._columns):
            raise Refused(f"cannot filter: {str(model)[:80]} is no filter of this table")
        for field, condition in model.items():
            places = places[self._passes(self._column(field), condition)[places]]
        for entry in reversed(_sorts(asked.get("sortModel"))):
            column = self._column(entry.get("colId"))
            values = self._number(column) if column.is_number else self._rank(column)
            found = values[places]
            # What was not collected comes last whichever way.
            keys = np.where(np.isnan(found), np.inf, -found if entry.get("sort") == "desc" else found)
            places = places[np.argsort(keys, kind="stable")]
        return places

    def row(self, place: int) -> Row:
        """One row."""
        item = self._items[place]
        return {field: column.value(item) for field, column in self._columns.items()}

    def where(self, field: str, texts: Iterable[str]) -> Places:
        """Rows whose text is one of these, in the table's order."""
        wanted = frozenset(texts)
        value = self._column(field).value
        return np.array([place for place, item in enumerate(self._items) if value(item) in wanted], np.int64)

    def _column(self, field: object) -> GridColumn[Item]:
        found = self._columns.get(field) if isinstance(field, str) else None
        if found is None:
            raise Refused(f"cannot sort or filter by {str(field)[:80]!r}: the table has no such column")
        return found

    def _number(self, column: GridColumn[Item]) -> NDArray[np.float64]:
        kept = self._numbers.get(column.field)
        if kept is None:
            values = (column.value(item) for item in self._items)
            kept = np.array([math.nan if value is None else value for value in values], np.float64)
            self._numbers[column.field] = kept
        return kept

    def _text(self, column: GridColumn[Item]) -> tuple[str | None, ...]:
        kept = self._texts.get(column.field)
        if kept is None:
            values = (column.value(item) for item in self._items)
            kept = tuple(None if value is None else str(value).lower() for value in values)
            self._texts[column.field] = kept
        return kept

    def _rank(self, column: GridColumn[Item]) -> NDArray[np.float64]:
        """Place of each text among all texts in order; equal texts share theirs."""
        kept = self._ranks.get(column.field)
        if kept is None:
            texts = self._text(column)
            rank_of = {text: rank for rank, text in enumerate(sorted({text for text in texts if text is not None}))}
            kept = np.array([math.nan if text is None else rank_of[text] for text in texts], np.float64)
            self._ranks[column.field] = kept
        return kept

    def _passes(self, column: GridColumn[Item], model: object) -> NDArray[np.bool_]:
        """Which rows of the whole table pass one column's filter."""
        if not isinstance(model, Mapping):
            raise Refused(f"cannot filter {column.field}: {str(model)[:80]!r} is no filter")
        conditions = model.get("conditions")
        if conditions is None:
            return self._holds(column, model)
        if not isinstance(conditions, list) or not 0 < len(conditions) <= _CONDITIONS_MAX:
            raise Refused(f"cannot filter {column.field}: expected 1 to {_CONDITIONS_MAX} conditions")
        if not all(isinstance(condition, Mapping) and "conditions" not in condition for condition in conditions):
            raise Refused(f"cannot filter {column.field}: a condition is none, or holds further ones")
        found = [self._holds(column, condition) for condition in conditions]
        join = np.logical_or if model.get("operator") == "OR" else np.logical_and
        return np.asarray(join.reduce(found), np.bool_)

    def _holds(self, column: GridColumn[Item], condition: Mapping[str, Any]) -> NDArray[np.bool_]:
        kind = condition.get("type")
        if column.is_number:
            return _number_holds(column.field, self._number(column), kind, condition)
        wanted = condition.get("filter")
        if kind not in ("blank", "notBlank") and not (isinstance(wanted, str) and len(wanted) <= _TEXT_LENGTH_MAX):
            raise Refused(f"cannot filter {column.field}: expected a text of at most {_TEXT_LENGTH_MAX} characters")
        test = _TEXT_TESTS.get(kind) if isinstance(kind, str) else None
        if test is None:
            raise Refused(f"cannot filter {column.field} by {str(kind)[:40]!r}: not known")
        word = str(wanted).strip().lower()
        return np.array([test(text or "", word) for text in self._text(column)], np.bool_)


_TEXT_TESTS: Mapping[str, Callable[[str, str], bool]] = {
    "contains": lambda text, word: word in text,
    "notContains": lambda text, word: word not in text,
    "equals": lambda text, word: text == word,
    "notEqual": lambda text, word: text != word,
    "startsWith": lambda text, word: text.startswith(word),
    "endsWith": lambda text, word: text.endswith(word),
    "blank": lambda text, _: not text,
    "notBlank": lambda text, _: bool(text),
}
_NUMBER_TESTS: Mapping[str, Callable[[NDArray[np.float64], float], NDArray[np.bool_]]] = {
    "equals": lambda values, wanted: values == wanted,
    "notEqual": lambda values, wanted: (values != wanted) & ~np.isnan(values),
    "lessThan": lambda values, wanted: values < wanted,
    "lessThanOrEqual": lambda values, wanted: values <= wanted,
    "greaterThan": lambda values, wanted: values > wanted,
    "greaterThanOrEqual": lambda values, wanted: values >= wanted,
}


def _number_holds(
    field: str, values: NDArray[np.float64], kind: object, condition: Mapping[str, Any]
) -> NDArray[np.bool_]:
    if kind in ("blank", "notBlank"):
        return np.isnan(values) if kind == "blank" else ~np.isnan(values)
    wanted = _real(field, condition.get("filter"))
    if kind == "inRange":
        return np.asarray((values > wanted) & (values < _real(field, condition.get("filterTo"))))
    test = _NUMBER_TESTS.get(kind) if isinstance(kind, str) else None
    if test is None:
        raise Refused(f"cannot filter {field} by {str(kind)[:40]!r}: not known")
    return test(values, wanted)


def _real(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise Refused(f"cannot filter {field}: expected a number, got {str(value)[:40]!r}")
    return float(value)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise Refused(f"cannot give a page from row {str(value)[:40]!r}: expected a whole number")
    return value


def _sorts(model: object) -> list[Mapping[str, Any]]:
    entries = model or []
    if not isinstance(entries, list) or len(entries) > _CONDITIONS_MAX:
        raise Refused(f"cannot sort: expected at most {_CONDITIONS_MAX} columns")
    if not all(isinstance(entry, Mapping) for entry in entries):
        raise Refused("cannot sort: an entry names no column")
    return entries
