"""Puts a back-up into an empty data folder, whole or not at all. Called by `gputide backup restore`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from fleet.durable import LOST_AND_FOUND, holds_nothing, sync_folder, unwritable
from fleet.errors import Refused
from gputide.operate.backup_list import DATA, WAREHOUSE, BackupList, checked_pieces, read_list, write_file

_STAMP = "FORMAT.json"


def restore_backup(
    backup: Path,
    data: Path,
    warehouse: Path,
    *,
    on_file: Callable[[int], None] = lambda _done: None,
) -> BackupList:
    """Copies a back-up to where it came from, or elsewhere, checking every byte.

    The stamp that makes a folder a data folder is written last: what a kill leaves half restored is never used.

    Args:
        backup: the back-up.
        data: the data folder; missing or empty.
        warehouse: where the warehouse goes; missing or empty.
        on_file: called with the number of files that are done.

    Returns:
        What was restored.

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
