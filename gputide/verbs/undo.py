"""`gputide undo`: take back what a plan changed; a dry run unless `--yes` says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from enforcer.record.journal import Journal, RunRecord, UndoRecord
from enforcer.record.plan_store import id_meant
from enforcer.rollout.holding import way_of
from enforcer.rollout.undo import Undo, UndoResult
from enforcer.safety.abort_wish import stopped
from fleet.data_folder import DataFolder, writing
from fleet.documents import document
from fleet.errors import Misconfigured
from fleet.sentences import Sentence
from fleet.settings.settings import Settings
from fleet.units import format_plan_id
from gputide.answers.plan import rolls
from gputide.container.cluster import check_own
from gputide.container.enforcer import no_longer_want, open_enforcer, run_under_way
from gputide.container.plans import copied_plans, newest_applied
from gputide.options import StageOption, YesOption, answering
from gputide.output import Answer, Listing
from gputide.session import Session, who

app = typer.Typer()


@app.command(epilog="Example: gputide undo --recommendation slice-0007 --yes")
@answering
def undo(
    session: Session,
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="ID", help="A plan; the newest applied one unless given.")
    ] = None,
    stage: StageOption = None,
    recommendation: Annotated[str | None, typer.Option(metavar="ID", help="Only this recommendation.")] = None,
    everything: Annotated[bool, typer.Option("--every-plan", help="Everything, the last plan first.")] = False,
    yes: YesOption = False,
) -> Answer:
    """Restore what a plan changed, field by field; what somebody changed since is kept, and said.

    A plan that is still being applied is aborted first.
    """
    folder, now = session.folder(), session.now()
    if everything and (plan is not None or stage or recommendation is not None):
        raise Misconfigured("cannot use --every-plan with --plan, --stage or --recommendation: it restores everything")
    run = run_under_way(folder, session.settings) if yes else None
    if run is not None and not _is_meant(run, plan, folder, session.settings):
        run = None
    if run is not None:
        no_longer_want(folder, session.settings, run, by=who())
    with (
        writing(folder) if run is None else stopped(folder, run.plan_id),
        session.progress("moving pods back") as tick,
        open_enforcer(folder, session.settings, now, on_progress=lambda news: tick(news.done, news.total)) as enforcer,
    ):
        hands = Undo(enforcer.tools)
        plan_id = None if everything else _own_plan(folder, session.settings, enforcer.tools.journal, plan)
        if not yes:
            plans = hands.applied_plans() if plan_id is None else (plan_id,)
            found = [hands.preview(name, stages=stage, recommendation=recommendation) for name in plans]
            ways = [hands.way_back(record, after=plans[:number]) for number, record in enumerate(found)]
            answer = _previewed(
                [record for record, _ in ways],
                [item for record in found for item in hands.kept_now(record)],
                [str(item) for _, lowered in ways for item in lowered],
            )
        elif plan_id is None:
            answer = _undone(enforcer.reconciler.undo_all(by=who()))
        else:
            result = enforcer.reconciler.undo(plan_id, stage, by=who(), recommendation=recommendation, ending=run)
            answer = _undone((result,))
    return answer


def _is_meant(run: RunRecord, plan: str | None, folder: DataFolder, settings: Settings) -> bool:
    """Whether the run under way is of the plan that is named.

    Raises:
        Misconfigured: it may be of that one, and others too.
    """
    if plan is None or not run.plan_id.startswith(plan):
        return plan is None
    return id_meant(plan, [*copied_plans(folder, settings).ids(), run.plan_id]) == run.plan_id


def _own_plan(folder: DataFolder, settings: Settings, kept: Journal, plan: str | None) -> str:
    """Id of the plan that is meant; never one of another cluster."""
    if plan is None:
        return newest_applied(kept)
    # Another machine may have applied it, and only the cluster knows.
    known = [run.plan_id for run in kept.runs()]
    if any(name.startswith(plan) for name in known):
        return id_meant(plan, known)
    chosen = copied_plans(folder, settings).get(plan)
    check_own(chosen, folder, settings)
    return chosen.plan_id


def _previewed(records: Sequence[UndoRecord], kept: Sequence[Sentence], lowered: Sequence[str]) -> Answer:
    objects = [intent for record in records for intent in record.objects]
    rows = [
        (intent.kind, f"{intent.namespace}/{intent.name}", field.field, field.new or "", field.old or "")
        for intent in objects
        for field in intent.fields
    ]
    moves = sum(len(record.moves) for record in records)
    return Answer(
        document=document(records[0] if len(records) == 1 else tuple(records)),
        headline=(f"would restore {len(objects)} objects and move {moves} pods back",),
        listings=(
            Listing(title="Fields", columns=("kind", "object", "field", "now", "restored to"), rows=rows),
            *_kept(kept),
            *_lowered(lowered),
        ),
        texts=(rolls((item.workload, way) for item in objects if (way := way_of(item)) is not None),),
        footnotes=("nothing was changed; gputide undo --yes does it",),
    )


def _undone(results: Sequence[UndoResult]) -> Answer:
    kept = [item for result in results for item in result.kept]
    lowered = [str(item) for result in results for item in result.lowered]
    count = f"{len(lowered)} workloads had fewer pods ready for a while than their owners allow (guard.gaps_allowed)"
    return Answer(
        document=document(results[0] if len(results) == 1 else tuple(results)),
        headline=(
            *(f"plan {format_plan_id(one.plan_id)}: {len(one.workloads)} workloads restored" for one in results),
            *((count,) if lowered else ()),
        ),
        listings=(*_kept(kept), *(replace(one, is_said=True) for one in _lowered(lowered))),
    )


def _lowered(lowered: Sequence[str]) -> tuple[Listing, ...]:
    title = "Fewer pods ready for a while than their owners allow"
    return (Listing(title=title, columns=("what and why",), rows=[(item,) for item in lowered]),) if lowered else ()


def _kept(kept: Sequence[Sentence]) -> tuple[Listing, ...]:
    return (Listing(title="Kept as it is", columns=("what and why",), rows=[(str(item),) for item in kept]),)
