"""Which workload an object belongs to, by walking up its controllers: Pod → ReplicaSet → Deployment → InferenceService.

Pure. Custom kinds need no list of their own: whoever controls the last object that is known is the workload, as the
exporter has it. The snapshot reads who may own pods, the carrier asks again while pods come and go.

Source: kubernetes:pkg/controller/deployment/sync.go (getNewReplicaSet), argoproj/argo-rollouts:utils/defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fleet.inventory import WorkloadId

MAKERS = ("ReplicaSet", "StatefulSet", "Deployment", "Job", "LeaderWorkerSet")
"""Kinds that own pods and may have a controller of their own."""

Parents = Mapping[tuple[str, str, str], tuple[str, str]]
"""Kind, namespace and name of an object to kind and name of its controller."""

_LINKS_MAX = 16
# Label with the hash → kind that makes ReplicaSets with it.
_TEMPLATE_HASHES = (("rollouts-pod-template-hash", "Rollout"), ("pod-template-hash", "Deployment"))
# A static pod is owned by the node that it runs on, which is nobody's workload.
_NO_WORKLOADS = frozenset({"Node"})


def parents_of(objects: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, str], tuple[str, str]]:
    """The controllers of objects, of those that have one."""
    found = {}
    for manifest in objects:
        controller = controller_of(manifest)
        if controller is not None:
            metadata = manifest["metadata"]
            found[str(manifest["kind"]), str(metadata.get("namespace", "")), str(metadata["name"])] = controller
    return found


def controller_of(manifest: Mapping[str, Any]) -> tuple[str, str] | None:
    """Kind and name of an object's controller; None where it has none."""
    references = manifest["metadata"].get("ownerReferences") or ()
    for reference in references:
        if reference.get("controller", len(references) == 1) and reference.get("kind") not in _NO_WORKLOADS:
            return str(reference["kind"]), str(reference["name"])
    return None


def workload_of_pod(pod: Mapping[str, Any], parents: Parents) -> WorkloadId:
    """The workload that a pod belongs to in the end; the pod itself where nobody owns it.

    Args:
        pod: the pod.
        parents: controllers of what may own pods. Of a ReplicaSet that is not among them (it is too new, or may not be
            read) the name tells who made it: it ends in the hash that the pod carries as a label.
    """
    metadata = pod["metadata"]
    namespace = str(metadata["namespace"])
    here = ("Pod", str(metadata["name"]))
    above = controller_of(pod)
    for _ in range(_LINKS_MAX):
        if above is None:
            break
        here = above
        above = parents.get((here[0], namespace, here[1]))
        if above is None and here[0] == "ReplicaSet":
            above = _maker_of_replica_set(here[1], metadata.get("labels") or {})
    return WorkloadId(f"{namespace}/{here[0]}/{here[1]}")


def _maker_of_replica_set(name: str, labels: Mapping[str, Any]) -> tuple[str, str] | None:
    for label, kind in _TEMPLATE_HASHES:
        template_hash = labels.get(label)
        maker = name.removesuffix(f"-{template_hash}")
        if template_hash and maker and maker != name:
            return kind, maker
    return None
