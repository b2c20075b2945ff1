"""The port of the catalogue: shows readers that know nothing of the manifest in which folders a warehouse's rows lie.

`warehouse.files` calls it, before an append counts and after a folder took another's place; `catalogue_hive` puts the
folders into Hive's metastore.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFolder:
    """One partition, and where its rows lie.

    Attributes:
        date: UTC date, `YYYY-MM-DD`.
        cluster: cluster name, as it came.
        folder: below the warehouse's folder; None where the partition has no rows any more.
    """

    table: str
    date: str
    cluster: str
    folder: Path | None


class Catalogue(Protocol):
    """Points at folders; both calls may come again after a crash, and change nothing then."""

    def add(self, partitions: Sequence[PartitionFolder]) -> None:
        """Makes folders known that are about to hold rows that count.

        Raises:
            Unavailable: the catalogue does not answer.
            Corrupt: it holds something else under these names, and nothing was changed.
        """
        ...

    def follow(self, partitions: Sequence[PartitionFolder]) -> None:
        """Points at the folders that took others' places, and forgets partitions without rows.

        A reader sees a partition's old folder or its new one, whole.

        Raises:
            Unavailable: the catalogue does not answer.
        """
        ...


class NoCatalogue:
    """For warehouses that nobody else reads."""

    def add(self, partitions: Sequence[PartitionFolder]) -> None:
        """Does nothing."""

    def follow(self, partitions: Sequence[PartitionFolder]) -> None:
        """Does nothing."""
