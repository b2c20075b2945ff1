"""Which files a warehouse consists of: one line per append or replacement, in the order in which they happened.

A line is a CRC-32 in hexadecimal, a space and a JSON object. An append exists from the moment its line is durable, and
a replacement takes files away and puts others in their place at that moment; a line that was torn by a crash does not
count and is cut off by the next writer. Called by `warehouse.files`.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fleet.durable import sync_folder, unwritable
from fleet.errors import Corrupt

_NAME = "MANIFEST"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLine:
    """One append, or one replacement.

    Attributes:
        source: name of the bus; empty for a replacement.
        start: offset of its first record.
        end: offset after its last record.
        replaced: paths of files that count no longer.
        at_ms: when they were replaced, epoch milliseconds.
    """

    source: str
    start: int
    end: int
    files: tuple[PartFile, ...] = field(default=())
    replaced: tuple[str, ...] = field(default=())
    at_ms: int = 0


class Manifest:
    """The list of appends in a folder; re-read cheaply, since it only grows."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / _NAME
        self._read_bytes = 0
        self._lines: list[ManifestLine] = []
        self._live: dict[str, PartFile] = {}
        self._replaced: dict[str, tuple[PartFile, int]] = {}
        self._folders: dict[tuple[str, str, str], str] = {}
        self._live_rows: Counter[str] = Counter()

    def live(self) -> list[PartFile]:
        """The files that count, in the order in which they came."""
        self.lines()
        return list(self._live.values())

    def replaced(self) -> list[tuple[PartFile, int]]:
        """The files that count no longer, each with the time at which it was replaced, epoch milliseconds."""
        self.lines()
        return list(self._replaced.values())

    def newest_folder(self, table: str, date: str, cluster: str) -> tuple[str | None, bool]:
        """The folder that rows of a partition went to last, None where there were none, and whether any counts."""
        self.lines()
        folder = self._folders.get((table, date, cluster))
        return folder, self._live_rows[folder or ""] > 0

    def lines(self) -> list[ManifestLine]:
        """All whole lines, those included that others have added meanwhile.

        Raises:
            Corrupt: a line in the midst of the file is damaged.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise Corrupt(f"cannot read {self.path}: {exc.strerror or exc}") from exc
        for raw in data.splitlines(keepends=True):
            line = _parsed(raw)
            if line is None:
                # A crash leaves a line without an end, or, with the machine, one with holes of zeros.
                if raw.endswith(b"\n") and b"\0" not in raw:
                    raise Corrupt(f"cannot read {self.path}: the line at byte {self._read_bytes} is damaged")
                break
            self._lines.append(line)
            self._take(line)
            self._read_bytes += len(raw)
        return self._lines

    def _take(self, line: ManifestLine) -> None:
        for file in line.files:
            self._live[file.path] = file
            if not file.is_index:
                folder = file.path.rpartition("/")[0]
                self._folders[file.table, file.date, file.cluster] = folder
                self._live_rows[folder] += 1
        for path in line.replaced:
            self._replaced[path] = (self._live.pop(path), line.at_ms)
            self._live_rows[path.rpartition("/")[0]] -= 1

    def cut_torn_tail(self) -> None:
        """Removes a line that a crash has torn; for the one writer only."""
        self.lines()
        try:
            if self.path.exists() and self.path.stat().st_size > self._read_bytes:
                os.truncate(self.path, self._read_bytes)
        except OSError as exc:
            raise unwritable(self.path, exc) from exc

    def add(self, line: ManifestLine) -> None:
        """Makes an append exist.

        Raises:
            Corrupt: the storage can't take it; the append does not exist.
        """
        self.lines()
        fields = {name: value for name, value in asdict(line).items() if value or name not in ("replaced", "at_ms")}
        text = json.dumps(fields, separators=(",", ":")).encode()
        raw = b"%08x %s\n" % (zlib.crc32(text), text)
        is_new = not self.path.exists()
        try:
            with self.path.open("ab") as file:
                try:
                    file.write(raw)
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    os.ftruncate(file.fileno(), self._read_bytes)
                    raise
            if is_new:
                sync_folder(self.path.parent)
        except OSError as exc:
            raise unwritable(self.path, exc) from exc
        self.lines()


def _parsed(raw: bytes) -> ManifestLine | None:
    crc, _, text = raw.rstrip(b"\n").partition(b" ")
    if not raw.endswith(b"\n") or crc != b"%08x" % zlib.crc32(text):
        return None
    fields = json.loads(text)
    fields["files"] = tuple(PartFile(**part) for part in fields["files"])
    fields["replaced"] = tuple(fields.get("replaced", ()))
    return ManifestLine(**fields)
