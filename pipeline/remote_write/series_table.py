"""What is known of every series: parsed and resolved once, then found again by its bytes.

The receiver's state. `lookup` gives each series of a body its number; arrays over these numbers say which slice or card
it speaks of, which measure, and in which unit. Series that nobody asked for are remembered too, so that they cost a
look and no more, but wanted ones alone are counted. What was silent for `receiver.forget_seconds` is forgotten. Where a
bound is reached, the unwanted go first, then what was silent for longest, never what came within the last tick; a
wanted series that still finds no room is refused, and it alone.

Bounds: `receiver.series_max`, `receiver.labels_max`, `receiver.label_bytes_max`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.errors import Corrupt
from fleet.schema import CARD_IDENTITY, CARD_USAGE, MEASURES, POD_USAGE, SLICE_IDENTITY, MeasureColumn
from fleet.series import SeriesMeaning, Subject, meaning_of_name, resolve
from pipeline.remote_write import kernels
from pipeline.remote_write.claims import Claims
from pipeline.remote_write.decode import DecodedBody, Version
from pipeline.remote_write.intern_table import BAD_REFERENCE, InternTable, SequenceTable
from pipeline.remote_write.label_memory import LabelMemory
from pipeline.remote_write.label_sets import LabelLimits, Pairs, fault_of, pairs_of_region, pairs_of_symbols
from pipeline.remote_write.named_rows import INFO_TABLES, NamedRows
from pipeline.remote_write.plain_labels import plain_names
from pipeline.remote_write.series_columns import (
    NO_ROOM,
    NOWHERE,
    OVERSIZED,
    SeriesColumns,
    Units,
    Verdict,
    no_columns,
    units_of,
    with_room,
)

FORGET_SECONDS = 7200
"""Default of `receiver.forget_seconds`."""
BYTES_PER_SERIES_MAX = 768
"""Bytes of labels, of what they name and of unwanted series that are remembered per series allowed, on average."""
BYTES_MIN = 1 << 20
SYMBOLS_PER_SERIES_MAX = 4
"""Symbols that are remembered per series allowed: labels repeat, so honest senders stay far below."""
SYMBOLS_MIN = 1024
TICKS = 8
"""Ticks of `receiver.forget_seconds`; a series that came within the last one is never forgotten."""

IDENTITY_TABLES = {POD_USAGE.name: SLICE_IDENTITY, CARD_USAGE.name: CARD_IDENTITY}
"""Identity columns of each usage table."""

_ROOM_PAUSE_SECONDS = 10.0
"""When room is looked for again, unless so much came since that it pays."""
_LABEL_BYTES_MORE = 16
_REFERENCE_BYTES_MAX = 5
_CLOSELY = object()
"""Family of names whose series are looked at one by one."""
_MEASURE_NUMBERS = {column.measure: number for number, column in enumerate(MEASURES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """What the labels of a series speak of, whatever its measure: numbers of its slice and card, -1 for none."""

    slice_identity: int
    card_identity: int
    claims_other_cluster: bool
    is_untrusted: bool


class SeriesTable:
    """All series that the receiver has met.

    Args:
        default_cluster: cluster of series that carry no cluster label (`cluster.name`).
        series_max: most wanted series remembered (`receiver.series_max`).
        seed: start of the hashes; senders must not know it.
        claims: what is believed of labels; everything that usual targets say unless given.
        forget_seconds: how long a series may be silent and is remembered (`receiver.forget_seconds`).
    """

    def __init__(
        self,
        *,
        default_cluster: str,
        series_max: int,
        limits: LabelLimits,
        seed: int,
        claims: Claims | None = None,
        forget_seconds: float = FORGET_SECONDS,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.claims = Claims() if claims is None else claims
        self._series_max = series_max
        self._limits = limits
        self._span_max = {
            Version.V1: limits.labels_max * (2 * limits.label_bytes_max + _LABEL_BYTES_MORE),
            Version.V2: limits.labels_max * 2 * _REFERENCE_BYTES_MAX,
        }
        self._now_seconds, self._tick_seconds = now_seconds, forget_seconds / TICKS
        self.tick = int(now_seconds() / self._tick_seconds) & 255
        """The tick that it is now, by its last eight bits: what comes is seen in it."""
        self._room_again_at = -np.inf
        self._kept_bytes = self._kept_symbols = 0
        self._regions = InternTable(seed)
        self._symbols = InternTable(seed)
        self._references = SequenceTable(seed)
        self._number_of = {Version.V1: np.empty(0, dtype=np.int32), Version.V2: np.empty(0, dtype=np.int32)}
        self._count = 0
        self.wanted = 0
        """Wanted series that are remembered."""
        self.taken = 0
        """What the table takes of a bound on series: those that are wanted, or more where labels are long."""
        self._columns = no_columns(1024)
        self._unit_keys: dict[tuple[int, float, float], int] = {(0, 1.0, np.inf): 0}
        self._units = units_of(self._unit_keys)
        self._memory: LabelMemory[tuple[Hashable, int, MeasureColumn], _Target] = LabelMemory()
        self._read: tuple[tuple[Version, bytes] | None, dict[str, str]] = (None, {})
        self.rows = NamedRows(seed, default_cluster)
        """What the series name."""

    def __len__(self) -> int:
        return self._count

    @property
    def series_max(self) -> int:
        """Most wanted series that are remembered."""
        return self._series_max

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
        numbers = sum(numbers.nbytes for numbers in self._number_of.values())
        tables = (self._regions, self._symbols, self._references, self.rows, self._columns)
        return sum(table.memory_bytes for table in tables) + numbers

    def fault(self, series: int) -> str:
        """Why a series is invalid."""
        for version, table in self._tables():
            numbers = self._number_of[version][: len(table)]
            place = int(np.searchsorted(numbers, series))
            if place < len(table) and numbers[place] == series:
                return self._pairs_and_fault(table.part(place).tobytes(), version)[1] or ""
        raise ValueError(f"there is no series {series}")

    def lookup(self, body: DecodedBody) -> NDArray[np.int32]:
        """The number of each series of a body; new ones are parsed and resolved.

        Returns:
            Shape (series,); `NOWHERE`, `OVERSIZED` or `NO_ROOM` for one that is not kept.
        """
        while True:
            numbers = self.lookup_some(body, 1 << 30)
            if numbers is not None:
                return numbers

    def lookup_some(self, body: DecodedBody, new_max: int) -> NDArray[np.int32] | None:
        """The number of each series of a body, see `lookup`, where few are new.

        Args:
            new_max: how many new ones are read now at most.

        Returns:
            None where there are more new ones than are read now: those that were read are known the next time.
        """
        self._forget_silent()
        starts, ends = body.series[:, kernels.LABELS_START], body.series[:, kernels.LABELS_END]
        return self._numbers(body, starts, ends, new_max)

    def _numbers(
        self,
        body: DecodedBody,
        starts: NDArray[np.int32],
        ends: NDArray[np.int32],
        new_max: int,
        *,
        may_forget: bool = True,
    ) -> NDArray[np.int32] | None:
        version = body.version
        table: InternTable | SequenceTable = self._regions
        keys: tuple[Any, ...] = (body.data, starts, ends)
        if version is Version.V2:
            table, keys = self._references, (self._interned_symbols(body), *keys)
        places, missing, missing_bytes = table.find(*keys)
        if missing:
            is_kept = ends - starts <= self._span_max[version]
            if not is_kept.all():
                found = self._numbers(body, starts[is_kept], ends[is_kept], new_max)
                if found is None:
                    return None
                numbers = np.full(len(starts), OVERSIZED, dtype=np.int32)
                numbers[is_kept] = found
                return numbers
            more = min(missing, new_max)
            others = self._count - self.wanted
            is_full = max(self.wanted, others) + more > self._series_max or not self._holds(missing_bytes)
            if is_full and may_forget and self._make_room():
                return self._numbers(body, starts, ends, new_max, may_forget=False)  # symbols have other numbers now
            before = len(table)
            room = max(0, 2 * self._series_max - self._count) if self._holds(missing_bytes) else 0
            places = partial(table.intern, more_max=min(more, room))(*keys)
            self._add(version, table, before)
            if more < missing and more <= room:
                return None
        numbers_of = self._number_of[version][: len(table)]
        is_bad = places < 0
        if not is_bad.any():
            return numbers_of[places]
        numbers = np.where(places == BAD_REFERENCE, NOWHERE, NO_ROOM).astype(np.int32)
        numbers[~is_bad] = numbers_of[places[~is_bad]]
        return numbers

    def _interned_symbols(self, body: DecodedBody) -> NDArray[np.int32]:
        starts, ends = body.symbols[:, 0], body.symbols[:, 1]
        numbers, missing, missing_bytes = self._symbols.find(body.data, starts, ends)
        if not missing:
            return numbers
        most = max(SYMBOLS_MIN, SYMBOLS_PER_SERIES_MAX * self._series_max)
        if len(self._symbols) + missing > most or not self._holds(missing_bytes):
            self._make_room()
            numbers, missing, missing_bytes = self._symbols.find(body.data, starts, ends)
        room = max(0, most - len(self._symbols)) if self._holds(missing_bytes) else 0
        return self._symbols.intern(body.data, starts, ends, min(missing, room))

    def _tables(self) -> tuple[tuple[Version, InternTable | SequenceTable], ...]:
        return (Version.V1, self._regions), (Version.V2, self._references)

    def _counted_bytes(self) -> int:
        return (
            self._regions.arena_bytes + self._symbols.arena_bytes + self._references.arena_bytes
            + self.rows.counted_bytes
        )  # fmt: skip

    @property
    def _bytes_max(self) -> int:
        return max(BYTES_MIN, BYTES_PER_SERIES_MAX * self._series_max)

    def _holds(self, more_bytes: int) -> bool:
        return self._counted_bytes() + more_bytes <= self._bytes_max

    def _forget_silent(self) -> None:
        """Once a tick: forgets what was silent for too long, where that is an eighth of all."""
        tick = int(self._now_seconds() / self._tick_seconds) & 255
        if tick == self.tick:
            return
        self.tick = tick
        verdict = self._columns.verdict[: self._count]
        is_kept = (self._ages() <= TICKS) & (verdict != Verdict.BEYOND)
        if self._count - np.count_nonzero(is_kept) > self._count // 8:
            self._forget(is_kept)

    def _ages(self) -> NDArray[np.uint8]:
        """Ticks since each series came."""
        return np.uint8(self.tick) - self._columns.seen[: self._count]

    def _make_room(self) -> bool:
        """Forgets what is not wanted, and the wanted series silent for longest until an eighth is free.

        Returns:
            False where nothing was done: little came since the last time, and that is not long ago.
        """
        now, half = self._now_seconds(), self._series_max // 2
        is_much = (
            self._count - self.wanted > half
            or len(self._symbols) - self._kept_symbols > half
            or self._counted_bytes() - self._kept_bytes > self._bytes_max // 2
        )
        if now < self._room_again_at and not is_much:
            return False
        self._room_again_at = now + _ROOM_PAUSE_SECONDS
        is_wanted = self._columns.verdict[: self._count] <= Verdict.SIGHTING
        ages = self._ages()
        is_kept = is_wanted
        for ticks in range(TICKS, 0, -1):
            is_kept = is_wanted & (ages <= ticks)
            if np.count_nonzero(is_kept) <= self._series_max * 7 // 8 and self._holds(0):
                break
        self._forget(is_kept)
        return True

    def _forget(self, is_kept: NDArray[np.bool_]) -> None:
        """Forgets all other series; numbers that were given out before mean nothing any more."""
        numbers = np.where(is_kept, np.cumsum(is_kept) - 1, -1).astype(np.int32)
        for version, table in self._tables():
            of_version = self._number_of[version]
            own = of_version[: len(table)].copy()
            stays = is_kept[own]
            table.keep(stays)
            of_version[: len(table)] = numbers[own[stays]]
        is_used = np.zeros(len(self._symbols), dtype=np.bool_)
        is_used[self._references.arena[: self._references.starts[-1]]] = True
        self._references.renumber(self._symbols.keep(is_used))
        self._columns.keep(is_kept)
        self._count = int(np.count_nonzero(is_kept))
        self.rows.keep(self._columns, self._count, numbers)
        self._memory.clear()
        self._read = (None, {})
        self._recount()
        self._kept_bytes, self._kept_symbols = self._counted_bytes(), len(self._symbols)

    def _recount(self) -> None:
        self.wanted = int(np.count_nonzero(self._columns.verdict[: self._count] <= Verdict.SIGHTING))
        self.taken = max(self.wanted, self._counted_bytes() // BYTES_PER_SERIES_MAX)

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
        self._columns.seen[first : first + more] = self.tick
        symbols = None if version is Version.V1 else self._symbols
        names, rest_of = plain_names(table, before, symbols, self._limits)
        usage: list[tuple[int, int, int, int]] = []
        for place, name in enumerate(names):
            number = first + place
            if name is None:
                self._add_closely(number, table.part(before + place).tobytes(), version)
                continue
            known = self._known_name(name)
            if known is None and self.claims.forced_cluster is None:
                continue
            family, unit, column = known or (None, 0, MEASURES[0])
            if family is _CLOSELY:
                self._add_closely(number, table.part(before + place).tobytes(), version)
                continue
            if known is not None and not self._takes(number):
                continue
            target = self._target(family, name, rest_of(place), version, table, before + place)
            self.claims.overridden += target.claims_other_cluster
            self.claims.untrusted += target.is_untrusted
            card = target.card_identity if column.of_card else -1
            slice_ = target.slice_identity if column.of_slice else -1
            if known is None:
                continue
            if card >= 0 or slice_ >= 0:
                usage.append((number, slice_, card, unit))
            else:
                self.wanted -= 1
                self._columns.verdict[number] = Verdict.DROPPED if target.is_untrusted else Verdict.UNWANTED
        if usage:
            numbers, slices, cards, units = np.array(usage, dtype=np.int32).T
            self._columns.verdict[numbers] = Verdict.USAGE
            self._columns.slice_identity[numbers] = slices
            self._columns.card_identity[numbers] = cards
            self._columns.unit[numbers] = units
        self._recount()

    def _takes(self, number: int) -> bool:
        """Takes a place for a wanted series; False, and it is beyond, where all are taken."""
        if self.wanted >= self._series_max:
            self._columns.verdict[number] = Verdict.BEYOND
            return False
        self.wanted += 1
        return True

    def _known_name(self, name: bytes) -> tuple[Hashable, int, MeasureColumn] | None:
        """Family, unit and column of a metric's name; None for one that nobody asked for."""
        if name in self._memory.names:
            return self._memory.names[name]
        meaning = meaning_of_name(name.decode())
        found: tuple[Hashable, int, MeasureColumn] | None = None
        if meaning is not None and meaning.measure is None:
            found = (_CLOSELY, 0, MEASURES[0])
        elif meaning is not None and meaning.measure is not None:
            place = _MEASURE_NUMBERS[meaning.measure]
            found = (meaning.family, self._unit(place, meaning.factor, meaning.value_max), MEASURES[place])
        return self._memory.put(self._memory.names, name, found, len(name))

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
        if key in self._memory.targets:
            return self._memory.targets[key]
        # The families of one target mostly stand beside each other: their labels are read once.
        if self._read[0] != (version, rest):
            symbols = None if version is Version.V1 else self._symbols
            self._read = ((version, rest), dict(self._memory.plain_pairs(table.part(place), symbols)))
        labels = dict(self._read[1])
        claims_other = self.claims.with_forced_cluster(labels)
        meaning = None if family is None else resolve(name.decode(), labels)
        is_untrusted = meaning is not None and self.claims.is_untrusted(name.decode(), labels)
        meaning = None if is_untrusted else meaning
        target = _Target(
            slice_identity=-1
            if meaning is None or meaning.identity.pod is None
            else self.rows.slice_of(meaning.identity),
            card_identity=-1
            if meaning is None or meaning.subject is not Subject.CARD
            else self.rows.card_of(meaning.identity),
            claims_other_cluster=claims_other,
            is_untrusted=is_untrusted,
        )
        return self._memory.put(self._memory.targets, key, target, len(rest))

    def _add_closely(self, number: int, key: bytes, version: Version) -> None:
        """What one series means, by its labels as texts, or that they break a rule."""
        pairs, fault = self._pairs_and_fault(key, version)
        if fault is not None:
            self._columns.verdict[number] = Verdict.INVALID
        elif not self._limits.hold(pairs):
            self._columns.verdict[number] = Verdict.DROPPED
        else:
            self._resolve(number, dict(pairs))

    def _pairs_and_fault(self, key: bytes, version: Version) -> tuple[Pairs, str | None]:
        """The labels of a series, and which rule they break."""
        try:
            if version is Version.V1:
                pairs = pairs_of_region(key)
            else:
                numbers = np.frombuffer(key, dtype=np.int32)
                pairs = pairs_of_symbols([self._symbols.bytes_of(int(number)) for number in numbers])
        except Corrupt as exc:
            return (), str(exc)
        return pairs, fault_of(pairs, must_be_sorted=version is Version.V2)

    def _resolve(self, number: int, labels: dict[str, str]) -> None:
        self.claims.overridden += self.claims.with_forced_cluster(labels)
        meaning = resolve(labels["__name__"], labels)
        if meaning is None:
            return
        if self.claims.is_untrusted(labels["__name__"], labels):
            self.claims.untrusted += 1
            self._columns.verdict[number] = Verdict.DROPPED
        elif meaning.server is not None or meaning.subject in INFO_TABLES:
            if self._takes(number):
                self._add_sighting(number, meaning, labels)
        elif meaning.measure is not None:
            self._add_usage(number, meaning)

    def _add_sighting(self, number: int, meaning: SeriesMeaning, labels: dict[str, str]) -> None:
        columns, found = self._columns, self.rows.sighting_of(number, meaning, labels)
        if found is None:
            columns.verdict[number] = Verdict.DROPPED
            self.wanted -= 1
            return
        columns.verdict[number] = Verdict.SIGHTING
        columns.unit[number], columns.slice_identity[number] = found

    def _add_usage(self, number: int, meaning: SeriesMeaning) -> None:
        columns = self._columns
        if meaning.measure is None:
            raise ValueError("a usage series has a measure")
        identity, column = meaning.identity, MEASURES[_MEASURE_NUMBERS[meaning.measure]]
        # A card's own series that names a pod reports the only tenant as well; the resolver leaves the pod out where
        # the source repeats a card's value for everyone who shares it.
        of_card = meaning.subject is Subject.CARD and column.of_card
        of_slice = identity.pod is not None and column.of_slice
        if not (of_card or of_slice) or not self._takes(number):
            return
        columns.card_identity[number] = self.rows.card_of(identity) if of_card else -1
        columns.slice_identity[number] = self.rows.slice_of(identity) if of_slice else -1
        columns.verdict[number] = Verdict.USAGE
        columns.unit[number] = self._unit(_MEASURE_NUMBERS[meaning.measure], meaning.factor, meaning.value_max)
