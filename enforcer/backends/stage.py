"""What every backend does alike with one stage of a plan: which pods go where, and what of their owners changes.

Pure. A backend makes a draft of the stage (`draft_stage`), says in its own words what a template must hold for the
seats of its replicas, and gets the changes of the owners (`rendered`): its own fields, the scale, the plan's mark and
the values before. What a backend can't carry out at all is refused here by its record (`check_kinds`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from enforcer.admission import PLAN_ANNOTATION, PREVIOUS_ANNOTATION
from enforcer.backend import Move, NodeStep, RenderedStage
from enforcer.backends.alike import last_stages
from enforcer.backends.planned_seats import SEATS_FIELD, merged_seats
from enforcer.backends.server_arguments import argument_fields
from enforcer.cluster import DELETION_COST_ANNOTATION
from enforcer.dialect import WHOLE_CORE_PERCENT, SeatSlice
from enforcer.kinds.kind import Reach, RolePod, Scaling
from enforcer.kinds.register import workload_kind
from enforcer.manifest import Manifest, field_of, is_signal, template_of, values_equal, workload_parts
from enforcer.seat import PodSeat, same_slices
from enforcer.snapshot import Snapshot
from fleet.capabilities.capability import Capabilities, ComputeIsolation, Oversubscription
from fleet.decisions import CardPlacement, Need, PlacedSlice, Plan, Recommendation
from fleet.errors import Refused
from fleet.inventory import WorkloadId
from fleet.outcomes import Change

_FIRST_TO_GO = "-1000"

Seater = Callable[[CardPlacement, PlacedSlice], SeatSlice]
"""Says a planned slice in the backend's words; raises `Refused` where the cluster lacks what it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One pod of a workload: where it sits, and where it shall sit.

    Attributes:
        new: as it shall sit; empty where it shall be gone, None where it stays as it is.
    """

    seat: PodSeat
    new: tuple[SeatSlice, ...] | None
    recommendation: str

    @property
    def after(self) -> tuple[SeatSlice, ...]:
        """Its seat after the stage; empty where it is gone, or waits as before."""
        return self.seat.slices if self.new is None else self.new

    @property
    def leaves(self) -> bool:
        """It shall be gone."""
        return not self.after and (bool(self.seat.slices) or self.new is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDraft:
    """One stage of a plan against the cluster, before it is said in a backend's words.

    Attributes:
        targets: all pods of each workload in which one moves or goes, in the order of the plan.
        cards: cards that a moved pod comes to, as they are after the plan.
        warnings: what holds only in part.
    """

    plan: Plan
    stage: int
    recommendations: tuple[Recommendation, ...]
    targets: Mapping[WorkloadId, tuple[Target, ...]]
    cards: tuple[CardPlacement, ...]
    warnings: tuple[str, ...]

    @property
    def origin(self) -> tuple[str, str]:
        """Id of the plan, and of the first recommendation of the stage, which has one."""
        return self.plan.plan_id, self.recommendations[0].id

    @property
    def moves(self) -> tuple[Move, ...]:
        """Pods that get another seat, or none; not those that keep what they have until their owner's next run."""
        return tuple(
            Move(
                namespace=entry.seat.namespace,
                pod=entry.seat.pod,
                workload=entry.seat.workload,
                old=entry.seat.slices,
                new=entry.after,
                recommendation=entry.recommendation,
            )
            for workload, targets in self.targets.items()
            if workload_kind(workload_parts(workload)[1]).reach is not Reach.NEXT_RUN
            for entry in targets
            if entry.new is not None
        )


def _always(targets: Sequence[Target]) -> bool:
    return True


