"""The word for a plan's state says what stands in the cluster, and is the same in both lists."""

from __future__ import annotations

import pytest

from enforcer.record.journal import RunRecord, StageRecord, StageState
from enforcer.record.plan_status import ConditionType, plan_status
from enforcer.record.plan_store import Approval, Wish
from enforcer.record.shared_ledger import summary_of
from tests.enforcer.builders import NOW


def a_run(*states: StageState) -> RunRecord:
    """A run that ended, with its stages from 1 on."""
    records = {
        number: StageRecord(plan_id="p", stage=number, state=state) for number, state in enumerate(states, start=1)
    }
    return RunRecord(
        plan_id="p", stages=(1, 2), by="ann", began_at=NOW, cards_granted=frozenset(), records=records, is_open=False
    )


KEPT, BACK, UNDONE = StageState.PROMOTED, StageState.RESTORED, StageState.UNDONE


@pytest.mark.parametrize(
    ("runs", "plan", "changes"),
    [
        ([a_run(KEPT, KEPT)], "Applied", "Applied"),
        ([a_run(KEPT, BACK)], "PartlyApplied", "Applied"),
        ([a_run(BACK)], "Failed", "Failed"),
        ([a_run(UNDONE, BACK)], "Undone", "Undone"),
        ([a_run(UNDONE, UNDONE), a_run(BACK)], "Failed", "Failed"),
        ([a_run(KEPT, UNDONE), a_run()], "PartlyApplied", "Applied"),
    ],
)
def test_stages_in_force_come_before_what_was_taken_back(runs: list[RunRecord], plan: str, changes: str) -> None:
    assert plan_status([1, 2], (), runs, Wish()).state == plan
    assert summary_of(runs)["state"] == changes


def test_nobody_waits_for_a_stage_of_the_tide_to_be_in_force() -> None:
    tides = frozenset({3})
    wish = Wish(stages=frozenset({1, 2, 3}), generation=1)
    yes = (Approval(plan_id="p", stages=(3,), by="ann", at=NOW),)
    status = plan_status([1, 2, 3], yes, [a_run(KEPT, KEPT)], wish, tides=tides)
    assert (status.state, status.progress, status.applied, status.approved) == ("Applied", "2/2", (1, 2), (3,))
    (applied,) = (found for found in status.conditions if found.type is ConditionType.APPLIED)
    assert (applied.is_true, applied.reason) == (True, "Applied")
    assert (status.stages[2].state, "gputide run tide" in status.stages[2].reason) == ("tide", True)


def test_plan_that_is_undone_for_the_second_time_has_no_stage_of_the_first_run_in_force() -> None:
    runs = [a_run(KEPT), a_run(UNDONE)]
    assert summary_of(runs)["stages"] == ""
    assert plan_status([1, 2], (), runs, Wish()).applied == ()
