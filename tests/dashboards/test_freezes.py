"""The freeze with its ledger: it says who set it, and it waits for no rollout."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dashboards.stored.changes import StoredFreezes, StoredOutcomes
from enforcer.record.ledger import Ledger
from enforcer.safety.freeze import freeze_changes, thaw_changes
from fleet.data_folder import open_data_folder, writing
from fleet.errors import Corrupt

NOW = datetime(2026, 1, 22, 9, 0, tzinfo=UTC)


def test_freeze_and_thaw_stand_in_the_ledger_with_who(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "data", create=True)
    freezes = StoredFreezes(folder, lambda: NOW)
    # A rollout holds the folder for writing while it runs: that is when somebody wants to stop it.
    with writing(folder):
        freezes.freeze("c1", "mei")
        freezes.freeze("c1", "second click")
    assert "mei" in (freezes.frozen_by("c1") or "")
    thaw_changes(folder, by="ada", at=NOW + timedelta(minutes=5))
    thaw_changes(folder, by="ada again", at=NOW + timedelta(minutes=6))
    assert freezes.frozen_by("c1") is None
    assert [(entry.actor, entry.action) for entry in StoredOutcomes(folder).ledger("c1")] == [
        ("ada", "thawed"),
        ("mei", "frozen"),
    ]
    assert Ledger(folder.freezes).verify() == 2


def test_thaw_that_cannot_be_written_down_is_not_done(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "data", create=True)
    freeze_changes(folder, by="mei", at=NOW)
    text = folder.freezes.read_text(encoding="utf-8")
    folder.freezes.write_text(text.replace("mei", "eve"), encoding="utf-8")
    with pytest.raises(Corrupt, match="entry 1"):
        thaw_changes(folder, by="eve", at=NOW)
    assert folder.freeze.exists()
    with pytest.raises(Corrupt):
        StoredOutcomes(folder).ledger("c1")