def draft_stage(
    plan: Plan, stage: int, snapshot: Snapshot, seater: Seater, is_said: Callable[[Sequence[Target]], bool] = _always
) -> StageDraft:
    """Which pods a stage brings where.

    Args:
        stage: number of the stage, none of the tide's; the ones before it count as applied.
        is_said: whether the owner of pods that all have their places and grants already says all that goes with them.

    Raises:
        Refused: there is no such stage, pods are gone, have no place, or claim what can't be true.
    """
    wanted = _pods_of_stages(plan, stage)
    placed: dict[str, list[tuple[CardPlacement, PlacedSlice]]] = {}
    for card in plan.placement:
        for part in card.slices:
            placed.setdefault(part.pod_id, []).append((card, part))
    recommendations = {entry.id: entry for entry in plan.recommendations}
    own = tuple(
        recommendations[name] for entry in plan.stages if entry.stage == stage for name in entry.recommendations
    )
    gone = [pod for entry in own for pod in entry.pods if pod not in snapshot.seats and pod in placed]
    if gone:
        raise Refused(f"cannot apply stage {stage}: {len(gone)} pods are gone since the plan, such as {gone[0]}")
    named = [pod for entry in own for pod in entry.pods]
    workloads = dict.fromkeys(snapshot.seats[pod].workload for pod in named if pod in snapshot.seats)
    targets: dict[WorkloadId, tuple[Target, ...]] = {}
    for workload in workloads:
        aims = [
            _target(seat, recommendations[wanted[seat.pod_id]], placed.get(seat.pod_id, ()), seater)
            if seat.pod_id in wanted
            else Target(seat=seat, new=None, recommendation="")
            for seat in snapshot.pods[workload]
        ]
        entries = [_unless_there(aim) for aim in aims]
        if all(entry.new is None for entry in entries) and not is_said([aim for aim in aims if aim.new]):
            entries = aims
        moving = [entry for entry in entries if entry.new is not None]
        doubted = [entry.seat.pod_id for entry in moving if entry.seat.pod_id in snapshot.doubts]
        if doubted:
            raise Refused(f"cannot move {doubted[0]}: {snapshot.doubts[doubted[0]]}")
        if moving:
            targets[workload] = tuple(entries)
    coming = {entry.seat.pod_id for entries in targets.values() for entry in entries if entry.new}
    return StageDraft(
        plan=plan,
        stage=stage,
        recommendations=own,
        targets=targets,
        cards=tuple(card for card in plan.placement if any(part.pod_id in coming for part in card.slices)),
        warnings=tuple(_notes(targets)),
    )


def check_kinds(capabilities: Capabilities, recommendations: Sequence[Recommendation]) -> tuple[str, ...]:
    """Refuse what a backend's record rules out: kinds of advice, and needs that it does not enforce.

    Returns:
        Warnings: kinds that it carries out only in part.

    Raises:
        Refused: with the fact that stands against it.
    """
    warnings = []
    for entry in recommendations:
        fact = dict(capabilities.refuses).get(entry.kind.value)
        if fact is not None:
            raise Refused(f"cannot apply {entry.id} ({entry.kind.value}) with {capabilities.backend}: {fact}")
        part = dict(capabilities.partly).get(entry.kind.value)
        for need in entry.needs:
            is_told = part is not None and need in _LIMITS
            if not is_told and not _enforces(capabilities, need):
                raise Refused(f"cannot apply {entry.id} with {capabilities.backend}: {_LACKS.get(need, _UNHELD)}")
        if part is not None:
            warnings.append(f"{entry.kind.value} with {capabilities.backend}: {part}")
    return tuple(dict.fromkeys(warnings))


def check_lending(capabilities: Capabilities, plan: Plan, recommendations: Sequence[Recommendation]) -> None:
    """Refuse to lend more than probes saw until today, who may have seen less than when the plan was made.

    Raises:
        Refused: the factor of a card is larger, or more of a grant stays on the card than the plan counts on.
    """
    probed = capabilities.probed_lending
    pods = {pod for entry in recommendations if Need.SPILL in entry.needs for pod in entry.pods}
    for card in plan.placement if probed is not None else ():
        factor = card.memory_scaling
        if factor is None or probed is None or not any(part.pod_id in pods for part in card.slices):
            continue
        kept = 1.0 if card.kept_ratio is None else card.kept_ratio
        seen = max(
            capabilities.kept_share(part.framebuffer_bytes, card.framebuffer_bytes, factor) for part in card.slices
        )
        if factor > probed.scaling_max or kept < seen - _SAME_RATIO:
            raise Refused(
                f"cannot lend framebuffer on card {card.card} with {capabilities.backend}: the plan counts on a factor "
                f"of {factor} and {kept:.3f} of a grant that stays, and probes saw a factor of up to "
                f"{probed.scaling_max} and {seen:.3f} that stays; make a new plan"
            )


