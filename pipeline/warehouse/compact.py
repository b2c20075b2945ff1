"""Upkeep of a warehouse: few files per partition, and none older than is wanted.

A partition (table, day, cluster) with many files is merged into one, in a new folder that takes the old one's place for
everybody at once; the old files stay for a while, for those who are reading them. Its indexes of counted samples are
merged by the hour, and go when its day is closed. Works on any warehouse whose files are kept by `warehouse.files`,
beside those who append; one process at a time does it. Killed at any moment, it has done a partition wholly or not at
all. Called by `gputide run rollup` and `gputide admin warehouse`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from fleet.schema import TABLES, WINDOW_SECONDS
from pipeline.warehouse.catalogue import PartitionFolder
from pipeline.warehouse.manifest import PartFile
from pipeline.warehouse.parquet_reads import ParquetReads
from pipeline.warehouse.row_store import row_group_levels
from pipeline.warehouse.usage_grid import epoch_ms, moment_of

_SPILL_FOLDER = ".merging"
_TABLES = {table.name: table for table in TABLES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What was done to one partition.

    Attributes:
        date: UTC date, `YYYY-MM-DD`.
        files_after: row files after; 0 where the partition was dropped.
    """

    table: str
    date: str
    cluster: str
    files_before: int
    files_after: int
    rows_before: int
    rows_after: int


def compact(warehouse: ParquetReads, *, now: datetime, files_max: int) -> Iterator[Upkeep]:
    """Merges the files of every partition that has more than `files_max`, one partition per step.

    A day on which the length of the finest windows was set anew (`rollup.window_seconds`) keeps its files.

    Raises:
        Unavailable: another process does upkeep, or the catalogue does not answer.
        Corrupt: a file can't be read, or storage takes no more.
    """
    now_ms = _clock_from(now)
    with warehouse.files.upkeep():
        for folder, files in _partitions(warehouse):
            if files > files_max:
                found = warehouse.files.partition_files(folder)
                # A reader takes each file's own finest windows: of one with two lengths it would miss the longer ones.
                if len(_finest_levels(warehouse, found)) == 1:
                    yield _merged(warehouse, folder, found, _levels_of(warehouse, found), now_ms())


def tidy_indexes(
    warehouse: ParquetReads, *, now: datetime, files_max: int, late_days: int, reached_ms: int | None = None
) -> Iterator[PartitionFolder]:
    """Closes days and merges the indexes of others by the hour, one partition per step; raises as `compact`.

    Args:
        late_days: whole days between a day that is closed and that of its cluster's newest sample, or today.
        reached_ms: how far the bus was taken in, where some of it waits; what waits there was acknowledged, so that
            days count back from this where it is earlier.
    """
    now_ms = _clock_from(now)
    until_ms = now_ms() if reached_ms is None else min(now_ms(), reached_ms)
    with warehouse.files.upkeep():
        newest_ms = warehouse.files.newest_windows()
        for folder, _ in _partitions(warehouse):
            # A clock that is ahead closes no day before its time, nor do samples of long ago.
            newest = moment_of(min(until_ms, newest_ms.get(folder.cluster, 0))).date()
            if folder.date < _first_day(newest, late_days):
                if warehouse.files.close_partition(folder, now_ms()):
                    yield folder
            elif warehouse.files.merge_indexes(folder, files_max, now_ms()):
                yield folder


def retain(warehouse: ParquetReads, *, now: datetime, days: int | None, finest_days: int | None) -> Iterator[Upkeep]:
    """Drops what is older than it is kept for, one partition per step; raises as `compact`.

    Args:
        days: days before today that are kept; None for all.
        finest_days: days before today whose windows below a quarter of an hour are kept; None for all.
    """
    today, now_ms = now.date(), _clock_from(now)
    first, first_finest = _first_day(today, days), _first_day(today, finest_days)
    with warehouse.files.upkeep():
        for folder, _ in _partitions(warehouse):
            if folder.date < first:
                yield _merged(warehouse, folder, warehouse.files.partition_files(folder), (), now_ms())
            elif folder.date < first_finest and "window_seconds" in _TABLES[folder.table].keys:
                files = warehouse.files.partition_files(folder)
                levels = _levels_of(warehouse, files)
                kept = tuple(level for level in levels if level is None or level >= WINDOW_SECONDS[1])
                if kept != levels:
                    yield _merged(warehouse, folder, files, kept, now_ms())


