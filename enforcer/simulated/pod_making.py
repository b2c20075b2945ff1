"""The pods that the controllers of a simulated cluster make of a template, and what the scheduler writes on them.

Pure. Called by the controllers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from enforcer.manifest import Manifest
from enforcer.simulated.books import Allocation
from enforcer.simulated.kind_specs import labels_of_pods
from enforcer.simulated.revisions import HASH_LABEL, HASH_LABELS, REVISION_LABEL, revision_name
from enforcer.simulated.store import Books, PodRow
from enforcer.simulated.system import SharingSystem

REVISION_KINDS = {
    "DaemonSet": "ControllerRevision",
    "Deployment": "ReplicaSet",
    "InferenceService": "ReplicaSet",
    "LeaderWorkerSet": "ControllerRevision",
    "RayService": "ControllerRevision",
    "Rollout": "ReplicaSet",
    "StatefulSet": "ControllerRevision",
}
"""What keeps the revisions of a kind's template."""

ROLLING_KINDS = tuple(REVISION_KINDS)
"""Kinds whose pods follow a changed template without being evicted."""


def pod_of(owner: Manifest, name: str, template: Mapping[str, Any], revision: str) -> Manifest:
    """A pod as its controller makes it of a template."""
    metadata = template.get("metadata", {})
    annotations = dict(metadata.get("annotations") or {})
    labels = {**(metadata.get("labels") or {}), **labels_of_pods(owner["kind"])}
    reference = reference_to(owner)
    if REVISION_KINDS.get(owner["kind"]) == "ReplicaSet":
        labels[HASH_LABELS.get(owner["kind"], HASH_LABEL)] = revision
        maker = revision_name(owner["metadata"]["name"], revision)
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": maker, "controller": True}
    elif owner["kind"] in ROLLING_KINDS:
        labels[REVISION_LABEL] = revision
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": owner["metadata"]["namespace"],
            "name": name,
            "annotations": annotations,
            "labels": labels,
            "ownerReferences": [reference],
        },
        "spec": dict(template.get("spec", {})),
    }


def labelled(template: Mapping[str, Any], label: str, revision: str) -> Manifest:
    """A template as its ReplicaSet has it: its pods carry the hash."""
    metadata = template.get("metadata", {})
    return {**template, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), label: revision}}}


def reference_to(owner: Manifest) -> Manifest:
    """Who controls what an owner makes."""
    found = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}
    return {**found, "controller": True}


def bound(
    pod: PodRow, allocations: Sequence[Allocation], books: Books, system: SharingSystem, *, ready_ms: int | None = None
) -> PodRow:
    """The pod with what the sharing system writes on it."""
    node = books.cards[allocations[0].card].node
    marks = system.marks(pod.body, allocations, [card for card in books.cards.values() if card.node == node])
    metadata = pod.body["metadata"]
    written = {part: {**metadata.get(part, {}), **own} for part, own in marks.items()}
    body = {**pod.body, "metadata": {**metadata, **written}, "spec": {**pod.body["spec"], "nodeName": node}}
    return replace(pod, node=node, ready_ms=pod.ready_ms if ready_ms is None else ready_ms, reason=None, body=body)