def rendered(
    draft: StageDraft,
    snapshot: Snapshot,
    template_fields: Callable[[Manifest, str, Sequence[Target]], Mapping[str, str | None]],
    now: datetime,
    *,
    warnings: Iterable[str],
    node_changes: Iterable[Change] = (),
    node_steps: Iterable[NodeStep] = (),
) -> RenderedStage:
    """A stage in a backend's words: what of nodes changes, then of owners: template, scale, mark, values before.

    Changes are grouped by object; marks of pods that shall go stand before their owner.

    Args:
        template_fields: the backend's words for the seats of the pods that stay: owner, its kind, pods; fields and
            their new values.
        warnings: what holds only in part; said once each.

    Raises:
        Refused: nobody owns the pods, or the owner can't be stopped in part.
    """
    return RenderedStage(
        stage=draft.stage,
        changes=(*node_changes, *_owner_changes(draft, snapshot, template_fields, now)),
        moves=draft.moves,
        warnings=tuple(dict.fromkeys(warnings)),
        node_steps=tuple(node_steps),
    )


def _owner_changes(
    draft: StageDraft,
    snapshot: Snapshot,
    template_fields: Callable[[Manifest, str, Sequence[Target]], Mapping[str, str | None]],
    now: datetime,
) -> list[Change]:
    changes: list[Change] = []
    for workload, targets in draft.targets.items():
        owner = snapshot.owners.get(workload)
        if owner is None:
            raise Refused(f"cannot change {workload}: nobody owns its pods that could make them anew; move it by hand")
        _, kind, _ = workload_parts(workload)
        recommendation = next(entry.recommendation for entry in targets if entry.new is not None)
        staying = [entry for entry in targets if not entry.leaves]
        leaving = [entry for entry in targets if entry.leaves]
        fields = _template_fields(draft.plan, owner, kind, staying, template_fields) if staying else {}
        fields.update(_scale_fields(owner, kind, staying, leaving, now))
        if staying and kind != "Notebook":
            changes += _pod_costs(leaving, recommendation)
        changes += owner_field_changes(owner, fields, draft.plan.plan_id, recommendation)
    return changes


def check_init_containers(owner: Manifest, asks: Callable[[Manifest], bool]) -> None:
    """Refuse to change what pods ask for where their init containers, sidecars among them, ask for cards of their own.

    A plan has places for the other containers; what these are given stays as it was, and keeps the pod off its place.

    Raises:
        Refused: one of them does.
    """
    metadata = owner["metadata"]
    for container in template_of(owner).get("spec", {}).get("initContainers") or ():
        if asks(container):
            raise Refused(
                f"cannot change {owner['kind']} {metadata.get('namespace', '')}/{metadata['name']}: its init container "
                f"{container['name']} asks for cards, and a plan has places for its other containers only; let it do "
                "without"
            )


def owner_field_changes(
    owner: Manifest, fields: Mapping[str, str | None], plan_id: str, recommendation: str
) -> list[Change]:
    """Fields of one object that become different, its mark of the plan, and `gputide.io/previous` with what was there.

    What an earlier plan kept there stays: the oldest value is the one that undo restores.

    Raises:
        Refused: what an earlier plan kept there can't be read.
    """
    wanted = {**fields, f"metadata.annotations[{PLAN_ANNOTATION}]": plan_id}
    changed = {path: new for path, new in wanted.items() if not values_equal(path, field_of(owner, path), new)}
    previous = f"metadata.annotations[{PREVIOUS_ANNOTATION}]"
    before = {path: field_of(owner, path) for path in sorted(changed)}
    changed[previous] = json.dumps({**before, **_kept(owner, previous)}, separators=(",", ":"), sort_keys=True)
    return field_changes(owner, changed, recommendation)


