"""The one folder that holds all state: where each part lies, which schema it has, who may write to it now.

Removing the folder removes everything. `gputide.wiring` opens the parts; nothing else knows their places.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fleet.errors import Corrupt, Unavailable
from fleet.schema import SCHEMA_VERSION

_STAMP = "gputide.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFolder:
    """Places inside the data folder.

    Attributes:
        path: the folder.
    """

    path: Path

    @property
    def bus(self) -> Path:
        """Segments of the file bus."""
        return self.path / "bus"

    @property
    def warehouse(self) -> Path:
        """Dated Parquet."""
        return self.path / "warehouse"

    @property
    def plans(self) -> Path:
        """Plans, one JSON file each."""
        return self.path / "plans"

    @property
    def ledger(self) -> Path:
        """The hash-chained ledger of everything that was changed."""
        return self.path / "ledger.jsonl"

    @property
    def cluster(self) -> Path:
        """State of the simulated cluster."""
        return self.path / "cluster.sqlite"

    @property
    def clock(self) -> Path:
        """The clock of a replay."""
        return self.path / "clock.json"

    @property
    def outcomes(self) -> Path:
        """What came of plans, one JSON file per verify."""
        return self.path / "outcomes"

    @property
    def freeze(self) -> Path:
        """Stops every change while it exists."""
        return self.path / "freeze"


def open_data_folder(path: Path, *, create: bool) -> DataFolder:
    """Check the folder, or make and stamp it.

    Args:
        path: the folder.
        create: True to make it where it is missing.

    Raises:
        Corrupt: the folder is missing (and `create` is False), of a newer schema, not ours, read-only or full.
    """
    stamp = path / _STAMP
    try:
        if stamp.exists():
            _check_stamp(stamp)
        elif create:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise Corrupt(
                    f"cannot use {path} as data folder: it holds other files and no {_STAMP}; name an empty one"
                )
            write_whole(stamp, json.dumps({"schema_version": SCHEMA_VERSION}).encode())
        else:
            raise Corrupt(f"cannot read data folder {path}: nothing there; feed it first, for example `gputide demo`")
    except OSError as exc:
        raise Corrupt(f"cannot use data folder {path}: {exc.strerror or exc}; see --data-dir") from exc
    return DataFolder(path=path)


@contextmanager
def writing(folder: DataFolder) -> Iterator[None]:
    """Hold the folder for writing; one process at a time.

    Raises:
        Unavailable: another process holds it, with its process id.
        Corrupt: the folder is read-only or the disk is full.
    """
    lock = FileLock(folder.path / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as exc:
        raise Unavailable(
            f"cannot write to {folder.path}: locked by process {_holder(folder)}; wait for it or stop it"
        ) from exc
    except OSError as exc:
        raise Corrupt(f"cannot write to {folder.path}: {exc.strerror or exc}; see --data-dir") from exc
    try:
        write_whole(folder.path / "lock.holder", str(os.getpid()).encode())
        yield
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise Corrupt(
                f"cannot write to {folder.path}: {exc.strerror}; free space there or name another --data-dir"
            ) from exc
        raise
    finally:
        lock.release()


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file so that a reader sees the old or the new content, also after a power cut.

    Raises:
        OSError: as the system says.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _check_stamp(stamp: Path) -> None:
    try:
        version = json.loads(stamp.read_bytes())["schema_version"]
    except (ValueError, KeyError, TypeError) as exc:
        raise Corrupt(f"cannot read {stamp}: not a stamp of gputide: {exc}") from exc
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise Corrupt(
            f"cannot read data folder {stamp.parent}: schema_version={version}, this program knows up to "
            f"{SCHEMA_VERSION}; update gputide"
        )


def _holder(folder: DataFolder) -> str:
    try:
        return (folder.path / "lock.holder").read_text().strip()
    except OSError:
        return "unknown"
