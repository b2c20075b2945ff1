"""The freeze of a data folder: while its file is there, nothing is applied or undone, and a ledger says who set it.

`gputide apply --freeze`, the pages and the API set and lift it; the guard looks for it before every batch. In the
cluster a ConfigMap does the same (see `guard`). The ledger is a file of its own, because a rollout holds the ledger of
changes while it runs, and a freeze must not wait for the rollout that it stops.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from enforcer.record.ledger import ledger_at
from fleet.data_folder import DataFolder
from fleet.durable import FolderLock
from fleet.errors import Corrupt
from fleet.units import format_time

FROZEN, THAWED = "frozen", "thawed"
"""Events of the ledger of freezes."""


def freeze(path: Path, *, by: str, at: datetime) -> None:
    """Stop every change from now on.

    Raises:
        Corrupt: storage can't take the file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{by} at {format_time(at)}\n", encoding="utf-8")
    except OSError as exc:
        raise Corrupt(f"cannot freeze by {path}: {exc.strerror}") from exc


def lift(path: Path) -> None:
    """Allow changes again; does nothing where none was forbidden.

    Raises:
        Corrupt: storage keeps the file.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as exc:
        raise Corrupt(f"cannot lift the freeze of {path}: {exc.strerror}") from exc


def frozen_by(path: Path) -> str | None:
    """Who froze this machine and when; None where nobody did. A file that can't be read freezes too."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or "somebody"
    except FileNotFoundError:
        return None
    except OSError:
        return "somebody"


def freeze_changes(folder: DataFolder, *, by: str, at: datetime) -> None:
    """Stop every change from now on; the file is set before the ledger is written.

    Raises:
        Corrupt: storage can't take the file or the ledger.
        Unavailable: another process freezes or thaws at this moment.
    """
    if frozen_by(folder.freeze) is None:
        freeze(folder.freeze, by=by, at=at)
        _note(folder, FROZEN, by, at)


def thaw_changes(folder: DataFolder, *, by: str, at: datetime) -> None:
    """Let changes go on; where the ledger can't be written, the freeze stays.

    Raises:
        Corrupt: storage can't take the ledger.
        Unavailable: another process freezes or thaws at this moment.
    """
    if frozen_by(folder.freeze) is not None:
        _note(folder, THAWED, by, at)
        lift(folder.freeze)


def _note(folder: DataFolder, event: str, by: str, at: datetime) -> None:
    lock = FolderLock(folder.path, "freeze-writer")
    try:
        ledger_at(folder, folder.freezes).append([(event, {"by": by})], plan_id="", at=at)
    finally:
        lock.release()
