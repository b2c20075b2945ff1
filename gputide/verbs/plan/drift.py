"""`gputide plan drift`: what is not as applied plans left it, and its repair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from enforcer.reconcile import Drift, find_drift
from enforcer.reconcile import repair as write_again
from fleet.data_folder import writing
from fleet.documents import document
from fleet.errors import EXIT_FINDINGS
from gputide.container.enforcer import open_enforcer
from gputide.options import (
    ByOption,
    FormatOption,
    OutputOption,
    YesOption,
)
from gputide.output import Answer, Format, Listing, print_answer
from gputide.session import session_of, who

app = typer.Typer()


@app.command(epilog="Example: gputide plan drift --repair --yes")
def drift(
    context: typer.Context,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write the plan's values again; a dry run without --yes.")
    ] = False,
    yes: YesOption = False,
    by: ByOption = None,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Show what is not as applied plans left it; exit status 1 where something is not."""
    session = session_of(context)
    folder = session.folder()
    refused: tuple[str, ...] = ()
    with (
        writing(folder),
        open_enforcer(folder, session.settings, session.now(), on_progress=lambda _: None) as enforcer,
    ):
        tools = enforcer.tools
        found = find_drift(tools.journal, tools.reader)
        if repair and yes and found:
            tools.guard.check_frozen(tools.reader)
            tools.take_lease()
            try:
                refused = write_again(found, tools.reader, tools.writer, tools.journal, by if by is not None else who())
            finally:
                tools.let_go()
    print_answer(_drift_answer(found, refused, is_mended=repair and yes), form=form, target=output)
    if found and (refused or not (repair and yes)):
        raise typer.Exit(EXIT_FINDINGS)


def _drift_answer(found: Sequence[Drift], refused: Sequence[str], *, is_mended: bool) -> Answer:
    rows = [
        (
            entry.workload,
            entry.field,
            "" if entry.planned is None else entry.planned,
            "the object is gone" if entry.is_gone else "" if entry.found is None else entry.found,
            entry.recommendation,
            entry.plan_id,
        )
        for entry in found
    ]
    columns = ("object", "field", "planned", "found", "recommendation", "plan")
    next_step = "written again" if is_mended else "mend it: gputide plan drift --repair --yes"
    said = f"{len(found)} fields are not as applied plans left them"
    return Answer(
        document={"drift": document(tuple(found)), "refused": list(refused)},
        headline=(said if found else "everything is as applied plans left it",),
        listings=(Listing(title="Drift", columns=columns, rows=rows),) if found else (),
        footnotes=(*refused, next_step) if found else (),
    )