def remove_replaced(warehouse: ParquetReads, *, now: datetime, keep_seconds: int, named: Collection[str] = ()) -> int:
    """Removes files that were replaced longer ago than they are kept for, and what the killed left; returns how many.

    Args:
        named: files that others may open still, see `WarehouseFiles.remove_replaced`.

    Raises:
        Unavailable: another process does upkeep.
        Corrupt: the storage does not let go of a file.
    """
    with warehouse.files.upkeep():
        return warehouse.files.remove_replaced(epoch_ms(now) - keep_seconds * 1000, named)


def _merged(
    warehouse: ParquetReads,
    folder: PartitionFolder,
    files: list[PartFile],
    levels: tuple[int | None, ...],
    now_ms: int,
) -> Upkeep:
    """Replaces a partition's files by one with some of its levels; none of them drops the partition."""
    table, rows = _TABLES[folder.table], _row_files(files)
    after = 0

    def pieces() -> Iterator[pa.Table]:
        nonlocal after
        for level in levels:
            spill_folder = warehouse.files.folder / _SPILL_FOLDER
            paths = [file.path for file in rows]
            for piece in warehouse.merged_rows(table, paths, level_seconds=level, spill_folder=spill_folder):
                after += piece.num_rows
                yield piece

    warehouse.files.replace(folder, files, pieces(), now_ms)
    return Upkeep(
        table=folder.table,
        date=folder.date,
        cluster=folder.cluster,
        files_before=len(rows),
        files_after=min(1, after),
        rows_before=sum(file.rows for file in rows),
        rows_after=after,
    )


def _clock_from(now: datetime) -> Callable[[], int]:
    """A clock that shows a moment now and goes on: a piece of a long round is replaced when its turn comes, not before.

    Otherwise what was replaced late in a round would be kept too short for those who read it.
    """
    ahead_ms = epoch_ms(now) - time.monotonic_ns() // 1_000_000
    return lambda: ahead_ms + time.monotonic_ns() // 1_000_000


def _partitions(warehouse: ParquetReads) -> list[tuple[PartitionFolder, int]]:
    """Every partition and its number of row files, oldest first.

    By the time that its turn comes a partition may have more of them: a rollup appends between two pieces of upkeep.
    """
    counts = Counter((file.table, file.date, file.cluster) for file in _row_files(warehouse.files.live()))
    found = [(item, counts[item.table, item.date, item.cluster]) for item in warehouse.files.partitions()]
    return sorted(found, key=lambda pair: (pair[0].date, pair[0].table, pair[0].cluster))


def _row_files(files: list[PartFile]) -> list[PartFile]:
    return [file for file in files if not file.is_index]


def _finest_levels(warehouse: ParquetReads, files: list[PartFile]) -> set[int | None]:
    """The finest level of each row file of a partition; {None} for a table without levels."""
    return {_levels_of(warehouse, [file])[0] for file in _row_files(files)}


def _levels_of(warehouse: ParquetReads, files: list[PartFile]) -> tuple[int | None, ...]:
    """Levels in the files of a partition, finest first; of a table without levels (None,)."""
    rows = _row_files(files)
    if "window_seconds" not in _TABLES[rows[0].table].keys:
        return (None,)
    levels: set[int] = set()
    for file in rows:
        levels.update(row_group_levels(warehouse.files.rows.opened(Path(file.path))))
    return tuple(sorted(levels))


def _first_day(today: date, days: int | None) -> str:
    return "" if days is None else (today - timedelta(days=days)).isoformat()
