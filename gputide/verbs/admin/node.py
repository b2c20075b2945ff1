"""`gputide admin node mode`: how a node hands out its cards, and another way; a dry run unless `--yes` is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from enforcer.backends.node_mode import modes_of, offers_of, present_mode, render_switch, switch_plan, with_defaults
from enforcer.disruption import disruptions_allowed, selects
from enforcer.manifest import Manifest
from enforcer.node_loss import homes_elsewhere
from enforcer.record.fingerprint import fingerprint_of
from enforcer.record.journal import StageState
from enforcer.rollout.abort import open_run
from enforcer.snapshot import Snapshot, take_snapshot
from fleet.capabilities.capability import Capabilities
from fleet.capabilities.register import records_of
from fleet.data_folder import DataFolder, writing
from fleet.decisions import NodeMode, NodeSwitch, Plan
from fleet.documents import document
from fleet.errors import Corrupt, Misconfigured, Refused
from fleet.settings.settings import Settings
from gputide.answers.plan import preview_answer
from gputide.container.cluster import LiveCluster, backend, backend_version, moment_of_change, open_cluster, own_cluster
from gputide.container.enforcer import Enforcer, open_enforcer
from gputide.container.plans import copied_plans, previewed
from gputide.options import ByOption, YesOption, answering
from gputide.output import Answer, Listing
from gputide.session import Session, who
from wire.kubernetes.refusals import Forbidden

_LOOKED_AT_MAX = 100
"""Newest plans among which one that waits for an approval is looked for."""

app = typer.Typer(no_args_is_help=True, help="Show how a node hands out its cards, and put it into another mode.")


@app.callback()
def node() -> None:
    """Show how a node hands out its cards, and put it into another mode."""


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
        with open_cluster(folder, settings) as cluster:
            return _present(name, take_snapshot(cluster, backend(settings, session.now()).dialect), settings)
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


def _plan_of(switch: NodeSwitch, cluster: LiveCluster, session: Session, folder: DataFolder) -> Plan:
    settings = session.settings
    return switch_plan(
        switch, records_of(settings.enforcer.backend)[-1], cluster=own_cluster(folder, settings) or "",
        version=backend_version(settings), now=moment_of_change(cluster, session.now()), settings=settings,
    )  # fmt: skip


def _previewed(session: Session, folder: DataFolder, switch: NodeSwitch) -> Answer:
    """What a switch would change, who would leave, and where they would go."""
    settings = session.settings
    with open_cluster(folder, settings) as cluster:
        plan = _plan_of(switch, cluster, session, folder)
        leaving = _leaving(switch.node, cluster, take_snapshot(cluster, backend(settings, session.now()).dialect))
    (found,) = previewed(folder, settings, session.now(), plan, (1,), rehearses=True)
    shown, refusal = preview_answer(plan, (found,), no_cluster=None), found.refusal
    said = f"would switch node {switch.node} to mode {switch.mode}" if refusal is None else f"refused: {refusal}"
    return Answer(
        document={"node_switch": document(switch), "preview": shown.document, "leaving": leaving.records()},
        headline=(said,),
        listings=(leaving,),
        texts=shown.texts,
        footnotes=("nothing was changed" if refusal is not None else "nothing was changed; --yes does it",),
    )


def _leaving(node: str, cluster: LiveCluster, snapshot: Snapshot) -> Listing:
    """Pods that hold cards of a node, where each would come up, and what binds or harms its eviction."""
    seats = [snapshot.seats[f"{namespace}/{name}"] for namespace, name in snapshot.holders(node)]
    pods = [
        pod
        for namespace in sorted({seat.namespace for seat in seats})
        for pod in cluster.list_objects("Pod", namespace)
    ]
    manifests = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": pod for pod in pods}
    homes = homes_elsewhere(node, seats, snapshot, manifests)
    budgets = [
        (budget, [pod for pod in pods if selects(budget, pod)])
        for budget in cluster.list_objects("PodDisruptionBudget")
    ]
    rows = []
    for seat in seats:
        own = [
            f"{budget['metadata']['name']} (allows {disruptions_allowed(budget, selected)})"
            for budget, selected in budgets
            if manifests.get(seat.pod_id) in selected
        ]
        data = ", ".join(_data_at_stake(manifests.get(seat.pod_id, {}))) or "none"
        rows.append((seat.pod_id, seat.workload, homes[seat.pod_id] or "no room", ", ".join(own) or "none", data))
    return Listing(
        title="Pods that must leave",
        columns=("pod", "workload", "comes up on", "disruption budgets", "data at stake"),
        rows=rows,
    )


def _data_at_stake(pod: Manifest) -> list[str]:
    """Volumes of a pod that eviction empties, and those that may keep it from coming up on another node."""
    volumes = pod.get("spec", {}).get("volumes") or ()
    lost = [
        f"{volume['name']} (emptied)"
        for volume in volumes
        if volume.get("emptyDir") is not None and volume["emptyDir"].get("medium") != "Memory"
    ]
    return [*lost, *(f"{volume['name']} (claimed)" for volume in volumes if "persistentVolumeClaim" in volume)]


def _switched(session: Session, enforcer: Enforcer, switch: NodeSwitch, *, by: str) -> Answer:
    """Switch a node, or go on with a switch to the same that waits for an approval or that a process left open."""
    plan = _waiting(enforcer, switch) or _kept(session, enforcer, switch, by)
    results = enforcer.reconciler.apply(plan, (1,), by=by)
    if any(result.state is not StageState.PROMOTED for result in results):
        raise Refused(f"node {switch.node} was given back as it was: {results[0].reason}")
    return Answer(
        document={"plan_id": plan.plan_id, "node_switch": document(switch)},
        headline=(f"node {switch.node} is in mode {switch.mode}",),
        footnotes=(f"undo at any time: gputide undo --plan {plan.plan_id}",),
    )


def _waiting(enforcer: Enforcer, switch: NodeSwitch) -> Plan | None:
    """The plan of the same switch that was begun and not ended, or approved and not begun; None where there is none."""
    journal, plans, now = enforcer.tools.journal, enforcer.plans, enforcer.tools.now()
    run = open_run(journal)
    names = plans.ids()[-_LOOKED_AT_MAX:] if run is None else (run.plan_id,)
    for plan in map(plans.get, reversed(names)):
        is_to_do = run is not None or (now < plan.expires_at and plans.approved_stages(plan.plan_id))
        if plan.node_switch == switch and is_to_do and (run is not None or not journal.runs(plan.plan_id)):
            return plan
    return None


def _kept(session: Session, enforcer: Enforcer, switch: NodeSwitch, by: str) -> Plan:
    """The plan of a switch against which nothing speaks now, kept and approved.

    Raises:
        Refused: something does, or the user of the cluster may approve nothing.
    """
    tools, plans, folder = enforcer.tools, enforcer.plans, session.folder()
    plan = _plan_of(switch, enforcer.cluster, session, folder)
    (shown,) = previewed(folder, session.settings, session.now(), plan, (1,), rehearses=True)
    if shown.refusal is not None:
        raise Refused(shown.refusal)
    plans.add(plan, fingerprint_of(tools.snapshot()))
    try:
        plans.approve(plan, (1,), by="" if plans.signs_as_user(plan) else by, at=tools.now())
    except (Forbidden, Refused) as exc:
        raise Refused(
            f"cannot switch node {switch.node} yet: {exc}; let somebody who may approve plan {plan.plan_id} "
            f"(gputide plan approve --plan {plan.plan_id}), then call this again"
        ) from exc
    return plan


def _present(node: str, snapshot: Snapshot, settings: Settings) -> Answer:
    """What a node is in, what it offers, and what it could be put into."""
    record = records_of(settings.enforcer.backend)[-1]
    now, offers = present_mode(node, snapshot), offers_of(node, snapshot)
    found = [(one, _why_not(NodeSwitch(node=node, mode=one), snapshot, record)) for one in modes_of(snapshot.dialect)]
    rows = [(one.value, "present" if one is now else "no" if why else "yes", why or "") for one, why in found]
    shown = ", ".join(f"{name}: {count}" for name, count in offers.items()) or "nothing"
    listing = Listing(title="Modes", columns=("mode", "possible", "why not"), rows=rows)
    return Answer(
        document={"node": node, "mode": now, "offers": offers, "modes": listing.records()},
        headline=(f"node {node} is in mode {now or 'unknown'} and offers {shown}",),
        listings=(listing,),
        footnotes=() if rows else (f"with {record.backend} pods or the scheduler choose, not the node",),
    )


def _why_not(switch: NodeSwitch, snapshot: Snapshot, record: Capabilities) -> str | None:
    """Why a node can't be put into a mode; None where nothing stands against it by what the node and its cards are."""
    try:
        render_switch("", with_defaults(switch, snapshot), snapshot, record)
    except (Refused, Corrupt) as exc:
        return str(exc)
    return None
