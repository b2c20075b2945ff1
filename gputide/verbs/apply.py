"""`gputide apply`: carry out approved stages of a plan, canary first; a dry run unless `--yes` says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from enforcer.emit.files import EmitForm, emit_files, stage_patches
from enforcer.forge.pull_request import draft, open_forge, send
from enforcer.preview import StagePreview, preview
from enforcer.record.journal import RunRecord, StageState
from enforcer.record.request_log import RequestLog
from enforcer.rollout.abort import AbortResult, open_stages
from enforcer.rollout.restore import StageResult
from enforcer.safety.abort_wish import stopped
from enforcer.safety.freeze import freeze_changes, thaw_changes
from fleet.data_folder import writing
from fleet.decisions import Plan
from fleet.documents import document
from fleet.errors import Misconfigured, Refused
from fleet.sentences import sentence
from fleet.units import format_plan_id
from fleet.words import Language
from gputide.answers.plan import preview_answer
from gputide.answers.pull_request import draft_answer, request_body, request_title, sent_answer
from gputide.container.cluster import (
    NO_CLUSTER,
    backend,
    check_own,
    is_known,
    moment_of_change,
    open_cluster,
    own_cluster,
)
from gputide.container.enforcer import guard, no_longer_want, open_enforcer, run_under_way
from gputide.container.node_releases import queues_text
from gputide.container.plans import chosen_plan, chosen_stages, copied_plans, journal, open_plans, previewed
from gputide.options import ByOption, FormatOption, PlanOption, StageOption, YesOption, fit_format
from gputide.output import Answer, Format, Listing, print_answer
from gputide.session import Session, session_of, who

app = typer.Typer()


def _fit_format(context: typer.Context, target: Path | None) -> Path | None:
    """What --emit writes is a folder, which has no format; of a request only the answer is written."""
    is_folder = context.params.get("emit_form") not in (None, EmitForm.PULL_REQUEST)
    return target if is_folder else fit_format(context, target)


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
    is_abort: Annotated[
        bool, typer.Option("--abort", help="Take back the stage that is under way, in whichever process, and stop.")
    ] = False,
    emit_form: Annotated[
        EmitForm | None,
        typer.Option(
            "--emit",
            is_eager=True,
            help="Change nothing in the cluster; write approved stages to the folder of -o, for git a repository; "
            "pull-request sends them to the forge of the settings, with --yes.",
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
    if is_abort:
        print_answer(_aborted(session, plan, by=by if by is not None else who(), yes=yes), form=form, target=output)
        return
    copied_plans(folder, session.settings)
    chosen = chosen_plan(folder, plan, cluster=own_cluster(folder, session.settings))
    stages = chosen_stages(chosen, stage)
    if emit_form is not None:
        if emit_form is EmitForm.PULL_REQUEST:
            by = by if by is not None else who()
            print_answer(_pull_request(session, chosen, stages, by=by, yes=yes), form=form, target=output)
            return
        if yes:
            raise Misconfigured("cannot --emit and apply at once: leave out --yes, or --emit")
        _emit(session, chosen, stages, emit_form, output)
        return
    if not yes:
        found = previewed(folder, session.settings, now, chosen, stages, rehearses=True)
        no_cluster = None if is_known(folder, session.settings) else NO_CLUSTER
        print_answer(preview_answer(chosen, found, no_cluster=no_cluster), form=form, target=output)
        return
    with (
        writing(folder),
        session.progress("moving pods") as tick,
        open_enforcer(folder, session.settings, now, on_progress=lambda news: tick(news.done, news.total)) as enforcer,
    ):
        results = enforcer.reconciler.apply(chosen, stages, by=by if by is not None else who())
    print_answer(_answer(chosen, stages, results), form=form, target=output)
    taken_back = [result for result in results if result.state is not StageState.PROMOTED]
    if taken_back:
        raise Refused(f"stage {taken_back[0].stage} was taken back: {taken_back[0].reason}")


def _aborted(session: Session, plan: str | None, *, by: str, yes: bool) -> Answer:
    """End the run that is under way; without `yes` show what would be taken back."""
    folder, settings, now = session.folder(), session.settings, session.now()
    named = None if plan is None else copied_plans(folder, settings).get(plan).plan_id
    run = run_under_way(folder, settings, named)
    if run is None:
        what = "nothing is being applied" if named is None else f"plan {named} is not being applied"
        return Answer(document={"plan_id": named, "stages": []}, headline=(what,))
    if not yes:
        return _abortable(run)
    no_longer_want(folder, settings, run, by=by)
    with (
        stopped(folder, run.plan_id),
        session.progress("moving pods back") as tick,
        open_enforcer(folder, settings, now, on_progress=lambda news: tick(news.done, news.total)) as enforcer,
    ):
        return _ended(enforcer.reconciler.abort(run, by=by))


def _abortable(run: RunRecord) -> Answer:
    """What an abort would take back."""
    rows = [
        (record.stage, intent.kind, f"{intent.namespace}/{intent.name}")
        for record in open_stages(run)
        for intent in record.objects
    ]
    short_id = format_plan_id(run.plan_id)
    return Answer(
        document={"plan_id": run.plan_id, "stages": [record.stage for record in open_stages(run)]},
        headline=(f"would end plan {short_id} and restore {len(rows)} objects of the stage that is under way",),
        listings=(Listing(title="Objects", columns=("stage", "kind", "object"), rows=rows),),
        footnotes=("nothing was changed; gputide apply --abort --yes does it",),
    )


def _ended(found: AbortResult) -> Answer:
    back = f"stage {found.restored[0].stage} is taken back" if found.restored else "no stage was under way"
    stay = ", ".join(map(str, found.promoted))
    return Answer(
        document=document(found),
        headline=(f"plan {format_plan_id(found.plan_id)} is ended: {back}",),
        listings=(
            Listing(
                title="Kept as it is",
                columns=("what and why",),
                rows=[(str(left),) for result in found.restored for left in result.kept],
            ),
        ),
        footnotes=(f"stages {stay} stay applied; gputide undo restores them",) if stay else (),
    )


def _emit(session: Session, plan: Plan, stages: Sequence[int], form: EmitForm, target: Path | None) -> None:
    """Write the approved ones of some stages as files."""
    if target is None:
        raise Misconfigured(f"cannot emit {form.value} to nowhere: name a folder with -o, for git the repository")
    approved, found = _approved(session, plan, stages)
    queues = queues_text(session.folder(), session.settings, plan, approved)
    typer.echo(emit_files(plan.plan_id, found, form, target, queues=queues))
    _say_left_out(plan, stages, approved)


def _pull_request(session: Session, plan: Plan, stages: Sequence[int], *, by: str, yes: bool) -> Answer:
    """Draft the request of approved stages, with those that it holds already; with `yes` send it."""
    folder, settings = session.folder(), session.settings
    forge, log = open_forge(settings.forge), RequestLog(folder)
    stages = sorted({*stages, *log.stages(plan.plan_id)})
    approved, found = _approved(session, plan, stages)
    own, made = stage_patches(plan.plan_id, found)
    drafted = draft(forge, settings.forge, plan.plan_id, own, made)
    language = Language(settings.report.language)
    title, body = request_title(plan, approved, language), request_body(plan, approved, drafted, language)
    _say_left_out(plan, stages, approved)
    if not yes:
        return draft_answer(plan, drafted, title, body)
    with writing(folder):
        with open_cluster(folder, settings) as cluster:
            guard(folder, settings).check_sent(plan, approved, session.now(), cluster)
        log.intend(plan.plan_id, drafted.branch, approved, by=by, at=session.now())
        request, is_changed = send(forge, drafted, title=title, body=body)
        log.see(plan.plan_id, request, session.now())
    return sent_answer(plan, drafted, request, is_changed=is_changed)


def _approved(session: Session, plan: Plan, stages: Sequence[int]) -> tuple[tuple[int, ...], tuple[StagePreview, ...]]:
    """The approved ones of some stages, and what they would change: it travels to where no guard asks again."""
    folder, settings = session.folder(), session.settings
    check_own(plan, folder, settings)
    with open_plans(folder, settings) as plans:
        approvals = plans.approvals(plan.plan_id)
    given = {stage for approval in approvals for stage in approval.stages}
    tides = _left_to_tide(plan, stages)
    stages = tuple(sorted(set(stages) - plan.tide_stages))
    if tides and not stages:
        raise Refused(f"cannot emit plan {plan.short_id}: {'; '.join(tides)}")
    approved = tuple(stage for stage in stages if stage in given)
    if not approved:
        wanted = " ".join(f"--stage {stage}" for stage in stages)
        raise Refused(
            f"cannot emit plan {plan.short_id}: nobody approved what would be written; "
            f"`gputide plan approve --plan {plan.short_id} {wanted}`"
        )
    freed = sum(entry.cards_freed for entry in plan.stages if entry.stage in approved)
    guard(folder, settings).check_approvals(plan, approved, approvals, freed)
    with open_cluster(folder, settings) as cluster:
        runs = journal(folder).runs(plan.plan_id)
        renderer = backend(settings, moment_of_change(cluster, session.now()), cluster, folder)
        return approved, preview(plan, cluster, renderer, approved, runs)


def _say_left_out(plan: Plan, stages: Sequence[int], approved: Sequence[int]) -> None:
    left_out = ", ".join(str(stage) for stage in stages if stage not in {*approved, *plan.tide_stages})
    if left_out:
        typer.echo(f"left out, because nobody approved them: stages {left_out}; `gputide plan approve`", err=True)
    for text in _left_to_tide(plan, stages):
        typer.echo(f"left out: {text}", err=True)


def _answer(plan: Plan, stages: Sequence[int], results: tuple[StageResult, ...]) -> Answer:
    freed = {stage.stage: stage.cards_freed for stage in plan.stages}
    kept = [result for result in results if result.state is StageState.PROMOTED]
    return Answer(
        document={"plan_id": plan.plan_id, "stages": document(results)},
        headline=(
            (
                f"plan {plan.short_id}: {len(kept)} of {len(results)} stages applied, "
                f"{sum(freed[result.stage] for result in kept)} cards freed"
            ),
        ),
        listings=(
            replace(
                Listing.of(
                    "Stages",
                    results,
                    {
                        "stage": lambda result: result.stage,
                        "state": lambda result: result.state.value,
                        "cards freed": lambda result: freed[result.stage],
                        "reason": lambda result: result.reason or "",
                    },
                ),
                is_said=len(kept) == len(results),
            ),
        ),
        footnotes=(*_left_to_tide(plan, stages), "undo at any time: gputide undo"),
    )


def _left_to_tide(plan: Plan, stages: Sequence[int]) -> tuple[str, ...]:
    left, tides = sentence("plan.left_to_tide"), plan.tide_stages
    return tuple(f"stage {stage}: {left}" for stage in stages if stage in tides)
