"""A plan that counts on relief, from its making to its undo, and what the doctor says while none runs."""

from __future__ import annotations

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
