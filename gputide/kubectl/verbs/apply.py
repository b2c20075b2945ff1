"""`kubectl gputide apply`: carries out approved stages, as `gputide apply` does.

Without what that keeps in its data folder: here that is a copy in a cache, and a freeze of it would stop nobody.
"""

from __future__ import annotations

import typer

from gputide.options import ByOption, FormatOption, OutputOption, PlanOption, StageOption, YesOption
from gputide.output import Format
from gputide.verbs.apply import apply as apply_stages

app = typer.Typer()


@app.command(epilog="Example: kubectl gputide apply --stage 1 --yes")
def apply(
    context: typer.Context,
    plan: PlanOption = None,
    stage: StageOption = None,
    yes: YesOption = False,
    by: ByOption = None,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Apply approved stages: canary, watch, the rest, watch, keep or restore. Without --yes nothing is changed."""
    apply_stages(context, plan=plan, stage=stage, yes=yes, by=by, form=form, output=output)
