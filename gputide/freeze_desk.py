"""The big red switch with its own ledger: who stopped every change from this data folder, and who let them go on.

`gputide apply --freeze`, the pages and the API throw it. Its ledger is a file of its own: a freeze must not wait for
the rollout that it stops, and that one holds the ledger of changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from dashboards.queries import LedgerEntry
from enforcer.record.ledger import Ledger
from enforcer.safety.freeze import freeze, frozen_by, lift
from fleet.data_folder import DataFolder
from fleet.durable import FolderLock

_FROZEN, _THAWED = "frozen", "thawed"


class StoredFreezes:
    """`Freezes` over a data folder: one switch for every cluster that is changed from it.

    Args:
        folder: data folder.
        now: the clock of the data.
    """

    def __init__(self, folder: DataFolder, now: Callable[[], datetime]) -> None:
        self._folder = folder
        self._now = now

    def frozen_by(self, cluster: str) -> str | None:
        """Who stopped every change, and when; None where nobody did."""
        del cluster
        return frozen_by(self._folder.freeze)

    def freeze(self, cluster: str, by: str) -> None:
        """Stop every change; see `freeze_changes`."""
        del cluster
        freeze_changes(self._folder, by=by, at=self._now())

    def thaw(self, cluster: str, by: str) -> None:
        """Let changes go on; see `thaw_changes`."""
        del cluster
        thaw_changes(self._folder, by=by, at=self._now())


def freeze_changes(folder: DataFolder, *, by: str, at: datetime) -> None:
    """Stop every change from now on; the switch is thrown before anything is written about it.

    Args:
        folder: data folder.
        by: who.
        at: when, UTC.

    Raises:
        Corrupt: storage can't take the switch or the ledger.
        Unavailable: another process throws it at this moment.
    """
    if frozen_by(folder.freeze) is None:
        freeze(folder.freeze, by=by, at=at)
        _note(folder, _FROZEN, by, at)


def thaw_changes(folder: DataFolder, *, by: str, at: datetime) -> None:
    """Let changes go on; what can't be written down is not done.

    Args:
        folder: data folder.
        by: who.
        at: when, UTC.

    Raises:
        Corrupt: storage can't take the ledger.
        Unavailable: another process throws it at this moment.
    """
    if frozen_by(folder.freeze) is not None:
        _note(folder, _THAWED, by, at)
        lift(folder.freeze)


def told_freezes(folder: DataFolder) -> tuple[LedgerEntry, ...]:
    """Every time that the switch was thrown, oldest first.

    Raises:
        Corrupt: the ledger was edited.
    """
    return tuple(
        LedgerEntry(
            at=entry.at,
            actor=str(entry.content["by"]),
            action=entry.event,
            plan_id="",
            subject="every change",
            detail="stopped" if entry.event == _FROZEN else "allowed again",
        )
        for entry in Ledger(folder.freezes).entries()
    )


def _note(folder: DataFolder, event: str, by: str, at: datetime) -> None:
    lock = FolderLock(folder.path, "freeze-writer")
    try:
        Ledger(folder.freezes).append([(event, {"by": by})], plan_id="", at=at)
    finally:
        lock.release()
