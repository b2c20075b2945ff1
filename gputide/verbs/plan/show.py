"""`gputide plan show`: a plan that was made."""

from __future__ import annotations

from typing import Annotated

import typer

from gputide.answers.plan import plan_answer
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
) -> Answer:
    """Show a plan; without --plan the newest, of any cluster unless one is named."""
    copied_plans(session.folder(), session.settings)
    chosen = chosen_plan(session.folder(), plan, cluster=cluster)
    if routers:
        return routers_answer(chosen)
    return plan_answer(chosen, tiers_promised(chosen, session.settings.guarantees))
