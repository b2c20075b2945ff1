"""`gputide status` says what is running, which plan waits, and what to type next."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from fleet.data_folder import open_data_folder
from fleet.decisions import RecommendationKind
from fleet.documents import seal_plan
from fleet.durable import FolderLock, lock_holder
from gputide.container.plans import plan_store
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


def test_status_of_a_plan_that_is_a_tide_alone(planned: Path, program: Program, tmp_path: Path) -> None:
    folder = open_data_folder(shutil.copytree(planned, tmp_path / "own"), create=False)
    newest = plan_store(folder).newest()
    assert newest is not None
    tide = replace(newest.recommendations[0], id="tide-1", kind=RecommendationKind.TIDE)
    stage = replace(newest.stages[0], stage=1, recommendations=("tide-1",), cards_freed=0, moves=0)
    plan = seal_plan(replace(newest, recommendations=(tide,), stages=(stage,)))
    plan_store(folder).add(plan)
    with FolderLock(folder.path, "tide"):
        said = program(folder.path, "status", "--format", "json").document
    assert said["running"] == [{"process": "the tide", "pid": str(os.getpid())}]
    (cluster,) = said["clusters"]
    assert cluster["state"] == f"{plan.short_id}: its tide waits for approval"
    assert said["next"] == f"gputide plan approve --plan {plan.short_id} --stage 1"
    assert program(folder.path, *said["next"].split()[1:]).status == 0
    (cluster,) = program(folder.path, "status", "--format", "json").document["clusters"]
    assert cluster["state"] == f"{plan.short_id}: its tide is approved"
