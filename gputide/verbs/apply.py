"""`gputide apply`: carry out approved stages of a plan, canary first; a dry run unless `--yes` says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from enforcer.record.journal import StageState
from enforcer.record.savings import promised_cards
from enforcer.rollout.stages import StageResult
from fleet.data_folder import writing
from fleet.decisions import Plan
from fleet.documents import document
from fleet.errors import Misconfigured, Refused
from fleet.money.saving import cards_in
from gputide.emitting import EmitForm, emit
from gputide.freeze_desk import freeze_changes, thaw_changes
from gputide.options import ByOption, FormatOption, PlanOption, StageOption, YesOption, fit_format
from gputide.output import Answer, Format, Listing, print_answer
from gputide.own_cluster import own_cluster
from gputide.session import session_of
from gputide.stages import chosen_stages, preview_of
from gputide.wiring import chosen_plan, open_enforcer, plan_store, who

app = typer.Typer()


def _fit_format(context: typer.Context, target: Path | None) -> Path | None:
    """What --emit writes is a folder, which has no format."""
    return target if context.params.get("emit_form") is not None else fit_format(context, target)


@app.command(epilog="Example: gputide apply --stage 1 --yes")
def apply(
    context: typer.Context,
    plan: PlanOption = None,
    stage: StageOption = None,
    yes: YesOption = False,
    by: ByOption = None,
    freeze: Annotated[
        bool | None, typer.Option("--freeze/--no-freeze", help="Stop every change at once, or lift that.")
    ] = None,
    emit_form: Annotated[
        EmitForm | None,
        typer.Option(
            "--emit",
            is_eager=True,
            help="Change nothing; write approved stages to the folder of -o, for git a repository.",
        ),
    ] = None,
    form: FormatOption = Format.TABLE,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", callback=_fit_format, show_default=False, help="Write to this file, or folder."),
    ] = None,
) -> None:
    """Apply approved stages: canary, watch, the rest, watch, keep or restore. Without --yes nothing is changed."""
    session = session_of(context)
    folder, now = session.folder(), session.now()
    if freeze is not None:
        throw = freeze_changes if freeze else thaw_changes
        throw(folder, by=by if by is not None else who(), at=now)
        typer.echo("every change is stopped" if freeze else "changes are allowed again")
        return
    chosen = chosen_plan(folder, plan, cluster=own_cluster(folder, session.settings))
    stages = chosen_stages(chosen, stage)
    if emit_form is not None:
        if yes:
            raise Misconfigured("cannot --emit and apply at once: leave out --yes, or --emit")
        emitted = emit(folder, session.settings, now, chosen, stages, form=emit_form, target=output)
        typer.echo(emitted.said)
        if emitted.left_out:
            listed = ", ".join(map(str, emitted.left_out))
            typer.echo(f"left out, because nobody approved them: stages {listed}; `gputide plan approve`", err=True)
        return
    if not yes:
        preview = preview_of(folder, session.settings, now, chosen, stages)
        print_answer(preview, form=form, target=output)
        return
    store = plan_store(folder)
    with (
        writing(folder),
        session.progress("moving pods") as tick,
        open_enforcer(folder, session.settings, now, on_progress=lambda news: tick(news.done, news.total)) as enforcer,
    ):
        results = enforcer.rollout.apply(
            chosen,
            stages,
            by=by if by is not None else who(),
            approved=store.approvals(chosen.plan_id),
            fingerprint=store.fingerprint(chosen.plan_id),
        )
    print_answer(_answer(chosen, results), form=form, target=output)
    taken_back = [result for result in results if result.state is not StageState.PROMOTED]
    if taken_back:
        raise Refused(f"stage {taken_back[0].stage} was taken back: {taken_back[0].reason}")


def _answer(plan: Plan, results: tuple[StageResult, ...]) -> Answer:
    freed = {stage.stage: cards_in(promised_cards(plan, [stage.stage])) for stage in plan.stages}
    kept = [result for result in results if result.state is StageState.PROMOTED]
    return Answer(
        document={"plan_id": plan.plan_id, "stages": document(results)},
        headline=(
            (
                f"plan {plan.plan_id}: {len(kept)} of {len(results)} stages applied, "
                f"{sum(freed[result.stage] for result in kept)} cards freed"
            ),
        ),
        listings=(
            Listing(
                title="Stages",
                columns=("stage", "state", "cards freed", "reason"),
                rows=[
                    (result.stage, result.state.value, freed[result.stage], result.reason or "") for result in results
                ],
            ),
        ),
        footnotes=("undo at any time: gputide undo",),
    )
