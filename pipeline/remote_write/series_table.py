"""What is known of every series: parsed and resolved once, then found again by its bytes.

The receiver's state. `lookup` gives each series of a body its number; arrays over these numbers say which slice or card
it speaks of, which measure, and in which unit. Series that nobody asked for are remembered too, so that they cost a
look and no more. Bounds: `receiver.series_max`, `receiver.labels_max`, `receiver.label_bytes_max`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.errors import Corrupt, Unavailable
from fleet.schema import (
    ALLOCATIONS,
    CARD_IDENTITY,
    CARD_USAGE,
    INVENTORY_CARDS,
    INVENTORY_NODES,
    MEASURES,
    POD_USAGE,
    QUOTAS,
    SERVERS,
    SLICE_IDENTITY,
    MeasureColumn,
    Table,
)
from fleet.series import SeriesIdentity, SeriesMeaning, Subject, meaning_of_name, resolve
from pipeline.records.label_rows import LabelRows
from pipeline.records.sightings import fault_of_sighting, server_row, sighted_text
from pipeline.remote_write import kernels
from pipeline.remote_write.byte_words import Texts
from pipeline.remote_write.decode import DecodedBody, Version
from pipeline.remote_write.intern_table import InternTable, SequenceTable
from pipeline.remote_write.label_sets import LabelLimits, Pairs, fault_of, pairs_of_region, pairs_of_symbols
from pipeline.remote_write.plain_labels import plain_regions, plain_sequences
from pipeline.remote_write.series_columns import SeriesColumns, Units, Verdict, no_columns, units_of, with_room

SYMBOLS_PER_SERIES_MAX = 4
"""Symbols that are remembered per series allowed: labels repeat, so honest senders stay far below."""
ARENA_BYTES_PER_SERIES_MAX = 1024
"""Label bytes that are remembered per series allowed, on average."""

INFO_TABLES = {
    Subject.SLICE_INFO: ALLOCATIONS,
    Subject.CARD_INFO: INVENTORY_CARDS,
    Subject.NODE_INFO: INVENTORY_NODES,
    Subject.QUOTA_INFO: QUOTAS,
    Subject.SERVER: SERVERS,
}
"""Which table the sightings of an info series go to."""
SIGHTED_VALUES_MAX = 16
"""Values of one series that are remembered as sightings: such a value changes with a restart, if at all."""

IDENTITY_TABLES = {POD_USAGE.name: SLICE_IDENTITY, CARD_USAGE.name: CARD_IDENTITY}
"""Identity columns of each usage table."""

_REMEMBERED_MAX = 32_768
"""Label sets (and names) whose meaning is remembered while further series of theirs come."""
_CLOSELY = object()
"""Family of names whose series are looked at one by one."""
_MEASURE_NUMBERS = {column.measure: number for number, column in enumerate(MEASURES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """What the labels of a series speak of, whatever its measure: numbers of its slice and card, -1 for none."""

    slice_identity: int
    card_identity: int
    claims_other_cluster: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _SightedValues:
    """A series whose value is part of its sightings: where it belongs, and numbers of rows by the value's text."""

    row: dict[str, str]
    fact: str
    factor: float
    numbers: dict[str, int | None]


