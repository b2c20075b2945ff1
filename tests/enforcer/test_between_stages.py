"""Before each stage of a run is begun it is asked again whether it may be: hours may have passed since the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from enforcer.cluster import FieldChange
from enforcer.record.plan_store import Approval
from enforcer.rollout.run_context import RunContext
from enforcer.safety.change_window import ChangeWindow
from enforcer.safety.guard import FREEZE_NAME, FREEZE_NAMESPACE, Guard, GuardPolicy
from enforcer.simulated.cluster import SimulatedCluster
from fleet.decisions import Plan
from fleet.documents import seal_plan
from fleet.errors import Refused
from tests.enforcer.builders import NOW, a_cluster, a_rollout, a_yes, some_tools, standard_plan, where
from tests.enforcer.test_rollout import STAGE_1, Killed

NEEDS_APPROVAL = GuardPolicy(gaps_allowed=True)
UNTIL_ONE = ChangeWindow(begin=time(0), end=time(1), time_zone=ZoneInfo("UTC"))


class Site:
    """A run of two stages; `meanwhile` happens once the first is kept."""

    def __init__(self, folder: Path, meanwhile: Callable[[Site], object], policy: GuardPolicy = NEEDS_APPROVAL) -> None:
        self.cluster: SimulatedCluster = a_cluster(folder)
        self.plan: Plan = standard_plan()
        self.approved = [*a_yes(self.plan, 1), *a_yes(self.plan, 2)]
        self._meanwhile = meanwhile
        self.tools: RunContext = some_tools(self.cluster, folder, guard=Guard(policy), step=self._step)

    def _step(self, step: str) -> None:
        if step == "promote 1":
            self._meanwhile(self)

    def opt_out(self) -> None:
        owner = self.cluster.get("Deployment", "team", "a")
        assert owner is not None
        change = FieldChange(field="metadata.annotations[gputide.io/opt-out]", value="true")
        self.cluster.patch("Deployment", "team", "a", [change], owner["metadata"]["resourceVersion"])

    def apply(self) -> None:
        a_rollout(self.tools).apply(self.plan, by="ann", approved=lambda: self.approved)

    def is_left_with_the_first_stage(self) -> bool:
        runs = self.tools.journal.runs(self.plan.plan_id)
        return where(self.cluster) == STAGE_1 and not any(run.is_open for run in runs)


def test_stage_whose_approval_is_withdrawn_while_an_earlier_one_runs_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, lambda site: site.approved.pop())
    with pytest.raises(Refused, match=r"\[2\]"):
        site.apply()
    assert site.is_left_with_the_first_stage()


def test_approval_that_one_of_two_people_withdraws_counts_for_the_cards_of_the_whole_run(tmp_path: Path) -> None:
    policy = replace(NEEDS_APPROVAL, two_approvals_cards_min=4)

    def withdraw(_: Site) -> None:
        people.pop()

    site = Site(tmp_path, withdraw, policy)
    people = [Approval(plan_id=site.plan.plan_id, stages=(1, 2), by=by, at=NOW) for by in ("ann", "bob")]
    with pytest.raises(Refused, match=r"guard\.two_approvals_cards_min=4"):
        a_rollout(site.tools).apply(site.plan, by="ann", approved=lambda: people)
    assert site.is_left_with_the_first_stage()


def test_workload_that_opts_out_while_an_earlier_stage_runs_is_left_alone(tmp_path: Path) -> None:
    site = Site(tmp_path, Site.opt_out)
    with pytest.raises(Refused, match="team/Deployment/a"):
        site.apply()
    assert site.is_left_with_the_first_stage()


def test_plan_that_expires_and_hours_that_end_while_a_stage_runs_stop_the_next(tmp_path: Path) -> None:
    def wait(site: Site) -> None:
        site.cluster.pause(2 * 3600.0)

    soon = Site(tmp_path / "soon", wait)
    soon.plan = seal_plan(replace(soon.plan, expires_at=NOW + timedelta(hours=1)))
    with pytest.raises(Refused, match="expired"):
        soon.apply()
    assert soon.is_left_with_the_first_stage()
    late = Site(tmp_path / "late", wait, replace(NEEDS_APPROVAL, window=UNTIL_ONE))
    with pytest.raises(Refused, match=r"guard\.change_hours=00:00-01:00"):
        late.apply()
    assert late.is_left_with_the_first_stage()


def test_freeze_between_two_stages_leaves_no_stage_open(tmp_path: Path) -> None:
    def freeze(site: Site) -> None:
        metadata = {"namespace": FREEZE_NAMESPACE, "name": FREEZE_NAME}
        site.cluster.make({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})

    site = Site(tmp_path, freeze)
    with pytest.raises(Refused, match="gputide-freeze"):
        site.apply()
    assert site.is_left_with_the_first_stage()


def test_run_that_a_crash_left_between_two_stages_is_not_gone_on_with_once_it_may_not_be(tmp_path: Path) -> None:
    def die(_: Site) -> None:
        raise Killed

    site = Site(tmp_path, die)
    with pytest.raises(Killed):
        site.apply()
    site.approved.pop()
    site.tools.step = lambda _: None
    with pytest.raises(Refused):
        a_rollout(site.tools).resume(site.plan, approved=lambda: site.approved)
    assert site.is_left_with_the_first_stage()
