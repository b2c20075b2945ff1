"""`gputide plan show`: a plan that was made."""

from __future__ import annotations

import typer

from gputide.answers.plan import plan_answer
from gputide.container.plans import chosen_plan, copied_plans
from gputide.options import (
    AnyClusterOption,
    FormatOption,
    OutputOption,
    PlanOption,
)
from gputide.output import Format, print_answer
from gputide.session import session_of

app = typer.Typer()


@app.command(epilog="Example: gputide plan show --plan 7f3a --format json")
def show(
    context: typer.Context,
    plan: PlanOption = None,
    cluster: AnyClusterOption = None,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Show a plan; without --plan the newest, of any cluster unless one is named."""
    session = session_of(context)
    copied_plans(session.folder(), session.settings)
    print_answer(plan_answer(chosen_plan(session.folder(), plan, cluster=cluster)), form=form, target=output)
