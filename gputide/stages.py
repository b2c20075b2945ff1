"""Which stages of a plan are meant, and what they would change: shared by `plan diff` and the dry run of `apply`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from dashboards.words.catalogue import Language, Words
from enforcer.preview import StagePreview, place_lines, preview, preview_of_history
from fleet.data_folder import DataFolder
from fleet.decisions import Plan
from fleet.documents import document
from fleet.errors import Misconfigured
from fleet.settings.settings import Settings
from fleet.units import format_count, format_time
from gputide.answers import experimental_note
from gputide.output import Answer, Listing
from gputide.own_cluster import check_own
from gputide.wiring import journal
from gputide.wiring_backend import backend
from gputide.wiring_cluster import NO_CLUSTER, is_known, moment_of_change, open_cluster, rehearsal
from gputide.wiring_warehouse import warehouse


def chosen_stages(plan: Plan, stages: Sequence[int] | None) -> tuple[int, ...]:
    """The stages that are meant: those named, or all.

    Raises:
        Misconfigured: the plan has no such stage.
    """
    known = tuple(stage.stage for stage in plan.stages)
    if not stages:
        return known
    unknown = sorted(set(stages) - set(known))
    if unknown:
        raise Misconfigured(
            f"cannot use --stage {unknown[0]}: plan {plan.plan_id} has stages {', '.join(map(str, known))}"
        )
    return tuple(sorted(set(stages)))


def previewed(
    folder: DataFolder, settings: Settings, now: datetime, plan: Plan, stages: Sequence[int], *, rehearses: bool
) -> tuple[StagePreview, ...]:
    """What stages would change in the cluster as it stands; where there is none, in what the plan was made from.

    Args:
        folder: data folder.
        settings: all settings.
        now: the clock of the data.
        plan: the plan.
        stages: which of its stages.
        rehearses: whether a real cluster is asked, by dry runs, if it would take the changes.

    Raises:
        Refused: the plan is of another cluster.
    """
    check_own(plan, folder, settings)
    if not is_known(folder, settings):
        inventory = warehouse(folder, settings).inventory(plan.cluster, as_of=plan.created_at)
        return preview_of_history(plan, inventory, stages)
    with open_cluster(folder, settings) as cluster:
        runs = journal(folder).runs(plan.plan_id)
        dialect = backend(settings, moment_of_change(cluster, now))
        return preview(
            plan, cluster, dialect, stages, runs, rehearse=rehearsal(cluster) if rehearses else None,
            wave_max=settings.enforcer.parallel_workloads_max,
        )  # fmt: skip


def preview_of(folder: DataFolder, settings: Settings, now: datetime, plan: Plan, stages: Sequence[int]) -> Answer:
    """What stages would change; changes nothing.

    Raises:
        Refused: the plan is of another cluster.
    """
    found = previewed(folder, settings, now, plan, stages, rehearses=True)
    moves = format_count(sum(len(stage.moves) for stage in found))
    titles = {stage.stage: Words(language=Language.EN).stage(stage.title) for stage in plan.stages}
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
            Listing(
                title="Stages",
                columns=("stage", "title", "objects", "pods", "cards freed", "refused"),
                rows=[
                    (
                        stage.stage,
                        titles[stage.stage],
                        len(stage.objects),
                        len(stage.moves),
                        stage.cards_freed,
                        stage.refusal or "",
                    )
                    for stage in found
                ],
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
            [line for stage in found for line in place_lines(stage)],
            [f"note: stage {stage.stage}: {warning}" for stage in found for warning in stage.warnings],
        ),
        footnotes=(
            *experimental_note(plan.backend),
            "nothing was changed",
        ),
    )
