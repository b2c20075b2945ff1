"""Which news were sent to whom, kept in a file, so that a restart sends nothing twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from dashboards.notify.digest import Told
from fleet.documents import document
from fleet.durable import FolderLock, unwritable, write_durably
from fleet.errors import Corrupt
from fleet.settings.faults import fault_words

_FILE = "sent.json"


class Memory:
    """The news sent so far, in a folder; one process at a time may hold it.

    Args:
        folder: made where it is missing.
        remember_days: older news are forgotten.

    Raises:
        Unavailable: another process holds it.
        Corrupt: the folder can't be written, or its file can't be read.
    """

    def __init__(self, folder: Path, *, remember_days: int) -> None:
        self._path = folder / _FILE
        self._remember = timedelta(days=remember_days)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise unwritable(folder, exc) from exc
        self._lock = FolderLock(folder, "notify")
        try:
            self._told = read_told(folder)
        except Corrupt:
            self._lock.release()
            raise

    @property
    def told(self) -> tuple[Told, ...]:
        """What was sent, oldest first."""
        return self._told

    def keep(self, more: Sequence[Told], now: datetime) -> None:
        """Add what was sent, durably.

        Raises:
            Corrupt: the file can't be written.
        """
        self._told = tuple(one for one in (*self._told, *more) if now - one.at <= self._remember)
        content = [document(one) for one in self._told]
        write_durably(self._path, json.dumps(content, ensure_ascii=False).encode())

    def close(self) -> None:
        """Let another process have it."""
        self._lock.release()


def read_told(folder: Path) -> tuple[Told, ...]:
    """What was sent, oldest first, without holding the folder.

    Raises:
        Corrupt: the file can't be read.
    """
    path = folder / _FILE
    try:
        return tuple(TypeAdapter(list[Told]).validate_json(path.read_bytes()))
    except FileNotFoundError:
        return ()
    except (OSError, ValidationError) as exc:
        fault = fault_words(exc) if isinstance(exc, ValidationError) else exc
        raise Corrupt(f"cannot read {path}: {fault}; move it away to begin anew: messages are then sent again") from exc
