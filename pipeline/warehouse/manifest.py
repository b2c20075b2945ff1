"""Which files a warehouse consists of: what it stood at, and one line per append or replacement since.

A line is a CRC-32 in hexadecimal, a space and a JSON object. An append exists from the moment its line is durable, and
a replacement takes files away and puts others in their place at that moment; a line that was torn by a crash does not
count and is cut off by the next writer. Where most of the file says what is past, a checkpoint takes its place by a
rename: a first line with how far each lane was taken in, a line for each partition, and the lines of later appends
behind. Readers notice by the file's first bytes, which carry the checkpoint's number, and read it anew; so they do
where the line that they read last is not there any more, because its writer could not make it durable. Several
processes may add lines, one at a time (`manifest.lock`). Called by `warehouse.files`.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from fleet.durable import FolderLock, sync_folder, unwritable, write_durably
from fleet.errors import Corrupt
from pipeline.warehouse.partition_names import folder_number
from pipeline.warehouse.warehouse import AppendName

_NAME = "MANIFEST"
_HEAD_BYTES = 64
"""First bytes of the file, by which a checkpoint is noticed; the first line of one is longer."""
_CODE_BYTES = 8
"""The CRC-32 that a line begins with."""
_PAST_BYTES_MIN = 1 << 20
"""A file with less than this beyond what a checkpoint would take is left as it is."""
_ENTRY_BYTES = 80
"""What a checkpoint takes for a file beside its path, about."""
_LOCK_SECONDS_MAX = 60.0
_PartitionName = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """One file of one partition.

    Attributes:
        date: UTC date of the partition.
        cluster: cluster of the partition, as it came.
        path: below the warehouse's folder.
        is_index: True for an index of counted samples, False for rows of the table.
        first_ms: earliest time inside, epoch milliseconds.
        last_ms: latest time inside.
    """

    table: str
    date: str
    cluster: str
    path: str
    rows: int
    is_index: bool
    first_ms: int
    last_ms: int

    @property
    def partition(self) -> _PartitionName:
        """Table, date and cluster."""
        return self.table, self.date, self.cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLine:
    """One append, or one replacement.

    Attributes:
        names: what an append was made from, a piece of each lane; empty for a replacement.
        replaced: paths of files that count no longer.
        at_ms: when they were replaced, epoch milliseconds.
        closed: a partition (table, date, cluster) that takes in no further samples.
        removed_before_ms: what was replaced before this moment is there no longer.
    """

    names: tuple[AppendName, ...] = ()
    files: tuple[PartFile, ...] = ()
    replaced: tuple[str, ...] = ()
    at_ms: int = 0
    closed: _PartitionName | None = None
    removed_before_ms: int = 0


@dataclass(slots=True)
class _Partition:
    """What counts of one partition; mutable: changed line by line.

    Attributes:
        files: by path, in the order in which they came.
        replaced: files that count no longer and may still be there, each with when that was, epoch milliseconds.
        folder: the one of its row folders that was made last; None where there never were rows.
        rows_in_folder: row files that count and lie in it.
        is_closed: whether it takes in no further samples.
    """

    files: dict[str, PartFile] = field(default_factory=dict)
    replaced: dict[str, tuple[PartFile, int]] = field(default_factory=dict)
    folder: str | None = None
    rows_in_folder: int = 0
    is_closed: bool = False


class Manifest:
    """The list of files in a folder; re-read cheaply. Mutable: it follows what others add.

    Args:
        crash_point: called with a name at every moment at which a crash would matter; tests raise or kill there.
    """

    def __init__(self, folder: Path, *, crash_point: Callable[[str], None] = lambda _name: None) -> None:
        self.path = folder / _NAME
        self._crash_point = crash_point
        self._reset()

    def _reset(self) -> None:
        self._head = b""
        self._last, self._last_at = b"", 0
        self._read_bytes = 0
        self._synced_bytes = 0
        self._is_name_durable = False
        self._number = 0
        self._applied: dict[str, int] = {}
        self._partitions: dict[_PartitionName, _Partition] = {}
        self._state_bytes = 0

    def live(self) -> Iterator[PartFile]:
        """The files that count, those of a partition together and in the order in which they came."""
        self.refresh()
        for partition in list(self._partitions.values()):
            yield from list(partition.files.values())

    def replaced(self) -> list[tuple[PartFile, int]]:
        """The files that count no longer, each with the time at which it was replaced, epoch milliseconds."""
        self.refresh()
        return [pair for partition in self._partitions.values() for pair in partition.replaced.values()]

    def files_of(self, table: str, date: str, cluster: str) -> list[PartFile]:
        """The files of one partition that count, rows and indexes, in the order in which they came."""
        self.refresh()
        partition = self._partitions.get((table, date, cluster))
        return [] if partition is None else list(partition.files.values())

    def folders(self) -> dict[_PartitionName, str]:
        """The newest folder of every partition that has rows."""
        self.refresh()
        return {
            name: found.folder
            for name, found in self._partitions.items()
            if found.folder is not None and any(not file.is_index for file in found.files.values())
        }

    def newest_folder(self, table: str, date: str, cluster: str) -> tuple[str | None, bool]:
        """The folder that was made last for a partition's rows, None where there is none, and whether any count."""
        self.refresh()
        found = self._partitions.get((table, date, cluster))
        return (None, False) if found is None else (found.folder, found.rows_in_folder > 0)

    def is_closed(self, table: str, date: str, cluster: str) -> bool:
        """Whether a partition takes in no further samples."""
        self.refresh()
        found = self._partitions.get((table, date, cluster))
        return found is not None and found.is_closed

    def applied(self) -> dict[str, int]:
        """How far each lane was taken in: the offset after its last append, by its name.

        What others have added is durable before it is said: one that was killed between write and sync leaves a line
        by which somebody else lets go of what is on the bus.

        Raises:
            Corrupt: the storage does not let it.
        """
        self.refresh()
        if self._read_bytes > self._synced_bytes:
            try:
                with self.path.open("rb", buffering=0) as file:
                    os.fsync(file.fileno())
            except OSError as exc:
                raise unwritable(self.path, exc) from exc
            self._synced_bytes = self._read_bytes
        return dict(self._applied)

    def refresh(self) -> None:
        """Takes in what others have added meanwhile, or the whole of a new checkpoint.

        Raises:
            Corrupt: a line in the midst of the file is damaged.
        """
        try:
            with self.path.open("rb", buffering=0) as file:
                head = file.read(_HEAD_BYTES)
                if head[: len(self._head)] != self._head or not self._has_last(file):
                    self._reset()
                file.seek(self._read_bytes)
                data = file.read()
        except FileNotFoundError:
            self._reset()
            return
        except OSError as exc:
            raise Corrupt(f"cannot read {self.path}: {exc.strerror or exc}") from exc
        for raw in data.splitlines(keepends=True):
            fields = _parsed(raw)
            if fields is None:
                # A crash leaves a line without an end, or, with the machine, one with holes of zeros.
                if raw.endswith(b"\n") and b"\0" not in raw:
                    raise Corrupt(f"cannot read {self.path}: the line at byte {self._read_bytes} is damaged")
                break
            if self._read_bytes < _HEAD_BYTES:
                self._head = head[: self._read_bytes + len(raw)]
            self._last = raw[:_CODE_BYTES]
            self._last_at = self._read_bytes
            self._read_bytes += len(raw)
            self._take(fields)

    def _has_last(self, file: FileIO) -> bool:
        """Whether the line that was read last is still there: its code stands for all of it."""
        file.seek(self._last_at)
        return file.read(len(self._last)) == self._last

    def add(self, line: ManifestLine, check: Callable[[], None] = lambda: None) -> None:
        """Makes an append or a replacement exist; writes a checkpoint after it, where most of the file is past.

        Args:
            check: called with all that others have added known and nobody adding more; what it raises adds nothing.

        Raises:
            Corrupt: the storage can't take it; the append does not exist.
            Unavailable: another process adds a line for a minute.
        """
        raw = _raw(_fields_of(line))
        with FolderLock(self.path.parent, "manifest", wait_seconds=_LOCK_SECONDS_MAX):
            self._cut_torn_tail()
            check()
            try:
                # A buffer would write what is left of a line that was cut off once more, when it is closed.
                with self.path.open("ab", buffering=0) as file:
                    try:
                        left = memoryview(raw)
                        while left:
                            left = left[file.write(left) :]
                        os.fsync(file.fileno())
                        if not self._is_name_durable:  # who made the file may have been killed before it was
                            sync_folder(self.path.parent)
                    except OSError:
                        os.ftruncate(file.fileno(), self._read_bytes)
                        raise
            except OSError as exc:
                raise unwritable(self.path, exc) from exc
            self._crash_point("after line")
            self.refresh()
            self._synced_bytes = self._read_bytes
            self._is_name_durable = True
            if self._read_bytes > _PAST_BYTES_MIN + 2 * self._state_bytes:
                with suppress(Corrupt):  # the append is there; the next one tries again
                    self._write_checkpoint()

    def _cut_torn_tail(self) -> None:
        """Removes a line that a crash has torn; nobody else adds one now."""
        self.refresh()
        try:
            if self.path.exists() and self.path.stat().st_size > self._read_bytes:
                os.truncate(self.path, self._read_bytes)
        except OSError as exc:
            raise unwritable(self.path, exc) from exc

    def _write_checkpoint(self) -> None:
        """Puts what counts now in the place of the file; its readers keep theirs until they look again."""
        for left in self.path.parent.glob(f".{_NAME}.*.new"):
            left.unlink(missing_ok=True)
        first = {"checkpoint": self._number + 1, "applied": self._applied}
        self._crash_point("before checkpoint")
        write_durably(self.path, b"".join(map(_raw, (first, *self._partition_fields()))))
        self._crash_point("after checkpoint")
        self.refresh()
        self._is_name_durable = True

    def _partition_fields(self) -> Iterator[dict[str, Any]]:
        for name, found in self._partitions.items():
            if not found.files and not found.replaced:
                continue
            yield {
                "partition": name,
                "folder": found.folder,
                "is_closed": found.is_closed,
                "files": [_short(file) for file in found.files.values()],
                "replaced": [[*_short(file), at_ms] for file, at_ms in found.replaced.values()],
            }

    def _take(self, fields: dict[str, Any]) -> None:
        if "checkpoint" in fields:
            self._number, self._applied = fields["checkpoint"], fields["applied"]
        elif "partition" in fields:
            self._take_partition(fields)
        else:
            self._take_line(_line_of(fields))

    def _take_partition(self, fields: dict[str, Any]) -> None:
        table, date, cluster = fields["partition"]
        found = self._partitions[table, date, cluster] = _Partition(
            folder=fields["folder"], is_closed=fields["is_closed"]
        )

        def whole(path: str, rows: int, is_index: bool, first_ms: int, last_ms: int) -> PartFile:
            return PartFile(
                table=table, date=date, cluster=cluster, path=path, rows=rows, is_index=is_index, first_ms=first_ms,
                last_ms=last_ms,
            )  # fmt: skip

        for short in fields["files"]:
            self._put(found, whole(*short))
        for *short, at_ms in fields["replaced"]:
            file = whole(*short)
            found.replaced[file.path] = (file, at_ms)
            self._state_bytes += len(file.path) + _ENTRY_BYTES

    def _take_line(self, line: ManifestLine) -> None:
        for name in line.names:
            self._applied[name.source] = max(name.end, self._applied.get(name.source, 0))
        for file in line.files:
            found = self._partitions.setdefault(file.partition, _Partition())
            folder = file.path.rpartition("/")[0]
            if not file.is_index and (found.folder is None or folder_number(folder) > folder_number(found.folder)):
                found.folder, found.rows_in_folder = folder, 0
            self._put(found, file)
        if line.replaced:
            self._take_away(line)
        if line.closed is not None:
            self._partitions[line.closed].is_closed = True
        if line.removed_before_ms:
            self._forget(line.removed_before_ms)

    def _put(self, found: _Partition, file: PartFile) -> None:
        found.files[file.path] = file
        found.rows_in_folder += not file.is_index and file.path.rpartition("/")[0] == found.folder
        self._state_bytes += len(file.path) + _ENTRY_BYTES

    def _take_away(self, line: ManifestLine) -> None:
        # All of them are of one partition.
        found = next(found for found in self._partitions.values() if line.replaced[0] in found.files)
        for path in line.replaced:
            file = found.files.pop(path)
            found.replaced[path] = (file, line.at_ms)
            found.rows_in_folder -= not file.is_index and path.rpartition("/")[0] == found.folder

    def _forget(self, before_ms: int) -> None:
        for name, found in list(self._partitions.items()):
            for path, (_, at_ms) in list(found.replaced.items()):
                if at_ms < before_ms:
                    del found.replaced[path]
                    self._state_bytes -= len(path) + _ENTRY_BYTES
            if not found.files and not found.replaced:
                del self._partitions[name]


