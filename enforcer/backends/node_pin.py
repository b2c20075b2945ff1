"""Keeps pods on the nodes that the plan gives them, where the scheduler alone would be free to choose.

Nodes of a workload get one label, its template a selector of that label: so no pod comes to a node that the plan frees,
and a node may be in as many such sets as there are workloads on it. The label's name is made of the nodes' names, so
the same set has the same label whoever asks, and a label that nobody selects any more does nothing. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from enforcer.backends.stage import StageDraft, field_changes
from enforcer.kinds.register import pod_templates
from enforcer.manifest import Manifest, template_of
from enforcer.snapshot import Snapshot
from fleet.decisions import Plan
from fleet.errors import Refused
from fleet.inventory import WorkloadId
from fleet.outcomes import Change

PIN_PREFIX = "nodes.gputide.io/"
"""Of the labels: what follows tells the set of nodes."""

_PIN_VALUE = "planned"
_TEMPLATE_SELECTOR = "spec.template.spec.nodeSelector"


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


def pin_label(nodes: Iterable[str]) -> str:
    """The label of a set of nodes."""
    text = "\n".join(sorted(set(nodes)))
    return PIN_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:12]


def pin_fields(owner: Manifest, nodes: Iterable[str]) -> dict[str, str | None]:
    """Fields of a template that keep its pods on these nodes, in place of those that an earlier plan chose."""
    selector = template_of(owner)["spec"].get("nodeSelector") or {}
    stale = {key: None for key in selector if key.startswith(PIN_PREFIX)}
    keys: Mapping[str, str | None] = {**stale, pin_label(nodes): _PIN_VALUE}
    return {f"{_TEMPLATE_SELECTOR}[{key}]": value for key, value in keys.items()}


def pin_changes(draft: StageDraft, snapshot: Snapshot, nodes_of: Mapping[WorkloadId, tuple[str, ...]]) -> list[Change]:
    """Labels that nodes lack for the workloads that a stage moves.

    Raises:
        Refused: a node of the plan is gone, or the owner's own selector keeps its pods off it.
    """
    wanted: dict[str, dict[str, str | None]] = {}
    for workload, targets in draft.targets.items():
        if not any(entry.new for entry in targets):
            continue
        nodes = nodes_of.get(workload, ())
        for node in nodes:
            _check_selector(snapshot.owners.get(workload), node_of(snapshot, node))
            wanted.setdefault(node, {})[f"metadata.labels[{pin_label(nodes)}]"] = _PIN_VALUE
    recommendation = draft.recommendations[0].id if draft.recommendations else ""
    changes: list[Change] = []
    for node, fields in sorted(wanted.items()):
        changes += field_changes(node_of(snapshot, node), fields, recommendation)
    return changes


def node_of(snapshot: Snapshot, name: str) -> Manifest:
    """A node by name.

    Raises:
        Refused: there is none any more.
    """
    node = snapshot.nodes.get(name)
    if node is None:
        raise Refused(f"cannot place pods on node {name}: it is gone since the plan")
    return node


def _check_selector(owner: Manifest | None, node: Manifest) -> None:
    labels = node["metadata"].get("labels", {})
    templates = () if owner is None else pod_templates(owner)
    selectors = [template.body["spec"].get("nodeSelector") or {} for template in templates]
    for key, value in (pair for selector in selectors for pair in selector.items()):
        if not key.startswith(PIN_PREFIX) and labels.get(key) != value:
            raise Refused(
                f"cannot place pods of {owner['metadata']['name'] if owner else ''} on node "
                f"{node['metadata']['name']}: their template selects {key}={value}, the node has {labels.get(key)!r}"
            )
