"""What is known of every series, as columns over its number. Kept by `series_table`, read by `rows`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


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
    BEYOND = 5
    """It is wanted, and there is no room for it: refused with 400."""


NOWHERE, OVERSIZED, NO_ROOM = -1, -2, -3
"""Numbers of series that are not kept: one whose references are out of range, one beyond the limits on labels, one that
there is no room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesColumns:
    """What is known of every series, as columns over its number.

    Attributes:
        verdict: `Verdict` of each.
        slice_identity: number among the slice identities, -1 where it speaks of no slice; of a sighting its number
            among the rows of its table.
        card_identity: number among the card identities, -1 where it speaks of no card.
        unit: place in `Units`, 0 where it is none; of a sighting its table's place in `series_table.SIGHTED_TABLES`.
        seen: last eight bits of the tick in which it came last.
    """

    verdict: NDArray[np.int8]
    slice_identity: NDArray[np.int32]
    card_identity: NDArray[np.int32]
    unit: NDArray[np.int16]
    seen: NDArray[np.uint8]

    @property
    def memory_bytes(self) -> int:
        """Bytes that the columns take, reserves included."""
        return sum(getattr(self, name).nbytes for name in SeriesColumns.__slots__)

    def keep(self, is_kept: NDArray[np.bool_]) -> None:
        """Moves what stays to the front.

        Args:
            is_kept: of each series that there is.
        """
        count = int(is_kept.sum())
        for name in SeriesColumns.__slots__:
            column = getattr(self, name)
            column[:count] = column[: len(is_kept)][is_kept]


class Units(NamedTuple):
    """How a series' samples become values of a measure; there are as many as ways in which sources write measures.

    Attributes:
        measure: place in `fleet.schema.MEASURES`.
        factor: what a sample is multiplied by.
        clamp_max: values above it mean it; infinite where none are known to occur.
    """

    measure: NDArray[np.int32]
    factor: NDArray[np.float64]
    clamp_max: NDArray[np.float64]


def no_columns(capacity: int) -> SeriesColumns:
    """Columns with room for so many series."""
    return SeriesColumns(
        verdict=np.zeros(capacity, dtype=np.int8),
        slice_identity=np.full(capacity, -1, dtype=np.int32),
        card_identity=np.full(capacity, -1, dtype=np.int32),
        unit=np.zeros(capacity, dtype=np.int16),
        seen=np.zeros(capacity, dtype=np.uint8),
    )


def with_room(columns: SeriesColumns, count: int) -> SeriesColumns:
    """The same columns with room for `count` series at least."""
    capacity = len(columns.verdict)
    if count <= capacity:
        return columns
    grown = no_columns(max(count, capacity * 5 // 4))
    for name in SeriesColumns.__slots__:
        getattr(grown, name)[:capacity] = getattr(columns, name)
    return grown


def units_of(keys: Iterable[tuple[int, float, float]]) -> Units:
    """Units of measure, factor and bound each."""
    measures, factors, clamps = zip(*keys, strict=True)
    return Units(
        measure=np.array(measures, dtype=np.int32),
        factor=np.array(factors, dtype=np.float64),
        clamp_max=np.array(clamps, dtype=np.float64),
    )
