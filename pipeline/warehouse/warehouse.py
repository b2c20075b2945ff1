"""The port of the warehouse: where windows and sightings are kept.

The rollup appends, everyone downstream reads through `history`, `windows` and `inventory`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleet.errors import Unavailable
from fleet.inventory import Inventory
from fleet.schema import Measure, Table
from fleet.usage import History


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRows:
    """Which samples were counted: later chunks are compared with it. Sorted by hash, then time.

    Attributes:
        hashes: hash of each sample's identity, uint64, shape (samples,).
        ts_ms: end of its step, shape (samples,).
        measures: bit mask over the table's own measures, uint32, shape (samples,).
    """

    hashes: NDArray[np.uint64]
    ts_ms: NDArray[np.int64]
    measures: NDArray[np.uint32]


class Overtaken(Unavailable):
    """Another process has counted some of an append's samples meanwhile: nothing was added, the parts are made anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What an append adds to one partition.

    Attributes:
        date: UTC date, `YYYY-MM-DD`.
        cluster: cluster name, as it came.
        rows: the rows, in pieces that are kept together (one per level), each in the table's Arrow schema.
        seen: the samples behind usage rows; None for sightings.
    """

    table: Table
    date: str
    cluster: str
    rows: tuple[pa.Table, ...]
    seen: SeenRows | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendName:
    """What an append is named by: the piece of a lane of the bus that it was made from.

    Attributes:
        start: offset of its first record.
        end: offset after its last record.
    """

    source: str
    start: int
    end: int


class Warehouse(Protocol):
    """Keeps additive rows.

    Contract: an append is named by its source offsets and happens once, as a whole or not at all, through any crash;
    readers see whole appends only. Reading needs no lock and hinders nobody.
    """

    def append(self, names: Sequence[AppendName], parts: Iterable[Part]) -> bool:
        """Adds rows, each part as it comes; False where all of this was added before, and nothing was done.

        Args:
            names: what the rows were made from, one piece of each lane.

        Raises:
            Overtaken: another process has counted some of the samples meanwhile; nothing was added.
            Unavailable: this process may not write now.
            Corrupt: the storage can't take it; nothing was added.
        """
        ...

    def history(
        self, cluster: str, *, since: datetime | None = None, until: datetime | None = None, time_zone: str = "UTC"
    ) -> History:
        """The usage grids and the inventory of one cluster.

        Args:
            since: earliest start of the first step, which is that of the first sample; None for no bound.
            until: end of the last step, and the inventory's moment; None for the last sample.
            time_zone: IANA name that goes into the inventory.

        Raises:
            NotEnoughData: there is nothing of this cluster in that time.
        """
        ...

    def windows(
        self,
        table: Table,
        *,
        cluster: str,
        level_seconds: int,
        since: datetime,
        until: datetime,
        with_histograms: bool = True,
        measures: Collection[Measure] | None = None,
    ) -> pa.Table:
        """Merged rows of one level with since ≤ window_start < until, sorted by their keys.

        Without histograms their columns are left out, which is several times cheaper; so are those of measures that
        nobody asks for, where `measures` says which are.
        """
        ...

    def inventory(self, cluster: str, *, as_of: datetime | None = None, time_zone: str = "UTC") -> Inventory:
        """What stood in a cluster at a moment; None for the newest."""
        ...


class SeenStore(Protocol):
    """What the rollup asks of the warehouse beside appending: how far it got, and what it counted."""

    def applied_offset(self, source: str) -> int:
        """The offset after the last append from a lane, 0 where there is none."""
        ...

    def seen(self, table: Table, date: str, cluster: str, *, since_ms: int, until_ms: int) -> Iterable[SeenRows]:
        """Samples counted by earlier appends to a partition, of appends that overlap [since_ms, until_ms]."""
        ...

    def is_closed(self, table: Table, date: str, cluster: str) -> bool:
        """Whether it is forgotten which samples of a partition were counted, so that no more of them can be."""
        ...
