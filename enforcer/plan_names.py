"""Gives the pods of the cluster the names under which a plan knows them, and a plan's owners the cluster's names.

Pure. A plan names pods as they were called when it was made. Once a stage of it rolled a Deployment, its replicas are
called otherwise, and they are alike: the pod in the seat that the plan kept for a pod is that pod. Called
before a later stage is rendered or checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from enforcer.admission import SEATS_ANNOTATION, parse_seats, seats_text
from enforcer.backend import RenderedStage
from enforcer.dialect import SeatSlice
from enforcer.ownership import top_owner
from enforcer.record.journal import RunRecord, StageState
from enforcer.seat import PodSeat, same_slices
from enforcer.snapshot import Snapshot
from fleet.decisions import Plan
from fleet.inventory import WorkloadId
from fleet.outcomes import Change


def as_planned(snapshot: Snapshot, runs: Sequence[RunRecord]) -> tuple[Snapshot, Mapping[str, str]]:
    """A snapshot in which pods that a plan has moved carry the names that the plan has for them.

    Returns:
        The snapshot, and the pod of the cluster (`namespace/pod`) behind each name that is not its own.
    """
    known: dict[WorkloadId, dict[str, list[tuple[SeatSlice, ...]]]] = {}
    for run in runs:
        for _, record in sorted(run.records.items()):
            for move in record.moves:
                # Who was taken back sits where it sat; of several stages the last one reports.
                seats = [move.new, move.old] if record.state is StageState.PROMOTED else [move.old, move.new]
                told = known.setdefault(move.workload, {})
                told[move.pod] = [*seats, *told.get(move.pod, [])]
    real: dict[str, str] = {}
    pods = dict(snapshot.pods)
    for workload, seats_of in known.items():
        pods[workload] = _named(snapshot.pods.get(workload, []), seats_of, real)
    if not real:
        return snapshot, {}
    doubts = dict(snapshot.doubts)
    for name, pod_id in real.items():
        if pod_id in doubts:
            doubts[name] = doubts.pop(pod_id)
    seats_by_pod = {seat.pod_id: seat for own in pods.values() for seat in own}
    return replace(snapshot, pods=pods, seats=seats_by_pod, doubts=doubts), real


def with_top_owners(plan: Plan, snapshot: Snapshot) -> Plan:
    """A plan that names the owners that users edit, where it was made from what stands below them.

    A history may know a Deployment and not the InferenceService that keeps it: the enforcer changes the latter. The
    plan keeps its id, so it must have been checked before.
    """
    names = {
        name: top
        for name in {
            *(part.workload for card in plan.placement for part in card.slices),
            *(workload for entry in plan.recommendations for workload in entry.workloads),
            *(window.workload for window in plan.schedule),
        }
        if (top := top_owner(name, snapshot.parents)) != name
    }
    if not names:
        return plan
    return replace(
        plan,
        placement=tuple(
            replace(
                card,
                slices=tuple(replace(part, workload=names.get(part.workload, part.workload)) for part in card.slices),
            )
            for card in plan.placement
        ),
        recommendations=tuple(
            replace(entry, workloads=tuple(dict.fromkeys(names.get(name, name) for name in entry.workloads)))
            for entry in plan.recommendations
        ),
        schedule=tuple(
            replace(window, workload=names.get(window.workload, window.workload)) for window in plan.schedule
        ),
    )


def with_real_names(rendered: RenderedStage, real: Mapping[str, str]) -> RenderedStage:
    """A stage whose changes of pods, and moves, say what pods are called in the cluster."""
    if not real:
        return rendered
    moves = [
        replace(move, called=real[move.pod_id].partition("/")[2]) if move.pod_id in real else move
        for move in rendered.moves
    ]
    return replace(
        rendered,
        changes=tuple(_real(change, real) for change in rendered.changes),
        moves=tuple(moves),
        node_steps=tuple(replace(step, leaving=_real_names(step.leaving, real)) for step in rendered.node_steps),
    )


def _real_names(pods: Sequence[tuple[str, str]], real: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    found = (real.get(f"{namespace}/{name}", f"{namespace}/{name}").partition("/") for namespace, name in pods)
    return tuple((namespace, name) for namespace, _, name in found)


def _real(change: Change, real: Mapping[str, str]) -> Change:
    if change.kind == "Pod":
        pod_id = real.get(f"{change.namespace}/{change.name}")
        return change if pod_id is None else replace(change, name=pod_id.partition("/")[2])
    if not change.field.endswith(f"[{SEATS_ANNOTATION}]") or change.new is None:
        return change
    # Seats are named by the pods that leave them, so that admission knows whose place is free.
    seats = {
        real.get(f"{change.namespace}/{pod}", f"/{pod}").partition("/")[2]: seat
        for pod, seat in parse_seats(change.new).items()
    }
    return replace(change, new=seats_text(seats))


def _named(
    pods: Sequence[PodSeat], seats_of: Mapping[str, Sequence[tuple[SeatSlice, ...]]], real: dict[str, str]
) -> list[PodSeat]:
    """The pods of one workload: those whose names the plan knows, then by their seats, then in order."""
    free = dict(seats_of)
    found = [seat for seat in pods if seat.pod in free]
    strangers = [seat for seat in pods if seat.pod not in free]
    for seat in found:
        del free[seat.pod]
    for is_exact in (True, False):
        for seat in list(strangers):
            name = next((name for name, seats in free.items() if not is_exact or _sits(seat, seats[:1])), None)
            if name is not None:
                del free[name]
                strangers.remove(seat)
                real[f"{seat.namespace}/{name}"] = seat.pod_id
                found.append(replace(seat, pod=name))
    return sorted([*found, *strangers], key=lambda seat: seat.pod)


def _sits(seat: PodSeat, places: Sequence[tuple[SeatSlice, ...]]) -> bool:
    return any(same_slices(seat.slices, place) for place in places)