def _parsed(raw: bytes) -> dict[str, Any] | None:
    crc, _, text = raw.rstrip(b"\n").partition(b" ")
    if not raw.endswith(b"\n") or crc != b"%08x" % zlib.crc32(text):
        return None
    fields: dict[str, Any] = json.loads(text)
    return fields


def _raw(fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _fields_of(line: ManifestLine) -> dict[str, Any]:
    fields: dict[str, Any] = {"source": "", "start": 0, "end": 0}
    if line.names:
        fields = asdict(line.names[0])
    fields["files"] = [asdict(file) for file in line.files]
    further: Iterable[tuple[str, Any]] = (
        ("further", [[name.source, name.start, name.end] for name in line.names[1:]]),
        ("replaced", line.replaced),
        ("at_ms", line.at_ms),
        ("closed", line.closed),
        ("removed_before_ms", line.removed_before_ms),
    )
    return fields | {name: value for name, value in further if value}


def _line_of(fields: dict[str, Any]) -> ManifestLine:
    names = [(fields["source"], fields["start"], fields["end"]), *fields.get("further", ())]
    closed = fields.get("closed")
    return ManifestLine(
        names=tuple(AppendName(source=source, start=start, end=end) for source, start, end in names if source),
        files=tuple(PartFile(**part) for part in fields["files"]),
        replaced=tuple(fields.get("replaced", ())),
        at_ms=fields.get("at_ms", 0),
        closed=None if closed is None else tuple(closed),
        removed_before_ms=fields.get("removed_before_ms", 0),
    )


def _short(file: PartFile) -> list[Any]:
    return [file.path, file.rows, file.is_index, file.first_ms, file.last_ms]
