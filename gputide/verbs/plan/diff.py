"""`gputide plan diff`: what applying a plan would change, object by object."""

from __future__ import annotations

import typer

from gputide.container.cluster import own_cluster
from gputide.container.plans import chosen_plan
from gputide.options import (
    FormatOption,
    OutputOption,
    PlanOption,
    StageOption,
)
from gputide.output import Format, print_answer
from gputide.session import session_of
from gputide.stages import chosen_stages, preview_of

app = typer.Typer()


@app.command(epilog="Example: gputide plan diff --stage 1")
def diff(
    context: typer.Context,
    plan: PlanOption = None,
    stage: StageOption = None,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Show what applying would change in the cluster, object by object; changes nothing."""
    session = session_of(context)
    folder = session.folder()
    chosen = chosen_plan(folder, plan, cluster=own_cluster(folder, session.settings))
    preview = preview_of(folder, session.settings, session.now(), chosen, chosen_stages(chosen, stage))
    print_answer(preview, form=form, target=output)
