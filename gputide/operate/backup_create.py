"""Makes a back-up of a data folder while receiver, roll-up, enforcer and web app go on.

Samples flow from the bus to the warehouse, and the roll-up drops what it has taken in; so the bus is held open first,
the warehouse is copied as its manifest says at one moment, and then the bus is copied with what came meanwhile. What
the warehouse does not have yet is thus on the bus of the back-up, and what is on both counts once, as after a crash.
Ledgers are copied head first and plans after the ledgers that name them, so both verify.

Puts a back-up into an empty data folder, whole or not at all.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import IO

from fleet.data_folder import DataFolder
from fleet.durable import LOST_AND_FOUND, holds_nothing, read_stamp, sync_folder, unwritable
from fleet.errors import Corrupt, Misconfigured, Refused, Unavailable
from fleet.schema import SCHEMA_VERSION
from fleet.units import epoch_ms
from gputide.operate.backup_list import (
    DATA,
    LIST_NAME,
    WAREHOUSE,
    BackedFile,
    BackupList,
    checked_pieces,
    listed,
    pieces_of,
    read_list,
    write_file,
    write_list,
)
from pipeline.flink.state import is_stopped
from pipeline.warehouse.manifest import Manifest

TRIES_MAX = 5
"""How often a copy is begun anew where the roll-up or a compaction took files away meanwhile."""

_ASIDE = ".gputide-backup-"
"""How folders begin in which back-ups are made."""
_SEGMENT = "segment-"
_COMMITTED = "committed"
STATE_OF_FLINK = "flink"
"""Copied where the job was stopped: checkpoints of a running one change all the time, and are ahead of the rows."""
_SQLITE = ".sqlite"
_HEAD = ".head"


@dataclass(slots=True, kw_only=True)
class _Lane:
    """One lane of the bus, its segments held open; mutable: it grows while the warehouse is copied.

    Attributes:
        source: its name, which the warehouse's appends bear.
        committed: offset that the warehouse had at least when the copy began.
        segments: open files by the offset of their first byte.
    """

    folder: Path
    source: str
    committed: int
    segments: dict[int, IO[bytes]] = field(default_factory=dict)

    def hold(self, stack: ExitStack) -> None:
        """Opens segments that are not held yet: what is dropped later can still be read."""
        for path in self.folder.glob(f"{_SEGMENT}*"):
            number = path.name.removeprefix(_SEGMENT)
            if number.isdecimal() and int(number) not in self.segments:
                with suppress(FileNotFoundError):
                    self.segments[int(number)] = stack.enter_context(_opened(path))

    def is_whole(self, applied: int) -> bool:
        """Whether nothing between what the warehouse has and the newest record is missing."""
        first = max(applied, self.committed)
        ends = {start: start + os.fstat(file.fileno()).st_size for start, file in sorted(self.segments.items())}
        return all(start <= first for start in list(ends)[:1]) and all(
            ends[start] >= following for start, following in pairwise(ends) if following > first
        )


def create_backup(
    folder: DataFolder,
    warehouse: Path,
    target: Path,
    now: datetime,
    *,
    on_file: Callable[[int], None] = lambda _done: None,
) -> BackupList:
    """Copies a data folder as it stands; what is acknowledged before this is called is in it.

    Args:
        warehouse: where the warehouse's manifest and files lie.
        target: folder of the back-up; it must not exist.
        on_file: called with the number of files that are done.

    Returns:
        What it holds.

    Raises:
        Misconfigured: the target exists, or lies in what is backed up.
        Unavailable: files went away faster than they could be copied; nothing is left behind.
        Corrupt: something can't be read or written; nothing is left behind.
    """
    _check_target(folder, warehouse, target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_left(target.parent)
        aside = Path(tempfile.mkdtemp(prefix=_ASIDE, dir=target.parent))
    except OSError as exc:
        raise unwritable(target, exc, knob="DIR") from exc
    held = _held(aside)
    try:
        files = _Copies(aside, on_file)
        clusters = _copy_flow(folder, warehouse, files, now)
        _copy_rest(folder, files)
        found = BackupList(
            created_at=now, schema_version=SCHEMA_VERSION, clusters=clusters, files=listed(list(files.done.values()))
        )
        write_list(aside, found)
        for below in sorted({path.parent for path in aside.rglob("*")}, reverse=True):
            sync_folder(below)
        aside.rename(target)
        sync_folder(target.parent)
    except OSError as exc:
        raise unwritable(target, exc, knob="DIR") from exc
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if held is not None:
            os.close(held)
    return found


def _remove_left(folder: Path) -> None:
    """Removes what back-ups that were killed have left: folders of theirs that no living process holds."""
    for left in folder.glob(f"{_ASIDE}*"):
        held = _held(left)
        if held is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(held)


def _held(folder: Path) -> int | None:
    """A folder held for this process alone, as a file descriptor; None where another holds it, or nobody can."""
    handle = None
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if handle is not None:
            os.close(handle)
        return None
    return handle


class _Copies:
    """Files that are in the back-up so far, by their path in it."""

    def __init__(self, target: Path, on_file: Callable[[int], None]) -> None:
        self.target = target
        self.done: dict[str, BackedFile] = {}
        self._on_file = on_file

    def add(self, path: str, pieces: Iterator[bytes], modified_ns: int, mode: int) -> None:
        size, sha256 = write_file(self.target / path, pieces, modified_ns=modified_ns)
        self.done[path] = BackedFile(
            path=path, bytes=size, sha256=sha256, modified_ns=modified_ns, mode=stat.S_IMODE(mode)
        )
        self._on_file(len(self.done))

    def copy(self, path: str, source: IO[bytes], length: int | None = None, *, mode: int | None = None) -> None:
        """An open file, up to a length where one is given; its own mode unless one is given."""
        found = os.fstat(source.fileno())
        self.add(path, pieces_of(source, length), found.st_mtime_ns, found.st_mode if mode is None else mode)

    def drop(self, path: str) -> None:
        (self.target / path).unlink(missing_ok=True)
        self.done.pop(path, None)


def _copy_flow(folder: DataFolder, warehouse: Path, files: _Copies, now: datetime) -> tuple[str, ...]:
    """Bus and warehouse, as one moment has them; returns the clusters of the warehouse."""
    for _ in range(TRIES_MAX):
        with ExitStack() as stack:
            lanes = [lane for number in folder.bus_lanes if (lane := _lane(folder.bus(number))) is not None]
            for lane in lanes:
                lane.hold(stack)
            manifest = _copy_manifest(warehouse, files)
            if manifest is None:
                continue
            applied = manifest.applied()
            for lane in lanes:
                lane.hold(stack)
            if all(lane.is_whole(applied.get(lane.source, 0)) for lane in lanes):
                for lane in lanes:
                    _copy_lane(lane, applied.get(lane.source, 0), files, epoch_ms(now) * 1_000_000)
                return tuple(sorted({file.cluster for file in manifest.live()}))
    raise Unavailable(
        f"cannot back up {folder.path}: in {TRIES_MAX} tries the roll-up took files away while they were copied; "
        "try again, or give warehouse.keep_replaced_seconds more time"
    )


def _copy_manifest(warehouse: Path, files: _Copies) -> Manifest | None:
    """The warehouse as its manifest has it now; None where a file of it went away meanwhile."""
    place = f"{WAREHOUSE}/MANIFEST"
    files.drop(place)
    try:
        with _opened(warehouse / "MANIFEST") as opened:
            # The last line may be half written this very moment.
            files.copy(place, opened, _whole_lines(opened))
    except FileNotFoundError:
        return Manifest(files.target / WAREHOUSE)
    manifest = Manifest(files.target / WAREHOUSE)
    wanted = {f"{WAREHOUSE}/{file.path}": warehouse / file.path for file in manifest.live()}
    wanted[f"{WAREHOUSE}/FORMAT.json"] = warehouse / "FORMAT.json"
    for path in [path for path in files.done if path.startswith(f"{WAREHOUSE}/")]:
        if path not in wanted and path != place:
            files.drop(path)
    for path, source in wanted.items():
        if path in files.done:
            continue  # files of a warehouse are never changed: one that was copied is the same still
        try:
            with _opened(source) as opened:
                files.copy(path, opened)
        except FileNotFoundError:
            return None
    return manifest


def _whole_lines(opened: IO[bytes]) -> int:
    """Bytes up to the end of the last whole line."""
    length = opened.read().rfind(b"\n") + 1
    opened.seek(0)
    return length


def _copy_lane(lane: _Lane, applied: int, files: _Copies, now_ns: int) -> None:
    """Segments as long as they are now, and how far the copied warehouse is."""
    name = f"{DATA}/{lane.folder.name}"
    for start, opened in sorted(lane.segments.items()):
        files.copy(f"{name}/{_SEGMENT}{start:020d}", opened, os.fstat(opened.fileno()).st_size)
    # What the warehouse of the back-up has; the bus it was taken from may have gone on since.
    if first := max(applied, lane.committed):
        mode = (lane.folder / "FORMAT.json").stat().st_mode
        files.add(f"{name}/{_COMMITTED}", iter((f"{first}\n".encode(),)), now_ns, mode)
    for path in sorted([lane.folder / "FORMAT.json", *lane.folder.glob("torn-*")]):
        with _opened(path) as opened:
            files.copy(f"{name}/{path.name}", opened)


def _lane(folder: Path) -> _Lane | None:
    """A lane of the bus; None where nothing was ever written."""
    stamp = read_stamp(folder)
    if stamp is None:
        return None
    path = folder / _COMMITTED
    try:
        committed = int(path.read_bytes()) if path.exists() else 0
    except (OSError, ValueError) as exc:
        raise Corrupt(f"cannot read {path}: {exc}") from exc
    return _Lane(folder=folder, source=stamp.get("bus", ""), committed=committed)


def _copy_rest(folder: DataFolder, files: _Copies) -> None:
    """Everything else: heads of ledgers, ledgers, then what they name."""
    without = {folder.bus(lane) for lane in folder.bus_lanes} | {folder.warehouse, folder.path / LOST_AND_FOUND}
    state = folder.path / STATE_OF_FLINK
    if not is_stopped(state):
        without.add(state)
    found = list(_plain_files(folder.path, without))
    for path in sorted(found, key=lambda path: (_turn(path), path)):
        place = f"{DATA}/{path.relative_to(folder.path).as_posix()}"
        with suppress(FileNotFoundError):
            if path.suffix == _SQLITE:
                _copy_sqlite(path, place, files)
            else:
                with _opened(path) as opened:
                    files.copy(place, opened)


def _turn(path: Path) -> int:
    """A head names a line that is in its ledger already; a ledger names plans that are kept already."""
    if path.name.endswith(_HEAD):
        return 0
    return 1 if path.suffix == ".jsonl" and path.parent.name != "plans" else 2


def _plain_files(top: Path, without: set[Path]) -> Iterator[Path]:
    for path in sorted(top.iterdir()):
        if path in without or path.name.startswith(".") or path.name.endswith(".lock"):
            continue
        if path.is_symlink():
            raise Misconfigured(
                f"cannot back up {path}: it is a link to {path.readlink()}, which a back-up would be without; mount "
                "that place here, or move what it holds into the data folder"
            )
        if path.is_dir():
            yield from _plain_files(path, without)
        elif path.is_file() and not path.name.endswith(("-wal", "-shm", "-journal")):
            yield path


def _copy_sqlite(path: Path, place: str, files: _Copies) -> None:
    """A copy of one moment, with what SQLite keeps beside the file (sqlite.org/backup.html)."""
    with tempfile.NamedTemporaryFile(dir=files.target) as copy:
        try:
            with (
                closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as source,
                closing(sqlite3.connect(copy.name)) as target,
            ):
                source.backup(target)
        except sqlite3.Error as exc:
            raise Corrupt(f"cannot read {path}: {exc}") from exc
        with Path(copy.name).open("rb") as opened:
            files.copy(place, opened, mode=path.stat().st_mode)


def _opened(path: Path) -> IO[bytes]:
    """A file of what is backed up; one that is gone is the caller's to judge."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise Corrupt(f"cannot read {path}: {exc.strerror or exc}") from exc


