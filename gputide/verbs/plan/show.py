"""`gputide plan show`: a plan that was made."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from enforcer.forge.pull_request import branch_of, open_forge
from enforcer.record.request_log import RequestLog
from fleet.data_folder import writing
from fleet.documents import document
from fleet.errors import NotEnoughData
from gputide.answers.plan import plan_answer
from gputide.answers.pull_request import kept_line
from gputide.answers.routers import routers_answer
from gputide.answers.tiers import tiers_promised
from gputide.container.plans import chosen_plan, copied_plans
from gputide.options import AnyClusterOption, PlanOption, answering
from gputide.output import Answer
from gputide.session import Session

app = typer.Typer()


@app.command(epilog="Example: gputide plan show --plan 7f3a --format json")
@answering
def show(
    session: Session,
    plan: PlanOption = None,
    cluster: AnyClusterOption = None,
    routers: Annotated[
        bool, typer.Option("--routers", help="Show what routers of its sleeping models need, for the chart.")
    ] = False,
    is_asked: Annotated[
        bool, typer.Option("--pull-request", help="Ask the forge first what became of its pull request.")
    ] = False,
) -> Answer:
    """Show a plan; without --plan the newest, of any cluster unless one is named."""
    copied_plans(session.folder(), session.settings)
    chosen = chosen_plan(session.folder(), plan, cluster=cluster)
    if routers:
        return routers_answer(chosen)
    log = RequestLog(session.folder())
    if is_asked:
        found = open_forge(session.settings.forge).newest(branch_of(chosen.plan_id))
        if found is None:
            raise NotEnoughData(f"plan {chosen.short_id} has no request in {session.settings.forge.repository}")
        with writing(session.folder()):
            log.see(chosen.plan_id, found, session.now())
    kept = log.newest(chosen.plan_id)
    notes = tiers_promised(chosen, session.settings.guarantees)
    if kept is None:
        return plan_answer(chosen, notes)
    shown = plan_answer(chosen, (*notes, kept_line(kept)))
    return replace(shown, document={**shown.document, "pull_request": document(kept)})
