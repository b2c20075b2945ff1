"""Which stages of a plan are meant, and what they would change: shared by `plan diff` and the dry run of `apply`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from enforcer.preview import StagePreview, place_lines, preview
from fleet.decisions import Plan
from fleet.documents import document
from fleet.errors import Misconfigured
from fleet.settings import Settings
from fleet.units import format_count
from gputide.data_folder import DataFolder
from gputide.output import Answer, Listing
from gputide.own_cluster import check_own
from gputide.wiring import journal
from gputide.wiring_backend import backend
from gputide.wiring_cluster import moment_of_change, open_cluster, rehearsal

DIFF_LINES_MAX = 400
"""Lines of diff on a terminal; `--format json` holds all."""
PLACE_LINES_MAX = 100
"""Lines on refused objects, and on nodes and cards, likewise."""


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


def preview_of(folder: DataFolder, settings: Settings, now: datetime, plan: Plan, stages: Sequence[int]) -> Answer:
    """What stages would change in the cluster as it stands; changes nothing.

    Raises:
        Refused: the plan is of another cluster.
    """
    check_own(plan, folder, settings)
    with open_cluster(folder, settings) as cluster:
        runs = journal(folder).runs(plan.plan_id)
        moment = moment_of_change(cluster, now)
        found = preview(
            plan, cluster, backend(settings, moment), stages, runs, rehearse=rehearsal(cluster),
            wave_max=settings.enforcer.parallel_workloads_max,
        )  # fmt: skip
    return Answer(
        document={"plan_id": plan.plan_id, "stages": document(found)},
        headline=(
            (
                f"plan {plan.plan_id}: would change {format_count(sum(len(stage.objects) for stage in found))} objects "
                f"and move {format_count(sum(len(stage.moves) for stage in found))} pods"
            ),
        ),
        listings=(
            Listing(
                title="Stages",
                columns=("stage", "title", "objects", "pods", "cards freed", "refused"),
                rows=[
                    (
                        stage.stage,
                        stage.title,
                        len(stage.objects),
                        len(stage.moves),
                        stage.cards_freed,
                        stage.refusal or "",
                    )
                    for stage in found
                ],
            ),
        ),
        footnotes=(
            *_diff_lines(found),
            *_shortened(
                [
                    f"refused: stage {stage.stage}: {item.namespace}/{item.kind}/{item.name}: {item.refusal}"
                    for stage in found
                    for item in stage.objects
                    if item.refusal
                ],
                PLACE_LINES_MAX,
            ),
            *_shortened([line for stage in found for line in place_lines(stage)], PLACE_LINES_MAX),
            *(f"note: stage {stage.stage}: {warning}" for stage in found for warning in stage.warnings[:5]),
            "nothing was changed",
        ),
    )


def _diff_lines(found: Sequence[StagePreview]) -> list[str]:
    diffs = (item for stage in found for item in (*stage.made, *stage.objects))
    return _shortened([line for item in diffs for line in item.text.splitlines()], DIFF_LINES_MAX)


def _shortened(lines: list[str], lines_max: int) -> list[str]:
    if len(lines) > lines_max:
        return [*lines[:lines_max], f"… {len(lines) - lines_max:,} more lines: --format json, or one --stage"]
    return lines
