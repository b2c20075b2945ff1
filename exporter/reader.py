"""The port through which GPUs are read, and the columns that one reading gives.

A reader knows one kind of source: a recorded or synthetic fleet, a driver, a vendor's shared region. The collector
reads it in the background; `exporter.series_blocks` turns what it gave into named series. The command line chooses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from exporter.families import Family
from fleet.inventory import Card, Grant, Node
from fleet.schema import Measure
from fleet.usage import CardKey, SliceKey

Float64 = NDArray[np.float64]
"""Array of 64-bit floats; NaN means not collected."""

Rows = NDArray[np.int32]
"""Row numbers into a tuple of keys."""

Millis = NDArray[np.int64]
"""Epoch milliseconds, UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryChange:
    """What came and went since the reading before; the first reading names everything that stands there.

    Attributes:
        grants_started: grants whose period began; `ended_at` is None, for the future is not known.
        grants_ended: grants whose period is over, with `ended_at`; otherwise equal to what was once started. Where
            a grant appears in both, its whole life fell between two readings.
    """

    cards: tuple[Card, ...] = ()
    nodes: tuple[Node, ...] = ()
    grants_started: tuple[Grant, ...] = ()
    grants_ended: tuple[Grant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All that was measured at one instant.

    Attributes:
        at: the instant (end of the sampling step), UTC.
        slices: one key per slice that was read.
        slice_values: per measure, shape `(len(slices),)`, in the measure's unit; NaN = unsupported or not collected.
        cards: one key per card that was read; a lost card isn't among them.
        card_values: per measure, shape `(len(cards),)`.
        change: what changed in the inventory since the reading before.
        families: figures beyond the measures that are stored, as they are shown to a scraper; names are unique.
    """

    at: datetime
    slices: tuple[SliceKey, ...] = ()
    slice_values: Mapping[Measure, Float64] = field(default_factory=dict)
    cards: tuple[CardKey, ...] = ()
    card_values: Mapping[Measure, Float64] = field(default_factory=dict)
    change: InventoryChange = field(default_factory=InventoryChange)
    families: tuple[Family, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples of many keys at many instants, in long form; ordered by time.

    Attributes:
        rows: which key each sample belongs to; shape `(samples,)`.
        ts_ms: end of its sampling step; shape `(samples,)`, not decreasing.
        values: per measure, shape `(samples,)`; NaN = not collected. A measure that nobody has is left out.
    """

    rows: Rows
    ts_ms: Millis
    values: Mapping[Measure, Float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Several consecutive readings at once, for sources that are read faster than in real time.

    Attributes:
        since: the block holds samples with since < ts ≤ until (the first block also those of its first instant).
        until: end of the block, UTC.
        slices: every slice key that the reader has met; a later block's tuple begins with the former one's, so what is
            made once per row can be kept.
        slice_samples: samples by row of `slices`.
        cards: every card key, by the same rule.
        card_samples: samples by row of `cards`.
        change: what changed in the inventory; each grant carries its own times.
    """

    since: datetime
    until: datetime
    slices: tuple[SliceKey, ...]
    slice_samples: Samples
    cards: tuple[CardKey, ...]
    card_samples: Samples
    change: InventoryChange


class DeviceReader(Protocol):
    """Reads what cards and slices do right now.

    Contract, checked by one suite for every adapter:

    - `read` never blocks past its deadline: it raises `Unavailable` instead.
    - A measure that the source doesn't support is absent (no column, or NaN in the rows concerned); never 0.
    - A card that is lost is absent from the reading, and so are its slices; never 0. One lost card fails no other.
    - Rows are unique within a reading, every column has one entry per row, values lie within the measure's range.
    - The first reading's `change` names all cards, nodes and grants that stand there; later ones the difference. No
      grant carries an end that lies after the reading.
    - Readings are in order of time.
    """

    def read(self, deadline_seconds: float) -> Reading | None:
        """Reads once.

        Returns:
            What was read; None when the source has come to its end (a recorded one does).

        Raises:
            Unavailable: the source did not answer in time; trying again may help.
        """
        ...

    def close(self) -> None:
        """Gives back what the reader holds; more than once does no harm."""
        ...