class SeriesTable:
    """All series that the receiver has met.

    Args:
        default_cluster: cluster of series that carry no cluster label (`cluster.name`).
        series_max: most series remembered (`receiver.series_max`).
        seed: start of the hashes; senders must not know it.
        forced_cluster: cluster of all series, whatever their labels claim: the sender's; None to believe the labels.
    """

    def __init__(
        self,
        *,
        default_cluster: str,
        series_max: int,
        limits: LabelLimits,
        seed: int,
        forced_cluster: str | None = None,
    ) -> None:
        self._forced_cluster = forced_cluster
        self.claims_overridden = 0
        self._default_cluster = default_cluster
        self._series_max = series_max
        self._limits = limits
        self._regions = InternTable(seed)
        self._symbols = InternTable(seed)
        self._references = SequenceTable(seed)
        self._number_of = {Version.V1: np.empty(0, dtype=np.int32), Version.V2: np.empty(0, dtype=np.int32)}
        self._count = 0
        self._faults: dict[int, str] = {}
        self._columns = no_columns(1024)
        self._unit_keys: dict[tuple[int, float, float], int] = {(0, 1.0, np.inf): 0}
        self._units = units_of(self._unit_keys)
        self._names: dict[bytes, tuple[Hashable, int, MeasureColumn] | None] = {}
        self._targets: dict[tuple[Hashable, Version, bytes], _Target] = {}
        self._read: tuple[tuple[Version, bytes] | None, dict[str, str]] = (None, {})
        self._texts: dict[int, str] = {}
        self._labels: dict[bytes, tuple[str, str]] = {}
        self.slices = LabelRows(SLICE_IDENTITY, seed)
        self.cards = LabelRows(CARD_IDENTITY, seed)
        self.sightings: dict[int, tuple[Table, int]] = {}
        self._sighted_values: dict[int, _SightedValues] = {}
        self.sighting_rows = {table.name: LabelRows(table.keys, seed) for table in INFO_TABLES.values()}

    def __len__(self) -> int:
        return self._count

    def allow(self, series_max: int) -> None:
        """Change the bound on series; those that are known stay."""
        self._series_max = series_max

    @property
    def columns(self) -> SeriesColumns:
        """What is known of every series; rows beyond `len(self)` mean nothing."""
        return self._columns

    @property
    def units(self) -> Units:
        """What `SeriesColumns.unit` refers to."""
        return self._units

    @property
    def memory_bytes(self) -> int:
        """Bytes that what is known of the series takes, reserves included; without what is remembered to be fast."""
        tables: tuple[InternTable | SequenceTable | LabelRows, ...] = (
            self._regions, self._symbols, self._references, self.slices, self.cards, *self.sighting_rows.values()
        )  # fmt: skip
        numbers = sum(numbers.nbytes for numbers in self._number_of.values())
        return sum(table.memory_bytes for table in tables) + self._columns.memory_bytes + numbers

    def fault(self, series: int) -> str:
        """Why a series is invalid."""
        return self._faults[series]

    def lookup(self, body: DecodedBody) -> NDArray[np.int32]:
        """The number of each series of a body; new ones are parsed and resolved.

        Returns:
            Shape (series,); -1 for a series of version 2 whose references are out of range.

        Raises:
            Unavailable: the body would pass a bound; nothing of it was remembered.
        """
        starts, ends = body.series[:, kernels.LABELS_START], body.series[:, kernels.LABELS_END]
        if body.version is Version.V1:
            return self._numbers(body.version, self._regions, (body.data, starts, ends))
        symbols = self._interned_symbols(body)
        return self._numbers(body.version, self._references, (symbols, body.data, starts, ends))

    def _interned_symbols(self, body: DecodedBody) -> NDArray[np.int32]:
        starts, ends = body.symbols[:, 0], body.symbols[:, 1]
        numbers, missing, missing_bytes = self._symbols.find(body.data, starts, ends)
        if not missing:
            return numbers
        self._check_bounds(self._symbols, missing, missing_bytes, SYMBOLS_PER_SERIES_MAX * self._series_max)
        return self._symbols.intern(body.data, starts, ends)

    def _numbers(
        self, version: Version, table: InternTable | SequenceTable, keys: tuple[Any, ...]
    ) -> NDArray[np.int32]:
        places, missing, missing_bytes = table.find(*keys)
        if missing:
            other = self._count - len(table)
            self._check_bounds(table, missing, missing_bytes, self._series_max - other)
            before = len(table)
            places = table.intern(*keys)
            self._add(version, table, before)
        numbers_of = self._number_of[version][: len(table)]
        is_bad = places < 0
        if not is_bad.any():
            return numbers_of[places]
        numbers = np.full(len(places), -1, dtype=np.int32)
        numbers[~is_bad] = numbers_of[places[~is_bad]]
        return numbers

    def _check_bounds(self, table: InternTable | SequenceTable, more: int, more_bytes: int, count_max: int) -> None:
        bytes_max = ARENA_BYTES_PER_SERIES_MAX * self._series_max
        if len(table) + more > count_max or table.arena_bytes + more_bytes > bytes_max:
            raise Unavailable(
                f"cannot take a request with {more} new series or symbols beside {self._count} series: more than "
                f"receiver.series_max={self._series_max} allows"
            )

    def _add(self, version: Version, table: InternTable | SequenceTable, before: int) -> None:
        """Gives numbers to the label sets that a table has from place `before` on, and finds out what they mean."""
        first, more = self._count, len(table) - before
        self._count += more
        self._columns = with_room(self._columns, self._count)
        of_version = self._number_of[version]
        if len(table) > len(of_version):
            of_version = np.resize(of_version, max(1024, len(table), len(of_version) * 5 // 4))
            self._number_of[version] = of_version
        of_version[before : len(table)] = np.arange(first, first + more, dtype=np.int32)
        self._columns.verdict[first : first + more] = Verdict.UNWANTED
        names, rest_of = self._plain_names(version, table, before)
        usage: list[tuple[int, int, int, int]] = []
        for place, name in enumerate(names):
            number = first + place
            if name is None:
                self._add_closely(number, table.part(before + place).tobytes(), version)
                continue
            known = self._known_name(name)
            if known is None and self._forced_cluster is None:
                continue
            family, unit, column = known or (None, 0, MEASURES[0])
            if family is _CLOSELY:
                self._add_closely(number, table.part(before + place).tobytes(), version)
                continue
            target = self._target(family, name, rest_of(place), version, table, before + place)
            self.claims_overridden += target.claims_other_cluster
            card = target.card_identity if column.of_card else -1
            slice_ = target.slice_identity if column.of_slice else -1
            if known is not None and (card >= 0 or slice_ >= 0):
                usage.append((number, slice_, card, unit))
        if usage:
            numbers, slices, cards, units = np.array(usage, dtype=np.int32).T
            self._columns.verdict[numbers] = Verdict.USAGE
            self._columns.slice_identity[numbers] = slices
            self._columns.card_identity[numbers] = cards
            self._columns.unit[numbers] = units

    def _plain_names(
        self, version: Version, table: InternTable | SequenceTable, before: int
    ) -> tuple[list[bytes | None], Callable[[int], bytes]]:
        """The metric's name of each new label set, None where it needs a closer look; and its other labels' bytes."""
        starts, limits = table.starts[before:], self._limits
        arena = table.arena
        if version is Version.V1:
            spans = np.empty((len(starts) - 1, 2), dtype=np.int64)
            pairs = np.empty_like(spans)
            plain_regions(arena, starts, limits.labels_max, limits.label_bytes_max, spans, pairs)
            names = [None if at < 0 else arena[at:end].tobytes() for at, end in spans.tolist()]
            bounds = np.column_stack((starts[:-1], pairs, starts[1:])).tolist()
        else:
            symbols = np.empty(len(starts) - 1, dtype=np.int64)
            places = np.empty_like(symbols)
            known = Texts(data=self._symbols.arena, starts=self._symbols.starts)
            plain_sequences(arena, starts, known, limits.labels_max, limits.label_bytes_max, symbols, places)
            texts = {symbol: self._symbols.bytes_of(symbol) for symbol in set(symbols.tolist()) if symbol >= 0}
            names = [texts.get(symbol) for symbol in symbols.tolist()]
            bounds = np.column_stack((starts[:-1], places, places + 2, starts[1:])).tolist()

        def rest_of(place: int) -> bytes:
            start, pair, pair_end, end = bounds[place]
            return arena[start:pair].tobytes() + arena[pair_end:end].tobytes()

        return names, rest_of

    def _known_name(self, name: bytes) -> tuple[Hashable, int, MeasureColumn] | None:
        """Family, unit and column of a metric's name; None for one that nobody asked for."""
        if name in self._names:
            return self._names[name]
        meaning = meaning_of_name(name.decode())
        found: tuple[Hashable, int, MeasureColumn] | None = None
        if meaning is not None and meaning.measure is None:
            found = (_CLOSELY, 0, MEASURES[0])
        elif meaning is not None and meaning.measure is not None:
            place = _MEASURE_NUMBERS[meaning.measure]
            found = (meaning.family, self._unit(place, meaning.factor, meaning.value_max), MEASURES[place])
        if len(self._names) >= _REMEMBERED_MAX:
            self._names.clear()
        self._names[name] = found
        return found

    def _unit(self, measure: int, factor: float, value_max: float | None) -> int:
        key = (measure, factor, np.inf if value_max is None else value_max)
        unit = self._unit_keys.setdefault(key, len(self._unit_keys))
        if unit == len(self._units.measure):
            self._units = units_of(self._unit_keys)
        return unit

    def _target(
        self,
        family: Hashable,
        name: bytes,
        rest: bytes,
        version: Version,
        table: InternTable | SequenceTable,
        place: int,
    ) -> _Target:
        key = (family, version, rest)
        if key in self._targets:
            return self._targets[key]
        # The families of one target mostly stand beside each other: their labels are read once.
        if self._read[0] != (version, rest):
            self._read = ((version, rest), dict(self._plain_pairs(table.part(place), version)))
        labels = dict(self._read[1])
        claims_other = self._with_forced_cluster(labels)
        meaning = None if family is None else resolve(name.decode(), labels)
        target = _Target(
            slice_identity=-1
            if meaning is None or meaning.identity.pod is None
            else self.slices.number_of(self._row(meaning.identity, SLICE_IDENTITY)),
            card_identity=-1
            if meaning is None or meaning.subject is not Subject.CARD
            else self.cards.number_of(self._row(meaning.identity, CARD_IDENTITY)),
            claims_other_cluster=claims_other,
        )
        if len(self._targets) >= _REMEMBERED_MAX:
            self._targets.clear()
        self._targets[key] = target
        return target

    def _plain_pairs(self, key: NDArray[Any], version: Version) -> Iterator[tuple[str, str]]:
        """The pairs of labels that are plain; texts are remembered, since most of them come again."""
        if version is Version.V1:
            region, at = key.tobytes(), 0
            while at < len(region):
                size, head = region[at + 1], 2
                if size > 127:
                    size, head = size & 127 | region[at + 2] << 7, 3
                label = region[at : at + head + size]
                at += head + size
                pair = self._labels.get(label)
                if pair is None:
                    if len(self._labels) >= _REMEMBERED_MAX:
                        self._labels.clear()
                    pair = self._labels[label] = pairs_of_region(label)[0]
                yield pair
            return
        if len(self._texts) >= _REMEMBERED_MAX:
            self._texts.clear()
        texts = []
        for symbol in key.tolist():
            text = self._texts.get(symbol)
            if text is None:
                text = self._texts[symbol] = self._symbols.bytes_of(symbol).decode()
            texts.append(text)
        yield from zip(texts[::2], texts[1::2], strict=True)

    def _with_forced_cluster(self, labels: dict[str, str]) -> bool:
        """Puts the sender's cluster into labels where it has one; whether they claimed another."""
        if self._forced_cluster is None:
            return False
        claimed = labels.get("cluster", self._forced_cluster)
        labels["cluster"] = self._forced_cluster
        return claimed != self._forced_cluster

    def _add_closely(self, number: int, key: bytes, version: Version) -> None:
        """What one series means, by its labels as texts, or which rule they break."""
        try:
            pairs = self._pairs(key, version)
            fault = fault_of(pairs, must_be_sorted=version is Version.V2)
        except Corrupt as exc:
            pairs, fault = (), str(exc)
        if fault is not None:
            self._faults[number] = fault
            self._columns.verdict[number] = Verdict.INVALID
        elif not self._limits.hold(pairs):
            self._columns.verdict[number] = Verdict.DROPPED
        else:
            self._resolve(number, dict(pairs))

    def _pairs(self, key: bytes, version: Version) -> Pairs:
        if version is Version.V1:
            return pairs_of_region(key)
        numbers = np.frombuffer(key, dtype=np.int32)
        return pairs_of_symbols([self._symbols.bytes_of(int(number)) for number in numbers])

    def _resolve(self, number: int, labels: dict[str, str]) -> None:
        self.claims_overridden += self._with_forced_cluster(labels)
        meaning = resolve(labels["__name__"], labels)
        if meaning is None:
            return
        if meaning.server is not None:
            row = server_row(meaning.identity, meaning.server)
            row["cluster"] = row["cluster"] or self._default_cluster
            self._add_sighting(number, SERVERS, row)
            if meaning.fact is not None and number in self.sightings:
                self._sighted_values[number] = _SightedValues(
                    row=row, fact=meaning.fact, factor=meaning.factor, numbers={}
                )
        elif meaning.subject in INFO_TABLES:
            self._add_sighting(number, INFO_TABLES[meaning.subject], labels)
        elif meaning.measure is not None:
            self._add_usage(number, meaning)

    def _add_sighting(self, number: int, table: Table, labels: dict[str, str]) -> None:
        row = tuple(labels.get(name, "") or self._default(name) for name in table.keys)
        if fault_of_sighting(table, row) is not None:
            self._columns.verdict[number] = Verdict.DROPPED
            return
        self._columns.verdict[number] = Verdict.SIGHTING
        self.sightings[number] = (table, self.sighting_rows[table.name].number_of(row))

    def sighting(self, number: int, value: float) -> tuple[Table, int] | None:
        """Table and row of what a series' sample says stands there; None for a value that says nothing.

        Args:
            value: the sample's; NaN for the end of the series.
        """
        table, row = self.sightings[number]
        if number not in self._sighted_values:
            return table, row
        one = self._sighted_values[number]
        text = sighted_text(one.fact, value * one.factor)
        if text not in one.numbers and len(one.numbers) < SIGHTED_VALUES_MAX:
            texts = one.row | {one.fact: text}
            found = tuple(texts[name] for name in table.keys)
            is_bad = fault_of_sighting(table, found) is not None
            one.numbers[text] = None if is_bad else self.sighting_rows[table.name].number_of(found)
        known = one.numbers.get(text)
        return None if known is None else (table, known)

    def _default(self, name: str) -> str:
        return self._default_cluster if name == "cluster" else ""

    def _add_usage(self, number: int, meaning: SeriesMeaning) -> None:
        columns = self._columns
        if meaning.measure is None:
            raise ValueError("a usage series has a measure")
        identity, column = meaning.identity, MEASURES[_MEASURE_NUMBERS[meaning.measure]]
        # A card's own series that names a pod reports the only tenant as well; the resolver leaves the pod out where
        # the source repeats a card's value for everyone who shares it.
        if meaning.subject is Subject.CARD and column.of_card:
            columns.card_identity[number] = self.cards.number_of(self._row(identity, CARD_IDENTITY))
        if identity.pod is not None and column.of_slice:
            columns.slice_identity[number] = self.slices.number_of(self._row(identity, SLICE_IDENTITY))
        if columns.card_identity[number] >= 0 or columns.slice_identity[number] >= 0:
            columns.verdict[number] = Verdict.USAGE
            columns.unit[number] = self._unit(_MEASURE_NUMBERS[meaning.measure], meaning.factor, meaning.value_max)

    def _row(self, identity: SeriesIdentity, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(getattr(identity, name) or self._default(name) for name in names)
