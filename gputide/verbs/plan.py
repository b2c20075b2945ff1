"""`gputide plan`: list, show, diff and approve plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from enforcer.reconcile import Drift, find_drift
from enforcer.reconcile import repair as write_again
from enforcer.record.journal import StageState
from fleet.confidence import CONFIDENT_MIN, stage_confidence
from fleet.data_folder import DataFolder, writing
from fleet.decisions import Plan
from fleet.documents import document, iso
from fleet.errors import EXIT_FINDINGS, Misconfigured
from fleet.inventory import CardModelName
from fleet.settings.settings import Settings
from fleet.units import format_percent, format_time, parse_bytes
from gputide.answers import plan_answer, saving_text
from gputide.options import (
    AnyClusterOption,
    ByOption,
    ClusterOption,
    FormatOption,
    OutputOption,
    PlanOption,
    StageOption,
    YesOption,
)
from gputide.output import Answer, Format, Listing, print_answer
from gputide.own_cluster import own_cluster
from gputide.session import session_of
from gputide.stages import chosen_stages, preview_of
from gputide.wiring import chosen_plan, journal, load_history, open_enforcer, plan_store, who
from recommender.online.advice import cards_to_cordon, nodes_for, stranded_cards

app = typer.Typer(
    no_args_is_help=True,
    help="List, show, diff and approve plans; see which cards to cordon. Example: gputide plan diff --stage 1",
)


@app.callback()
def _plan() -> None:
    """List, show, diff and approve plans."""


@app.command("list", epilog="Example: gputide plan list")
def list_plans(
    context: typer.Context,
    cluster: AnyClusterOption = None,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """List every plan, of all clusters unless one is named, with what was decided about it, newest first."""
    folder = session_of(context).folder()
    store, ledger = plan_store(folder), journal(folder)
    rows = []
    for plan in reversed(store.plans()):
        if cluster not in (None, plan.cluster):
            continue
        runs = ledger.runs(plan.plan_id)
        records = [record for run in runs for record in run.records.values()]
        applied = sorted({record.stage for record in records if record.state is StageState.PROMOTED})
        rows.append(
            (
                plan.plan_id,
                plan.cluster,
                iso(plan.created_at),
                iso(plan.expires_at),
                plan.risk.value,
                plan.totals.cards_freed,
                saving_text(plan.totals.saving_per_week, plan.currency),
                ", ".join(map(str, sorted(store.approved_stages(plan.plan_id)))),
                ", ".join(map(str, applied)),
            )
        )
    columns = (
        "plan",
        "cluster",
        "created",
        "expires",
        "risk",
        "cards freed",
        "per week",
        "approved stages",
        "applied stages",
    )
    answer = Answer(
        document=[dict(zip((name.replace(" ", "_") for name in columns), row, strict=True)) for row in rows],
        listings=(Listing(title="Plans", columns=columns, rows=rows),),
    )
    print_answer(answer, form=form, target=output)


@app.command("show", epilog="Example: gputide plan show --plan 7f3a --format json")
def show(
    context: typer.Context,
    plan: PlanOption = None,
    cluster: AnyClusterOption = None,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Show a plan; without --plan the newest, of any cluster unless one is named."""
    print_answer(
        plan_answer(chosen_plan(session_of(context).folder(), plan, cluster=cluster)), form=form, target=output
    )


