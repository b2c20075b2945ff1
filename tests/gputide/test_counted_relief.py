"""A plan that counts on relief, from its making to its undo, and what the doctor says while none runs."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from fleet.data_folder import DataFolder, open_data_folder
from fleet.decisions import Plan
from fleet.documents import seal_plan
from fleet.durable import FolderLock
from fleet.settings.settings import Settings
from gputide.container.plans import journal, plan_store
from gputide.doctor.checks import run_checks
from gputide.doctor.data import data_checks
from gputide.doctor.finding import Diagnosis
from gputide.session import Session
from tests.dashboards.embedded import NOW
from tests.dashboards.test_stored_plans import PLAN, promoted
from tests.gputide.conftest import CUT, Program
from tests.waiting import until

COUNTING = seal_plan(replace(PLAN, totals=replace(PLAN.totals, unrelieved_violation_ratio=0.0114)))


def a_folder(path: Path, plan: Plan) -> DataFolder:
    """A data folder in which the first stage of a plan is in force."""
    folder = open_data_folder(path / "data", create=True)
    plan_store(folder).add(plan)
    promoted(folder, plan, 1)
    return folder


def looked(folder: DataFolder) -> Diagnosis:
    """What the doctor says of relief."""
    session = Session(data_path=folder.path, settings=Settings(), now_override=None, is_quiet=True)
    (found,) = run_checks([check for check in data_checks(session) if check.name == "relief"])
    return found


def test_doctor_names_an_applied_plan_that_counts_on_relief_while_none_runs(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, COUNTING)
    missing = looked(folder)
    assert missing.kind is not None
    assert (missing.kind.code, missing.mend) == ("relief-missing", "gputide run relief run --yes")
    assert COUNTING.plan_id.startswith(str(missing.subject))
    assert "without it 1.1 % " in str(missing.said)
    with FolderLock(folder.path, "relief"):
        assert looked(folder).kind is None
    assert looked(folder).kind is not None
    journal(folder).write(COUNTING.plan_id, NOW + timedelta(hours=1), "restored", stage=1, kept=[])
    assert looked(folder).kind is None


def test_doctor_asks_for_no_relief_where_the_plan_counts_on_none(tmp_path: Path) -> None:
    assert looked(a_folder(tmp_path, PLAN)).kind is None


def test_plan_that_counts_on_relief_is_applied_beside_it_and_relief_moves_its_pods(
    replayed: Path, small_fleet: Path, program: Program, tmp_path: Path
) -> None:
    counting = ("--set", "risk.counts_on_relief=true", "--set", "risk.preset=low")
    made = program(replayed, *counting, "plan", "make")
    assert "relief: the plan counts on `gputide run relief`, without it " in made.out, made.err
    assert program(replayed, "plan", "approve").status == 0
    refused = program(replayed, "apply", "--yes")
    assert (refused.status, "it counts on relief, and none runs" in refused.err) == (4, True)

    half = ("--set", "relief.full_ratio=0.5", "--set", "relief.relieved_ratio=0.5")
    beside = Program(tmp_path)
    relief = beside.start(replayed, *half, "run", "relief", "run", "--yes")
    try:
        until(lambda: "relief runs" in relief.err.read_text())
        # The watch takes hours of the replay's clock, in which nothing is recorded: relief waits for more.
        applied = program(replayed, "apply", "--yes")
        assert applied.status == 0, applied.err
        assert "not now: cannot read history" in relief.err.read_text()
        for since, end, said in ((CUT, "03:00", " moves away from "), (f"{CUT}T03:00", "03:10", " moved: ")):
            program(replayed, "admin", "replay", str(small_fleet), "--from", since, "--until", f"{CUT}T{end}")
            until(lambda said=said: said in relief.out.read_text())  # type: ignore[misc]
    finally:
        os.kill(relief.pid, signal.SIGTERM)
    assert relief.wait().status == 0
    beside.close()
    moves = program(replayed, "run", "relief", "show", "--format", "json").document["moves"]
    assert "done" in {move["state"] for move in moves}

    assert program(replayed, "doctor", "--only", "relief-missing").status == 1
    # Pods that relief moved sit on cards that an undo without a gap would need.
    assert program(replayed, "--set", "guard.gaps_allowed=true", "undo", "--yes").status == 0
    assert program(replayed, "doctor", "--only", "relief-missing").status == 0


def test_demo_that_would_count_on_relief_is_refused_before_it_plays(tmp_path: Path, program: Program) -> None:
    said = program(tmp_path / "demo", "--set", "risk.counts_on_relief=true", "demo", "--once")
    assert (said.status, "risk.counts_on_relief=true, expected false" in said.err) == (2, True)
    assert not (tmp_path / "demo").exists()
