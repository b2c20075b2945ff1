"""What a back-up holds: `BACKUP.json` beside its files, each with its length and SHA-256.

    BACKUP.json                {"holds": "gputide-backup", "schema_version": 1, …, "files": […], "sha256": "…"}
    data/plans/…, data/bus/…   files of the data folder under their own names
    warehouse/MANIFEST, …      the warehouse's manifest, rows and indexes

The list is written last, so a folder without one is no back-up. Restoring believes nothing of it that was not
checked: a back-up lies where others may write. Called by `backup_create` and `backup_restore`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fleet.documents import iso
from fleet.durable import write_durably
from fleet.errors import Corrupt
from fleet.schema import SCHEMA_VERSION
from fleet.units import parse_time

DATA = "data"
"""Folder of a back-up for what lies in the data folder."""
WAREHOUSE = "warehouse"
"""Folder of a back-up for the warehouse, which may lie elsewhere than in the data folder (`hive.folder`)."""
LIST_NAME = "BACKUP.json"
LIST_BYTES_MAX = 1 << 30
"""Longest list that is read: about five million files."""

_HOLDS = "gputide-backup"
_CHUNK_BYTES = 1 << 20
_MODES = 0o664
"""Permissions that a file may get back: never to be run, nor to be written by everybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedFile:
    """One file of a back-up.

    Attributes:
        path: below the back-up's folder, with `/`.
        sha256: of its content, hexadecimal.
        modified_ns: when it was last changed, epoch nanoseconds; plans are distinguished by it.
        mode: who may read and write it, permission bits: Hive reads rows as another user, and a key is its owner's.
    """

    path: str
    bytes: int
    sha256: str
    modified_ns: int
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupList:
    """What a back-up holds.

    Attributes:
        created_at: when it was begun, UTC.
    """

    created_at: datetime
    schema_version: int
    clusters: tuple[str, ...]
    files: tuple[BackedFile, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)


def write_list(folder: Path, found: BackupList) -> None:
    """Makes a folder a back-up.

    Raises:
        Corrupt: the folder can't be written.
    """
    body = {
        "holds": _HOLDS,
        "schema_version": found.schema_version,
        "created_at": iso(found.created_at),
        "clusters": list(found.clusters),
        "files": [[file.path, file.bytes, file.sha256, file.modified_ns, file.mode] for file in found.files],
    }
    write_durably(folder / LIST_NAME, json.dumps({**body, "sha256": _digest(body)}, indent=0).encode())


