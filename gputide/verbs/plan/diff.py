"""`gputide plan diff`: what applying a plan would change, object by object."""

from __future__ import annotations

import typer

from gputide.answers.plan import preview_answer
from gputide.container.cluster import NO_CLUSTER, is_known, own_cluster
from gputide.container.plans import chosen_plan, chosen_stages, copied_plans, previewed
from gputide.options import PlanOption, StageOption, answering
from gputide.output import Answer
from gputide.session import Session

app = typer.Typer()


@app.command(epilog="Example: gputide plan diff --stage 1")
@answering
def diff(
    session: Session,
    plan: PlanOption = None,
    stage: StageOption = None,
) -> Answer:
    """Show what applying would change in the cluster, object by object; changes nothing."""
    folder = session.folder()
    copied_plans(folder, session.settings)
    chosen = chosen_plan(folder, plan, cluster=own_cluster(folder, session.settings))
    settings = session.settings
    found = previewed(folder, settings, session.now(), chosen, chosen_stages(chosen, stage), rehearses=True)
    return preview_answer(chosen, found, no_cluster=None if is_known(folder, settings) else NO_CLUSTER)
