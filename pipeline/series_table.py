"""What is known of every series: parsed and resolved once, then found again by its bytes.

The receiver's state. `lookup` gives each series of a body its number; arrays over these numbers say which slice or card
it speaks of, which measure, and in which unit. Series that nobody asked for are remembered too, so that they cost a
look and no more. Bounds: `receiver.series_max`, `receiver.labels_max`, `receiver.label_bytes_max`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b

import numpy as np
import pyarrow as pa
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
    SLICE_IDENTITY,
    Table,
)
from fleet.series import SeriesIdentity, SeriesMeaning, Subject, resolve
from pipeline import remote_write_kernels as kernels
from pipeline.intern_table import InternTable
from pipeline.label_sets import LabelLimits, Pairs, fault_of, pairs_of_region, pairs_of_symbols
from pipeline.remote_write import DecodedBody, Version
from pipeline.sightings import fault_of_sighting

SYMBOLS_PER_SERIES_MAX = 4
"""Symbols that are remembered per series allowed: labels repeat, so honest senders stay far below."""
ARENA_BYTES_PER_SERIES_MAX = 1024
"""Label bytes that are remembered per series allowed, on average."""

INFO_TABLES = {
    Subject.SLICE_INFO: ALLOCATIONS,
    Subject.CARD_INFO: INVENTORY_CARDS,
    Subject.NODE_INFO: INVENTORY_NODES,
}
"""Which table the sightings of an info series go to."""

IDENTITY_TABLES = {POD_USAGE.name: SLICE_IDENTITY, CARD_USAGE.name: CARD_IDENTITY}
"""Identity columns of each usage table."""

_MEASURE_NUMBERS = {column.measure: number for number, column in enumerate(MEASURES)}


class Verdict(IntEnum):
    """What becomes of a series' samples."""

    USAGE = 0
    """They are a measure of a slice or a card."""
    SIGHTING = 1
    """They say that something stands there."""
    UNWANTED = 2
    """Nobody asked for them: handled by being counted."""
    DROPPED = 3
    """Its labels pass the limits or say what can't be read back: dropped and counted."""
    INVALID = 4
    """Its labels break a rule: refused with 400."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesColumns:
    """What is known of every series, as columns over its number.

    Attributes:
        verdict: `Verdict` of each.
        slice_identity: number among the slice identities, -1 where it speaks of no slice.
        card_identity: number among the card identities, -1 where it speaks of no card.
        measure: place in `fleet.schema.MEASURES`, -1 where it is none.
        factor: what a sample is multiplied by.
        clamp_max: values above it mean it; infinite where none are known to occur.
        sighting: number among the sightings, -1 where it is none.
    """

    verdict: NDArray[np.int8]
    slice_identity: NDArray[np.int32]
    card_identity: NDArray[np.int32]
    measure: NDArray[np.int32]
    factor: NDArray[np.float64]
    clamp_max: NDArray[np.float64]
    sighting: NDArray[np.int32]


class LabelRows:
    """Distinct rows of text columns with a 64-bit hash each, numbered as they come; an Arrow table on demand."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._numbers: dict[tuple[str, ...], int] = {}
        self._hashes: list[int] = []
        self._batches: list[pa.RecordBatch] = []
        self._batched = 0
        self._table: pa.Table | None = None

    def number_of(self, row: tuple[str, ...]) -> int:
        """The number of a row, a new one where it was never seen."""
        number = self._numbers.setdefault(row, len(self._numbers))
        if number == len(self._hashes):
            self._hashes.append(label_hash(row))
        return number

    def take(self, numbers: NDArray[np.int64]) -> pa.RecordBatch:
        """The rows with these numbers: column `hash` (uint64), then the text columns."""
        if self._batched < len(self._numbers):
            fresh = list(self._numbers)[self._batched :]
            columns = [pa.array(column, pa.string()) for column in zip(*fresh, strict=True)]
            hashes = pa.array(self._hashes[self._batched :], pa.uint64())
            self._batches.append(pa.RecordBatch.from_arrays([hashes, *columns], ["hash", *self.names]))
            self._batched = len(self._numbers)
            self._table = pa.Table.from_batches(self._batches).combine_chunks()
            self._batches = self._table.to_batches()
        if self._table is None:
            raise ValueError("no row was numbered yet")
        return self._table.take(pa.array(numbers)).combine_chunks().to_batches()[0]


