"""HAMi's words for a plan: resources and annotations in the owners' templates, replicas, stop marks, suspension.

A template holds one grant for all its replicas; where the plan gives replicas different seats, the seat of each pod
stands in `gputide.io/seats` for the admission step. A Job's template can't be changed, so its seats stand on the Job.
Sources of every name: Project-HAMi/HAMi:pkg/device/nvidia/device.go, Project-HAMi/HAMi:charts/hami/values.yaml.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from enforcer.admission import (
    CARDS_ANNOTATION,
    GRANT_RESOURCES,
    PLAN_ANNOTATION,
    PREVIOUS_ANNOTATION,
    SEATS_ANNOTATION,
    PlannedSeat,
    parse_seats,
    seats_text,
)
from enforcer.backend import Move, RenderedStage
from enforcer.backend_hami_fit import check_stage, scaling_change
from enforcer.cluster import DELETION_COST_ANNOTATION, STOPPED_ANNOTATION
from enforcer.manifest import Manifest, field_of, template_of, values_equal, workload_parts
from enforcer.seat import (
    CORE_POLICY_ENV,
    CORES_RESOURCE,
    COUNT_RESOURCE,
    FRAMEBUFFER_RESOURCE,
    PRIORITY_RESOURCE,
    USE_CARD_ANNOTATION,
    USE_MODEL_ANNOTATION,
    WHOLE_CORE_PERCENT,
    PodSeat,
    SeatSlice,
    same_slices,
)
from enforcer.snapshot import Snapshot
from fleet.capabilities import HAMI, Capabilities, CorePolicy
from fleet.decisions import CardPlacement, PlacedSlice, Plan, RecommendationKind
from fleet.errors import Refused
from fleet.inventory import Priority, WorkloadId
from fleet.outcomes import Change
from fleet.units import MIB, format_time

_STOPPING = (RecommendationKind.RECLAIM, RecommendationKind.FEWER_CARDS)
"""Kinds of advice that may leave a pod without a place."""

_TEMPLATE = "spec.template.metadata.annotations"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """One pod of a workload: where it sits, where it shall sit (None: it stays), and what for."""

    seat: PodSeat
    new: tuple[SeatSlice, ...] | None
    recommendation: str

    @property
    def after(self) -> tuple[SeatSlice, ...]:
        return self.seat.slices if self.new is None else self.new


class HamiBackend:
    """HAMi in its `hami-core` mode (the port `Backend`).

    Args:
        now: the moment that stop marks carry.
    """

    def __init__(self, now: datetime) -> None:
        self._now = now

    @property
    def capabilities(self) -> Capabilities:
        """What HAMi enforces."""
        return HAMI

    def render(self, plan: Plan, stage: int, snapshot: Snapshot) -> RenderedStage:
        """Turn one stage into changes; see the port."""
        wanted = _pods_of_stages(plan, stage)
        placed = _placed(plan)
        recommendations = {entry.id: entry for entry in plan.recommendations}
        kinds = {entry.id: entry.kind for entry in plan.recommendations}
        own = [recommendations[name] for entry in plan.stages if entry.stage == stage for name in entry.recommendations]
        gone = [pod for entry in own for pod in entry.pods if pod not in snapshot.seats and pod in placed]
        if gone:
            raise Refused(f"cannot apply stage {stage}: {len(gone)} pods are gone since the plan, such as {gone[0]}")
        workloads = dict.fromkeys(
            snapshot.seats[pod].workload for entry in own for pod in entry.pods if pod in snapshot.seats
        )
        changes: list[Change] = []
        moves: list[Move] = []
        for workload in workloads:
            targets = [_target(seat, wanted, placed, kinds, snapshot) for seat in snapshot.pods[workload]]
            moving = [entry for entry in targets if entry.new is not None]
            if not moving:
                continue
            moves += [_move(entry) for entry in moving]
            changes += self._changes(plan, workload, targets, snapshot)
        touched = {part.card for move in moves for part in move.new}
        cards = [entry for entry in plan.placement if entry.card in touched]
        warnings = [*check_stage(own, cards, snapshot), *_admission_warnings(changes)]
        scaling = scaling_change(cards, snapshot, own[0].id if own else "")
        return RenderedStage(
            stage=stage, changes=(*scaling, *changes), moves=tuple(moves), warnings=tuple(dict.fromkeys(warnings))
        )

    def _changes(
        self, plan: Plan, workload: WorkloadId, targets: Sequence[_Target], snapshot: Snapshot
    ) -> list[Change]:
        owner = snapshot.owners.get(workload)
        recommendation = next(entry.recommendation for entry in targets if entry.new is not None)
        namespace, kind, name = workload_parts(workload)
        if owner is None:
            raise Refused(f"cannot change {workload}: nobody owns its pods that could make them anew; move it by hand")
        staying = [entry for entry in targets if entry.after or (not entry.seat.slices and entry.new is None)]
        leaving = [entry for entry in targets if entry not in staying]
        fields: dict[str, str | None] = {}
        if staying:
            fields.update(_seat_fields(owner, kind, staying, plan.plan_id, snapshot))
        changes = _pod_costs(leaving, recommendation, snapshot) if staying and kind != "Notebook" else []
        fields.update(self._scale_fields(owner, kind, len(staying), len(leaving), workload))
        fields[f"metadata.annotations[{PLAN_ANNOTATION}]"] = plan.plan_id
        changed = {path: new for path, new in fields.items() if not values_equal(path, field_of(owner, path), new)}
        previous = f"metadata.annotations[{PREVIOUS_ANNOTATION}]"
        before = {path: field_of(owner, path) for path in sorted(changed)}
        kept = json.loads(field_of(owner, previous) or "{}")
        changed[previous] = json.dumps({**before, **kept}, separators=(",", ":"), sort_keys=True)
        return changes + [
            Change(
                kind=kind,
                namespace=namespace,
                name=name,
                field=path,
                old=field_of(owner, path),
                new=new,
                resource_version=owner["metadata"]["resourceVersion"],
                recommendation=recommendation,
            )
            for path, new in changed.items()
        ]

    def _scale_fields(
        self, owner: Manifest, kind: str, staying: int, leaving: int, workload: WorkloadId
    ) -> dict[str, str | None]:
        if not leaving:
            return {}
        if kind == "Notebook":
            return {f"metadata.annotations[{STOPPED_ANNOTATION}]": format_time(self._now)}
        if kind == "Job":
            if staying:
                raise Refused(f"cannot stop {leaving} pods of {workload}: a Job is suspended whole or not at all")
            return {"spec.suspend": "true"}
        replicas = int(field_of(owner, "spec.replicas") or "1")
        return {"spec.replicas": str(max(0, replicas - leaving)) if staying else "0"}


def _pods_of_stages(plan: Plan, stage: int) -> dict[str, str]:
    """Pods that have reached their place after this stage, to the recommendation that brings them there.

    A pod that a later stage names again is left alone until then: it gets its slice and its card in one restart.
    """
    recommendations = {entry.id: entry for entry in plan.recommendations}
    if stage not in {entry.stage for entry in plan.stages}:
        raise Refused(f"cannot apply stage {stage}: plan {plan.plan_id} has {len(plan.stages)} stages")
    last: dict[str, tuple[int, str]] = {}
    for entry in sorted(plan.stages, key=lambda entry: entry.stage):
        for name in entry.recommendations:
            for pod in recommendations[name].pods:
                last[pod] = (entry.stage, name)
    return {pod: name for pod, (number, name) in last.items() if number <= stage}


def _placed(plan: Plan) -> dict[str, list[tuple[CardPlacement, PlacedSlice]]]:
    found: dict[str, list[tuple[CardPlacement, PlacedSlice]]] = {}
    for card in plan.placement:
        for part in card.slices:
            found.setdefault(part.pod_id, []).append((card, part))
    return found


def _target(
    seat: PodSeat,
    wanted: dict[str, str],
    placed: dict[str, list[tuple[CardPlacement, PlacedSlice]]],
    kinds: dict[str, RecommendationKind],
    snapshot: Snapshot,
) -> _Target:
    recommendation = wanted.get(seat.pod_id)
    if recommendation is None:
        return _Target(seat=seat, new=None, recommendation="")
    new = tuple(_seat_slice(card, part, snapshot) for card, part in placed.get(seat.pod_id, ()))
    if not new and kinds[recommendation] not in _STOPPING:
        raise Refused(f"cannot apply {recommendation}: the plan has no place for {seat.pod_id}, and does not stop it")
    is_there = same_slices(_without_defaults(seat.slices, new), new)
    return _Target(seat=seat, new=None if is_there else new, recommendation=recommendation)


def _without_defaults(old: Sequence[SeatSlice], new: Sequence[SeatSlice]) -> tuple[SeatSlice, ...]:
    """The old seat with the plan's priority where the card is whole before and after: nobody is there to give way."""
    is_whole = all(part.core_percent == WHOLE_CORE_PERCENT for part in (*old, *new))
    if not is_whole or not new:
        return tuple(old)
    return tuple(
        SeatSlice(
            container=part.container,
            card=part.card,
            framebuffer_mib=part.framebuffer_mib,
            core_percent=part.core_percent,
            priority=new[0].priority,
        )
        for part in old
    )


