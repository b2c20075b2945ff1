"""Publishes the files that a Flink job has finished: each of them into the warehouse exactly once, through any kill.

A batch of files is written down before it is appended, under the number that is the append's offset; a batch that was
written down and perhaps appended is appended again under the same name, which the warehouse then knows. Files are
removed once a further checkpoint stands: until then a job that is restored may look for them.

Rows are taken as the job has made them, column by column: its files of one day, cluster and level become one piece of
the append. Files with what the job could not read become dead letters before the batch is appended. A record is named
by its place on the topic, so one that is put again after a kill meets the one that is there. Called by `rollup_flink`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.durable import sync_folder, write_durably
from fleet.errors import Corrupt
from fleet.logs import logger
from fleet.schema import TABLES, ColumnKind, Table
from pipeline.bus.bus import DeadLetters
from pipeline.flink.state import FlinkState
from pipeline.rollup.rollup import RollupStep
from pipeline.rollup.rollup_duckdb import RollupTarget
from pipeline.warehouse.ddl import arrow_schema
from pipeline.warehouse.warehouse import AppendName, Part

BATCH_BYTES_MAX = 64 << 20
"""Bytes of files in one append: bounds the memory that it takes."""
_LATER_CHECKPOINTS = 2
_TALLY, _UNREAD = "tally", "unread"
_FOLDERS = (*(table.name for table in TABLES), _TALLY, _UNREAD)
_TALLY_COLUMNS = ["records", "samples", "repeats", "late"]
_UNREAD_COLUMNS = ["payload", "reason", "from_partition", "from_offset"]


class FlinkPublisher:
    """Takes files from the staging folder to the warehouse.

    Args:
        source: name of the appends; one per topic.
        dead_letters: where what could not be read is kept; None counts it only.
        source_of: the name of a partition of the topic, which dead letters carry.
        crash_point: called with a name at every moment at which a crash would matter; tests raise or kill there.
    """

    def __init__(
        self,
        state: FlinkState,
        warehouse: RollupTarget,
        *,
        source: str,
        dead_letters: DeadLetters | None = None,
        source_of: Callable[[int], str] = str,
        crash_point: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._state = state
        self._warehouse = warehouse
        self._source = source
        self._dead_letters = dead_letters
        self._source_of = source_of
        self._crash_point = crash_point

    @property
    def published(self) -> int:
        """Batches that the warehouse has."""
        return self._warehouse.applied_offset(self._source)

    def publish(self) -> RollupStep | None:
        """Appends the next batch; None where no finished file waits.

        Raises:
            Unavailable: another process writes to the warehouse.
            Corrupt: a file can't be read, or the storage can't take the rows.
        """
        applied = self.published
        batches = self._batches()
        self._remove_published({number: files for number, files in batches.items() if number < applied})
        ahead = [number for number in batches if number > applied]
        if ahead:
            raise Corrupt(
                f"cannot publish batches {ahead} of {self._state.folder}: the warehouse has {applied} of them; "
                "it is another one or an older copy"
            )
        if applied in batches:
            return self._append(applied, batches[applied])
        known = {file for files in batches.values() for file in files}
        files = self._next_files(known)
        if not files:
            return None
        path = self._state.batches / f"{applied}.json"
        newest = self._state.newest()
        document = {"files": files, "checkpoint": 0 if newest is None else newest.number}
        write_durably(path, json.dumps(document).encode())
        self._crash_point("after intent")
        return self._append(applied, files)

    def _append(self, number: int, files: Sequence[str]) -> RollupStep:
        rows = 0

        def parts() -> Iterator[Part]:
            nonlocal rows
            for table in TABLES:
                for part in _parts(table, self._paths(files, table.name)):
                    rows += sum(piece.num_rows for piece in part.rows)
                    yield part

        unread = keep_unread(self._paths(files, _UNREAD), self._dead_letters, source_of=self._source_of)
        tally = dict.fromkeys(_TALLY_COLUMNS, 0)
        for path in self._paths(files, _TALLY):
            for flush in _read(path, _TALLY_COLUMNS).to_pylist():
                tally = {name: count + flush[name] for name, count in tally.items()}
        self._crash_point("after dead letters")
        self._warehouse.append((AppendName(source=self._source, start=number, end=number + 1),), parts())
        self._crash_point("after append")
        return RollupStep(**tally, corrupt=unread, rows=rows)

    def _paths(self, files: Sequence[str], folder: str) -> list[Path]:
        return [self._state.staging / file for file in files if file.split("/")[0] == folder]

    def _next_files(self, known: set[str]) -> list[str]:
        found: list[str] = []
        size = 0
        for path in self._state.finished_files():
            name = path.as_posix()
            if name in known or path.parts[0] not in _FOLDERS:
                continue
            size += (self._state.staging / path).stat().st_size
            if found and size > BATCH_BYTES_MAX:
                break
            found.append(name)
        return found

    def _batches(self) -> dict[int, list[str]]:
        found = {}
        for path in self._state.batches.glob("*.json"):
            found[int(path.stem)] = [str(file) for file in self._read(path)["files"]]  # type: ignore[attr-defined]
        return dict(sorted(found.items()))

    def _remove_published(self, batches: dict[int, list[str]]) -> None:
        newest = self._state.newest()
        for number, files in batches.items():
            path = self._state.batches / f"{number}.json"
            made_at = self._read(path)["checkpoint"]
            if newest is None or newest.number < int(str(made_at)) + _LATER_CHECKPOINTS:
                continue
            for file in files:
                (self._state.staging / file).unlink(missing_ok=True)
            for folder in sorted({(self._state.staging / file).parent for file in files}):
                if folder.is_dir():
                    sync_folder(folder)
            self._crash_point("before intent is removed")
            path.unlink()

    def _read(self, path: Path) -> dict[str, object]:
        try:
            document = json.loads(path.read_bytes())
        except (OSError, ValueError) as exc:
            raise Corrupt(f"cannot read {path}: {exc}") from exc
        if not isinstance(document, dict) or not {"files", "checkpoint"} <= document.keys():
            raise Corrupt(f"cannot read {path}: it is no list of files")
        return document


_log = logger(__name__)


def keep_unread(paths: Sequence[Path], dead_letters: DeadLetters | None, *, source_of: Callable[[int], str]) -> int:
    """Puts the records in some files with the dead letters; gives their number.

    Args:
        paths: finished files of the job's folder `unread`.
        dead_letters: where they are kept; None counts them only.
        source_of: the name of a partition of the topic that the job reads.

    Raises:
        Unavailable: they can't be kept now; the same are put again later.
        Corrupt: a file can't be read, or storage can't take one.
    """
    count = 0
    for path in paths:
        found = _read(path, _UNREAD_COLUMNS)
        count += found.num_rows
        if dead_letters is None:
            continue
        for row in found.to_pylist():
            dead_letters.put(
                row["payload"],
                reason=f"cannot read bus record: {row['reason']}",
                source=source_of(row["from_partition"]),
                offset=row["from_offset"],
            )
    if count:
        _log.error("flink could not read records; they are dead letters", count=count)
    return count


def _parts(table: Table, paths: Sequence[Path]) -> Iterator[Part]:
    """What some files of one table amount to: a part per day and cluster, a piece per level, finest first.

    Args:
        paths: finished files, `TABLE/dt=DATE/cluster=NAME/…` below the staging folder, levels in folders of their own.

    Raises:
        Corrupt: a file can't be read, or is of another schema.
    """
    schema = arrow_schema(table)
    texts = [column.name for column in table.columns if column.kind is ColumnKind.TEXT]
    by_part: dict[Path, dict[int, list[pa.Table]]] = {}
    for path in paths:
        folder, level = path.parent, 0
        if folder.name.startswith("window_seconds="):
            folder, level = folder.parent, int(folder.name.partition("=")[2])
        try:
            rows = _read(path, schema.names, texts).cast(schema)
        except (pa.ArrowException, ValueError) as exc:
            raise Corrupt(f"cannot read {path}: its columns are not those of {table.name}: {exc}") from exc
        if rows.num_rows:
            by_part.setdefault(folder, {}).setdefault(level, []).append(rows)
    for folder, levels in sorted(by_part.items()):
        pieces = [pa.concat_tables(levels[level]).unify_dictionaries() for level in sorted(levels)]
        cluster = pieces[0].column("cluster")[0].as_py()
        date = folder.parent.name.partition("=")[2]
        yield Part(table=table, date=date, cluster=cluster, rows=tuple(pieces))


def _read(path: Path, columns: list[str], texts: Sequence[str] = ()) -> pa.Table:
    try:
        found = pq.ParquetFile(path, read_dictionary=list(texts)).read()
    except (OSError, KeyError, pa.ArrowException) as exc:
        raise Corrupt(f"cannot read {path}: {exc}") from exc
    if found.column_names != columns:
        raise Corrupt(f"cannot read {path}: its columns are not {columns}")
    return found
