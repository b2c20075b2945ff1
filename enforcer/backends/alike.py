"""Replicas of a workload are alike: where the scheduler says which of them comes to which node, names do not count.

A plan gives every pod its place by name. A template can only say where all its replicas may go, so after a stage the
pods sit as planned, but not each where its name was written. What is compared with the cluster is therefore the plan
with names swapped until as many pods as can be sit where they are. And a template that changes makes all its replicas
anew, so those that a later stage names come along with the first that does. Pure; for backends whose scheduler is
Kubernetes' own or KAI.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from enforcer.snapshot import Snapshot
from fleet.decisions import CardPlacement, Plan, Recommendation, RecommendationKind
from fleet.inventory import CardId, WorkloadId


def with_seats_as_they_are(plan: Plan, snapshot: Snapshot) -> Plan:
    """The plan with names of pods swapped within each workload, so that those who sit on a node of theirs stay there.

    Only pods with one slice are swapped, and only those that some recommendation names: the others stay anyway.
    """
    names = _new_names(plan, snapshot)
    if not names:
        return plan
    return replace(plan, placement=tuple(_renamed(card, names) for card in plan.placement))


def with_all_replicas(
    plan: Plan, stage: int, snapshot: Snapshot, *, stays_on_node: bool
) -> tuple[Plan, tuple[str, ...]]:
    """The plan up to a stage, in which the stage names every replica of its workloads that a later stage would.

    Args:
        stays_on_node: True where a replica that comes along stays on its node until its own stage, False where it goes
            to its place at once, since only there is what the template asks for.

    Returns:
        The plan, and what is to be said of it.
    """
    number_of = {pod: number for pod, (number, _) in last_stages(plan).items()}
    own = {name for entry in plan.stages if entry.stage == stage for name in entry.recommendations}
    first: dict[WorkloadId, str] = {}
    workload_of = {part.pod_id: part.workload for card in plan.placement for part in card.slices}
    for entry in plan.recommendations:
        for pod in entry.pods if entry.id in own else ():
            # A workload that a later stage names in whole can wait for that, unless its node can't.
            if pod in workload_of and (number_of[pod] == stage or not stays_on_node):
                first.setdefault(workload_of[pod], entry.id)
    along = {
        pod: first[workload]
        for pod, workload in workload_of.items()
        if workload in first and number_of.get(pod, 0) > stage and pod in snapshot.seats
    }
    if not along:
        return plan, ()
    whole = replace(
        plan, recommendations=tuple(_with_along(entry, along, is_own=entry.id in own) for entry in plan.recommendations)
    )
    if stays_on_node:
        whole = replace(whole, placement=_staying(plan.placement, along, snapshot))
    text = f"{len(along)} pods that later stages name come along: a template makes all its replicas anew"
    return whole, (text,)


def last_stages(plan: Plan) -> dict[str, tuple[int, str]]:
    """The last stage that names each pod, and its recommendation; the tide is left out, its pods come back."""
    recommendations = {entry.id: entry for entry in plan.recommendations}
    last: dict[str, tuple[int, str]] = {}
    for entry in sorted(plan.stages, key=lambda entry: entry.stage):
        for name in entry.recommendations:
            if recommendations[name].kind is not RecommendationKind.TIDE:
                last.update(dict.fromkeys(recommendations[name].pods, (entry.stage, name)))
    return last


def _with_along(entry: Recommendation, along: Mapping[str, str], *, is_own: bool) -> Recommendation:
    """Advice with the pods that come along with it, or without those that came along with an earlier one."""
    kept = tuple(pod for pod in entry.pods if is_own or pod not in along)
    coming = tuple(pod for pod, name in along.items() if name == entry.id and pod not in kept)
    return replace(entry, pods=(*kept, *coming))


def _staying(
    placement: Sequence[CardPlacement], along: Mapping[str, str], snapshot: Snapshot
) -> tuple[CardPlacement, ...]:
    """The placement with some pods on a card of their own of the node where they are."""
    found: list[CardPlacement] = []
    for card in placement:
        nodes = {part.pod_id: snapshot.seats[part.pod_id].node for part in card.slices if part.pod_id in along}
        staying = [part for part in card.slices if nodes.get(part.pod_id, card.node) != card.node]
        found.append(replace(card, slices=tuple(part for part in card.slices if part not in staying)))
        found += [
            replace(card, card=CardId(f"{card.card} (later {part.pod_id})"), node=nodes[part.pod_id], slices=(part,))
            for part in staying
        ]
    return tuple(card for card in found if card.slices)


def _new_names(plan: Plan, snapshot: Snapshot) -> dict[str, str]:
    """Pod of the plan to the pod that takes its place, `namespace/pod`; those that keep theirs are left out."""
    movable = {pod for entry in plan.recommendations for pod in entry.pods}
    parts = Counter(part.pod_id for card in plan.placement for part in card.slices)
    places: dict[WorkloadId, dict[str, str]] = {}
    for card in plan.placement:
        for part in card.slices:
            if part.pod_id in movable and parts[part.pod_id] == 1 and part.pod_id in snapshot.seats:
                places.setdefault(part.workload, {})[part.pod_id] = card.node or ""
    names: dict[str, str] = {}
    for place in places.values():
        names.update(_swapped(place, {pod: snapshot.seats[pod].node for pod in place}))
    return {old: new for old, new in names.items() if old != new}


def _swapped(planned: Mapping[str, str], actual: Mapping[str, str | None]) -> dict[str, str]:
    """Who takes whose place: pods that sit on a node where one of them shall sit take such a place."""
    right = {pod for pod, node in planned.items() if actual[pod] == node}
    names = {pod: pod for pod in right}
    open_places = sorted(pod for pod in planned if pod not in right)
    others = sorted(open_places)
    for pod in list(others):
        found = next((place for place in open_places if planned[place] == actual[pod]), None)
        if found is not None:
            names[found] = pod
            open_places.remove(found)
            others.remove(pod)
    names.update(zip(open_places, others, strict=True))
    return names


def _renamed(card: CardPlacement, names: Mapping[str, str]) -> CardPlacement:
    slices = tuple(replace(part, pod=names.get(part.pod_id, part.pod_id).partition("/")[2]) for part in card.slices)
    return replace(card, slices=slices)
