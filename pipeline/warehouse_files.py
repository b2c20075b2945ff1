"""The files of the embedded warehouse: whole appends of dated Parquet, named by their source offsets.

    FORMAT.json                                           schema version
    MANIFEST                                              which files count (`manifest`)
    pod_usage/dt=2026-01-05/cluster=c1/OFFSETS.parquet    rows; one row group or more per level
    seen/pod_usage/dt=2026-01-05/cluster=c1/OFFSETS.parquet   index of the samples behind them

Files are written aside, fsynced and renamed; then the manifest's line makes all of them count at once. What a killed
append has left is swept by the next writer. Called by `warehouse_duckdb`, which adds the questions.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fleet.durable import FolderLock, check_stamp, read_stamp, sync_folder, unwritable
from fleet.errors import Corrupt
from fleet.schema import TABLES, Table
from pipeline.manifest import Manifest, ManifestLine, PartFile
from pipeline.warehouse import AppendName, Part, SeenRows

_SEEN_FOLDER = "seen"
_NAME_BYTES_MAX = 200
_SEEN_CACHED = 8
_SEEN_SCHEMA = pa.schema([("hash", pa.uint64()), ("ts_ms", pa.int64()), ("measures", pa.uint32())])


class WarehouseFiles:
    """The files in one folder.

    Args:
        folder: where they lie; made by the first append.
        crash_point: called with a name at every moment at which a crash would matter; tests raise or kill there.

    Raises:
        Corrupt: the folder is of a newer schema.
    """

    def __init__(self, folder: Path, *, crash_point: Callable[[str], None] = lambda _name: None) -> None:
        self.folder = folder
        self._crash_point = crash_point
        self._lock: FolderLock | None = None
        self._manifest = Manifest(folder)
        self._seen_cache: OrderedDict[str, SeenRows] = OrderedDict()
        read_stamp(folder)

    def append(self, name: AppendName, parts: Iterable[Part]) -> bool:
        """Adds rows as a whole; see `Warehouse.append`."""
        if self._lock is None:
            self._lock = FolderLock(self.folder, "warehouse-writer")
            check_stamp(self.folder, new_fields={})
            self._manifest.cut_torn_tail()
            self._sweep()
        applied = self.applied_offset(name.source)
        if name.end <= applied:
            return False
        if name.start < applied:
            raise Corrupt(
                f"cannot add bus offsets {name.start} to {name.end}: the warehouse has those up to {applied} already"
            )
        written: list[Path] = []
        try:
            files = [file for part in parts for file in self._write_part(name, part, written)]
            for folder in sorted({path.parent for path in written}):
                self._sync_up(folder)
            self._crash_point("before manifest")
        except OSError as exc:
            for path in written:
                path.unlink(missing_ok=True)
            raise unwritable(self.folder, exc) from exc
        self._manifest.add(ManifestLine(source=name.source, start=name.start, end=name.end, files=tuple(files)))
        self._crash_point("after manifest")
        return True

    def applied_offset(self, source: str) -> int:
        """The offset after the last append from a bus, 0 where there is none."""
        return max((line.end for line in self._manifest.lines() if line.source == source), default=0)

    def files(self, table: Table, cluster: str, *, first_date: str = "", last_date: str = "9999") -> list[PartFile]:
        """The row files of one table and cluster, in the order of their appends."""
        return [
            file
            for line in self._manifest.lines()
            for file in line.files
            if not file.is_index
            and file.table == table.name
            and file.cluster == cluster
            and first_date <= file.date <= last_date
        ]

    def clusters(self) -> tuple[str, ...]:
        """Every cluster that has any row, sorted."""
        return tuple(sorted({file.cluster for line in self._manifest.lines() for file in line.files}))

    def seen(self, table: Table, date: str, cluster: str, *, since_ms: int, until_ms: int) -> tuple[SeenRows, ...]:
        """Samples counted by earlier appends; see `SeenStore.seen`."""
        return tuple(
            self._read_seen(file.path)
            for line in self._manifest.lines()
            for file in line.files
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

    def _write_part(self, name: AppendName, part: Part, written: list[Path]) -> list[PartFile]:
        file_name = f"{name.source}-{name.start:020d}-{name.end:020d}.parquet"
        below = Path(part.table.name, f"dt={part.date}", f"cluster={safe_name(part.cluster)}", file_name)
        time_column = "last_seen" if part.seen is None else "window_start"
        times = np.concatenate([piece.column(time_column).to_numpy() for piece in part.rows])
        first_ms, last_ms = int(times.min()), int(times.max())
        self._write(below, part.rows, written)
        files = [_part_file(part, below, sum(piece.num_rows for piece in part.rows), False, first_ms, last_ms)]
        if part.seen is not None:
            index = Path(_SEEN_FOLDER) / below
            rows = pa.Table.from_arrays(
                [pa.array(part.seen.hashes), pa.array(part.seen.ts_ms), pa.array(part.seen.measures)],
                schema=_SEEN_SCHEMA,
            )
            self._write(index, (rows,), written)
            first_ms, last_ms = int(part.seen.ts_ms.min()), int(part.seen.ts_ms.max())
            files.append(_part_file(part, index, rows.num_rows, True, first_ms, last_ms))
        return files

    def _write(self, below: Path, pieces: tuple[pa.Table, ...], written: list[Path]) -> None:
        path = self.folder / below
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.new")
        written.append(aside)
        schema = pieces[0].schema
        texts = [field.name for field in schema if pa.types.is_dictionary(field.type)]
        is_index = schema.equals(_SEEN_SCHEMA)
        with (
            aside.open("wb") as file,
            pq.ParquetWriter(
                file,
                schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=["hash", "measures"] if is_index else [*texts, "window_seconds", "samples"],
                column_encoding={"ts_ms": "DELTA_BINARY_PACKED"} if is_index else None,
                write_statistics=[] if is_index else [name for name in _STATISTICS if name in schema.names],
            ) as writer,
        ):
            for piece in pieces:
                writer.write_table(piece)
        handle = os.open(aside, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        self._crash_point("before rename")
        aside.replace(path)
        written[-1] = path

    def _sync_up(self, folder: Path) -> None:
        while folder != self.folder:
            sync_folder(folder)
            folder = folder.parent
        sync_folder(self.folder)

    def _sweep(self) -> None:
        """Removes what a killed append has left."""
        known = {file.path for line in self._manifest.lines() for file in line.files}
        tables = [table.name for table in TABLES]
        for top in (*tables, *(f"{_SEEN_FOLDER}/{name}" for name in tables)):
            for path in (self.folder / top).glob("dt=*/cluster=*/*"):
                if str(path.relative_to(self.folder)) not in known and path.is_file():
                    path.unlink()


_STATISTICS = ("window_start", "window_seconds", "last_seen", "first_seen")


def safe_name(text: str) -> str:
    """Foreign text as one harmless part of a path, different for different texts."""
    name = quote(text, safe="").replace(".", "%2E") if text.startswith(".") else quote(text, safe="")
    if not name or len(name) > _NAME_BYTES_MAX:
        return f"%{blake2b(text.encode(), digest_size=16).hexdigest()}"
    return name


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
