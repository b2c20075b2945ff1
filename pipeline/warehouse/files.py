"""The files of a warehouse: whole appends of dated Parquet, named by their source offsets.

    FORMAT.json                                           schema version
    MANIFEST                                              which files count (`manifest`)
    pod_usage/dt=2026-01-05/cluster=c1/OFFSETS.parquet    rows; one row group or more per level
    pod_usage/dt=2026-01-05/cluster=c1@1/merged.parquet   the same, after a compaction; later appends go here as well
    seen/pod_usage/dt=2026-01-05/cluster=c1/OFFSETS.parquet   index of the samples behind them

Files are written aside, fsynced and renamed; then the manifest's line makes all of them count at once. What a killed
append has left is swept by the next writer. A folder of rows only gains files: a compaction makes a new folder and
leaves the old one for those who still read it. Called by `warehouse_duckdb` and `warehouse_hive`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fleet.durable import FolderLock, check_stamp, read_stamp, unwritable, write_durably
from fleet.errors import Corrupt, Unavailable
from fleet.schema import CARD_USAGE, POD_USAGE, TABLES, Table
from pipeline.warehouse.catalogue import Catalogue, NoCatalogue, PartitionFolder
from pipeline.warehouse.manifest import Manifest, ManifestLine, PartFile
from pipeline.warehouse.partition_names import first_folder, next_folder
from pipeline.warehouse.row_store import LocalRows, RowStore
from pipeline.warehouse.warehouse import AppendName, Part, SeenRows

_SEEN_FOLDER = "seen"
_INTENT = "REPLACING.json"
"""Which partition is being replaced; there from before its files are, until the catalogue knows."""
_MERGED_NAME = "merged.parquet"
_SEEN_CACHED = 8
_USAGE_NAMES = frozenset({CARD_USAGE.name, POD_USAGE.name})
_SEEN_SCHEMA = pa.schema([("hash", pa.uint64()), ("ts_ms", pa.int64()), ("measures", pa.uint32())])


class WarehouseFiles:
    """The files in one folder.

    Args:
        folder: where they lie; made by the first append.
        crash_point: called with a name at every moment at which a crash would matter; tests raise or kill there.
        catalogue: is informed of the folders; what it raises undoes the append.
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
        self._lock: FolderLock | None = None
        self._manifest = Manifest(folder)
        self._seen_cache: OrderedDict[str, SeenRows] = OrderedDict()
        self._unwanted: list[tuple[RowStore, Path]] = []
        self._removed: set[str] = set()
        read_stamp(folder)

    def append(self, name: AppendName, parts: Iterable[Part]) -> bool:
        """Adds rows as a whole; see `Warehouse.append`."""
        self.take_writing()
        applied = self.applied_offset(name.source)
        if name.end <= applied:
            return False
        if name.start < applied:
            raise Corrupt(
                f"cannot add bus offsets {name.start} to {name.end}: the warehouse has those up to {applied} already"
            )
        written: list[tuple[RowStore, Path]] = []
        is_whole = False
        try:
            files = [file for part in parts for file in self._write_part(name, part, written)]
            self._settle(written)
            self._crash_point("before publishing")
            self._catalogue.add(_folders_of(files))
            self._crash_point("before manifest")
            self._manifest.add(ManifestLine(source=name.source, start=name.start, end=name.end, files=tuple(files)))
            is_whole = True
        except OSError as exc:
            raise unwritable(self.folder, exc) from exc
        finally:
            if not is_whole and self.applied_offset(name.source) < name.end:
                # Others, who know nothing of the manifest, may read these folders.
                self._take_back(written)
        self._crash_point("after manifest")
        return True

    def take_writing(self) -> None:
        """Takes the right to write, and clears away what a killed writer has left.

        Raises:
            Unavailable: another process writes, or the catalogue or the rows' file system does not answer.
            Corrupt: the folder can't be written, or is of a newer schema.
        """
        if self._lock is None:
            lock = FolderLock(self.folder, "warehouse-writer")
            try:
                check_stamp(self.folder, new_fields={})
                self._manifest.cut_torn_tail()
                self._sweep()
                self._unwanted.clear()
                self._follow_intent()
            except BaseException:
                lock.release()
                raise
            self._lock = lock
        else:
            self._remove_unwanted()
            self._follow_intent()

    def replace(
        self, folder: PartitionFolder, files: Sequence[PartFile], pieces: Iterable[pa.Table], now_ms: int
    ) -> None:
        """Puts one file, or none, in the place of all row files of a partition; for the one writer.

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
        below = Path(next_folder(newest or str(folder.folder))) / _MERGED_NAME
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
        write_durably(self.folder / _INTENT, json.dumps([folder.table, folder.date, folder.cluster]).encode())
        self._crash_point("before replacement")
        self._manifest.add(
            ManifestLine(
                source="",
                start=0,
                end=0,
                files=(merged,) if count else (),
                replaced=tuple(file.path for file in (rows if count else files)),
                at_ms=now_ms,
            )
        )
        self._crash_point("after replacement")
        self._follow_intent()

    def remove_replaced(self, before_ms: int) -> int:
        """Removes files that were replaced before a moment, and returns how many; for the one writer.

        Raises:
            Unavailable: another process writes, or the catalogue does not answer.
            Corrupt: the storage does not let go of a file.
        """
        self.take_writing()
        removed = 0
        try:
            for file, at_ms in self._manifest.replaced():
                if at_ms < before_ms and file.path not in self._removed:
                    removed += (self._local if file.is_index else self.rows).remove(Path(file.path))
                    self._removed.add(file.path)
        except OSError as exc:
            raise unwritable(self.folder, exc) from exc
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
        """The offset after the last append from a bus, 0 where there is none."""
        return max((line.end for line in self._manifest.lines() if line.source == source), default=0)

    def files(self, table: Table, cluster: str, *, first_date: str = "", last_date: str = "9999") -> list[PartFile]:
        """The row files of one table and cluster, in the order of their appends."""
        return [
            file
            for file in self._manifest.live()
            if not file.is_index
            and file.table == table.name
            and file.cluster == cluster
            and first_date <= file.date <= last_date
        ]

    def live(self) -> list[PartFile]:
        """All files that count, rows and indexes, in the order in which they came."""
        return self._manifest.live()

    def partitions(self) -> list[PartitionFolder]:
        """Every partition that has rows, once, and the folder that they lie in."""
        return _folders_of(self._manifest.live())

    def partition_files(self, folder: PartitionFolder) -> list[PartFile]:
        """All files of a partition that count now, rows and indexes."""
        return [
            file
            for file in self._manifest.live()
            if (file.table, file.date, file.cluster) == (folder.table, folder.date, folder.cluster)
        ]

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

    def seen(self, table: Table, date: str, cluster: str, *, since_ms: int, until_ms: int) -> tuple[SeenRows, ...]:
        """Samples counted by earlier appends; see `SeenStore.seen`."""
        return tuple(
            self._read_seen(file.path)
            for file in self._manifest.live()
            if file.is_index
            and file.table == table.name
            and file.date == date
            and file.cluster == cluster
            and file.first_ms <= until_ms
            and file.last_ms >= since_ms
        )

    def close(self) -> None:
        """Lets another process write."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _read_seen(self, path: str) -> SeenRows:
        rows = self._seen_cache.get(path)
        if rows is None:
            try:
                table = pq.read_table(self.folder / path, partitioning=None)
            except (OSError, pa.ArrowException) as exc:
                raise Corrupt(f"cannot read {self.folder / path}: {exc}") from exc
            rows = SeenRows(
                hashes=table.column("hash").to_numpy(),
                ts_ms=table.column("ts_ms").to_numpy(),
                measures=table.column("measures").to_numpy(),
            )
            self._seen_cache[path] = rows
            if len(self._seen_cache) > _SEEN_CACHED:
                self._seen_cache.popitem(last=False)
        self._seen_cache.move_to_end(path)
        return rows

    def _write_part(self, name: AppendName, part: Part, written: list[tuple[RowStore, Path]]) -> list[PartFile]:
        file_name = f"{name.source}-{name.start:020d}-{name.end:020d}.parquet"
        below = self.partition_folder(part.table, part.date, part.cluster) / file_name
        time_column = "window_start" if "window_start" in part.rows[0].column_names else "last_seen"
        times = np.concatenate([piece.column(time_column).to_numpy() for piece in part.rows])
        first_ms, last_ms = int(times.min()), int(times.max())
        self._write(self.rows, below, part.rows, written)
        files = [_part_file(part, below, sum(piece.num_rows for piece in part.rows), False, first_ms, last_ms)]
        if part.seen is not None:
            index = Path(_SEEN_FOLDER, first_folder(part.table.name, part.date, part.cluster), file_name)
            rows = pa.Table.from_arrays(
                [pa.array(part.seen.hashes), pa.array(part.seen.ts_ms), pa.array(part.seen.measures)],
                schema=_SEEN_SCHEMA,
            )
            self._write(self._local, index, (rows,), written)
            first_ms, last_ms = int(part.seen.ts_ms.min()), int(part.seen.ts_ms.max())
            files.append(_part_file(part, index, rows.num_rows, True, first_ms, last_ms))
        return files

    def _write(
        self, store: RowStore, below: Path, pieces: Iterable[pa.Table], written: list[tuple[RowStore, Path]]
    ) -> int:
        """Writes one file and returns its number of rows; no piece, no file."""
        remaining = iter(pieces)
        first = next(remaining, None)
        if first is None:
            return 0
        schema, rows = first.schema, 0
        texts = [field.name for field in schema if pa.types.is_dictionary(field.type)]
        is_index = schema.equals(_SEEN_SCHEMA)

        def fill(file: Any) -> None:
            nonlocal rows
            with pq.ParquetWriter(
                file,
                schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=["hash", "measures"] if is_index else [*texts, "window_seconds", "samples"],
                column_encoding={"ts_ms": "DELTA_BINARY_PACKED"} if is_index else None,
                write_statistics=[] if is_index else [name for name in _STATISTICS if name in schema.names],
            ) as writer:
                for piece in chain((first,), remaining):
                    writer.write_table(piece)
                    rows += piece.num_rows

        written.append((store, below))
        store.write(below, fill)
        return rows

    def _settle(self, written: list[tuple[RowStore, Path]]) -> None:
        for store in {id(store): store for store, _ in written}.values():
            store.settle(path for owner, path in written if owner is store)

    def _take_back(self, written: list[tuple[RowStore, Path]]) -> None:
        """Removes files that do not count; what storage does not let go of now goes before the next write."""
        self._unwanted += written
        with suppress(Unavailable, Corrupt):
            self._remove_unwanted()

    def _remove_unwanted(self) -> None:
        try:
            while self._unwanted:
                store, path = self._unwanted[-1]
                store.remove(path)
                self._unwanted.pop()
        except OSError as exc:
            raise unwritable(self.folder, exc) from exc

    def _sweep(self) -> None:
        """Removes what a killed append has left."""
        known = {file.path for file in self._manifest.live()}
        known |= {file.path for file, _ in self._manifest.replaced()}
        for table in TABLES:
            for store, top in ((self.rows, table.name), (self._local, f"{_SEEN_FOLDER}/{table.name}")):
                for path in store.found(top):
                    if str(path) not in known:
                        store.remove(path)


_STATISTICS = ("window_start", "window_seconds", "last_seen", "first_seen")


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