def read_list(folder: Path) -> BackupList:
    """The list of a back-up, checked for what it may hold.

    Raises:
        Corrupt: there is none, it was edited, is of a newer schema, or names places that are none of ours.
    """
    path = folder / LIST_NAME
    try:
        with _opened(path) as file:
            # Room is made for what is asked for, so no more is asked for than there is.
            content = file.read(min(LIST_BYTES_MAX, os.fstat(file.fileno()).st_size) + 1)
    except FileNotFoundError as exc:
        raise Corrupt(f"cannot use {folder} as a back-up: it has no {LIST_NAME}, so it is none, or not whole") from exc
    except OSError as exc:
        raise Corrupt(f"cannot read {path}: {exc.strerror or exc}") from exc
    if len(content) > LIST_BYTES_MAX:
        raise Corrupt(f"cannot read {path}: longer than {LIST_BYTES_MAX} bytes")
    try:
        body: dict[str, Any] = json.loads(content)
        if body.get("holds") != _HOLDS:
            raise Corrupt(f"cannot use {folder} as a back-up: {LIST_NAME} is of something else")
        version = int(body["schema_version"])
        if version > SCHEMA_VERSION:
            raise Corrupt(
                f"cannot use back-up {folder}: its schema version is {version}, this program knows versions up to "
                f"{SCHEMA_VERSION}; use a newer gputide"
            )
        given = body.pop("sha256")
        if given != _digest(body):
            raise Corrupt(f"cannot trust {path}: it was edited or damaged")
        return BackupList(
            created_at=parse_time(body["created_at"]),
            schema_version=version,
            clusters=tuple(str(name) for name in body["clusters"]),
            files=tuple(
                BackedFile(
                    path=_place(str(name)),
                    bytes=int(size),
                    sha256=str(sha256),
                    modified_ns=int(modified_ns),
                    mode=int(mode) & _MODES,
                )
                for name, size, sha256, modified_ns, mode in body["files"]
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
        raise Corrupt(f"cannot read {path}: no list of a back-up: {exc}") from exc


def check_files(folder: Path, found: BackupList, *, on_file: Callable[[int], None] = lambda _done: None) -> None:
    """Reads every file of a back-up and compares it with the list.

    Args:
        on_file: called with the number of files that are done.

    Raises:
        Corrupt: a file is missing, or is not what was written.
    """
    for done, file in enumerate(found.files, start=1):
        for _ in checked_pieces(folder, file):
            pass
        on_file(done)


def checked_pieces(folder: Path, file: BackedFile) -> Iterator[bytes]:
    """The content of a file of a back-up; raises at its end where it is not what was written.

    Raises:
        Corrupt: it is missing, a link, or of other length or content than the list says.
    """
    path, sha256, size = folder / file.path, hashlib.sha256(), 0
    try:
        with _opened(path) as source:
            while piece := source.read(_CHUNK_BYTES):
                size += len(piece)
                sha256.update(piece)
                yield piece
    except OSError as exc:
        raise Corrupt(f"cannot read {path}: {exc.strerror or exc}") from exc
    if size != file.bytes or sha256.hexdigest() != file.sha256:
        raise Corrupt(f"cannot trust back-up {folder}: {file.path} is not what was written, or not all of it")


def write_file(target: Path, pieces: Iterator[bytes], *, modified_ns: int, mode: int = 0o600) -> tuple[int, str]:
    """Writes a file that was not there, durably, and returns its length and SHA-256.

    What storage does not take is raised as OSError; where it lies is for the caller to say.

    Args:
        modified_ns: when it shall seem to have been changed, epoch nanoseconds.
        mode: who may read and write it once it is whole.
    """
    sha256, size = hashlib.sha256(), 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        for piece in pieces:
            size += len(piece)
            sha256.update(piece)
            file.write(piece)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.utime(file.fileno(), ns=(modified_ns, modified_ns))
        os.fsync(file.fileno())
    return size, sha256.hexdigest()


def pieces_of(source: IO[bytes], length: int | None = None) -> Iterator[bytes]:
    """A file's content in pieces, up to a length where one is given.

    Raises:
        Corrupt: it can't be read.
    """
    left = length
    while left is None or left > 0:
        try:
            piece = source.read(_CHUNK_BYTES if left is None else min(_CHUNK_BYTES, left))
        except OSError as exc:
            raise Corrupt(f"cannot read {source.name}: {exc.strerror or exc}") from exc
        if not piece:
            return
        left = None if left is None else left - len(piece)
        yield piece


def _place(name: str) -> str:
    """A path of the list, if it stays below one of the two folders."""
    parts = PurePosixPath(name).parts
    if (
        len(parts) < 2
        or parts[0] not in (DATA, WAREHOUSE)
        or any(part in ("..", ".") or "\0" in part for part in parts)
        or "/".join(parts) != name
    ):
        raise ValueError(f"{name[:200]!r} is no place of a back-up")
    return name


def _opened(path: Path) -> IO[bytes]:
    """A plain file, never a link: a back-up that names another's files is none."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path.name} is no plain file")
    return os.fdopen(handle, "rb")


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def listed(files: Sequence[BackedFile]) -> tuple[BackedFile, ...]:
    """Files in the order of the list."""
    return tuple(sorted(files, key=lambda file: file.path))
