"""`gputide plan drift`: what is not as applied plans left it, its repair, and what the loss of a node would end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from enforcer.node_loss import NodeLoss, node_losses
from enforcer.reconcile import Drift, find_drift
from enforcer.reconcile import repair as write_again
from fleet.data_folder import writing
from fleet.documents import document
from fleet.errors import EXIT_FINDINGS, EXIT_FINE
from fleet.units import format_plan_id
from gputide.container.enforcer import open_enforcer
from gputide.options import ByOption, YesOption, answering
from gputide.output import Answer, Listing
from gputide.session import Session, who

app = typer.Typer()


@app.command(epilog="Example: gputide plan drift --repair --yes")
@answering
def drift(
    session: Session,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write the plan's values again; a dry run without --yes.")
    ] = False,
    yes: YesOption = False,
    by: ByOption = None,
) -> Answer:
    """Show what is not as applied plans left it; exit status 1 where something is not.

    Says beside it which services would not survive the loss of each node.
    """
    folder = session.folder()
    refused: tuple[str, ...] = ()
    with (
        writing(folder),
        open_enforcer(folder, session.settings, session.now(), on_progress=lambda _: None) as enforcer,
    ):
        tools = enforcer.tools
        found = find_drift(tools.journal, tools.reader)
        losses = node_losses(tools.snapshot(), tools.reader.list_objects("Pod"))
        if repair and yes and found:
            tools.guard.check_frozen(tools.reader)
            tools.take_lease()
            try:
                refused = write_again(found, tools.reader, tools.writer, tools.journal, by if by is not None else who())
            finally:
                tools.let_go()
    return _drift_answer(found, losses, refused, is_mended=repair and yes)


def _drift_answer(
    found: Sequence[Drift], losses: Sequence[NodeLoss], refused: Sequence[str], *, is_mended: bool
) -> Answer:
    listing = Listing.of(
        "Drift",
        found,
        {
            "object": lambda entry: entry.workload,
            "field": lambda entry: entry.field,
            "planned": lambda entry: "" if entry.planned is None else entry.planned,
            "found": lambda entry: "the object is gone" if entry.is_gone else entry.found or "",
            "recommendation": lambda entry: entry.recommendation,
            "plan": lambda entry: format_plan_id(entry.plan_id),
        },
    )
    next_step = "written again" if is_mended else "mend it: gputide plan drift --repair --yes"
    said = f"{len(found)} fields are not as applied plans left them"
    return Answer(
        document={"drift": document(tuple(found)), "refused": list(refused), "node_losses": document(tuple(losses))},
        headline=(said if found else "everything is as applied plans left it", _survival(losses)),
        listings=(
            *((listing,) if found else ()),
            *((_loss_listing(losses),) if losses else ()),
        ),
        footnotes=(*refused, next_step) if found else (),
        status=EXIT_FINDINGS if found and (refused or not is_mended) else EXIT_FINE,
    )


def _survival(losses: Sequence[NodeLoss]) -> str:
    if not losses:
        return "every service would survive the loss of any one node"
    services, nodes = len({loss.workload for loss in losses}), len({loss.node for loss in losses})
    return f"{services} services would not survive the loss of a node whole; it concerns {nodes} nodes"


def _loss_listing(losses: Sequence[NodeLoss]) -> Listing:
    return Listing(
        title="If a node were lost",
        columns=("node", "service", "pods there", "not coming up elsewhere", "pods on other nodes"),
        rows=[(loss.node, loss.workload, loss.pods, loss.stranded, loss.left) for loss in losses],
    )
