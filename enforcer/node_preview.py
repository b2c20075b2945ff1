"""What a stage does to nodes, before anybody approves it: who is evicted, what is waited for, how many cards are held.

Where a node only counts its cards, nobody reports which card a pod has: what is held is counted from what its pods ask
for now, and by the plan's own cards for what stands afterwards. Called by the preview.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from enforcer.backend import NodeStep, RenderedStage
from enforcer.dialect import WHOLE_CORE_PERCENT, SeatSlice
from enforcer.manifest import field_of
from enforcer.snapshot import Snapshot
from fleet.decisions import Plan
from fleet.grammars.mgpu import RECLAIMED_CORES_RESOURCE
from fleet.grammars.mig import profile_of_resource

_COMPUTE_SLICES = 7
"""Compute slices of a card that is cut by MIG."""
_NAMED_MAX = 5
_WHOLE = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDiff:
    """What becomes of one node whose cards are shared in another way, or are only counted.

    Attributes:
        steps: what is done to it, in order, one phrase each.
        cards_before: cards that its pods hold now; None where each card is known by itself.
        cards_after: the same then.
    """

    node: str
    steps: tuple[str, ...]
    cards_before: int | None = None
    cards_after: int | None = None

    @property
    def cards_freed(self) -> int:
        """Counted cards that nobody holds any more."""
        return max(0, (self.cards_before or 0) - (self.cards_after or 0))


def counted_cards(snapshot: Snapshot) -> dict[str, int]:
    """How many cards pods hold on each node that only counts its cards, by what the node says of their sharing."""
    shared = _replicas(snapshot)
    devices: dict[str, Counter[str]] = {node: Counter() for node in shared}
    for seat in snapshot.seats.values():
        for part in seat.slices:
            if part.card is None and part.node is not None and part.resource is not None:
                devices.setdefault(part.node, Counter())[part.resource] += _devices(part, shared)
    for node in [name for name in devices if name not in shared]:
        # Its labels say nothing: whole cards can be counted nevertheless, replicas can't.
        if set(devices[node]) <= {_WHOLE}:
            shared[node] = 1
        else:
            del devices[node]
    return {node: _cards_of(own, shared[node]) for node, own in devices.items()}


def _replicas(snapshot: Snapshot) -> dict[str, int]:
    """Into how many replicas each node that only counts its cards shares them, as its labels say."""
    return {card.node: max(1, card.slices_max) for card in snapshot.cards.values() if card.is_counted}


def _devices(part: SeatSlice, shared: Mapping[str, int]) -> int:
    """How many devices of its node a share takes: all of a card's where it keeps others off."""
    return shared.get(part.node or "", 1) if part.core_percent == WHOLE_CORE_PERCENT else 1


def _cards_of(devices: Mapping[str, int], replicas: int) -> int:
    """Cards that so many devices of each resource are on at least; instances by compute slices, seven to a card.

    Instances of several profiles lie on one card together, and work in cores that other work leaves beside that work.

    Source: NVIDIA/mig-parted:api/spec (profiles), NVIDIA/k8s-device-plugin:README.md (replicas).
    """
    slices = cards = 0
    for resource, count in devices.items():
        profile = profile_of_resource(resource)
        if resource == RECLAIMED_CORES_RESOURCE:
            continue
        if profile is None:
            cards += math.ceil(count / replicas)
        else:
            own = profile.partition("g.")[0]
            slices += count * (int(own) if own.isdigit() else 1)
    beside = math.ceil(devices.get(RECLAIMED_CORES_RESOURCE, 0) / replicas)
    return max(beside, cards + math.ceil(slices / _COMPUTE_SLICES))


def counted_after(plan: Plan, after: Snapshot, held: Mapping[str, int]) -> dict[str, int]:
    """How many cards are held after a stage: those that the plan has on a node for pods that sit there then.

    Args:
        held: counted cards that pods hold before it, by node.
    """
    found = dict.fromkeys(held, 0)
    known: set[str] = set()
    for card in plan.placement:
        sitting = {part.pod_id for part in card.slices} & after.seats.keys()
        here = {pod for pod in sitting if after.seats[pod].node == card.node}
        known |= here
        if card.node in found and here:
            found[card.node] += 1
    shared = _replicas(after)
    others: dict[str, Counter[str]] = {}
    for seat in after.seats.values():
        for part in seat.slices if seat.pod_id not in known else ():
            if part.node in found and part.card is None and part.resource is not None:
                others.setdefault(part.node, Counter())[part.resource] += _devices(part, shared)
    for node, own in others.items():
        found[node] += _cards_of(own, shared.get(node, 1))
    return found


def node_diffs(
    rendered: RenderedStage, snapshot: Snapshot, held: Mapping[str, int], then: Mapping[str, int]
) -> tuple[NodeDiff, ...]:
    """Nodes of a stage that do something, or whose counted cards change hands, by name.

    Args:
        snapshot: the cluster before it.
        held: counted cards that pods hold before it, by node.
    """
    steps = {step.node: step for step in rendered.node_steps}
    moved = {part.node for move in rendered.moves for part in (*move.old, *move.new)}
    nodes = sorted({*steps, *(node for node in held if node in moved)})
    return tuple(
        NodeDiff(
            node=node,
            steps=() if node not in steps else _step_phrases(steps[node], snapshot),
            cards_before=held.get(node),
            cards_after=then.get(node),
        )
        for node in nodes
    )


def _step_phrases(step: NodeStep, snapshot: Snapshot) -> tuple[str, ...]:
    """What is done to a node, in the order in which it is done."""
    found = []
    modes = sorted({card.mode or "whole" for card in snapshot.cards.values() if card.node == step.node})
    if step.leaving:
        found.append(f"is closed to new pods and emptied: {_names(step.leaving)} are evicted")
    if step.empty_cards:
        found.append(f"cards that nobody may hold meanwhile: {', '.join(step.empty_cards)}")
    if step.restarts:
        found.append(f"{_names(step.restarts)} are evicted, and made anew with the new configuration")
    if step.done_mode is not None:
        found.append(f"mode of its cards: {', '.join(modes) or 'none'} -> {step.done_mode}")
    for field, value in (*(() if step.done_field is None else ((step.done_field, step.done_value),)), *step.advertised):
        now = field_of(snapshot.nodes[step.node], field) if step.node in snapshot.nodes else None
        found.append(f"is waited for until {field} is {value} (now {now})")
    if step.leaving:
        found.append("is opened again")
    return tuple(found)


def _names(pods: Sequence[tuple[str, str]]) -> str:
    shown = [f"{namespace}/{name}" for namespace, name in pods[:_NAMED_MAX]]
    more = len(pods) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
