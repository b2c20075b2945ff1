"""What the plan page counts of a rollout is what was changed."""

from __future__ import annotations

import time
from pathlib import Path

from dashboards.queries import RolloutPhase
from fleet.settings.settings import Settings
from gputide.session import Session
from gputide.web import views_of

PATIENCE_SECONDS = 60.0


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
