"""Refuses a stage that counts on low priority being held back where nothing does so now.

A plan says for each co-location what it counts on: the backend's own levels, its gate between pods with core limits, a
gate that a probe saw, or the agent of the node. Each is looked for in the cluster before anything is rendered, by
`apply` and by its dry run alike: the gate also in limits, and the level in words, of pods that the stage does not
change. Nor is a limit lifted beside a pod that came since the plan, nor a stage taken back whose limits a later one
counts on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from enforcer.backend import Move
from enforcer.kinds.register import pod_templates
from enforcer.manifest import Manifest
from enforcer.record.journal import ObjectIntent
from enforcer.snapshot import Snapshot
from fleet.capabilities.capability import SHARED_PERCENT_MAX, Capabilities, CorePolicy
from fleet.decisions import CardPlacement, Need, PlacedSlice, Plan, Recommendation
from fleet.errors import Refused
from fleet.grammars.hami import CORE_POLICY_ENV, core_policy_of, disables_control
from fleet.inventory import Priority, WorkloadId
from fleet.priority_holds import Holders, unmet_need
from fleet.sentences import Sentence, sentence

_LOW = "1"
"""Low priority in the words of the backends whose gate needs limits."""


def check_priority(
    plan: Plan, chosen: Collection[Recommendation], record: Capabilities, holders: Holders, snapshot: Snapshot
) -> None:
    """Refuse advice whose promise nothing keeps.

    Args:
        chosen: recommendations of the stage.
        record: what the running version enforces.
        holders: agents that run now, and what probes saw.

    Raises:
        Refused: naming the advice, the card, and what is missing there.
    """
    changing = {pod for item in chosen for pod in item.pods}
    for item in chosen:
        if Need.PRIORITY not in item.needs:
            continue
        pods = set(item.pods)
        for card in plan.placement:
            is_mixed = len({part.priority is Priority.LOW for part in card.slices}) == 2
            if not is_mixed or pods.isdisjoint(part.pod_id for part in card.slices):
                continue
            why = _unheld(item, card, record, holders, snapshot)
            if why is None and _counts_on_limits(item, record):
                why = _unlimited(plan, card, changing, snapshot)
            if why is None and not record.gates_priority_by_cores:
                why = _unranked(plan, card, changing, snapshot)
            if why is not None:
                raise Refused(
                    sentence("guard.priority_unheld", plan=plan.plan_id, item=item.id, card=str(card.card), why=why)
                )


def _unheld(
    item: Recommendation, card: CardPlacement, record: Capabilities, holders: Holders, snapshot: Snapshot
) -> Sentence | None:
    """Why low priority is not held back on a card as advice counts on; None where it is."""
    node, backend = card.node or "", record.backend
    if record.priority_levels < 2:
        return sentence("guard.unheld_levels", backend=backend)
    if not record.gates_priority_by_cores:
        return None
    outside = next((part.pod_id for part in card.slices if _is_outside(part, record, snapshot)), None)
    if outside is not None:
        return sentence("guard.unheld_outside", pod=outside)
    why = unmet_need(item.needs, node, holders)
    if why is not None or not _counts_on_limits(item, record):
        return why
    for part in card.slices:
        percent = 0 if part.compute_ratio is None else round(part.compute_ratio * 100)
        if not 1 <= percent <= SHARED_PERCENT_MAX or part.core_policy is not CorePolicy.HARD:
            return sentence("guard.unheld_limit", backend=backend, pod=part.pod_id)
    return None


def _counts_on_limits(item: Recommendation, record: Capabilities) -> bool:
    return record.gates_priority_by_cores and not {Need.AGENT, Need.PROBED_GATE} & set(item.needs)


def _unlimited(plan: Plan, card: CardPlacement, changing: Collection[str], snapshot: Snapshot) -> Sentence | None:
    """Which pod of a card, of those that the stage does not change, has no limit as the cluster stands."""
    low = {part.workload for part in card.slices if part.priority is Priority.LOW}
    for seat in snapshot.seats.values():
        parts = [part for part in seat.slices if part.card == card.card]
        if not parts or seat.pod_id in changing:
            continue
        has_limit = all(1 <= part.core_percent <= SHARED_PERCENT_MAX for part in parts)
        policies = _core_policies(snapshot, seat.workload, {part.container for part in parts})
        # Low priority may have more where it is alone; a pod above it must have no more beside it.
        is_held = "disable" not in policies if seat.workload in low else policies == {"force"}
        if not (has_limit and is_held):
            stage = _stage_of(plan, seat.pod_id)
            if stage is None:
                return sentence("guard.unheld_standing", pod=seat.pod_id)
            return sentence("guard.unheld_before", pod=seat.pod_id, stage=stage)
    return None


def _unranked(plan: Plan, card: CardPlacement, changing: Collection[str], snapshot: Snapshot) -> Sentence | None:
    """Which pod of low priority on a card, of those that the stage does not change, says nothing of it as it stands."""
    low = {part.workload for part in card.slices if part.priority is Priority.LOW}
    for seat in snapshot.seats.values():
        # Where no pod says which card it has, its workload counts, whose pods change together.
        words = [part.priority for part in seat.slices if part.card in (card.card, None)]
        if seat.workload in low and seat.pod_id not in changing and None in words:
            stage = _stage_of(plan, seat.pod_id)
            if stage is None:
                return sentence("guard.unheld_unranked", pod=seat.pod_id)
            return sentence("guard.unheld_unranked_before", pod=seat.pod_id, stage=stage)
    return None


def _core_policies(snapshot: Snapshot, workload: WorkloadId, containers: Collection[str]) -> set[str]:
    found = _containers(snapshot, workload)
    return {core_policy_of(entry.get("env") or ()) for entry in found if entry["name"] in containers}


def _is_outside(part: PlacedSlice, record: Capabilities, snapshot: Snapshot) -> bool:
    """Whether a container says that it wants no library, which then neither holds its pod back nor sees it work."""
    own = (entry for entry in _containers(snapshot, part.workload) if entry["name"] == part.container)
    return any(disables_control(entry.get("env") or (), record.backend) for entry in own)


def _containers(snapshot: Snapshot, workload: WorkloadId) -> Iterator[Manifest]:
    owner = snapshot.owners.get(workload)
    for template in () if owner is None else pod_templates(owner):
        yield from (template.body.get("spec") or {}).get("containers") or ()


def _stage_of(plan: Plan, pod: str) -> int | None:
    ids = {item.id for item in plan.recommendations if pod in item.pods}
    return min((entry.stage for entry in plan.stages if not ids.isdisjoint(entry.recommendations)), default=None)


def check_limits_lifted(
    plan: Plan, chosen: Collection[Recommendation], record: Capabilities, snapshot: Snapshot
) -> None:
    """Refuse a stage that lifts the core limit of a pod on a card that this no longer has to itself.

    Raises:
        Refused: naming both pods and the card.
    """
    changing = {pod for item in chosen for pod in item.pods if record.gates_priority_by_cores}
    lifted = [
        (card.card, seat)
        for card in plan.placement
        for part in card.slices
        if part.pod_id in changing and part.compute_ratio is None
        for seat in [snapshot.seats.get(part.pod_id)]
        if seat is not None
        and any(one.card == card.card and 1 <= one.core_percent <= SHARED_PERCENT_MAX for one in seat.slices)
    ]
    for card, own in lifted:
        for seat in snapshot.seats.values():
            if card in seat.cards and seat.workload != own.workload:
                raise Refused(
                    sentence("guard.limit_shared", plan=plan.plan_id, pod=own.pod_id, other=seat.pod_id, card=str(card))
                )


def check_limits_stay(
    plan_id: str, back: Iterable[Move], objects: Iterable[ObjectIntent], stays: Iterable[Move], snapshot: Snapshot
) -> None:
    """Refuse an undo that lifts the limit of a pod on a card on which low priority of another stage counts on it.

    Args:
        stays: moves of stages that stand, of whatever plan, and that it leaves.

    Raises:
        Refused: naming both pods and the card.
    """
    lifted = {
        item.workload
        for item in objects
        for part in item.fields
        if part.field.endswith(f"env[{CORE_POLICY_ENV}]") and part.new == "force" != part.old
    }
    moves = list(back)
    leaving = {move.workload for move in moves}
    low = {
        (move.workload, part.card): move.pod_id
        for move in stays
        for part in move.new
        if part.priority == _LOW and move.workload not in leaving
    }
    there = {(seat.workload, card) for seat in snapshot.seats.values() for card in seat.cards}
    for move in moves:
        for card in sorted({part.card or "" for part in move.old} if move.workload in lifted else ()):
            for (workload, other), pod in low.items():
                if other == card and (workload, card) in there:
                    raise Refused(sentence("guard.limit_counted_on", plan=plan_id, pod=move.pod_id, low=pod, card=card))