@app.command("diff", epilog="Example: gputide plan diff --stage 1")
def diff(
    context: typer.Context,
    plan: PlanOption = None,
    stage: StageOption = None,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Show what applying would change in the cluster, object by object; changes nothing."""
    session = session_of(context)
    folder = session.folder()
    chosen = chosen_plan(folder, plan, cluster=own_cluster(folder, session.settings))
    preview = preview_of(folder, session.settings, session.now(), chosen, chosen_stages(chosen, stage))
    print_answer(preview, form=form, target=output)


@app.command("cordon", epilog="Example: gputide plan cordon --format json")
def cordon(
    context: typer.Context,
    cluster: ClusterOption = None,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Show which cards to keep newcomers off so that whole nodes fall free, and free cards that nobody can use."""
    session = session_of(context)
    inventory = load_history(session.folder(), session.settings, session.now(), cluster=cluster).inventory
    node_of = {card.card: card.node for card in inventory.cards}
    cordons, stranded = cards_to_cordon(inventory), stranded_cards(inventory)
    answer = Answer(
        document={"cordons": document(cordons), "stranded": document(stranded)},
        headline=(
            (
                f"{sum(item.cards_freed for item in cordons)} cards and {sum(item.frees_node for item in cordons)} "
                f"nodes would fall free, {sum(item.cards_stranded for item in stranded):.1f} free cards can't be used"
            ),
        ),
        listings=(
            Listing(
                title="Cards to cordon",
                columns=("node", "cards", "falls free", "cards freed", "pods go to"),
                rows=[
                    (
                        item.node,
                        len(item.cards),
                        "the node" if item.frees_node else "the cards",
                        item.cards_freed,
                        ", ".join(sorted({node_of[place.target] for place in item.relocations})),
                    )
                    for item in cordons
                ],
            ),
            Listing(
                title="Free cards without CPU or host memory",
                columns=("node", "card model", "cards free", "stranded", "missing"),
                rows=[
                    (item.node, item.card_model, f"{item.cards_free:.1f}", f"{item.cards_stranded:.1f}", item.missing)
                    for item in stranded
                ],
            ),
        ),
    )
    print_answer(answer, form=form, target=output)


@app.command("drift", epilog="Example: gputide plan drift --repair --yes")
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


@app.command("place", epilog="Example: gputide plan place --card-ratio 0.5 --cpu-cores 4 --memory 16GiB")
def place(
    context: typer.Context,
    cards: Annotated[int, typer.Option(min=1, help="Cards that the pod asks for.")] = 1,
    card_ratio: Annotated[float, typer.Option(min=0.001, max=1.0, help="Share of each of them.")] = 1.0,
    card_model: Annotated[str | None, typer.Option(help="Card model that it needs; any unless given.")] = None,
    cpu_cores: Annotated[float, typer.Option(min=0.0, help="CPU cores that it asks for.")] = 0.0,
    memory: Annotated[str, typer.Option(help="Host memory that it asks for, such as 16GiB.")] = "0",
    cluster: ClusterOption = None,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Show which node a new pod should go to, so that what stays free is of most use; changes nothing."""
    session = session_of(context)
    offers = nodes_for(
        load_history(session.folder(), session.settings, session.now(), cluster=cluster).inventory,
        card_model=None if card_model is None else CardModelName(card_model),
        cards=cards,
        card_ratio=card_ratio,
        cpu_cores=cpu_cores,
        memory_bytes=parse_bytes(memory),
    )
    answer = Answer(
        document={"offers": document(offers)},
        headline=(f"{len(offers)} nodes could take it" if offers else "no node has room for it",),
        listings=(
            Listing(
                title="Nodes, best first",
                columns=("node", "costs cards"),
                rows=[(offer.node, f"{offer.cost_cards:.3f}") for offer in offers],
            ),
        ),
    )
    print_answer(answer, form=form, target=output)


@app.command("approve", epilog="Example: gputide plan approve --stage 1 --by ada")
def approve(
    context: typer.Context,
    plan: PlanOption = None,
    stage: StageOption = None,
    cluster: ClusterOption = None,
    by: ByOption = None,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Approve stages of a plan, by name; `apply` does only what was approved."""
    session = session_of(context)
    folder = session.folder()
    chosen = chosen_plan(folder, plan, cluster=_cluster_meant(folder, session.settings, cluster))
    with writing(folder):
        approval = plan_store(folder).approve(
            chosen, chosen_stages(chosen, stage), by=by if by is not None else who(), at=session.now()
        )
    stages = ", ".join(map(str, approval.stages))
    answer = Answer(
        document=document(approval),
        headline=(
            (
                f"{approval.by} approved stages {stages} of plan {chosen.plan_id} for {chosen.cluster} at "
                f"{format_time(approval.at)}"
            ),
        ),
        footnotes=(*_doubts(chosen, approval.stages), "next: gputide apply (dry run), gputide apply --yes"),
    )
    print_answer(answer, form=form, target=output)


def _doubts(plan: Plan, stages: Sequence[int]) -> Iterator[str]:
    """Stages among those approved that a person should not have approved without a look at their evidence."""
    for stage in plan.stages:
        confidence = stage_confidence(plan, stage)
        if stage.stage in stages and confidence < CONFIDENT_MIN:
            yield (
                f"warning: stage {stage.stage} ({stage.title}) has a confidence of {format_percent(confidence)}, "
                f"below {format_percent(CONFIDENT_MIN)}; its evidence: gputide plan show --plan {plan.plan_id}"
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
