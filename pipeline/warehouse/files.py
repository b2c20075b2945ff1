"""The files of a warehouse: whole appends of dated Parquet, named by their source offsets.

    FORMAT.json                                           schema version
    MANIFEST                                              which files count (`manifest`)
    pod_usage/dt=2026-01-05/cluster=c1/OFFSETS.parquet    rows; one row group or more per level
    pod_usage/dt=2026-01-05/cluster=c1@1/merged-NUMBER.parquet   the same, after a compaction; later appends go here too
    seen/pod_usage/dt=2026-01-05/cluster=c1/OFFSETS.parquet   index of the samples behind them
    seen/pod_usage/dt=2026-01-05/cluster=c1/merged-HOUR-NUMBER.parquet   that of an hour, after a compaction

Files are written aside, fsynced and renamed; then the manifest's line makes all of them count at once. Several
processes may append (`writers`), each what no other one has counted: before its line is written, an append is compared
with the indexes that came since it was made. What a killed process has left is swept. A folder of rows only gains
files: a compaction makes a new folder and leaves the old one for those who still read it. Called by `warehouse_duckdb`
and `warehouse_hive`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from fleet.durable import check_stamp, read_stamp, unwritable, write_durably
from fleet.errors import Corrupt, Unavailable
from fleet.schema import CARD_USAGE, POD_USAGE, TABLES, Table
from pipeline.warehouse.catalogue import Catalogue, NoCatalogue, PartitionFolder
from pipeline.warehouse.manifest import Manifest, ManifestLine, PartFile
from pipeline.warehouse.part_writing import write_parquet
from pipeline.warehouse.partition_names import first_folder, next_folder
from pipeline.warehouse.row_store import LocalRows, RowStore
from pipeline.warehouse.seen_index import SEEN_FOLDER, SeenIndex, hour_file, index_file, seen_pieces
from pipeline.warehouse.warehouse import AppendName, Overtaken, Part, SeenRows
from pipeline.warehouse.writers import Writers

_INTENT = "REPLACING.json"
"""Which partition is being replaced; there from before its files are, until the catalogue knows."""
_USAGE_NAMES = frozenset({CARD_USAGE.name, POD_USAGE.name})


class WarehouseFiles:
    """The files in one folder.

    Args:
        folder: where they lie; made by the first append.
        crash_point: called with a name at every moment at which a crash would matter; tests raise or kill there.
        catalogue: is informed of the folders; what it raises undoes the append. With one a single process may write,
            because others read the folders without the manifest.
        rows: where the row files lie; None for the folder. All else lies in the folder in any case.

    Raises:
        Corrupt: the folder is of a newer schema.
    """

    def __init__(
        self,
        folder: Path,
        *,
        crash_point: Callable[[str], None] = lambda _name: None,
        catalogue: Catalogue | None = None,
        rows: RowStore | None = None,
    ) -> None:
        self.folder = folder
        self._local = LocalRows(folder, crash_point=crash_point)
        self.rows: RowStore = self._local if rows is None else rows
        self._crash_point = crash_point
        self._catalogue = NoCatalogue() if catalogue is None else catalogue
        self._has_catalogue = catalogue is not None
        self._writers = Writers(folder, is_shared=catalogue is None, sweep=self._sweep)
        self._manifest = Manifest(folder, crash_point=crash_point)
        self._index = SeenIndex(folder, self._manifest)
        self._unwanted: list[tuple[RowStore, Path]] = []
        read_stamp(folder)

    def append(self, names: Sequence[AppendName], parts: Iterable[Part]) -> bool:
        """Adds rows as a whole; see `Warehouse.append`."""
        self.take_writing()
        if self._is_applied(names):
            return False
        self._index.begin()
        written: list[tuple[RowStore, Path]] = []
        found: list[Part] = []
        is_whole = False
        try:
            files = [file for part in parts for file in self._write_part(names[0], part, written, found)]
            self._settle(written)
            self._crash_point("before publishing")
            self._catalogue.add(_folders_of(files))
            self._index.check_uncounted(found)
            self._crash_point("before manifest")

            def check() -> None:
                if self._is_applied(names):
                    raise Overtaken(f"cannot add {_shown(names)}: another process has added it meanwhile")
                self._index.check_uncounted(found)

            self._manifest.add(ManifestLine(names=tuple(names), files=tuple(files)), check)
            is_whole = True
        except OSError as exc:
            raise unwritable(self.folder, exc) from exc
        finally:
            if not is_whole:
                # Others, who know nothing of the manifest, may read these folders.
                self._take_back(written)
        self._crash_point("after manifest")
        return True

    def take_writing(self) -> None:
        """Takes the right to append, and clears away what killed processes have left.

        Raises:
            Unavailable: too many other processes write, or the catalogue or the rows' file system does not answer.
            Corrupt: the folder can't be written, or is of a newer schema.
        """
        if self._writers.is_held:
            self._remove_unwanted()
        else:
            read_stamp(self.folder)
            try:
                self._writers.take()
                check_stamp(self.folder, new_fields={})
            except BaseException:
                self._writers.release()
                raise
            self._unwanted.clear()
        self._follow_intent()

    def upkeep(self) -> AbstractContextManager[None]:
        """The right to replace files; see `Writers.upkeep`."""
        self.take_writing()
        return self._writers.upkeep()

    def replace(
        self, folder: PartitionFolder, files: Sequence[PartFile], pieces: Iterable[pa.Table], now_ms: int
    ) -> None:
        """Puts one file, or none, in the place of all row files of a partition; for who holds `upkeep`.

        Args:
            files: all of its files that count; those that are indexes go only together with the last row.
            pieces: the rows that the new file holds, each of one level; none at all to forget the partition.

        Raises:
            Unavailable: the catalogue does not answer; it is asked again before the next write.
            Corrupt: the storage can't take it; nothing was changed.
        """
        self.take_writing()
        rows = [file for file in files if not file.is_index]
        newest, _ = self._manifest.newest_folder(folder.table, folder.date, folder.cluster)
        below = Path(next_folder(newest or str(folder.folder))) / f"merged-{uuid.uuid4().hex}.parquet"
        written: list[tuple[RowStore, Path]] = []
        is_whole = False
        try:
            count = self._write(self.rows, below, pieces, written)
            self._settle(written)
            self._crash_point("before intent")
            is_whole = True
        except OSError as exc:
            raise unwritable(self.folder, exc) from exc
        finally:
            if not is_whole:
                self._take_back(written)
        merged = PartFile(
            table=folder.table, date=folder.date, cluster=folder.cluster, path=str(below), rows=count, is_index=False,
            first_ms=min(file.first_ms for file in rows), last_ms=max(file.last_ms for file in rows),
        )  # fmt: skip
        if self._has_catalogue:
            write_durably(self.folder / _INTENT, json.dumps([folder.table, folder.date, folder.cluster]).encode())
        self._crash_point("before replacement")
        self._manifest.add(
            ManifestLine(
                files=(merged,) if count else (),
                replaced=tuple(file.path for file in (rows if count else files)),
                at_ms=now_ms,
            )
        )
        self._crash_point("after replacement")
        self._follow_intent()

    def merge_indexes(self, folder: PartitionFolder, files_max: int, now_ms: int) -> int:
        """Merges a partition's indexes by the hour, where more are in need of it; for who holds `upkeep`.

        Returns:
            How many were merged.

        Raises:
            Corrupt: one can't be read, or the storage can't take it; nothing was changed.
        """
        self.take_writing()
        files = self._index.unsettled(folder.table, folder.date, folder.cluster)
        if len(files) <= files_max:
            return 0
        merged: list[PartFile] = []
        written: list[tuple[RowStore, Path]] = []
        is_whole = False
        try:
            for seen in self._index.by_hour(files):
                merged.append(hour_file(files, seen))
                self._write(self._local, Path(merged[-1].path), seen_pieces(seen), written)
            self._settle(written)
            self._crash_point("before index replacement")
            replaced = tuple(file.path for file in files)
            self._manifest.add(ManifestLine(files=tuple(merged), replaced=replaced, at_ms=now_ms))
            is_whole = True
        except OSError as exc:
            raise unwritable(self.folder, exc) from exc
        finally:
            if not is_whole:
                self._take_back(written)
        self._crash_point("after index replacement")
        return len(files)

    def close_partition(self, folder: PartitionFolder, now_ms: int) -> int:
        """Takes a partition's indexes away for good, and returns how many; for who holds `upkeep`."""
        self.take_writing()
        replaced = tuple(file.path for file in self.partition_files(folder) if file.is_index)
        if replaced:
            closed = (folder.table, folder.date, folder.cluster)
            self._manifest.add(ManifestLine(replaced=replaced, at_ms=now_ms, closed=closed))
            self._crash_point("after closing")
        return len(replaced)

    def is_closed(self, table: Table, date: str, cluster: str) -> bool:
        """Whether a partition takes in no further samples; see `SeenStore.is_closed`."""
        return self._manifest.is_closed(table.name, date, cluster)

    def remove_replaced(self, before_ms: int, named: Collection[str] = ()) -> int:
        """Removes files that were replaced before a moment, and returns how many; for who holds `upkeep`.

        Args:
            named: files that others may open still: what was replaced with them or later stays, too.

        Raises:
            Unavailable: the catalogue does not answer.
            Corrupt: the storage does not let go of a file.
        """
        self.take_writing()
        replaced = self._manifest.replaced()
        before_ms = min([before_ms, *(at_ms for file, at_ms in replaced if file.path in named)])
        gone = [file for file, at_ms in replaced if at_ms < before_ms]
        try:
            removed = sum((self._local if file.is_index else self.rows).remove(Path(file.path)) for file in gone)
        except OSError as exc:
            raise unwritable(self.folder, exc) from exc
        if gone:
            self._manifest.add(ManifestLine(removed_before_ms=before_ms))
        return removed

    def _follow_intent(self) -> None:
        """Informs the catalogue of a partition whose files may have been replaced since the last time."""
        path = self.folder / _INTENT
        if not path.exists():
            return
        table, date, cluster = json.loads(path.read_text(encoding="utf-8"))
        newest, is_in_use = self._manifest.newest_folder(table, date, cluster)
        folder = Path(newest) if newest is not None and is_in_use else None
        self._catalogue.follow([PartitionFolder(table=table, date=date, cluster=cluster, folder=folder)])
        self._crash_point("after switch")
        path.unlink()

    def applied_offset(self, source: str) -> int:
        """The offset after the last append from a lane, 0 where there is none."""
        return self._manifest.applied().get(source, 0)

    def files(self, table: Table, cluster: str, *, first_date: str = "", last_date: str = "9999") -> list[PartFile]:
        """The row files of one table and cluster, those of a day in the order of their appends."""
        return [
            file
            for file in self._manifest.live()
            if not file.is_index
            and file.table == table.name
            and file.cluster == cluster
            and first_date <= file.date <= last_date
        ]

    def live(self) -> list[PartFile]:
        """All files that count, rows and indexes, those of a partition in the order in which they came."""
        return list(self._manifest.live())

    def partitions(self) -> list[PartitionFolder]:
        """Every partition that has rows, once, and the folder that they lie in."""
        return [
            PartitionFolder(table=table, date=date, cluster=cluster, folder=Path(folder))
            for (table, date, cluster), folder in self._manifest.folders().items()
        ]

    def partition_files(self, folder: PartitionFolder) -> list[PartFile]:
        """All files of a partition that count now, rows and indexes."""
        return self._manifest.files_of(folder.table, folder.date, folder.cluster)

    def partition_folder(self, table: Table, date: str, cluster: str) -> Path:
        """The folder, below the warehouse's, that the rows of a partition lie in and further ones go to."""
        newest, is_in_use = self._manifest.newest_folder(table.name, date, cluster)
        if newest is None:
            return Path(first_folder(table.name, date, cluster))
        return Path(newest) if is_in_use else Path(next_folder(newest))

    def clusters(self) -> tuple[str, ...]:
        """Every cluster that has any row, sorted."""
        return tuple(sorted({file.cluster for file in self._manifest.live()}))

    def newest_windows(self) -> dict[str, int]:
        """Start of the newest window of usage of each cluster that has any, epoch milliseconds."""
        found: dict[str, int] = {}
        for file in self._manifest.live():
            if not file.is_index and file.table in _USAGE_NAMES:
                found[file.cluster] = max(found.get(file.cluster, 0), file.last_ms)
        return found

    def seen(self, table: Table, date: str, cluster: str, *, since_ms: int, until_ms: int) -> Iterator[SeenRows]:
        """Samples counted by earlier appends; see `SeenStore.seen`."""
        return self._index.seen(table.name, date, cluster, since_ms=since_ms, until_ms=until_ms)

    def close(self) -> None:
        """Lets another process write."""
        self._writers.release()

    def _is_applied(self, names: Sequence[AppendName]) -> bool:
        """Whether all of an append was added before.

        Raises:
            Corrupt: some of it was.
        """
        applied = self._manifest.applied()
        if all(name.end <= applied.get(name.source, 0) for name in names):
            return True
        for name in names:
            if name.start < applied.get(name.source, 0):
                raise Corrupt(
                    f"cannot add {_shown((name,))}: the warehouse has those up to {applied[name.source]} already"
                )
        return False

    def _write_part(
        self, name: AppendName, part: Part, written: list[tuple[RowStore, Path]], found: list[Part]
    ) -> list[PartFile]:
        file_name = f"{self._writers.beginning}{name.source}-{name.start:020d}-{name.end:020d}.parquet"
        below = self.partition_folder(part.table, part.date, part.cluster) / file_name
        time_column = "window_start" if "window_start" in part.rows[0].column_names else "last_seen"
        times = np.concatenate([piece.column(time_column).to_numpy() for piece in part.rows])
        first_ms, last_ms = int(times.min()), int(times.max())
        self._write(self.rows, below, part.rows, written)
        files = [_part_file(part, below, sum(piece.num_rows for piece in part.rows), False, first_ms, last_ms)]
        if part.seen is not None:
            files.append(index_file(part, file_name, part.seen))
            self._write(self._local, Path(files[-1].path), seen_pieces(part.seen), written)
        # The rows themselves need not be kept in memory.
        found.append(replace(part, rows=()))
        return files

    def _write(
        self, store: RowStore, below: Path, pieces: Iterable[pa.Table], written: list[tuple[RowStore, Path]]
    ) -> int:
        """Writes one file that does not count yet and returns its number of rows; no piece, no file."""
        remaining = iter(pieces)
        first = next(remaining, None)
        if first is None:
            return 0
        written.append((store, below))
        return write_parquet(store, below, first, remaining)

    def _settle(self, written: list[tuple[RowStore, Path]]) -> None:
        for store in {id(store): store for store, _ in written}.values():
            store.settle(path for owner, path in written if owner is store)

    def _take_back(self, written: list[tuple[RowStore, Path]]) -> None:
        """Removes what of these files does not count; what storage keeps for now goes before the next write."""
        self._unwanted += written
        with suppress(Unavailable, Corrupt):
            self._remove_unwanted()

    def _remove_unwanted(self) -> None:
        if not self._unwanted:
            return
        # What was interrupted may have happened: its line stands, and so must its files.
        counting = {file.path for file in self.live()}
        try:
            while self._unwanted:
                store, path = self._unwanted[-1]
                if str(path) not in counting:
                    store.remove(path)
                self._unwanted.pop()
        except OSError as exc:
            raise unwritable(self.folder, exc) from exc

    def _sweep(self, is_left: Callable[[str], bool]) -> None:
        """Removes files that do not count and are of those whose names are picked."""
        known = {file.path for file in self._manifest.live()}
        known |= {file.path for file, _ in self._manifest.replaced()}
        for table in TABLES:
            for store, top in ((self.rows, table.name), (self._local, f"{SEEN_FOLDER}/{table.name}")):
                for path in store.found(top):
                    if str(path) not in known and is_left(path.name):
                        store.remove(path)


def _folders_of(files: Iterable[PartFile]) -> list[PartitionFolder]:
    """Each partition of the files once, with the folder of its newest one."""
    found = {
        (file.table, file.date, file.cluster): PartitionFolder(
            table=file.table, date=file.date, cluster=file.cluster, folder=Path(file.path).parent
        )
        for file in files
        if not file.is_index
    }
    return list(found.values())


def _shown(names: Sequence[AppendName]) -> str:
    return "bus offsets " + ", ".join(f"{name.start} to {name.end}" for name in names)


def _part_file(part: Part, path: Path, rows: int, is_index: bool, first_ms: int, last_ms: int) -> PartFile:
    return PartFile(
        table=part.table.name,
        date=part.date,
        cluster=part.cluster,
        path=str(path),
        rows=rows,
        is_index=is_index,
        first_ms=first_ms,
        last_ms=last_ms,
    )