def label_hash(row: tuple[str, ...]) -> int:
    """A 64-bit hash of label texts that is the same in every process: what samples of one slice are told apart by."""
    digest = blake2b(digest_size=8)
    for text in row:
        data = text.encode()
        digest.update(len(data).to_bytes(4, "little") + data)
    return int.from_bytes(digest.digest(), "little")


class SeriesTable:
    """All series that the receiver has met.

    Args:
        default_cluster: cluster of series that carry no cluster label (`cluster.name`).
        series_max: most series remembered (`receiver.series_max`).
        limits: what one series may cost.
        seed: start of the hashes; senders must not know it.
    """

    def __init__(self, *, default_cluster: str, series_max: int, limits: LabelLimits, seed: int) -> None:
        self._default_cluster = default_cluster
        self._series_max = series_max
        self._limits = limits
        self._regions = InternTable(seed)
        self._symbols = InternTable(seed)
        self._references = InternTable(seed)
        self._number_of = {Version.V1: np.empty(0, dtype=np.int32), Version.V2: np.empty(0, dtype=np.int32)}
        self._count = 0
        self._faults: dict[int, str] = {}
        self._columns = _no_columns(1024)
        self.slices = LabelRows(SLICE_IDENTITY)
        self.cards = LabelRows(CARD_IDENTITY)
        self.sightings: dict[int, tuple[Table, int]] = {}
        self.sighting_rows = {table.name: LabelRows(table.keys) for table in INFO_TABLES.values()}

    def __len__(self) -> int:
        return self._count

    @property
    def columns(self) -> SeriesColumns:
        """What is known of every series; rows beyond `len(self)` mean nothing."""
        return self._columns

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
        if body.version is Version.V1:
            starts = np.maximum(body.series[:, kernels.LABELS_START], 0)
            ends = np.maximum(body.series[:, kernels.LABELS_END], 0)
            return self._numbers(self._regions, body, body.data, starts, ends)
        symbols = self._interned_symbols(body)
        references = symbols[body.refs] if len(body.refs) else np.empty(0, dtype=np.int32)
        starts = np.ascontiguousarray(body.series[:, kernels.LABELS_START] * 4)
        ends = np.ascontiguousarray(body.series[:, kernels.LABELS_END] * 4)
        numbers = self._numbers(self._references, body, references.view(np.uint8), starts, ends)
        bad = body.series[:, kernels.BAD_REFS] > 0
        return np.where(bad, np.int32(-1), numbers) if bad.any() else numbers

    def _interned_symbols(self, body: DecodedBody) -> NDArray[np.int32]:
        starts, ends = np.ascontiguousarray(body.symbols[:, 0]), np.ascontiguousarray(body.symbols[:, 1])
        numbers, missing, missing_bytes = self._symbols.find(body.data, starts, ends)
        if not missing:
            return numbers
        self._check_bounds(self._symbols, missing, missing_bytes, SYMBOLS_PER_SERIES_MAX * self._series_max)
        return self._symbols.intern(body.data, starts, ends)

    def _numbers(
        self,
        table: InternTable,
        body: DecodedBody,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> NDArray[np.int32]:
        places, missing, missing_bytes = table.find(data, starts, ends)
        if missing:
            other = self._count - len(table)
            self._check_bounds(table, missing, missing_bytes, self._series_max - other)
            before = len(table)
            places = table.intern(data, starts, ends)
            fresh = [self._added(table.bytes_of(place), body.version) for place in range(before, len(table))]
            self._number_of[body.version] = np.append(self._number_of[body.version], np.array(fresh, dtype=np.int32))
        return self._number_of[body.version][places]

    def _check_bounds(self, table: InternTable, more: int, more_bytes: int, count_max: int) -> None:
        bytes_max = ARENA_BYTES_PER_SERIES_MAX * self._series_max
        if len(table) + more > count_max or table.arena_bytes + more_bytes > bytes_max:
            raise Unavailable(
                f"cannot take a request with {more} new series or symbols beside {self._count} series: more than "
                f"receiver.series_max={self._series_max} allows"
            )

    def _added(self, key: bytes, version: Version) -> int:
        number = self._count
        if number == len(self._columns.verdict):
            self._columns = _grown(self._columns)
        self._count += 1
        try:
            pairs = self._pairs(key, version)
        except Corrupt as exc:
            self._faults[number] = str(exc)
            self._columns.verdict[number] = Verdict.INVALID
            return number
        fault = fault_of(pairs, must_be_sorted=version is Version.V2)
        if fault is not None:
            self._faults[number] = fault
            self._columns.verdict[number] = Verdict.INVALID
        elif not self._limits.hold(pairs):
            self._columns.verdict[number] = Verdict.DROPPED
        else:
            self._resolve(number, dict(pairs))
        return number

    def _pairs(self, key: bytes, version: Version) -> Pairs:
        if version is Version.V1:
            return pairs_of_region(key)
        numbers = np.frombuffer(key, dtype=np.int32)
        return pairs_of_symbols([self._symbols.bytes_of(int(number)) for number in numbers])

    def _resolve(self, number: int, labels: dict[str, str]) -> None:
        columns = self._columns
        columns.verdict[number] = Verdict.UNWANTED
        meaning = resolve(labels["__name__"], labels)
        if meaning is None:
            return
        if meaning.subject in INFO_TABLES:
            self._add_sighting(number, INFO_TABLES[meaning.subject], labels)
        elif meaning.measure is not None:
            self._add_usage(number, meaning)

    def _add_sighting(self, number: int, table: Table, labels: dict[str, str]) -> None:
        row = tuple(labels.get(name, "") or self._default(name) for name in table.keys)
        if fault_of_sighting(table, row) is not None:
            self._columns.verdict[number] = Verdict.DROPPED
            return
        self._columns.verdict[number] = Verdict.SIGHTING
        self._columns.sighting[number] = number
        self.sightings[number] = (table, self.sighting_rows[table.name].number_of(row))

    def _default(self, name: str) -> str:
        return self._default_cluster if name == "cluster" else ""

    def _add_usage(self, number: int, meaning: SeriesMeaning) -> None:
        columns = self._columns
        if meaning.measure is None:
            raise ValueError("a usage series has a measure")
        identity, column = meaning.identity, MEASURES[_MEASURE_NUMBERS[meaning.measure]]
        # A card's own series that names a pod tells of the only tenant as well; the resolver leaves the pod out where
        # the source repeats a card's value for everyone who shares it.
        if meaning.subject is Subject.CARD and column.of_card:
            columns.card_identity[number] = self.cards.number_of(self._row(identity, CARD_IDENTITY))
        if identity.pod is not None and column.of_slice:
            columns.slice_identity[number] = self.slices.number_of(self._row(identity, SLICE_IDENTITY))
        if columns.card_identity[number] >= 0 or columns.slice_identity[number] >= 0:
            columns.verdict[number] = Verdict.USAGE
            columns.measure[number] = _MEASURE_NUMBERS[meaning.measure]
            columns.factor[number] = meaning.factor
            columns.clamp_max[number] = np.inf if meaning.value_max is None else meaning.value_max

    def _row(self, identity: SeriesIdentity, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(getattr(identity, name) or self._default(name) for name in names)


def _no_columns(capacity: int) -> SeriesColumns:
    return SeriesColumns(
        verdict=np.zeros(capacity, dtype=np.int8),
        slice_identity=np.full(capacity, -1, dtype=np.int32),
        card_identity=np.full(capacity, -1, dtype=np.int32),
        measure=np.full(capacity, -1, dtype=np.int32),
        factor=np.ones(capacity, dtype=np.float64),
        clamp_max=np.full(capacity, np.inf, dtype=np.float64),
        sighting=np.full(capacity, -1, dtype=np.int32),
    )


def _grown(columns: SeriesColumns) -> SeriesColumns:
    grown = _no_columns(2 * len(columns.verdict))
    for name in SeriesColumns.__slots__:
        getattr(grown, name)[: len(columns.verdict)] = getattr(columns, name)
    return grown
