"""Which files a warehouse consists of: one line per append, in the order in which they happened.

A line is a CRC-32 in hexadecimal, a space and a JSON object. An append exists from the moment its line is durable; a
line that was torn by a crash does not count and is cut off by the next writer. Called by `warehouse_files`.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fleet.durable import sync_folder, unwritable
from fleet.errors import Corrupt
from pipeline.warehouse import AppendName

_NAME = "MANIFEST"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """One file of one partition.

    Attributes:
        table: name of the table.
        date: UTC date of the partition.
        cluster: cluster of the partition, as it came.
        path: below the warehouse's folder.
        rows: number of rows.
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
    """One append.

    Attributes:
        source: name of the bus.
        start: offset of its first record.
        end: offset after its last record.
        files: what it added.
    """

    source: str
    start: int
    end: int
    files: tuple[PartFile, ...] = field(default=())

    @property
    def name(self) -> AppendName:
        """What the append is named by."""
        return AppendName(source=self.source, start=self.start, end=self.end)


class Manifest:
    """The list of appends in a folder; re-read cheaply, since it only grows.

    Args:
        folder: the warehouse's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / _NAME
        self._read_bytes = 0
        self._lines: list[ManifestLine] = []

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
            self._read_bytes += len(raw)
        return self._lines

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
        text = json.dumps(asdict(line), separators=(",", ":")).encode()
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
    return ManifestLine(**fields)