def _check_target(folder: DataFolder, warehouse: Path, target: Path) -> None:
    if target.exists():
        held = "a back-up" if (target / LIST_NAME).exists() else "something"
        raise Misconfigured(f"cannot back up to {target}: it holds {held} already; name a folder that does not exist")
    for place in (folder.path, warehouse):
        if place.resolve() in target.resolve().parents:
            raise Misconfigured(f"cannot back up to {target}: it lies in {place}, which is what is backed up")


_STAMP = "FORMAT.json"


def restore_backup(
    backup: Path,
    data: Path,
    warehouse: Path,
    *,
    on_file: Callable[[int], None] = lambda _done: None,
) -> BackupList:
    """Copies a back-up to where it came from, or elsewhere, checking every byte; returns what was restored.

    The stamp that makes a folder a data folder is written last: what a kill leaves half restored is never used.

    Args:
        data: the data folder; missing or empty.
        warehouse: where the warehouse goes; missing or empty.
        on_file: called with the number of files that are done.

    Raises:
        Refused: something is there already.
        Corrupt: the back-up is damaged, foreign or of a newer schema, or the storage can't take it; nothing is left.
    """
    found = read_list(backup)
    places = {DATA: data, WAREHOUSE: warehouse}
    were_there = {place for place in places.values() if place.exists()}
    for place in places.values():
        if place.exists() and not (place.is_dir() and holds_nothing(place)):
            left = "" if (place / _STAMP).exists() else ", or remove what a restore that was killed has left there"
            raise Refused(
                f"cannot restore into {place}: it holds something; name an empty folder with --data-dir{left}"
            )
    stamp = f"{DATA}/{_STAMP}"
    # A stamp is what the folder counts by, so it comes last.
    ordered = sorted(found.files, key=lambda file: (file.path == stamp, file.path))
    is_whole = False
    try:
        # As a new data folder is: of its user alone.
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        for done, file in enumerate(ordered, start=1):
            top, _, below = file.path.partition("/")
            if file.path == stamp:
                _settle(places)
            target, pieces = places[top] / below, checked_pieces(backup, file)
            write_file(target, pieces, modified_ns=file.modified_ns, mode=file.mode)
            on_file(done)
        _settle(places)
        is_whole = True
    except OSError as exc:
        raise unwritable(data, exc) from exc
    finally:
        if not is_whole:
            for place in places.values():
                _empty(place)
                if place not in were_there:
                    shutil.rmtree(place, ignore_errors=True)
    return found


def _empty(folder: Path) -> None:
    """Removes what was restored so far; the root of a volume stays what it was."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and path.name != LOST_AND_FOUND:
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_file():
            path.unlink(missing_ok=True)


def _settle(places: dict[str, Path]) -> None:
    """Makes the names of all files durable."""
    for place in places.values():
        if place.is_dir():
            for folder in sorted({place, *(path for path in place.rglob("*") if path.is_dir())}, reverse=True):
                sync_folder(folder)
