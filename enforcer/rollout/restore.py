"""Takes back what a stage did, whole or in part: marks, owners with their pods, nodes, what they stood on.

Called by the rollout when a watch or a guard says no, and by undo, also weeks later. May be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from enforcer.backend import Move, NodeStep, by_workload
from enforcer.cluster import renew
from enforcer.kinds.register import is_rolled_out
from enforcer.manifest import field_of
from enforcer.node_loss import pods_leaving
from enforcer.record.journal import ObjectIntent, StageRecord, StageState
from enforcer.rollout.holding import Phase, known_as_lowered, lowered_once
from enforcer.rollout.landing import landing_of
from enforcer.rollout.load import Load, backwards
from enforcer.rollout.pod_mover import PodMover
from enforcer.rollout.progress import ProgressPhase
from enforcer.rollout.run_context import RunContext
from enforcer.safety.availability import availability_breaches, lowered_workloads, stranded_pods
from enforcer.seat import PodSeat
from enforcer.snapshot import Snapshot
from fleet.errors import Refused, Unavailable
from fleet.inventory import WorkloadId
from fleet.sentences import Sentence, first_of, listed, recorded, sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """How one stage ended.

    Attributes:
        kept: what the restoration left as it was, and why.
    """

    stage: int
    state: StageState
    reason: Sentence | str | None = None
    kept: tuple[Sentence, ...] = ()

    @classmethod
    def of(cls, record: StageRecord) -> StageResult:
        """As the ledger says it."""
        return cls(stage=record.stage, state=record.state, reason=record.reason, kept=record.kept)


class Stuck(Unavailable):
    """What is taken back can't end yet, because pods don't get ready; other plans may go on meanwhile."""


def restore_stage(tools: RunContext, record: StageRecord, reason: Sentence | str) -> StageResult:
    """Take back a stage that is under way, and write down that it is; may be repeated.

    Raises:
        Refused: the cluster does not take an object as it was, or somebody else holds the lease.
        Unavailable: as `take_back`.
    """
    tools.under_way = None
    reason = record.reason or reason
    if record.state is not StageState.RESTORING:
        tools.step(f"restoring {record.stage}")
        tools.journal.write(record.plan_id, tools.now(), "restoring", stage=record.stage, reason=recorded(reason))
    said = sentence("progress.restoring", reason=reason)
    tools.tell(record.plan_id, record.stage, ProgressPhase.RESTORING, said, 0, len(record.moves))
    kept = take_back(tools, record.plan_id, record.stage, record.objects, record.moves, record.node_steps)
    tools.step(f"restored {record.stage}")
    tools.journal.write(
        record.plan_id, tools.now(), "restored", stage=record.stage, kept=[recorded(left) for left in kept]
    )
    moved = (move.workload for move in record.moves)
    tools.leave_events(moved, "GputideTakenBack", f"stage {record.stage} of plan {record.plan_id}")
    said = sentence("progress.stage_restored", stage=record.stage, reason=reason)
    tools.tell(record.plan_id, record.stage, ProgressPhase.RESTORED, said)
    return StageResult(stage=record.stage, state=StageState.RESTORED, reason=reason, kept=kept)


def take_back(
    tools: RunContext,
    plan_id: str,
    stage: int,
    objects: Sequence[ObjectIntent],
    moves: Sequence[Move],
    steps: Sequence[NodeStep] = (),
) -> tuple[Sentence, ...]:
    """Restore objects and bring pods back to their old seats where they still are; may be repeated.

    Node steps are taken back where the configuration that they were for is among the objects: after the pods, and
    before them where nodes register more framebuffer than they have. Where a stage emptied nodes to share their cards,
    pods that find a place on other nodes go there first; then the nodes are emptied and written back, and the rest
    comes once they offer what they did before.

    Returns:
        What was kept and what could not go back to its old place, one sentence each.

    Raises:
        Unavailable: the cluster can't be reached.
        Stuck: a node registers more framebuffer than before, so that no pod may come back to it yet; or an owner's
            former pods don't get ready. It has its former template then and rolls on, as many pods as it
            can spare at a time: given its strategy back, it would wait for room that its other pods hold; driven on, it
            would lose the pods that serve. Call again to end it.
    """
    mover, parts = tools.mover(), Parts.of(objects, moves)
    kept: list[Sentence] = []

    def configuration() -> None:
        kept.extend(_configuration_back(tools, mover, plan_id, parts.shared, moves, steps))

    is_scaled = any(step.registers_mib for step in steps)
    if is_scaled:
        configuration()
    # What somebody else changed rolls as they set it from this moment on.
    mover.let_go(parts.owners.values())
    for _, intent in reversed(parts.pods):
        tools.keep_lease()
        mover.objects.restore(intent)

    def on_wave(wave: Sequence[Move], done: int) -> None:
        tools.keep_lease()
        said = sentence("progress.moving_back", done=done, pods=len(moves))
        tools.tell(plan_id, stage, ProgressPhase.RESTORING, said, done, len(moves))
        pods = [move.pod_id for move in wave]
        tools.journal.write(plan_id, tools.now(), "evict_back", stage=stage, pods=pods)

    back = tuple(backwards(moves))

    def moved(load: Load) -> list[Sentence]:
        failures = mover.move(load, on_wave)
        stuck = mover.unfinished(load)
        if stuck and _lower(tools, mover, plan_id, stage, parts.owners, back):
            failures = mover.move(load, on_wave)
            stuck = mover.unfinished(load)
        if stuck:
            raise Stuck(sentence("rollout.stuck", plan=plan_id, why=first_of(stuck)))
        return failures

    owners = {workload: known_as_lowered(intent) for workload, intent in parts.owners.items()}
    load = Load(moves=back, intents=owners, phase=Phase.REST, is_strict=False)
    changing = _changing_nodes(tools, plan_id, parts.shared, steps)
    if changing:
        first = replace(load, changing_nodes=changing)
        for part in (first.of_others(), first):
            moved(part)
        configuration()
    failures = moved(load)
    mover.look_at(owners)
    for intent in owners.values():
        tools.keep_lease()
        mover.objects.hold(intent, Phase.SETTLED)
        mover.objects.disown(intent)
    kept[:0] = mover.kept
    if not (is_scaled or changing):
        configuration()
    renew(tools.reader)
    left = {dict(item.values).get("workload") for item in kept}
    return (*kept, *failures, *_elsewhere([move for move in back if move.workload not in left], tools.snapshot()))


def _configuration_back(
    tools: RunContext,
    mover: PodMover,
    plan_id: str,
    shared: Sequence[ObjectIntent],
    moves: Sequence[Move],
    steps: Sequence[NodeStep],
) -> list[Sentence]:
    """Restore what pods stand on, and let nodes take it up; returns what was kept."""
    if not shared:
        return []
    left = next((step for step in steps if tools.node_steps().has_left(step)), None)
    if left is not None:
        # What would be asked for now, such as another replica, would be a machine in its place.
        return [sentence("release.left", node=left.node)]
    staying = {dict(left.values).get("workload") for left in mover.kept}
    moved = [move for move in moves if str(move.workload) not in staying]
    returning = steps_back(tools, shared, moved, steps)
    switched = [one for step in returning if (one := _of_others(step, moved, tools)).back or one.leaving]
    held = tools.node_steps().empty(returning, plan_id, _homeless(tools, plan_id, switched) if switched else ())
    if held:
        raise Stuck(sentence("rollout.stuck_emptying", plan=plan_id, why=first_of(held)))
    kept: list[Sentence] = []
    for intent in reversed(shared):
        tools.keep_lease()
        kept.extend(mover.objects.restore(intent))
        mover.objects.disown(intent)
    back = {step.node for step in returning}
    # A node that is still closed for this plan was written back before a crash, and may not be ready yet.
    still = [
        replace(step, back=(), offered_before=())
        if step.node not in back and not tools.node_steps().is_closed_for(step.node, plan_id)
        else step
        for step in steps
    ]
    failures = tools.node_steps().take_back(still, plan_id)
    if any(step.registers_mib for step in steps) and (scaled := tools.node_steps().scaled(steps)):
        why = first_of(failures) if failures else sentence("rollout.node_scaled", nodes=listed(scaled, 3))
        raise Stuck(sentence("rollout.stuck_scaled", plan=plan_id, why=why))
    return [*kept, *failures]


def _of_others(step: NodeStep, back: Sequence[Move], tools: RunContext) -> NodeStep:
    """A step of a node that a stage emptied, with those alone who leave it and are not moved; else the step itself."""
    if step.back or not step.leaving:
        return step
    seats, movers = tools.snapshot().seats, {move.workload for move in back}
    leaving = [pod for pod in step.leaving if (seat := seats.get("/".join(pod))) and seat.workload not in movers]
    return replace(step, leaving=tuple(leaving))


def _homeless(tools: RunContext, plan_id: str, steps: Sequence[NodeStep]) -> frozenset[tuple[str, str]]:
    """Pods that a way back leaves without a place, as no other node has room for them and somebody said yes to that.

    Raises:
        Refused: nobody did, or owners would lose more pods than they allow: who asked for the way back may have looked
            long ago.
    """
    way, snapshot = StageRecord(plan_id=plan_id, stage=0, node_steps=list(steps)), tools.snapshot()
    breaches = availability_breaches(way, snapshot, tools.reader, 1, gaps_allowed=False)
    tools.guard.check_undo(plan_id, lowered_workloads(breaches))
    return stranded_pods(way, snapshot, tools.reader)


def steps_back(
    tools: RunContext,
    objects: Sequence[ObjectIntent],
    moves: Sequence[Move],
    steps: Sequence[NodeStep],
    seen: Snapshot | None = None,
) -> list[NodeStep]:
    """Steps that empty nodes again before they get back the mode that they had; nodes that others changed since stay.

    Args:
        moves: of those who go back; nobody else may hold a share of a node that a stage emptied for them. Who has a
            whole card there leaves while the node changes.
        seen: the cluster as it stands; read where None.

    Raises:
        Refused: a pod on one of them would be lost, would come back at once, may not be touched, or stays.
    """
    if not any(step.back or step.offered_before for step in steps):
        return []
    snapshot = seen or tools.snapshot()
    ours, movers = _as_changed(tools, objects, snapshot), {move.workload for move in moves}
    found: list[NodeStep] = []
    for step in steps:
        if step.node not in ours:
            continue
        if step.back:
            leaving = pods_leaving(step.node, snapshot)
            found.append(NodeStep(node=step.node, leaving=leaving, advertised=step.back, back=step.back))
        elif step.offered_before:
            others = [seat for seat in _held_by(step.node, snapshot) if seat.workload not in movers]
            if others:
                _check_others(step, others, snapshot)
            leaving = snapshot.holders(step.node)
            before = step.offered_before
            found.append(NodeStep(node=step.node, leaving=leaving, advertised=before, offered_before=before))
    return found


def _held_by(node: str, snapshot: Snapshot) -> list[PodSeat]:
    return [snapshot.seats[pod] for pod in map("/".join, snapshot.holders(node))]


def _check_others(step: NodeStep, others: Sequence[PodSeat], snapshot: Snapshot) -> None:
    """Refuse to empty a node of pods that nothing like their card would be left for, or that may not leave it.

    Whether they find a whole card elsewhere meanwhile is a matter of availability, as for those who are moved.

    Raises:
        Refused: one holds a share, or what nobody can read; or it would be lost, come back at once, or may not be
            touched.
    """
    before = {_resource_of(path): int(count) for path, count in step.offered_before}
    advertised = {_resource_of(path): int(count) for path, count in step.advertised if count.isdigit()}
    node = snapshot.nodes[step.node]
    now = {_resource_of(path): int(field_of(node, path) or 0) for path, _ in step.offered_before}
    whole = {
        resource for resource, count in before.items() if 0 < max(now[resource], advertised.get(resource, 0)) <= count
    }
    for seat in others:
        kinds = {part.resource or "" for part in seat.slices}
        if not kinds or not kinds <= whole:
            raise Refused(sentence("guard.undo_shared", node=step.node, pod=seat.pod_id))
    pods_leaving(step.node, snapshot)


def _resource_of(path: str) -> str:
    return path.partition("[")[2].removesuffix("]")


def _changing_nodes(
    tools: RunContext, plan_id: str, shared: Sequence[ObjectIntent], steps: Sequence[NodeStep]
) -> frozenset[str]:
    """Nodes that a stage emptied to share their cards, and that are not as before yet."""
    emptied = {step.node for step in steps if step.offered_before}
    if not shared or not emptied:
        return frozenset()
    ours = _as_changed(tools, shared, tools.snapshot())
    return frozenset(node for node in emptied if node in ours or tools.node_steps().is_closed_for(node, plan_id))


def _as_changed(tools: RunContext, objects: Sequence[ObjectIntent], snapshot: Snapshot) -> set[str]:
    """Nodes whose configuration stands as a stage wrote it."""
    writes, ours = tools.mover().objects, set()
    for intent in objects:
        if intent.kind == "Node" and (node := snapshot.nodes.get(intent.name)) is not None:
            standing = {part.field for part in writes.has_come_back(intent, node)}
            # What counts is the label by which a node hands out its cards; where it has none, whose mark it carries.
            labels = {part.field for part in intent.fields if part.field.startswith("metadata.labels[")}
            if standing & (labels or standing):
                ours.add(intent.name)
    return ours


def _lower(
    tools: RunContext,
    mover: PodMover,
    plan_id: str,
    stage: int,
    owners: Mapping[WorkloadId, ObjectIntent],
    back: Sequence[Move],
) -> bool:
    """Let owners that surge but find no room lose a pod for a while, those that allow it; whether there were any.

    The scheduler may give a pod another card than it had, so the last ones may find none free beside their own.
    """
    snapshot = tools.snapshot()
    late = {
        workload: lowered
        for workload, intent in owners.items()
        if any(seat.node is None for seat in snapshot.pods.get(workload, ()))
        and not is_rolled_out(snapshot.owners.get(workload))
        and (lowered := lowered_once(intent)) is not None
    }
    record = StageRecord(plan_id=plan_id, stage=stage, objects=list(late.values()), moves=list(back))
    breaches = tools.guard.breaches(record, snapshot, tools.reader, tools.policy.moving.parallel_pods_max)
    allowed = [lowered for workload, lowered in late.items() if workload not in breaches]
    for lowered in allowed:
        tools.keep_lease()
        mover.objects.hold(lowered, Phase.REST)
    return bool(allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The objects of a stage, by what they are to it.

    Attributes:
        shared: of no workload, such as node configuration.
    """

    shared: tuple[ObjectIntent, ...]
    pods: tuple[tuple[str, ObjectIntent], ...]
    owners: dict[WorkloadId, ObjectIntent]

    @classmethod
    def of(cls, objects: Sequence[ObjectIntent], moves: Sequence[Move]) -> Parts:
        """Sort objects."""
        owner_of = {move.live_id: move.workload for move in moves} | {move.pod_id: move.workload for move in moves}
        workloads = set(owner_of.values())
        pods = tuple(
            (str(owner_of[f"{entry.namespace}/{entry.name}"]), entry)
            for entry in objects
            if entry.kind == "Pod" and f"{entry.namespace}/{entry.name}" in owner_of
        )
        known = {entry.key for _, entry in pods}
        return cls(
            shared=tuple(entry for entry in objects if entry.workload not in workloads and entry.key not in known),
            pods=pods,
            owners={entry.workload: entry for entry in objects if entry.workload in workloads},
        )


def _elsewhere(back: Sequence[Move], snapshot: Snapshot) -> tuple[Sentence, ...]:
    """Pods that have their old grant again but, by the scheduler's choice, not on their old cards; in one sentence."""
    other: list[str] = []
    for workload, own in by_workload(back).items():
        landing = landing_of(own, snapshot.pods.get(workload, []))
        other += [pod.pod_id for pod in (*landing.elsewhere, *landing.unmoved)]
    if not other:
        return ()
    return (sentence("rollout.elsewhere", pods=listed(sorted(other), 1)),)
