"""What `gputide admin node release` does: nodes that a verified plan freed wholly go to their owners, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enforcer.backend import NodeOwner
from enforcer.machines import Machine
from enforcer.node_release import replacement
from enforcer.record.journal import StageState
from fleet.data_folder import writing
from fleet.errors import EXIT_FINDINGS, EXIT_FINE, Refused, Unavailable
from fleet.node_changes import NodeRelease
from fleet.sentences import Sentence
from gputide.container.bill import chains_of
from gputide.container.enforcer import Enforcer, open_enforcer
from gputide.container.node_plans import wanted_plan
from gputide.container.node_releases import ReleasePreview, keep_release, release_preview
from gputide.container.plans import copied_plans, journal, newest_applied, plan_store
from gputide.output import Answer, Listing
from gputide.session import Session

_OWNERS = {
    NodeOwner.KARPENTER: "Karpenter",
    NodeOwner.CLUSTER_API: "Cluster API",
    NodeOwner.CLUSTER_AUTOSCALER: "Cluster Autoscaler",
    NodeOwner.NOBODY: "nobody: it is cordoned for people to take",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """How the release of a node ended.

    Attributes:
        is_done: whether it is gone, leaving, or cordoned where nobody owns it.
        stops: whether no further node is released, because another machine came in its place.
    """

    node: str
    owner: str
    said: str
    is_done: bool
    plan: str = ""
    stops: bool = False


def release_answer(session: Session, named: Sequence[str], plan: str | None, *, yes: bool, by: str) -> Answer:
    """Show what would be handed over, or do it.

    Raises:
        Refused: the plan was not verified, or freed no node wholly; or a release was neither refused nor done.
    """
    folder, settings = session.folder(), session.settings
    wanted = [NodeRelease(node=node) for node in named] or _freed(session, plan)
    found = [release_preview(folder, settings, session.now(), one) for one in wanted]
    if not yes:
        return _previewed(found)
    copied_plans(folder, settings)
    results: list[Released] = []
    with (
        writing(folder),
        session.progress("handing nodes over") as tick,
        open_enforcer(folder, settings, session.now(), on_progress=lambda _: None) as enforcer,
    ):
        for release, preview in zip(wanted, found, strict=True):
            try:
                results.append(_released(session, enforcer, release, preview, by))
            except Unavailable as exc:
                if not results:
                    raise
                # What became of the nodes before is said all the same.
                said = f"not known: {exc}; call this again"
                results.append(
                    Released(node=release.node, owner=_owner(preview.machine), said=said, is_done=False, stops=True)
                )
            tick(len(results), len(wanted))
            if results[-1].stops:
                break
    return _answer(results, len(wanted))


def _freed(session: Session, plan: str | None) -> list[NodeRelease]:
    """Nodes that a plan freed wholly, by what `verify` found.

    Raises:
        Refused: it was not verified, or freed none.
    """
    folder = session.folder()
    plans = plan_store(folder)
    chosen = plans.get(plan if plan is not None else newest_applied(journal(folder), plans))
    chain = next((one for one in chains_of(session, chosen.cluster) if one.plan_id == chosen.plan_id), None)
    if chain is None or chain.nodes is None:
        raise Refused(
            f"cannot release nodes of plan {chosen.short_id}: nothing says yet that its cards are free; call "
            f"gputide verify --plan {chosen.short_id} first"
        )
    if not chain.standing:
        raise Refused(
            f"cannot release nodes of plan {chosen.short_id}: of the nodes that it freed wholly "
            f"{len(chain.gone)} are gone, and none is left"
        )
    return [NodeRelease(node=node.node, plan=chosen.plan_id) for node in chain.standing]


def _previewed(found: Sequence[ReleasePreview]) -> Answer:
    rows = [
        (
            one.node, _owner(one.machine), "gone already" if one.machine is None else str(one.refusal or "yes"),
            one.approvals or "",
        )
        for one in found
    ]  # fmt: skip
    listing = Listing(title="Nodes", columns=("node", "owner", "would be released", "approvals"), rows=rows)
    ready = sum(one.machine is not None and one.refusal is None for one in found)
    texts = [tuple(diff.text.splitlines()) for one in found if one.stage is not None for diff in one.stage.objects]
    return Answer(
        document={"releases": listing.records()},
        headline=(f"would hand {ready} of {len(found)} nodes to their owners, one after the other",),
        listings=(listing,),
        texts=tuple(texts),
        footnotes=("nothing was changed; --yes does it",),
    )


def _released(session: Session, enforcer: Enforcer, release: NodeRelease, preview: ReleasePreview, by: str) -> Released:
    machine, folder = preview.machine, session.folder()
    owner = _owner(machine)
    if machine is None or enforcer.cluster.get("Node", "", release.node) is None:
        # Owners look for empty nodes by themselves, and one may have been quicker.
        return Released(node=release.node, owner=owner, said="gone already", is_done=True)
    try:
        plan = wanted_plan(
            enforcer, release, lambda: keep_release(folder, session.settings, session.now(), release), by=by
        )
        (result,) = enforcer.reconciler.apply(plan, (1,), by=by)
    except Refused as exc:
        return Released(node=release.node, owner=owner, said=str(exc), is_done=False)
    if result.state is not StageState.PROMOTED:
        stops = isinstance(result.reason, Sentence) and result.reason.code == "release.replaced"
        return Released(
            node=release.node, owner=owner, said=f"given back: {result.reason}", is_done=False, plan=plan.short_id,
            stops=stops,
        )  # fmt: skip
    new = _came(enforcer, machine)
    if new is not None:
        said = f"gone, but {new} came in its place and is not known to be cheaper: no further node is released"
        return Released(node=release.node, owner=owner, said=said, is_done=False, plan=plan.short_id, stops=True)
    return Released(
        node=release.node, owner=owner, said=_standing(enforcer, release.node, machine), is_done=True,
        plan=plan.short_id,
    )  # fmt: skip


def _came(enforcer: Enforcer, machine: Machine) -> str | None:
    """Name of a machine that came since in the place of one that left."""
    if machine.manifest is None:
        return None
    machines = enforcer.cluster.list_objects(machine.manifest["kind"])
    new = replacement(machines, machine.manifest, machine.newest)
    return None if new is None else str(new["metadata"]["name"])


def _standing(enforcer: Enforcer, node: str, machine: Machine) -> str:
    if machine.owner is NodeOwner.NOBODY:
        return "cordoned; take it out, or give its cards to queues"
    return "gone" if enforcer.cluster.get("Node", "", node) is None else "leaving"


def _owner(machine: Machine | None) -> str:
    return "" if machine is None else _OWNERS[machine.owner]


def _answer(results: Sequence[Released], wanted: int) -> Answer:
    done = sum(one.is_done for one in results)
    listing = Listing.of(
        "Nodes",
        results,
        {
            "node": lambda one: one.node,
            "owner": lambda one: one.owner,
            "now": lambda one: one.said,
            "undo": lambda one: f"gputide undo --plan {one.plan}" if one.plan and one.is_done else "",
        },
    )
    return Answer(
        document={"releases": listing.records(), "released": done, "asked": wanted},
        headline=(f"handed {done} of {wanted} nodes to their owners",),
        listings=(listing,),
        footnotes=("undo gives a node back only while it is there",),
        status=EXIT_FINE if done == wanted else EXIT_FINDINGS,
    )
