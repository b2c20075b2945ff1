"""Keeps pods on the nodes that the plan gives them, where nobody can choose their card.

Each pod gets affinity to the node of its seat at admission, as long as that node takes pods; no template and no node
carries anything for it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from enforcer.admission import PlannedSeat
from enforcer.backends.planned_seats import seat_marks
from enforcer.backends.stage import StageDraft, Target
from enforcer.kinds.register import pod_templates
from enforcer.manifest import Manifest
from enforcer.node_choice import chooses
from enforcer.seat import PodSeat
from enforcer.snapshot import Snapshot
from fleet.decisions import Plan
from fleet.errors import Refused
from fleet.inventory import WorkloadId


def nodes_of_workloads(plan: Plan) -> dict[WorkloadId, tuple[str, ...]]:
    """Nodes on which each workload sits after the plan, sorted.

    Raises:
        Refused: the plan leaves the node of a card open.
    """
    found: dict[WorkloadId, set[str]] = {}
    for card in plan.placement:
        for part in card.slices:
            if card.node is None:
                raise Refused(f"cannot place {part.pod_id} on card {card.card}: the plan does not name its node")
            found.setdefault(part.workload, set()).add(card.node)
    return {workload: tuple(sorted(nodes)) for workload, nodes in found.items()}


def pin_fields(kind: str, staying: Sequence[Target], plan_id: str) -> dict[str, str | None]:
    """Fields of an owner that keep the pods of one template on the nodes of their seats; none where no pod moves.

    Args:
        staying: its pods that are there after the stage.
    """
    if not any(entry.new for entry in staying):
        return {}
    nodes = {entry.seat.pod: entry.after[0].node or entry.seat.node for entry in staying if entry.after}
    return seat_marks(kind, {pod: PlannedSeat(node=node) for pod, node in nodes.items() if node}, plan_id)


def check_nodes(draft: StageDraft, snapshot: Snapshot, nodes_of: Mapping[WorkloadId, tuple[str, ...]]) -> None:
    """Refuse nodes that the pods of a stage can't go to.

    Raises:
        Refused: a node of the plan is gone, or the owner's own selector or affinity keeps its pods off it.
    """
    for workload, targets in draft.targets.items():
        for node in nodes_of.get(workload, ()) if any(entry.new for entry in targets) else ():
            node_of(snapshot, node)
    check_choices(draft, snapshot)


def check_choices(draft: StageDraft, snapshot: Snapshot) -> None:
    """Refuse nodes that the moved pods' own templates do not choose: they would come up elsewhere.

    Raises:
        Refused: selector or affinity of the template of a pod's role keeps it off the node of its new seat.
    """
    for target in (target for targets in draft.targets.values() for target in targets):
        for part in target.new or ():
            card = snapshot.cards.get(part.card or "")
            node = snapshot.nodes.get((part.node if card is None else card.node) or "")
            if node is not None:
                _check_choice(target.seat, node, snapshot)


def _check_choice(seat: PodSeat, node: Manifest, snapshot: Snapshot) -> None:
    """Refuse a node that the template of a pod does not choose, whatever the node's taints: admission may add words.

    Raises:
        Refused: selector or affinity keeps the pods of that template off it.
    """
    owner = snapshot.owners.get(seat.workload)
    templates = () if owner is None else pod_templates(owner)
    said = f"cannot place pods of {seat.workload} on node {node['metadata']['name']}: their template"
    labels = node["metadata"].get("labels") or {}
    for spec in (template.body["spec"] for template in templates if template.role in ("", seat.role)):
        for key, value in (spec.get("nodeSelector") or {}).items():
            if labels.get(key) != value:
                raise Refused(f"{said} selects {key}={value}, the node has {labels.get(key)!r}")
        if not chooses(spec, node):
            raise Refused(f"{said} has an affinity that keeps them off it")


def node_of(snapshot: Snapshot, name: str) -> Manifest:
    """A node by name.

    Raises:
        Refused: there is none any more.
    """
    node = snapshot.nodes.get(name)
    if node is None:
        raise Refused(f"there is no node {name}, or no longer")
    return node