def field_changes(manifest: Manifest, fields: Mapping[str, str | None], recommendation: str) -> list[Change]:
    """Fields of one object that become different, and signals, which are given again."""
    metadata = manifest["metadata"]
    return [
        Change(
            kind=manifest["kind"],
            namespace=metadata.get("namespace", ""),
            name=metadata["name"],
            field=path,
            old=field_of(manifest, path),
            new=new,
            resource_version=metadata["resourceVersion"],
            recommendation=recommendation,
        )
        for path, new in fields.items()
        if is_signal(path) or not values_equal(path, field_of(manifest, path), new)
    ]


def without_default_priority(old: Sequence[SeatSlice], new: Sequence[SeatSlice]) -> tuple[SeatSlice, ...]:
    """The old seat with the plan's priority where the card is whole before and after: nobody is there to give way."""
    is_whole = all(part.core_percent == WHOLE_CORE_PERCENT for part in (*old, *new))
    if not is_whole or not new:
        return tuple(old)
    return tuple(replace(part, priority=new[0].priority) for part in old)


def _enforces(capabilities: Capabilities, need: Need) -> bool:
    match need:
        case Need.FRAMEBUFFER_LIMIT:
            return capabilities.holds_framebuffer
        case Need.CORE_LIMIT:
            return capabilities.compute_isolation is not ComputeIsolation.NONE
        case Need.PRIORITY:
            return capabilities.priority_levels > 1
        case Need.AGENT | Need.STRICT_AGENT | Need.GRAPH_PAUSE | Need.PROBED_GATE:
            return capabilities.gates_priority_by_cores
        case Need.OVERSUBSCRIPTION:
            return capabilities.oversubscription is not Oversubscription.NONE
        case Need.SPILL:
            return capabilities.can_lend


_SAME_RATIO = 1e-6
_LIMITS = (Need.FRAMEBUFFER_LIMIT, Need.CORE_LIMIT)
"""Needs of which a record may say that they hold in part: then a note says so, and the advice stands."""

_UNHELD = "it needs low priority held back, and it is not"
_LACKS = {
    Need.FRAMEBUFFER_LIMIT: "it needs framebuffer that is kept to its limit, and nothing there stops a process",
    Need.CORE_LIMIT: "it needs a limit on compute, and there is none",
    Need.OVERSUBSCRIPTION: "it needs more framebuffer granted than the card has, and none can be",
    Need.SPILL: "it needs framebuffer that is lent, and it spills nothing, or nobody knows that it comes back",
}


def _kept(owner: Manifest, previous: str) -> Mapping[str, object]:
    text = field_of(owner, previous)
    if text is None:
        return {}
    try:
        kept = json.loads(text)
    except (ValueError, RecursionError):
        kept = None
    if not isinstance(kept, dict):
        metadata = owner["metadata"]
        raise Refused(
            f"cannot change {owner['kind']} {metadata.get('namespace', '')}/{metadata['name']}: its annotation "
            f"{PREVIOUS_ANNOTATION} is no JSON object, so undo could not restore what it was; remove the annotation"
        )
    return kept


def _pods_of_stages(plan: Plan, stage: int) -> dict[str, str]:
    """Pods that have reached their place after this stage, to the recommendation that brings them there.

    A pod that a later stage names again is left alone until then: it gets its slice and its card in one restart.
    """
    if stage not in {entry.stage for entry in plan.stages}:
        raise Refused(f"cannot apply stage {stage}: plan {plan.plan_id} has {len(plan.stages)} stages")
    return {pod: name for pod, (number, name) in last_stages(plan).items() if number <= stage}


def _target(
    seat: PodSeat, recommendation: Recommendation, placed: Sequence[tuple[CardPlacement, PlacedSlice]], seater: Seater
) -> Target:
    new = tuple(seater(card, part) for card, part in placed)
    if not new and not recommendation.kind.ends_pods:
        raise Refused(
            f"cannot apply {recommendation.id}: the plan has no place for {seat.pod_id}, and does not stop it"
        )
    return Target(seat=seat, new=new, recommendation=recommendation.id)


