"""One reading laid out for comparison: slices beside their cards, as columns.

Called by `exporter.cross_checks.checks`; the rules in `exporter.cross_checks.rules` take what is made here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from exporter.collector import Snapshot
from exporter.reader import Float64
from fleet.inventory import CardId, Grant
from fleet.schema import Measure
from fleet.usage import CardKey, SliceKey

Bools = NDArray[np.bool_]

COMPUTE = (Measure.DUTY_CYCLE, Measure.SM_ACTIVE)
"""Counters of computing. Other engines are none: a transcoder keeps a card's encoder busy at a true duty cycle of 0."""


class On(StrEnum):
    """What a check judges."""

    SLICE = "slice"
    CARD = "card"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A reading as the rules take it; NaN = not collected throughout.

    Attributes:
        at_seconds: when it was taken, epoch seconds.
        of_slices: per measure, shape `(slices,)`.
        of_cards: per measure, shape `(cards,)`.
        granted_bytes: framebuffer granted to each slice, NaN where no grant is known; shape `(slices,)`.
        card_row: row of each slice's card; -1 where the card was not read; shape `(slices,)`.
        framebuffer_bytes: whole framebuffer of each card; shape `(cards,)`.
        is_fully_known: every slice that is granted on the card was read; shape `(cards,)`.
        processes_bytes: framebuffer of all processes of each card; shape `(cards,)`.
    """

    at_seconds: float
    slices: tuple[SliceKey, ...]
    cards: tuple[CardKey, ...]
    of_slices: Mapping[Measure, Float64]
    of_cards: Mapping[Measure, Float64]
    granted_bytes: Float64
    card_row: NDArray[np.intp]
    framebuffer_bytes: Float64
    is_fully_known: Bools
    processes_bytes: Float64

    def slice_column(self, measure: Measure) -> Float64:
        """A measure of every slice."""
        return self.of_slices.get(measure, np.full(len(self.slices), np.nan))

    def card_column(self, measure: Measure) -> Float64:
        """A measure of every card."""
        return self.of_cards.get(measure, np.full(len(self.cards), np.nan))

    def column(self, on: On, measure: Measure) -> Float64:
        """A measure of every slice or of every card."""
        return self.slice_column(measure) if on is On.SLICE else self.card_column(measure)

    def keys(self, on: On) -> Sequence[SliceKey | CardKey]:
        """The keys of the slices or of the cards."""
        return self.slices if on is On.SLICE else self.cards

    def beside(self, card_values: Float64) -> Float64:
        """The value of each slice's card; shape `(slices,)`."""
        return np.append(card_values, np.nan)[self.card_row]

    def summed(self, slice_values: Float64) -> Float64:
        """The sum over the slices of each card; NaN where one of them is not collected; shape `(cards,)`."""
        known = self.card_row >= 0
        sums = np.zeros(len(self.cards))
        np.add.at(sums, self.card_row[known], slice_values[known])
        return sums


def rows_before(before: Sequence[SliceKey | CardKey], now: Sequence[SliceKey | CardKey]) -> NDArray[np.intp] | None:
    """Where each row stood in the reading before; -1 for one that was not there; None where nothing changed."""
    if now is before or now == before:
        return None
    known = {key: row for row, key in enumerate(before)}
    return np.array([known.get(key, -1) for key in now], np.intp)


def compute_of(columns: tuple[Float64, ...]) -> Float64:
    """The largest of several counters; NaN where none is collected."""
    largest: Float64 = np.fmax.reduce(columns)
    return largest


_PROCESS_FAMILY = "gputide_slice_framebuffer_of_driver_bytes"
"""Family in which a reading gives the framebuffer that the driver counts for processes, by card."""


class Comparing:
    """Lays out the readings of one collector; what depends on the inventory alone is made when it changes."""

    def __init__(self) -> None:
        self._made_of: tuple[object, ...] = ()
        self._card_row: NDArray[np.intp] = np.empty(0, np.intp)
        self._framebuffer: Float64 = np.empty(0)
        self._granted: Float64 = np.empty(0)
        self._is_complete: Bools = np.empty(0, np.bool_)

    def of(self, snapshot: Snapshot) -> Compared:
        """A snapshot's reading as the rules take it."""
        reading = snapshot.reading
        made_of = (reading.slices, reading.cards, snapshot.cards, snapshot.grants)
        # Tuples of the same objects are equal at once; equal keys in new objects cost less to compare than to lay out.
        if made_of != self._made_of:
            self._make(snapshot)
        self._made_of = made_of
        return Compared(
            at_seconds=reading.at.timestamp(),
            slices=reading.slices,
            cards=reading.cards,
            of_slices=reading.slice_values,
            of_cards=reading.card_values,
            granted_bytes=self._granted,
            card_row=self._card_row,
            framebuffer_bytes=self._framebuffer,
            is_fully_known=self._is_complete,
            processes_bytes=self._processes(snapshot),
        )

    def _make(self, snapshot: Snapshot) -> None:
        reading = snapshot.reading
        rows = {key.card: row for row, key in enumerate(reading.cards)}
        self._card_row = np.array([rows.get(key.card, -1) for key in reading.slices], np.intp)
        whole = {card.card: float(card.framebuffer_bytes) for card in snapshot.cards}
        self._framebuffer = np.array([whole.get(key.card, np.nan) for key in reading.cards], np.float64)
        granted = {_identity(grant): float(grant.framebuffer_granted_bytes) for grant in snapshot.grants}
        self._granted = np.array([granted.get(_identity(key), np.nan) for key in reading.slices], np.float64)
        read = {_identity(key) for key in reading.slices}
        missing = Counter(grant.card for grant in snapshot.grants if _identity(grant) not in read)
        self._is_complete = np.array([missing[key.card] == 0 for key in reading.cards], np.bool_)

    def _processes(self, snapshot: Snapshot) -> Float64:
        sums: dict[str, float] = {}
        for family in snapshot.families:
            if family.name == _PROCESS_FAMILY:
                place = family.label_names.index("card")
                for labels, value in zip(family.labels, family.values.tolist(), strict=True):
                    sums[labels[place]] = sums.get(labels[place], 0.0) + value
        return np.array([sums.get(key.card, np.nan) for key in snapshot.reading.cards], np.float64)


def _identity(of: Grant | SliceKey) -> tuple[str, str, str, CardId]:
    return of.namespace, of.pod, of.container, of.card
