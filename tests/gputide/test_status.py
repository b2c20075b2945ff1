"""`gputide status` says what is running, which plan waits, and what to type next."""

from __future__ import annotations

import os
from pathlib import Path

from fleet.durable import FolderLock, lock_holder
from tests.gputide.conftest import Program


def test_the_holder_of_a_lock_is_named_while_it_holds_it(tmp_path: Path) -> None:
    assert lock_holder(tmp_path / "relief.lock") is None
    with FolderLock(tmp_path, "relief"):
        assert lock_holder(tmp_path / "relief.lock") == str(os.getpid())
    assert lock_holder(tmp_path / "relief.lock") is None


def test_status_names_the_plan_that_waits_and_the_next_command(planned: Path, program: Program) -> None:
    with FolderLock(planned, "relief"):
        said = program(planned, "status", "--format", "json")
    assert said.status == 0, said.err
    (cluster,) = said.document["clusters"]
    assert said.document["running"] == [{"process": "relief", "pid": str(os.getpid())}]
    assert "waits for approval" in cluster["state"]
    assert said.document["next"] == f"gputide plan diff --plan {cluster['plan_id'][:12]}"
    assert program(planned, "plan", "approve", "--stage", "1").status == 0
    after = program(planned, "status")
    assert "next: gputide apply --plan" in after.out
    assert "no service over its harm budget" in after.out