def _unless_there(aim: Target) -> Target:
    is_there = aim.new is not None and same_slices(without_default_priority(aim.seat.slices, aim.new), aim.new)
    return replace(aim, new=None) if is_there else aim


def _notes(targets: Mapping[WorkloadId, Sequence[Target]]) -> list[str]:
    """Notes on kinds whose pods do not simply come again."""
    found: dict[str, list[str]] = {}
    for workload, entries in targets.items():
        kind = workload_kind(workload_parts(workload)[1])
        if kind.note is not None and any(entry.new for entry in entries):
            found.setdefault(kind.note, []).append(workload)
    return [
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {note}" for note, names in found.items()
    ]


def _template_fields(
    plan: Plan,
    owner: Manifest,
    kind: str,
    staying: Sequence[Target],
    template_fields: Callable[[Manifest, str, Sequence[Target]], Mapping[str, str | None]],
) -> dict[str, str | None]:
    """The fields of each pod template for the pods that are made from it, at the owner's own paths."""
    found = workload_kind(kind)
    templates = found.templates(owner)
    moving = [entry for entry in staying if entry.new]
    name = f"{kind} {owner['metadata'].get('namespace', '')}/{owner['metadata']['name']}"
    refusal = found.refusal(owner) if moving else None
    if refusal is not None:
        raise Refused(f"cannot change {name}: {refusal}")
    roles = {template.role for template in templates}
    lost = [entry.seat.pod_id for entry in moving if "" not in roles and entry.seat.role not in roles]
    if lost:
        raise Refused(f"cannot change {name}: it has no template of its own that {lost[0]} is made from")
    fields: dict[str, str | None] = {}
    seats: dict[str, str] = {}
    is_ours = field_of(owner, f"metadata.annotations[{PLAN_ANNOTATION}]") == plan.plan_id
    kept = _kept(owner, f"metadata.annotations[{PREVIOUS_ANNOTATION}]") if is_ours else {}
    for template in templates:
        own = [entry for entry in staying if template.role in ("", entry.seat.role)]
        if own:
            pods = {entry.seat.pod_id for entry in own if entry.new}
            parts = [part for card in plan.placement for part in card.slices if part.pod_id in pods]
            said = template_fields(template.view(owner), kind, own)
            fields.update({template.place(path): value for path, value in said.items()})
            fields.update(argument_fields(owner, template, parts, kept))
            if said.get(SEATS_FIELD):
                seats[template.role] = str(said[SEATS_FIELD])
    return {**fields, SEATS_FIELD: merged_seats(owner, seats)} if seats else fields


def _scale_fields(
    owner: Manifest, kind: str, staying: Sequence[Target], leaving: Sequence[Target], now: datetime
) -> dict[str, str | None]:
    if not leaving:
        return {}
    holding = [entry for entry in staying if entry.after]
    return workload_kind(kind).scale(
        Scaling(
            owner=owner,
            staying=tuple(RolePod(name=entry.seat.pod, role=entry.seat.role) for entry in holding),
            leaving=tuple(RolePod(name=entry.seat.pod, role=entry.seat.role) for entry in leaving),
            others=len(staying) - len(holding),
            now=now,
        )
    )


def _pod_costs(leaving: Sequence[Target], recommendation: str) -> list[Change]:
    """Marks the pods that shall go when their owner is scaled in."""
    return [
        Change(
            kind="Pod",
            namespace=entry.seat.namespace,
            name=entry.seat.pod,
            field=f"metadata.annotations[{DELETION_COST_ANNOTATION}]",
            old=entry.seat.deletion_cost,
            new=_FIRST_TO_GO,
            resource_version=entry.seat.resource_version,
            recommendation=recommendation,
        )
        for entry in leaving
        if entry.seat.deletion_cost != _FIRST_TO_GO
    ]
