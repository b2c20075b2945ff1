"""`gputide undo`: take back what a plan changed; a dry run unless told otherwise."""

from __future__ import annotations

from typing import Annotated

import typer

from enforcer.undo import Undo
from fleet.documents import document
from fleet.errors import NotEnoughData
from gputide.data_folder import DataFolder, writing
from gputide.options import FormatOption, OutputOption, StageOption, YesOption
from gputide.output import Answer, Format, Listing, print_answer
from gputide.session import session_of
from gputide.wiring import journal, open_enforcer, plan_store

app = typer.Typer()


@app.command(epilog="Example: gputide undo --recommendation slice-0007 --yes")
def undo(
    context: typer.Context,
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="ID", help="A plan; the newest applied one unless given.")
    ] = None,
    stage: StageOption = None,
    recommendation: Annotated[str | None, typer.Option(metavar="ID", help="Only this recommendation.")] = None,
    yes: YesOption = False,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Restore what a plan changed, field by field; what somebody changed since is kept, and said."""
    session = session_of(context)
    folder, now = session.folder(), session.now()
    plan_id = plan_store(folder).get(plan).plan_id if plan is not None else newest_applied(folder)
    with (
        writing(folder),
        session.progress("moving pods back") as tick,
        open_enforcer(folder, session.settings, now, on_progress=lambda news: tick(news.done, news.total)) as enforcer,
    ):
        hands = Undo(enforcer.tools)
        if not yes:
            record = hands.preview(plan_id, stages=stage, recommendation=recommendation)
            rows = [
                (intent.kind, f"{intent.namespace}/{intent.name}", field.field, field.new or "", field.old or "")
                for intent in record.objects
                for field in intent.fields
            ]
            answer = Answer(
                document=document(record),
                headline=(f"would restore {len(record.objects)} objects and move {len(record.moves)} pods back",),
                listings=(
                    Listing(title="Fields", columns=("kind", "object", "field", "now", "restored to"), rows=rows),
                ),
                footnotes=("nothing was changed; gputide undo --yes does it",),
            )
        else:
            result = hands.undo(plan_id, stages=stage, recommendation=recommendation)
            answer = Answer(
                document=document(result),
                headline=(f"plan {plan_id}: {len(result.workloads)} workloads restored",),
                listings=(
                    Listing(title="Kept as it is", columns=("what and why",), rows=[(item,) for item in result.kept]),
                ),
            )
    print_answer(answer, form=form, target=output)


def newest_applied(folder: DataFolder) -> str:
    """Id of the plan that was applied last.

    Raises:
        NotEnoughData: no plan was ever applied.
    """
    runs = journal(folder).runs()
    if not runs:
        raise NotEnoughData("no plan was ever applied; `gputide plan list` shows what there is")
    return runs[-1].plan_id
