"""The rows that series name: identities of slices and cards, and what info series say stands somewhere.

Kept by `series_table`, which gives each series the numbers of its rows; those that no series names any more are
forgotten with the series.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.schema import (
    ALLOCATIONS,
    CARD_IDENTITY,
    INVENTORY_CARDS,
    INVENTORY_NODES,
    QUOTAS,
    SERVERS,
    SLICE_IDENTITY,
)
from fleet.series import SeriesIdentity, SeriesMeaning, Subject
from pipeline.records.label_rows import LabelRows
from pipeline.records.sightings import fault_of_sighting, server_row, sighted_text
from pipeline.remote_write.series_columns import SeriesColumns, Verdict

INFO_TABLES = {
    Subject.SLICE_INFO: ALLOCATIONS,
    Subject.CARD_INFO: INVENTORY_CARDS,
    Subject.NODE_INFO: INVENTORY_NODES,
    Subject.QUOTA_INFO: QUOTAS,
    Subject.SERVER: SERVERS,
}
"""Which table the sightings of an info series go to."""
SIGHTED_TABLES = tuple(INFO_TABLES.values())
SIGHTED_VALUES_MAX = 16
"""Values of one series that are remembered as sightings: such a value changes with a restart, if at all."""
_SETS_PER_ROW = 4
"""What a row's text is counted as: it stands in sets, plain and packed, too."""
_SIGHTED_VALUES_BYTES = 4096
"""What a series with such values is counted as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SightedValues:
    """A series whose value is part of its sightings: where it belongs, and numbers of rows by the value's text."""

    row: dict[str, str]
    fact: str
    factor: float
    numbers: dict[str, int | None]


class NamedRows:
    """All rows; mutable: they come and go with series."""

    def __init__(self, seed: int, default_cluster: str) -> None:
        self._default_cluster = default_cluster
        self.slices = LabelRows(SLICE_IDENTITY, seed)
        self.cards = LabelRows(CARD_IDENTITY, seed)
        self.sighted = {table.name: LabelRows(table.keys, seed) for table in SIGHTED_TABLES}
        self._values: dict[int, _SightedValues] = {}

    @property
    def memory_bytes(self) -> int:
        """Bytes that the rows take, reserves included, without those of remembered sets."""
        return sum(rows.memory_bytes for rows in (self.slices, self.cards, *self.sighted.values()))

    @property
    def counted_bytes(self) -> int:
        """What the rows count as, sets that are remembered included."""
        texts = sum(rows.text_bytes for rows in (self.slices, self.cards, *self.sighted.values()))
        return _SETS_PER_ROW * texts + _SIGHTED_VALUES_BYTES * len(self._values)

    def slice_of(self, identity: SeriesIdentity) -> int:
        """The number of a slice."""
        return self.slices.number_of(self._row(identity, SLICE_IDENTITY))

    def card_of(self, identity: SeriesIdentity) -> int:
        """The number of a card."""
        return self.cards.number_of(self._row(identity, CARD_IDENTITY))

    def sighting_of(self, number: int, meaning: SeriesMeaning, labels: Mapping[str, str]) -> tuple[int, int] | None:
        """Place in `SIGHTED_TABLES` and row of an info series; None where it says what can't be read back."""
        if meaning.server is not None:
            labels = server_row(meaning.identity, meaning.server)
        place = SIGHTED_TABLES.index(INFO_TABLES[meaning.subject] if meaning.server is None else SERVERS)
        table = SIGHTED_TABLES[place]
        said = {name: getattr(meaning.identity, name, None) or labels.get(name, "") for name in table.keys}
        row = {name: text or self._default(name) for name, text in said.items()}
        if fault_of_sighting(table, tuple(row.values())) is not None:
            return None
        if meaning.server is not None and meaning.fact is not None:
            self._values[number] = _SightedValues(row=row, fact=meaning.fact, factor=meaning.factor, numbers={})
        return place, self.sighted[table.name].number_of(tuple(row.values()))

    def sightings(
        self, columns: SeriesColumns, numbers: NDArray[np.int32], values: NDArray[np.float64]
    ) -> tuple[NDArray[np.int16], NDArray[np.int32]]:
        """Places in `SIGHTED_TABLES` and rows of what samples of info series say stands there.

        Args:
            numbers: their series, shape (samples,).
            values: NaN for the end of a series, shape (samples,).

        Returns:
            Shape (samples,) each; the row is -1 for a value that says nothing.
        """
        rows = columns.slice_identity[numbers]
        if self._values:
            for place, (number, value) in enumerate(zip(numbers.tolist(), values.tolist(), strict=True)):
                if number in self._values:
                    rows[place] = self._row_of_value(self._values[number], value)
        return columns.unit[numbers], rows

    def _row_of_value(self, one: _SightedValues, value: float) -> int:
        text = sighted_text(one.fact, value * one.factor)
        if text not in one.numbers and len(one.numbers) < SIGHTED_VALUES_MAX:
            found = tuple((one.row | {one.fact: text}).values())
            is_bad = fault_of_sighting(SERVERS, found) is not None
            one.numbers[text] = None if is_bad else self.sighted[SERVERS.name].number_of(found)
        known = one.numbers.get(text)
        return -1 if known is None else known

    def keep(self, columns: SeriesColumns, count: int, numbers: NDArray[np.int32]) -> None:
        """Forgets rows that none of the first `count` series names, and gives the series the others' new numbers.

        Args:
            numbers: new number of each series that there was, -1 for one that is forgotten.
        """
        verdict, unit = columns.verdict[:count], columns.unit[:count]
        self._values = {int(numbers[old]): one for old, one in self._values.items() if numbers[old] >= 0}
        is_usage = verdict == Verdict.USAGE
        _keep(self.slices, columns.slice_identity[:count], is_usage, [])
        _keep(self.cards, columns.card_identity[:count], is_usage, [])
        for place, table in enumerate(SIGHTED_TABLES):
            values = [one.numbers for one in self._values.values()] if table is SERVERS else []
            is_sighted = (verdict == Verdict.SIGHTING) & (unit == place)
            _keep(self.sighted[table.name], columns.slice_identity[:count], is_sighted, values)

    def _default(self, name: str) -> str:
        return self._default_cluster if name == "cluster" else ""

    def _row(self, identity: SeriesIdentity, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(getattr(identity, name) or self._default(name) for name in names)


def _keep(
    rows: LabelRows, column: NDArray[np.int32], is_theirs: NDArray[np.bool_], values: list[dict[str, int | None]]
) -> None:
    """Forgets rows that neither a series of a column nor a value names; new numbers are written into both."""
    places = np.flatnonzero(is_theirs & (column >= 0))
    is_kept = np.zeros(len(rows), dtype=np.bool_)
    is_kept[column[places]] = True
    for texts in values:
        is_kept[[row for row in texts.values() if row is not None]] = True
    numbers = rows.keep(is_kept)
    column[places] = numbers[column[places]]
    for texts in values:
        texts.update({text: int(numbers[row]) for text, row in texts.items() if row is not None})
