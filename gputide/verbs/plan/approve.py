"""`gputide plan approve`: a person's yes to stages of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Annotated

import typer

from enforcer.record.plan_store import Approval
from fleet.confidence import CONFIDENT_MIN, stage_confidence
from fleet.data_folder import DataFolder, writing
from fleet.decisions import Plan
from fleet.documents import document
from fleet.errors import Misconfigured, Refused
from fleet.settings.settings import Settings
from fleet.units import format_percent, format_time
from fleet.words import Language, Words
from gputide.answers.plan import tide_listing, tide_needs_yes
from gputide.answers.tiers import tiers_promised
from gputide.container.enforcer import guard
from gputide.container.plans import chosen_plan, chosen_stages, open_plans, plan_store
from gputide.options import ClusterOption, PlanOption, answering
from gputide.output import Answer
from gputide.session import Session, who

app = typer.Typer()

NamedStageOption = Annotated[
    list[int] | None,
    typer.Option("--stage", metavar="N", help="A stage; may be repeated; all but those of the tide unless given."),
]


@app.command(epilog="Example: gputide plan approve --stage 1")
@answering
def approve(
    session: Session,
    plan: PlanOption = None,
    stage: NamedStageOption = None,
    cluster: ClusterOption = None,
    by: Annotated[
        str | None, typer.Option("--by", help="In a real cluster: another user, as whom you may act.")
    ] = None,
) -> Answer:
    """Approve stages of a plan, by name; `apply` does only what was approved, `run tide` only what was named.

    Of a real cluster you approve as the user of your kubeconfig; --by impersonates another one. Of a simulated one you
    approve as the operating system's user.
    """
    folder = session.folder()
    with writing(folder), open_plans(folder, session.settings) as plans:
        # A plan that is named needs no cluster.
        meant = _cluster_meant(folder, session.settings, cluster) if plan is None else cluster
        chosen = chosen_plan(folder, plan, cluster=meant)
        own_name = "" if plans.signs_as_user(chosen) else who()
        if own_name and by not in (None, own_name):
            raise Refused(
                f"cannot approve as {by!r}: here you are {own_name!r}, the operating system's user; another person "
                "approves by an account of their own, or signs in to the web app"
            )
        wanted = chosen_stages(chosen, stage) if stage else chosen.rollout_stages
        unnamed = () if stage else tide_needs_yes(chosen)
        if not wanted and unnamed:
            raise Misconfigured(f"cannot approve plan {chosen.short_id} as a whole: {unnamed[0]}")
        approval = plans.approve(chosen, wanted, by=own_name if by is None else by, at=session.now())
        given = plans.approvals(chosen.plan_id)
    stages = ", ".join(map(str, approval.stages))
    tides = chosen.tide_stages
    is_tide = not tides.isdisjoint(approval.stages)
    return Answer(
        document=document(approval),
        headline=(
            (
                f"{approval.by} approved stages {stages} of plan {chosen.short_id} for {chosen.cluster} at "
                f"{format_time(approval.at)}"
            ),
        ),
        listings=(tide_listing(chosen),) if is_tide else (),
        footnotes=(
            *_doubts(chosen, approval.stages),
            *(tiers_promised(chosen, session.settings.guarantees) if is_tide else ()),
            *((_nights(chosen, given, folder, session.settings),) if is_tide else ()),
            *unnamed,
            *(() if tides.issuperset(approval.stages) else ["next: gputide apply (dry run), gputide apply --yes"]),
        ),
    )


def _nights(plan: Plan, given: Sequence[Approval], folder: DataFolder, settings: Settings) -> str:
    """Until when nights begin by what was approved, or why none begins yet."""
    try:
        guard(folder, settings).check_tide_approved(plan, given)
    except Refused as exc:
        return f"not yet: {exc}"
    until = format_time(plan.created_at + timedelta(days=settings.tide.plan_age_days_max))
    return (
        f"nights begin by it until {until} (tide.plan_age_days_max), with `gputide run tide`; next: "
        f"gputide run tide check --plan {plan.short_id}"
    )


def _doubts(plan: Plan, stages: Sequence[int]) -> Iterator[str]:
    """Stages among those approved that a person should not have approved without a look at their evidence."""
    for stage in plan.stages:
        confidence = stage_confidence(plan, stage)
        if stage.stage in stages and confidence < CONFIDENT_MIN:
            title = Words(language=Language.EN).stage(stage.title)
            yield (
                f"warning: stage {stage.stage} ({title}) has a confidence of {format_percent(confidence)}, "
                f"below {format_percent(CONFIDENT_MIN)}; its evidence: gputide plan show --plan {plan.short_id}"
            )


def _cluster_meant(folder: DataFolder, settings: Settings, asked: str | None) -> str | None:
    """Whose newest plan is approved: nobody says yes to a plan of a cluster that was not meant.

    Raises:
        Misconfigured: there are plans of several clusters, and neither a word nor the settings name one of them.
    """
    of = sorted({plan.cluster for plan in plan_store(folder).plans()})
    if asked is not None or len(of) <= 1:
        return asked
    if settings.cluster.name not in of:
        raise Misconfigured(f"cannot choose a plan: there are plans of {', '.join(of[:10])}; say --cluster NAME")
    return settings.cluster.name
