"""A service's harm budget slows, stops or takes back what spends it too fast."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from enforcer.record.journal import StageState
from enforcer.safety.harm_budget import (
    LONG_SPAN,
    SHORT_SPAN,
    Brake,
    Harm,
    HarmBudgets,
    judge_workload,
)
from fleet.errors import Refused
from fleet.inventory import WorkloadId
from fleet.settings.guard import GuardSettings
from tests.enforcer.builders import NOW, a_cluster, a_rollout, some_tools, standard_plan, where

A = WorkloadId("team/Deployment/a")
POLICY = GuardSettings()


def harm(ratio: float, steps: int = 10_000) -> Harm:
    return Harm(active_steps=steps, violated_steps=round(ratio * steps))


@pytest.mark.parametrize(
    ("short", "long", "whole", "brake"),
    [
        (0.2, 0.2, 0.0, Brake.RESTORE),
        (0.2, 0.05, 0.0, Brake.FREEZE),
        (0.05, 0.2, 0.0, Brake.FREEZE),
        (0.2, 0.0, 0.0, Brake.NONE),
        (0.0, 0.2, 0.0, Brake.NONE),
        (0.015, 0.015, 0.0, Brake.SLOW),
        (0.0, 0.0, 0.01, Brake.FREEZE),
        (0.0, 0.0, 0.009, Brake.NONE),
    ],
)
def test_burn_rate_of_both_spans_decides_and_a_spent_budget_stops(
    short: float, long: float, whole: float, brake: Brake
) -> None:
    found = judge_workload(A, (harm(short), harm(long), harm(whole)), POLICY)
    assert found.brake is brake
    assert bool(found.reason) is (brake is not Brake.NONE)


def test_workload_that_was_never_active_or_never_measured_asks_for_nothing() -> None:
    silent = Harm(active_steps=0, violated_steps=0)
    assert silent.ratio is None
    assert judge_workload(A, (silent, harm(0.5), None), POLICY).brake is Brake.NONE
    assert judge_workload(A, (None, None, None), POLICY).brake is Brake.NONE


def test_reason_names_workload_value_limit_and_setting() -> None:
    found = judge_workload(A, (harm(0.2), harm(0.2), None), POLICY)
    assert str(found.reason) == (
        "team/Deployment/a spends its harm budget 20.0 times too fast, limit guard.harm_restore_burn=14 "
        "(guard.harm_ratio_max=0.01)"
    )


def test_first_hours_spend_only_their_part_of_the_budget() -> None:
    seen = (harm(0.0), harm(0.0), harm(0.05))
    assert judge_workload(A, seen, POLICY, part=0.1).brake is Brake.NONE
    found = judge_workload(A, seen, POLICY, part=0.2)
    assert found.brake is Brake.FREEZE
    assert "has spent its harm budget of 28 days: 100% of guard.harm_ratio_max=0.01" in str(found.reason)


class Records:
    """Harm of one ratio for every workload asked for, from a moment on."""

    def __init__(self, ratio: float, workloads: tuple[WorkloadId, ...] = (A,)) -> None:
        self.ratio = ratio
        self.workloads = workloads
        self.spans: list[timedelta] = []

    def harm(self, since: datetime, until: datetime) -> Mapping[WorkloadId, Harm]:
        self.spans.append(until - since)
        return {workload: harm(self.ratio) for workload in self.workloads}


def test_harm_of_before_the_plan_is_not_its_doing_and_weeks_are_read_once() -> None:
    records = Records(0.0)
    budgets = HarmBudgets(records, POLICY)
    budgets.judge([A], NOW - timedelta(minutes=20), NOW)
    assert records.spans == [timedelta(minutes=20)] * 3
    records.spans.clear()
    budgets.judge([A], NOW - timedelta(days=400), NOW + timedelta(minutes=10))
    assert records.spans == [SHORT_SPAN, LONG_SPAN]
    records.spans.clear()
    budgets.judge([A], NOW - timedelta(days=400), NOW + timedelta(hours=2))
    assert records.spans == [SHORT_SPAN, LONG_SPAN, timedelta(days=28)]


def test_worst_workload_decides() -> None:
    b = WorkloadId("team/Deployment/b")
    budgets = HarmBudgets(Records(0.2, (A,)), POLICY)
    assert budgets.judge([b], NOW - timedelta(days=1), NOW).brake is Brake.NONE
    assert budgets.judge([b, A], NOW - timedelta(days=1), NOW).brake is Brake.RESTORE


def test_rollout_takes_back_the_stage_that_harms(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    before = where(cluster)
    records = Records(0.0)

    def harm_after_canary(step: str) -> None:
        if step == "watched canary":
            records.ratio = 0.5

    tools = some_tools(cluster, tmp_path, harm=HarmBudgets(records, POLICY), step=harm_after_canary)
    (result,) = a_rollout(tools).apply(standard_plan(), [2], by="ann")
    assert result.state is StageState.RESTORED
    assert "guard.harm_restore_burn=14" in str(result.reason)
    assert where(cluster) == before


def test_rollout_stops_for_a_while_and_goes_on_when_the_burn_is_over(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    records = Records(0.0)

    def harm_after_canary(step: str) -> None:
        if step == "watched canary":
            records.ratio = 0.05

    tools = some_tools(cluster, tmp_path, harm=HarmBudgets(records, POLICY), step=harm_after_canary)
    with pytest.raises(Refused, match=r"guard\.harm_freeze_burn=4"):
        a_rollout(tools).apply(standard_plan(), [2], by="ann")
    assert [run.is_open for run in tools.journal.runs()] == [True]
    records.ratio = 0.0
    calm = some_tools(cluster, tmp_path, harm=HarmBudgets(records, POLICY))
    (result,) = a_rollout(calm).resume(standard_plan())
    assert result.state is StageState.PROMOTED


def test_rollout_goes_one_workload_at_a_time_while_a_budget_burns(tmp_path: Path) -> None:
    sizes = {}
    for name, ratio in (("calm", 0.0), ("burning", 0.02)):
        folder = tmp_path / name
        folder.mkdir()
        cluster = a_cluster(folder)
        tools = some_tools(cluster, folder, harm=HarmBudgets(Records(ratio), POLICY))
        (result,) = a_rollout(tools).apply(standard_plan(), [2], by="ann")
        assert result.state is StageState.PROMOTED
        waves = [entry.content["pods"] for entry in tools.journal._ledger.entries() if entry.event == "evict"]
        sizes[name] = max(len({pod.rsplit("-", 1)[0] for pod in wave}) for wave in waves)
    assert sizes["burning"] == 1 < sizes["calm"]
