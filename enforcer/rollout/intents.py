"""What a rendered stage means to do, whole, as it is written down before the first object is touched.

Pure. To the backend's changes come the fields that hold owners while they roll, the pods that are made anew though they
keep their seats, the marks that say which pod of an owner goes first, and who is the canary. Called by the rollout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from enforcer.backend import Move, RenderedStage, by_workload
from enforcer.cluster import DELETION_COST_ANNOTATION
from enforcer.kinds.register import workload_kind
from enforcer.manifest import Manifest
from enforcer.record.journal import FieldIntent, ObjectIntent, StageRecord
from enforcer.rollout.held_mark import marked
from enforcer.rollout.holding import Way, can_surge, changes_template, holds_of, rolls_by_itself
from enforcer.rollout.move_order import Order, OrderedUnit, can_go_alone, waves
from enforcer.rollout.outside_change import digests
from enforcer.seat import PodSeat
from enforcer.snapshot import Snapshot
from fleet.decisions import POOL_ESTIMATED, Plan
from fleet.errors import Refused
from fleet.inventory import WorkloadId
from fleet.sentences import sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """Which workloads try one pod first.

    Attributes:
        workloads: how many, the smallest first.
        always: those that do so however many others do.
    """

    workloads: int
    always: frozenset[WorkloadId] = frozenset()


def canaries_of(plan: Plan, workloads: int) -> Canaries:
    """Canaries of a plan's stages: a slice that rests on an estimate is tried by a pod before all follow."""
    always = {
        workload
        for advice in plan.recommendations
        if any(reason.code == POOL_ESTIMATED for reason in advice.why)
        for workload in advice.workloads
    }
    return Canaries(workloads=workloads, always=frozenset(always))


def intended_stage(
    plan_id: str,
    rendered: RenderedStage,
    snapshot: Snapshot,
    real: Mapping[str, str],
    *,
    canaries: Canaries,
    wave_max: int,
    watch_seconds: float,
) -> StageRecord:
    """What a stage is going to do.

    Args:
        snapshot: the cluster that it was rendered for, pods under the plan's names.
        real: what those are called in the cluster that are called otherwise there (see `enforcer.plan_names`).
        canaries: which workloads try one pod first.
        wave_max: how many workloads may be changing at once.
        watch_seconds: how long a change is watched.

    Raises:
        Refused: a workload that must try one pod first can't.
    """
    objects = object_intents(rendered)
    rolling = rolling_owners(objects, snapshot)
    staying = _staying_with(rendered.moves, objects, snapshot)
    called = {name: pod_id.partition("/")[2] for name, pod_id in real.items()}
    moves = [*rendered.moves, *(replace(move, called=called.get(move.pod_id)) for move in staying)]
    ordered = _ordered(moves, rolling, snapshot, wave_max)
    intents = [_held(intent, snapshot, ordered, watch_seconds) for intent in objects]
    marks = [
        mark
        for workload, intent in rolling.items()
        if workload in ordered and ordered[workload].order is Order.FIXED and workload_kind(intent.kind).by_replica_sets
        for mark in _going_order(ordered[workload].moves, snapshot, intent.recommendation)
    ]
    marked = {intent.key for intent in intents}
    canary = canary_of(moves, snapshot, canaries, {name for name, unit in ordered.items() if unit.surges})
    for workload in sorted(canaries.always & {move.workload for move in moves}):
        # The canary of an InferenceService is judged while the rest follows.
        if str(workload) not in canary or snapshot.owners.get(workload, {}).get("kind") == "InferenceService":
            raise Refused(sentence("guard.cannot_try", workload=str(workload)))
    return StageRecord(
        plan_id=plan_id,
        stage=rendered.stage,
        canary=canary,
        objects=[*(mark for mark in marks if mark.key not in marked), *intents],
        moves=moves,
        node_steps=list(rendered.node_steps),
    )


def held_owners(
    objects: Sequence[ObjectIntent], moves: Sequence[Move], snapshot: Snapshot, wave_max: int
) -> list[ObjectIntent]:
    """Objects with the fields that hold each owner while its pods go back, where no pod is watched first.

    What others change of an owner meanwhile is theirs field by field, and is waited for with the rest.
    """
    ordered = _ordered(moves, rolling_owners(objects, snapshot), snapshot, wave_max)
    found = (_held(intent, snapshot, ordered, watch_seconds=0.0) for intent in objects)
    return [replace(intent, generation=None, parts=None) for intent in found]


def object_intents(rendered: RenderedStage) -> list[ObjectIntent]:
    """The changes of a stage, one intent per object, in order."""
    grouped: dict[tuple[str, str, str], list[FieldIntent]] = {}
    first: dict[tuple[str, str, str], tuple[str, str]] = {}
    for change in rendered.changes:
        key = (change.kind, change.namespace, change.name)
        grouped.setdefault(key, []).append(FieldIntent(field=change.field, old=change.old, new=change.new))
        first.setdefault(key, (change.resource_version, change.recommendation))
    return [
        ObjectIntent(
            kind=key[0],
            namespace=key[1],
            name=key[2],
            resource_version=first[key][0],
            recommendation=first[key][1],
            fields=tuple(fields),
        )
        for key, fields in grouped.items()
    ]


