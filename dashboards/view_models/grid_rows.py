"""Rows of a large table of which the browser holds a screenful: sorted, filtered and cut into pages on the server.

A table is columns of what the fleet already holds; a column becomes an array when somebody first sorts or filters by
it, and a row becomes a dict when it is shown. A request names the first row and how many (`first`, `count`), what
stands in the field of each filtered column (`filters`: field to text), and by what to sort (`sorts`: pairs of a field
and `asc` or `desc`, the weightiest first). Of a column of texts a filter is a part of the text, or `=` and all of it,
whatever the case; of numbers it is `5`, `>5`, `>=5`, `<5`, `<=5`, or `2..4` with both ends. A number is as exact as
it is written: `5` is what rounds to 5. Requests come from a browser: what they name is looked up, compared and
bounded, never run. Pure; called by `pages.fleet` and `pages.workloads`, which say whose rows these are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fleet.errors import Refused
from fleet.sentences import sentence

Item = TypeVar("Item")
Row = dict[str, Any]
Places = NDArray[np.int64]
"""Places of rows in the table, in the order in which they are shown."""

PAGE_ROWS_MAX = 500
"""Rows of one answer."""
_SORTS_MAX = 4
_TEXT_LENGTH_MAX = 512
_DIGITS = r"-?\d{1,15}(?:\.\d{1,15})?"
_COMPARED = re.compile(rf"(>=|<=|>|<|=)? *({_DIGITS})", re.ASCII)
_BETWEEN = re.compile(rf"({_DIGITS}) *\.\. *({_DIGITS})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridColumn(Generic[Item]):
    """One column.

    Attributes:
        field: its name in rows and requests.
        value: its value of one item: text, a number, or None where nothing was collected.
        is_ratio: a number of 0-1 that is shown, and filtered, in percent.
    """

    field: str
    value: Callable[[Item], str | float | None]
    is_number: bool = False
    is_ratio: bool = False


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
        """One page: `rows`, and `count` of all that pass the filters.

        Args:
            request: what was asked, as above; what is absent is not asked.
            among: rows that are meant at all, in order; None for all.

        Raises:
            Refused: it is no request of this table.
        """
        asked = request if isinstance(request, Mapping) else {}
        first, count = _whole(asked.get("first", 0)), _whole(asked.get("count", PAGE_ROWS_MAX))
        chosen = self.chosen(asked, among=among)
        shown = chosen[first : first + min(count, PAGE_ROWS_MAX)]
        return {"rows": [self.row(int(place)) for place in shown], "count": len(chosen)}

    def chosen(self, request: object, *, among: Places | None = None) -> Places:
        """All rows that pass a request's filters, sorted as it says.

        Raises:
            Refused: it is no request of this table.
        """
        asked = request if isinstance(request, Mapping) else {}
        places = np.arange(len(self._items)) if among is None else among
        filters = asked.get("filters") or {}
        if not isinstance(filters, Mapping) or len(filters) > len(self._columns):
            raise Refused(f"cannot filter: {_line(filters)} is no filter of this table")
        for field, text in filters.items():
            places = places[self._passes(self._column(field), text)[places]]
        for field, way in reversed(_sorts(asked.get("sorts"))):
            column = self._column(field)
            values = self._number(column) if _is_number(column) else self._rank(column)
            found = values[places]
            # What was not collected comes last whichever way.
            keys = np.where(np.isnan(found), np.inf, -found if way == "desc" else found)
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

    def _passes(self, column: GridColumn[Item], text: object) -> NDArray[np.bool_]:
        """Which rows of the whole table pass what stands in one column's field."""
        if not isinstance(text, str) or len(text) > _TEXT_LENGTH_MAX:
            raise Refused(f"cannot filter {column.field}: expected a text of at most {_TEXT_LENGTH_MAX} characters")
        word = text.strip().lower()
        if _is_number(column):
            return _number_passes(self._number(column) * (100 if column.is_ratio else 1), word.replace("%", "").strip())
        if word.startswith("=") and len(word) > 1:
            return np.array([one == word[1:] for one in self._text(column)], np.bool_)
        return np.array([word in (one or "") for one in self._text(column)], np.bool_)


def _is_number(column: GridColumn[Any]) -> bool:
    return column.is_number or column.is_ratio


def _number_passes(values: NDArray[np.float64], word: str) -> NDArray[np.bool_]:
    """Which numbers pass a comparison, a span, or are what is written; what was not collected passes none."""
    if not word:
        return np.ones(len(values), np.bool_)
    between = _BETWEEN.fullmatch(word)
    if between is not None:
        return np.asarray((values >= float(between[1])) & (values <= float(between[2])))
    compared = _COMPARED.fullmatch(word)
    if compared is None:
        raise Refused(sentence("grid.no_number", text=_line(word)))
    sign, wanted = compared[1], float(compared[2])
    if sign in (None, "="):
        decimals = len(compared[2].partition(".")[2])
        return np.asarray(np.abs(values - wanted) <= 0.5 * 10.0**-decimals)
    return np.asarray(_COMPARISONS[sign](values, wanted))


_COMPARISONS: Mapping[str, Callable[[NDArray[np.float64], float], NDArray[np.bool_]]] = {
    ">": np.greater,
    ">=": np.greater_equal,
    "<": np.less,
    "<=": np.less_equal,
}


def _line(value: object) -> str:
    """The beginning of what somebody sent, as one line that an answer can hold: without halves of surrogate pairs."""
    return " ".join(str(value)[:40].encode("utf-8", "replace").decode().split())


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise Refused(f"cannot give a page from row {str(value)[:40]!r}: expected a whole number")
    return value


def _sorts(asked: object) -> list[tuple[object, object]]:
    entries = asked or []
    if not isinstance(entries, list) or len(entries) > _SORTS_MAX:
        raise Refused(f"cannot sort: expected at most {_SORTS_MAX} columns")
    if not all(isinstance(entry, list) and len(entry) == 2 for entry in entries):
        raise Refused("cannot sort: an entry is no pair of a column and a direction")
    return [(field, way) for field, way in entries]