def _seat_slice(card: CardPlacement, part: PlacedSlice, snapshot: Snapshot) -> SeatSlice:
    standing = snapshot.cards.get(card.card)
    if standing is None:
        raise Refused(f"cannot place {part.pod_id} on card {card.card}: no node registers it any more")
    is_alone = len({other.pod_id for other in card.slices}) == 1
    is_whole = is_alone and part.framebuffer_bytes >= card.framebuffer_bytes - MIB
    percent = max(1, int(part.compute_ratio * 100 + 1e-6)) if part.core_policy is CorePolicy.HARD else 0
    return SeatSlice(
        container=part.container,
        card=card.card,
        framebuffer_mib=standing.framebuffer_mib if is_whole else max(1, part.framebuffer_bytes // MIB),
        core_percent=WHOLE_CORE_PERCENT if is_whole else percent,
        priority=_priority_text(card, part),
    )


def _priority_text(card: CardPlacement, part: PlacedSlice) -> str | None:
    """0 is high, 1 is low; HAMi takes a pod without one for low, so beside low ones a normal pod is given 0."""
    if part.priority is Priority.HIGH:
        return "0"
    if part.priority is Priority.LOW:
        return "1"
    return "0" if any(other.priority is Priority.LOW for other in card.slices) else None


def _move(target: _Target) -> Move:
    return Move(
        namespace=target.seat.namespace,
        pod=target.seat.pod,
        workload=target.seat.workload,
        old=target.seat.slices,
        new=target.after,
        recommendation=target.recommendation,
    )


def _seat_fields(
    owner: Manifest, kind: str, staying: Sequence[_Target], plan_id: str, snapshot: Snapshot
) -> dict[str, str | None]:
    limits = {entry.seat.pod: _limits(entry) for entry in staying if entry.after}
    counted = Counter(limits[entry.seat.pod] for entry in staying if entry.new)
    if not counted:
        return {}
    # Of grants that are equally frequent the larger is the safer one for a pod that admission does not see.
    common = max(counted, key=lambda grant: (counted[grant], int(grant[0] or 0), tuple(part or "" for part in grant)))
    if kind == "Job":
        common = (None, None, None)
    seats = {
        entry.seat.pod: PlannedSeat(
            cards=tuple(sorted({part.card for part in entry.after})),
            limits=()
            if limits[entry.seat.pod] == common and kind != "Job"
            else tuple(zip(GRANT_RESOURCES, limits[entry.seat.pod], strict=True)),
        )
        for entry in staying
        if entry.after
    }
    if kind == "Job":
        return {f"metadata.annotations[{SEATS_ANNOTATION}]": seats_text(seats)}
    cards = sorted(card for seat in seats.values() for card in seat.cards)
    fields: dict[str, str | None] = {
        f"{_TEMPLATE}[{USE_CARD_ANNOTATION}]": ",".join(dict.fromkeys(cards)),
        f"{_TEMPLATE}[{CARDS_ANNOTATION}]": ",".join(cards),
        f"{_TEMPLATE}[{SEATS_ANNOTATION}]": seats_text(seats),
        f"{_TEMPLATE}[{PLAN_ANNOTATION}]": plan_id,
    }
    used = template_of(owner).get("metadata", {}).get("annotations", {}).get(USE_MODEL_ANNOTATION)
    models = {snapshot.cards[card].device_type for card in cards if card in snapshot.cards}
    if used is not None and not all(any(word in model for word in used.split(",")) for model in models):
        fields[f"{_TEMPLATE}[{USE_MODEL_ANNOTATION}]"] = ",".join(sorted(models))
    for container in template_of(owner)["spec"]["containers"]:
        if COUNT_RESOURCE not in container.get("resources", {}).get("limits", {}):
            continue
        path = f"spec.template.spec.containers[{container['name']}]"
        for name, value in zip(GRANT_RESOURCES, common, strict=True):
            fields[f"{path}.resources.limits[{name}]"] = value
        if common[1] not in (None, "0"):
            fields[f"{path}.env[{CORE_POLICY_ENV}]"] = "force"
    return fields


def _limits(target: _Target) -> tuple[str | None, str | None, str | None]:
    """Framebuffer, cores and priority of a seat, as the template would say it; a whole card has no first two."""
    grants = {(part.framebuffer_mib, part.core_percent, part.priority) for part in target.after}
    if len(grants) > 1 and len({part[1:] for part in grants}) > 1:
        raise Refused(
            f"cannot give {target.seat.pod_id} different grants on its cards: HAMi gives every card of a container the "
            f"same {FRAMEBUFFER_RESOURCE}, {CORES_RESOURCE} and {PRIORITY_RESOURCE}"
        )
    mib, cores, priority = max(grants, key=lambda grant: grant[0])
    if cores == WHOLE_CORE_PERCENT:
        return None, None, priority
    return str(mib), str(cores), priority


def _admission_warnings(changes: Sequence[Change]) -> list[str]:
    """Workloads that the template alone can't carry out."""
    seated = [entry for entry in changes if entry.field.endswith(f"[{SEATS_ANNOTATION}]") and entry.new]
    count = sum(any(seat.limits for seat in parse_seats(entry.new or "{}").values()) for entry in seated)
    if not count:
        return []
    return [f"{count} workloads need gputide's admission step: their pods get grants that their template does not hold"]


def _pod_costs(leaving: Sequence[_Target], recommendation: str, snapshot: Snapshot) -> list[Change]:
    """Marks the pods that shall go when their owner is scaled in."""
    return [
        Change(
            kind="Pod",
            namespace=entry.seat.namespace,
            name=entry.seat.pod,
            field=f"metadata.annotations[{DELETION_COST_ANNOTATION}]",
            old=entry.seat.deletion_cost,
            new="-1000",
            resource_version=entry.seat.resource_version,
            recommendation=recommendation,
        )
        for entry in leaving
    ]
