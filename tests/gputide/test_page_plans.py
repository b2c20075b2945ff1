"""Previews and rollouts as the plan page shows them."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dashboards.queries import STAGE_KIND, RolloutPhase
from enforcer.simulated.cluster import SimulatedCluster
from fleet.settings.settings import Settings
from gputide.container.pages import views_of
from gputide.session import Session
from tests.gputide.conftest import Program

PATIENCE_SECONDS = 60.0


def test_stage_that_cannot_be_made_is_shown_as_refused_and_not_as_nothing_to_change(planned: Path) -> None:
    with closing(SimulatedCluster.open(planned / "cluster.sqlite")) as lost:
        for node in lost.list_objects("Node"):
            lost.delete("Node", "", node["metadata"]["name"])
    views = views_of(Session(data_path=planned, settings=Settings(), now_override=None, is_quiet=True))
    (cluster,) = views.fleet.clusters()
    plan = views.plans.plans(cluster)[0].plan
    found = views.plans.preview(plan.plan_id, ())
    refused = [item for item in found if item.kind == STAGE_KIND]
    assert refused
    assert {item.name for item in refused} <= {str(stage.stage) for stage in plan.stages}
    assert all("gone" in str(item.refusal) for item in refused)


def test_rollout_that_ended_counts_the_workloads_that_it_changed(planned: Path) -> None:
    views = views_of(Session(data_path=planned, settings=Settings(), now_override=None, is_quiet=True))
    (cluster,) = views.fleet.clusters()
    plan = views.plans.plans(cluster)[0].plan
    stage = (plan.stages[0].stage,)
    views.plans.approve(plan.plan_id, stage, "mei")
    views.rollouts.apply(plan.plan_id, stage, "mei")
    ends = time.monotonic() + PATIENCE_SECONDS
    while (found := views.rollouts.progress(plan.plan_id)).is_running and time.monotonic() < ends:
        time.sleep(0.05)
    assert found.phase is RolloutPhase.DONE
    assert (found.done, found.total) == (len(found.objects), len(found.objects))
    assert found.objects


def test_undone_plan_has_the_moment_of_its_undo_and_the_stages_that_once_stood(planned: Path, program: Program) -> None:
    for words in (("plan", "approve"), ("apply", "--yes"), ("undo", "--yes")):
        assert program(planned, *words).status == 0
    later = datetime.now(UTC) + timedelta(days=30)
    views = views_of(Session(data_path=planned, settings=Settings(), now_override=later, is_quiet=True))
    (cluster,) = views.fleet.clusters()
    entry = views.plans.plans(cluster)[0]
    assert entry.undone_at is not None
    assert entry.undone_at < later - timedelta(days=20)
    assert entry.applied_stages == ()
    assert entry.once_applied_stages == entry.plan.rollout_stages
    applied = [line.cards for line in views.outcomes.ledger(cluster) if line.action == "applied"]
    assert sum(applied) == entry.plan.totals.cards_freed
