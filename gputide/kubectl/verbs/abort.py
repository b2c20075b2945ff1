"""`kubectl gputide abort`: takes back the stage that is under way, as `gputide apply --abort` does."""

from __future__ import annotations

import typer

from gputide.options import FormatOption, OutputOption, PlanOption, YesOption
from gputide.output import Format
from gputide.verbs.apply import apply

app = typer.Typer()


@app.command(epilog="Example: kubectl gputide abort --yes")
def abort(
    context: typer.Context,
    plan: PlanOption = None,
    yes: YesOption = False,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Take back the stage that is under way, in whichever process, and stop; stages that were kept stay."""
    apply(context, plan=plan, is_abort=True, yes=yes, form=form, output=output)
