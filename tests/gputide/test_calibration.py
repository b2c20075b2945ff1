"""What came of earlier plans makes the next one more careful, through the real program."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from enforcer.record.outcome_store import keep_outcome
from fleet.data_folder import open_data_folder
from fleet.outcomes import WorkloadOutcome
from gputide.container.plans import plan_store
from tests.gputide.conftest import Program
from tests.recommender.test_past_outcomes import outcome


def test_plan_that_harmed_more_than_foretold_is_remembered(planned: Path, program: Program) -> None:
    folder = open_data_folder(planned, create=False)
    (plan,) = plan_store(folder).plans()
    before = program(planned, "plan", "make", "--what-if", "plan.spare_card_ratio=0.0", "--format", "json").document
    assert before["calibration_ratio"] == 1.0
    changed = plan.recommendations[0].workloads[0]
    harmed = WorkloadOutcome(
        workload=changed, predicted_violation_ratio=0.01, violation_ratio=0.03, active_steps=1_000_000,
        cause="contention",
    )  # fmt: skip
    kept = replace(
        outcome(0.01, 0.03), plan_id=plan.plan_id, since=plan.created_at,
        until=plan.created_at + timedelta(days=7), workloads=(harmed,),
    )  # fmt: skip
    keep_outcome(folder, kept)
    after = program(planned, "plan", "make", "--what-if", "plan.spare_card_ratio=0.0", "--format", "json").document
    assert 2.9 < after["calibration_ratio"] < 3.0
    assert after["totals"]["predicted_violation_ratio"] <= 0.005
    assert after["totals"]["cards_after"] >= before["totals"]["cards_after"]
    assert after["inputs_sha256"] != before["inputs_sha256"]
    said = program(planned, "plan", "make", "--what-if", "plan.spare_card_ratio=0.0")
    assert "earlier plans" in said.out
