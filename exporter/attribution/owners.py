"""Which workload a pod belongs to, by walking up its owners.

Pure. Custom kinds need no list of their own: whoever controls the last object that is known is the workload. A reader
that may not read ReplicaSets still finds Deployments, for a ReplicaSet is named after its own and the template's hash,
and the pod carries the hash as a label.

Source: kubernetes:pkg/controller/deployment/sync.go (getNewReplicaSet), argoproj/argo-rollouts:utils/defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.allocation.records import OwnerLinkRecord

_LINKS_MAX = 16
# Label with the hash → kind that makes ReplicaSets with it.
_TEMPLATE_HASHES = (("rollouts-pod-template-hash", "Rollout"), ("pod-template-hash", "Deployment"))
# A static pod is owned by the node that it runs on, which is nobody's workload.
_NO_WORKLOADS = frozenset({"Node"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadName:
    """The object that a pod belongs to in the end; the pod itself where nothing owns it.

    Attributes:
        kind: Kubernetes kind.
        name: name, in the pod's namespace.
    """

    kind: str
    name: str


def workload_of(
    pod: str, owner: OwnerLinkRecord | None, labels: Mapping[str, str], owners: Mapping[str, OwnerLinkRecord]
) -> WorkloadName:
    """Walks from a pod to the topmost owner that is known.

    Args:
        pod: name of the pod.
        owner: its controller; None where it has none.
        labels: the pod's labels.
        owners: controller of each object that may own pods, by the object's UID; what is missing could not be read, or
            has none.
    """
    here = WorkloadName(kind="Pod", name=pod)
    seen: set[str] = set()
    while owner is not None and owner.kind not in _NO_WORKLOADS and len(seen) < _LINKS_MAX:
        if owner.uid in seen:
            # Owners in a circle: the last that is new is as good as any.
            break
        seen.add(owner.uid)
        here = WorkloadName(kind=owner.kind, name=owner.name)
        owner = owners.get(owner.uid)
    return _maker_of_replica_set(here, labels) if here.kind == "ReplicaSet" else here


def _maker_of_replica_set(replica_set: WorkloadName, labels: Mapping[str, str]) -> WorkloadName:
    for label, kind in _TEMPLATE_HASHES:
        template_hash = labels.get(label)
        name = replica_set.name.removesuffix(f"-{template_hash}")
        if template_hash and name and name != replica_set.name:
            return WorkloadName(kind=kind, name=name)
    return replica_set
