"""Files that survive a power cut, and folders that one process at a time may change.

The lock goes with its process, however that ends (`flock`), so a killed process leaves nothing to clean up; the stamp
keeps a program from misreading a folder of a newer one. Called by bus, warehouse, plan store and the data folder.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from fleet.errors import Corrupt, Unavailable
from fleet.schema import SCHEMA_VERSION

LOST_AND_FOUND = "lost+found"
"""In the root of an ext4 volume, and root's alone (mklost+found(8)): nobody's data."""

_STAMP = "FORMAT.json"
_LOOK_SECONDS = 0.002
"""Pause between two looks at a lock that is waited for."""


class Held(Unavailable):
    """Another process holds a role in a folder.

    Attributes:
        holder: its process id, as it wrote it.
    """

    def __init__(self, folder: Path, role: str, holder: str) -> None:
        super().__init__(f"cannot use {folder} as {role}: process {holder} holds it; stop it first")
        self.holder = holder


class FolderLock:
    """The exclusive right to one role in a folder.

    Args:
        role: what the holder does, such as `writer`; names the lock file.
        wait_seconds: how long another process is waited for.

    Raises:
        Held: another process holds it.
        Corrupt: the folder can't be written.
    """

    def __init__(self, folder: Path, role: str, *, wait_seconds: float = 0.0) -> None:
        path = folder / f"{role}.lock"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            raise unwritable(path, exc) from exc
        until = time.monotonic() + wait_seconds
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as exc:
                if time.monotonic() < until:
                    time.sleep(_LOOK_SECONDS)
                    continue
                holder = os.pread(self._file, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(self._file)
                raise Held(folder, role, holder) from exc
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        except OSError as exc:
            os.close(self._file)
            raise unwritable(path, exc) from exc

    def release(self) -> None:
        """Gives the role to the next one; more than once does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def lock_holder(path: Path) -> str | None:
    """Id of the process that holds a lock file of `FolderLock`; None where nobody does."""
    try:
        with path.open("r", encoding="ascii", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read(32).strip() or "unknown"
    except OSError:
        return None
    return None


def check_stamp(folder: Path, *, new_fields: dict[str, str]) -> dict[str, str]:
    """Reads the folder's stamp, or stamps an empty folder; returns the stamp's own fields, without the version.

    Args:
        new_fields: what a new stamp carries beside the schema's version.

    Raises:
        Corrupt: the stamp can't be read, or is of a newer schema.
    """
    path = folder / _STAMP
    found = read_stamp(folder)
    if found is None:
        text = json.dumps({"schema_version": SCHEMA_VERSION, **new_fields})
        write_durably(path, text.encode())
        return new_fields
    return found


def read_stamp(folder: Path) -> dict[str, str] | None:
    """The stamp's own fields; None where the folder has none.

    Raises:
        Corrupt: the stamp can't be read, or is of a newer schema.
    """
    path = folder / _STAMP
    try:
        fields = json.loads(path.read_bytes())
        version = int(fields.pop("schema_version"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
        raise Corrupt(f"cannot read {path}: no stamp of ours: {exc}") from exc
    if version > SCHEMA_VERSION:
        raise Corrupt(
            f"cannot use {folder}: its schema version is {version}, this program knows versions up to "
            f"{SCHEMA_VERSION}; use a newer gputide or another --data-dir"
        )
    return {str(name): str(value) for name, value in fields.items()}


def write_durably(path: Path, data: bytes) -> None:
    """Puts a whole file in place: aside, fsync, rename, fsync of the folder.

    Raises:
        Corrupt: the storage can't take it; nothing is left half-written under the name.
    """
    aside = _aside(path)
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        sync_folder(path.parent)
    except OSError as exc:
        aside.unlink(missing_ok=True)
        raise unwritable(path, exc) from exc


def holds_nothing(folder: Path) -> bool:
    """Whether a folder is empty, but for what a process left that was killed while it stamped it.

    The root of a fresh volume counts as empty.
    """
    start = _aside_start(folder / _STAMP)
    return all(path.name.startswith(start) or path.name == LOST_AND_FOUND for path in folder.iterdir())


def sync_folder(folder: Path) -> None:
    """Makes names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unwritable(path: Path, error: OSError, *, knob: str = "--data-dir") -> Corrupt:
    """The error for storage that does not take a write; `knob` is what says where it lies."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Corrupt(f"cannot write {path}: storage is full; free some space or use another {knob}")
    return Corrupt(f"cannot write {path}: {error.strerror or error}; {knob} must be a folder that can be written")


def _aside(path: Path) -> Path:
    """A name beside a file, of this thread alone: several may write the same file, and the last one stays."""
    return path.with_name(f"{_aside_start(path)}{os.getpid()}-{threading.get_ident()}.new")


def _aside_start(path: Path) -> str:
    return f".{path.name}."
