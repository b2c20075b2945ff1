"""`gputide admin node`: another mode for a node, or its way out of the cluster; dry runs unless `--yes` is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from enforcer.record.journal import StageState
from enforcer.switch_preview import NodeStanding
from fleet.data_folder import DataFolder, writing
from fleet.documents import document
from fleet.errors import Misconfigured, Refused
from fleet.node_changes import NodeMode, NodeSwitch
from gputide.answers.plan import preview_answer
from gputide.container.enforcer import Enforcer, open_enforcer
from gputide.container.node_modes import keep_switch, standing_of, switch_preview
from gputide.container.node_plans import wanted_plan
from gputide.container.plans import copied_plans
from gputide.options import ByOption, YesOption, answering
from gputide.output import Answer, Listing
from gputide.session import Session, who
from gputide.verbs.admin.release import release_answer

app = typer.Typer(no_args_is_help=True, help="Put a node into another mode, or hand it over to what owns it.")


@app.callback()
def node() -> None:
    """Put a node into another mode, or hand it over to what owns it."""


@app.command(epilog="Example: gputide admin node release --plan 3f9a1c --yes")
@answering
def release(
    session: Session,
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NODE]...", help="Nodes; those that the plan freed wholly unless given."),
    ] = None,
    plan: Annotated[
        str | None, typer.Option(metavar="ID", help="The plan that freed them; the last applied one unless given.")
    ] = None,
    yes: YesOption = False,
    by: ByOption = None,
) -> Answer:
    """Hand wholly freed nodes to what owns them (Karpenter, Cluster Autoscaler, Cluster API), one after the other.

    A node that still serves stays. Machines that nobody owns are cordoned. Undo gives a node back while it is there.
    """
    return release_answer(session, name or (), plan, yes=yes, by=who() if by is None else by)


@app.command(epilog="Example: gputide admin node mode worker-3 time-slicing --slices 4 --yes")
@answering
def mode(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NODE")],
    wanted: Annotated[
        NodeMode | None, typer.Argument(metavar="[MODE]", help="The mode; what it is in, and could be, unless given.")
    ] = None,
    slices: Annotated[
        int | None, typer.Option(min=2, help="Into how many parts each card may be shared (vgpu, time-slicing, mps).")
    ] = None,
    profile: Annotated[
        list[str] | None, typer.Option(metavar="PROFILE=COUNT", help="MIG instances of each card; may be repeated.")
    ] = None,
    yes: YesOption = False,
    by: ByOption = None,
) -> Answer:
    """Empty a node, switch its mode, wait until it offers what the mode says, and give it back; undo restores it."""
    settings, folder = session.settings, session.folder()
    if wanted is None:
        return _present(standing_of(folder, settings, session.now(), name), settings.enforcer.backend)
    switch = NodeSwitch(node=name, mode=wanted, slices=slices, profiles=_profiles(profile or ()))
    if not yes:
        return _previewed(session, folder, switch)
    copied_plans(folder, settings)
    with (
        writing(folder),
        session.progress("switching the node") as tick,
        open_enforcer(
            folder, settings, session.now(), on_progress=lambda news: tick(news.done, news.total)
        ) as enforcer,
    ):
        return _switched(session, enforcer, switch, by=who() if by is None else by)


def _profiles(texts: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Profiles and counts, sorted.

    Raises:
        Misconfigured: one is not written so.
    """
    found = {}
    for text in texts:
        profile, _, count = text.partition("=")
        if not profile or not (count.isascii() and count.isdigit()) or not 0 < int(count) <= 8:
            raise Misconfigured(f"cannot read --profile {text}: expected PROFILE=COUNT, as 1g.10gb=7")
        found[profile] = int(count)
    return tuple(sorted(found.items()))


def _previewed(session: Session, folder: DataFolder, switch: NodeSwitch) -> Answer:
    """What a switch would change, who would leave, and where they would go."""
    found = switch_preview(folder, session.settings, session.now(), switch)
    shown, refusal = preview_answer(found.plan, (found.stage,), no_cluster=None), found.stage.refusal
    said = f"would switch node {switch.node} to mode {switch.mode}" if refusal is None else f"refused: {refusal}"
    leaving = Listing.of(
        "Pods that must leave",
        found.leavers,
        {
            "pod": lambda one: one.pod,
            "workload": lambda one: one.workload,
            "finds room on": lambda one: one.home or "no room",
            "disruption budgets": lambda one: (
                ", ".join(f"{name} (allows {left})" for name, left in one.budgets) or "none"
            ),
            "data at stake": lambda one: (
                ", ".join(
                    [*(f"{name} (emptied)" for name in one.emptied), *(f"{name} (claimed)" for name in one.claimed)]
                )
                or "none"
            ),
        },
    )
    changed = "nothing was changed" if refusal is not None else "nothing was changed; --yes does it"
    return Answer(
        document={"node_switch": document(switch), "preview": shown.document, "leaving": leaving.records()},
        headline=(said,),
        listings=(leaving,),
        texts=shown.texts,
        warnings=shown.warnings,
        footnotes=(*(("two people must approve it",) if found.approvals > 1 else ()), changed),
    )


def _switched(session: Session, enforcer: Enforcer, switch: NodeSwitch, *, by: str) -> Answer:
    """Switch a node, or go on with a switch to the same that waits for an approval or that a process left open."""
    plan = wanted_plan(
        enforcer, switch, lambda: keep_switch(session.folder(), session.settings, session.now(), switch), by=by
    )
    results = enforcer.reconciler.apply(plan, (1,), by=by)
    if any(result.state is not StageState.PROMOTED for result in results):
        raise Refused(f"node {switch.node} was given back as it was: {results[0].reason}")
    return Answer(
        document={"plan_id": plan.plan_id, "node_switch": document(switch)},
        headline=(f"node {switch.node} is in mode {switch.mode}",),
        footnotes=(f"undo at any time: gputide undo --plan {plan.short_id}",),
    )


def _present(found: NodeStanding, backend: str) -> Answer:
    """What a node is in, what it offers, and what it could be put into."""
    rows = [
        (one.value, "present" if one is found.mode else "no" if why else "yes", why or "") for one, why in found.modes
    ]
    shown = ", ".join(f"{name}: {count}" for name, count in found.offers) or "nothing"
    listing = Listing(title="Modes", columns=("mode", "possible", "why not"), rows=rows)
    return Answer(
        document={"node": found.node, "mode": found.mode, "offers": dict(found.offers), "modes": listing.records()},
        headline=(f"node {found.node} is in mode {found.mode or 'unknown'} and offers {shown}",),
        listings=(listing,),
        footnotes=() if found.modes else (f"with {backend} pods or the scheduler choose, not the node",),
    )