def canary_of(
    moves: Sequence[Move], snapshot: Snapshot, canaries: Canaries, surging: Collection[WorkloadId] = ()
) -> tuple[str, ...]:
    """The first workloads whose pods find room by themselves; none where there is but one pod to be tried."""
    moves_of = by_workload(moves)
    found: list[str] = []
    # The smallest first: a canary should cost little.
    for workload, own in sorted(moves_of.items(), key=lambda item: (item[0] not in canaries.always, len(item[1]))):
        tried = own
        if workload in snapshot.owners and workload_kind(snapshot.owners[workload]["kind"]).is_ordered:
            # Its controller begins with the highest ordinal, whichever pod finds room.
            tried = [max(own, key=lambda move: (len(move.pod), move.pod))]
        is_able = can_go_alone(tried, snapshot.seats, snapshot.cards, surges=workload in surging)
        if is_able and (workload in canaries.always or len(found) < canaries.workloads):
            found.append(str(workload))
    is_all = len(found) == len(moves_of) and all(len(own) == 1 for own in moves_of.values())
    return () if is_all else tuple(found)


def rolling_owners(objects: Iterable[ObjectIntent], snapshot: Snapshot) -> dict[WorkloadId, ObjectIntent]:
    """Owners whose pods will all be made anew without being evicted."""
    return {
        intent.workload: intent
        for intent in objects
        if intent.workload in snapshot.owners
        and changes_template(intent)
        and rolls_by_itself(snapshot.owners[intent.workload])
    }


def _staying_with(moves: Sequence[Move], objects: Iterable[ObjectIntent], snapshot: Snapshot) -> list[Move]:
    """The other pods of the owners concerned: they keep their seats, though they may be made anew with the rest."""
    named = {move.pod_id for move in moves}
    advice = {intent.workload: intent.recommendation for intent in objects}
    return [
        _staying(seat, advice.get(workload, ""))
        for workload in dict.fromkeys(move.workload for move in moves)
        for seat in snapshot.pods.get(workload, [])
        if seat.pod_id not in named
    ]


def _staying(seat: PodSeat, recommendation: str) -> Move:
    return Move(
        namespace=seat.namespace,
        pod=seat.pod,
        workload=seat.workload,
        old=seat.slices,
        new=seat.slices,
        recommendation=recommendation,
    )


def planned_waves(
    moves: Sequence[Move], rolling: Mapping[WorkloadId, ObjectIntent], snapshot: Snapshot, wave_max: int
) -> list[list[OrderedUnit]]:
    """What changes at once: all pods of an owner that rolls are one unit, each pod of another is one of its own.

    An owner that can surge does so where the seats of its new pods have room while its old pods still run.
    """
    units: list[tuple[Move, ...]] = []
    for workload, own in by_workload(moves).items():
        units += [tuple(own)] if workload in rolling else [(move,) for move in own]
    surging = {workload for workload in rolling if can_surge(snapshot.owners[workload])}
    return waves(units, snapshot.seats, snapshot.cards, wave_max, surging)


def _ordered(
    moves: Sequence[Move], rolling: Mapping[WorkloadId, ObjectIntent], snapshot: Snapshot, wave_max: int
) -> dict[WorkloadId, OrderedUnit]:
    """In which order the pods of each owner that rolls find room."""
    found = planned_waves(moves, rolling, snapshot, wave_max)
    return {unit.moves[0].workload: unit for wave in found for unit in wave if unit.moves[0].workload in rolling}


def _held(
    intent: ObjectIntent, snapshot: Snapshot, ordered: Mapping[WorkloadId, OrderedUnit], watch_seconds: float
) -> ObjectIntent:
    owner = snapshot.owners.get(intent.workload)
    if owner is None:
        return intent
    generation = owner["metadata"].get("generation")
    if not changes_template(intent):
        return replace(intent, generation=generation, parts=digests(owner, intent.fields, ()))
    pods = len(snapshot.pods.get(intent.workload, []))
    way = _way(owner, ordered.get(intent.workload))
    holds = holds_of(owner, pods, way, watch_seconds=watch_seconds)
    if owner["kind"] != "InferenceService":
        # The annotations of an InferenceService go on to its pods, which a mark would roll.
        holds = marked(holds)
    return replace(intent, generation=generation, holds=holds, parts=digests(owner, intent.fields, holds))


def _way(owner: Manifest, unit: OrderedUnit | None) -> Way:
    if unit is None:
        return Way.GAP
    if unit.surges:
        return Way.SURGE if unit.order is Order.FREE else Way.SURGE_IN_TURN
    # Groups of a LeaderWorkerSet go from the highest down: any other order is for all of them to go together.
    in_turn = (Order.FREE,) if owner["kind"] == "LeaderWorkerSet" else (Order.FREE, Order.FIXED)
    return Way.GAP if unit.order in in_turn else Way.GAP_AT_ONCE


def _going_order(moves: Sequence[Move], snapshot: Snapshot, recommendation: str) -> list[ObjectIntent]:
    """Marks that make the pods of an owner go in this order: the pod of the lowest deletion cost goes first."""
    found = []
    # Who goes last needs no mark: without one a pod costs nothing, which is more.
    for place, move in enumerate(moves[:-1]):
        seat = snapshot.seats.get(move.pod_id)
        if seat is None:
            continue
        mark = FieldIntent(
            field=f"metadata.annotations[{DELETION_COST_ANNOTATION}]",
            old=seat.deletion_cost,
            new=str(place - len(moves)),
        )
        found.append(
            ObjectIntent(
                kind="Pod",
                namespace=move.namespace,
                name=move.called or move.pod,
                resource_version=seat.resource_version,
                recommendation=recommendation,
                fields=(mark,),
            )
        )
    return found
