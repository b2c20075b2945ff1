"""`gputide plan diff`: what applying a plan would change, object by object."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from enforcer.preview import place_lines
from fleet.decisions import Plan
from fleet.documents import document
from fleet.units import format_count, format_time
from fleet.words import Language, Words
from gputide.answers.plan import experimental_note
from gputide.container.cluster import NO_CLUSTER, is_known, own_cluster
from gputide.container.plans import chosen_plan, chosen_stages, copied_plans, previewed
from gputide.options import PlanOption, StageOption, answering
from gputide.output import Answer, Listing
from gputide.session import Session

app = typer.Typer()


@app.command(epilog="Example: gputide plan diff --stage 1")
@answering
def diff(
    session: Session,
    plan: PlanOption = None,
    stage: StageOption = None,
) -> Answer:
    """Show what applying would change in the cluster, object by object; changes nothing."""
    folder = session.folder()
    copied_plans(folder, session.settings)
    chosen = chosen_plan(folder, plan, cluster=own_cluster(folder, session.settings))
    return preview_of(session, chosen, chosen_stages(chosen, stage))


def preview_of(session: Session, plan: Plan, stages: Sequence[int]) -> Answer:
    """What stages would change, which the dry run of `apply` prints too; changes nothing.

    Raises:
        Refused: the plan is of another cluster.
    """
    folder, settings = session.folder(), session.settings
    found = previewed(folder, settings, session.now(), plan, stages, rehearses=True)
    titles = {stage.stage: Words(language=Language.EN).stage(stage.title) for stage in plan.stages}
    moves = format_count(sum(len(stage.moves) for stage in found))
    headline: tuple[str, ...]
    if is_known(folder, settings):
        objects = format_count(sum(len(stage.objects) for stage in found))
        headline = (f"plan {plan.plan_id}: would change {objects} objects and move {moves} pods",)
    else:
        seen = f"by what was seen until {format_time(plan.created_at)}; which objects change is not known"
        headline = (f"plan {plan.plan_id}: would move {moves} pods, {seen}", NO_CLUSTER)
    return Answer(
        document={"plan_id": plan.plan_id, "stages": document(found)},
        headline=headline,
        listings=(
            Listing.of(
                "Stages",
                found,
                {
                    "stage": lambda stage: stage.stage,
                    "title": lambda stage: titles[stage.stage],
                    "objects": lambda stage: len(stage.objects),
                    "pods": lambda stage: len(stage.moves),
                    "cards freed": lambda stage: stage.cards_freed,
                    "refused": lambda stage: stage.refusal or "",
                },
            ),
        ),
        texts=(
            [line for stage in found for item in (*stage.made, *stage.objects) for line in item.text.splitlines()],
            [
                f"refused: stage {stage.stage}: {item.namespace}/{item.kind}/{item.name}: {item.refusal}"
                for stage in found
                for item in stage.objects
                if item.refusal
            ],
            [
                f"rolls: stage {stage.stage}: {item.namespace}/{item.kind}/{item.name}: {item.way.value}"
                for stage in found
                for item in stage.objects
                if item.way is not None
            ],
            [line for stage in found for line in place_lines(stage)],
            [f"note: stage {stage.stage}: {warning}" for stage in found for warning in stage.warnings],
        ),
        footnotes=(*experimental_note(plan.backend), "nothing was changed"),
    )
