"""The freeze with its ledger: who threw it stands there, and it waits for no rollout."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from enforcer.record.ledger import Ledger
from fleet.data_folder import open_data_folder, writing
from fleet.errors import Corrupt
from gputide.freeze_desk import StoredFreezes, freeze_changes, thaw_changes, told_freezes
from gputide.outcome_shelf import StoredOutcomes

NOW = datetime(2026, 1, 22, 9, 0, tzinfo=UTC)


def test_freeze_and_thaw_stand_in_the_ledger_with_who(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "data", create=True)
    desk = StoredFreezes(folder, lambda: NOW)
    # A rollout holds the folder for writing while it runs: that is when somebody wants to stop it.
    with writing(folder):
        desk.freeze("c1", "mei")
        desk.freeze("c1", "second click")
    assert "mei" in (desk.frozen_by("c1") or "")
    thaw_changes(folder, by="ada", at=NOW + timedelta(minutes=5))
    thaw_changes(folder, by="ada again", at=NOW + timedelta(minutes=6))
    assert desk.frozen_by("c1") is None
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
        told_freezes(folder)
