"""Which workload an object belongs to, by walking up its controllers: Pod → ReplicaSet → Deployment → InferenceService.

Pure. Custom kinds need no list of their own: the controller of the last object that is known is the workload, as the
exporter has it. The snapshot reads who may own pods, the pod mover asks again while pods come and go; of what came
since, names and labels show the maker, where they say the same as the controllers of the kind write.

Source: kubernetes:pkg/controller/deployment/sync.go (getNewReplicaSet), argoproj/argo-rollouts:utils/defaults,
knative/serving:pkg/apis/serving/register.go, ray-project/kuberay:ray-operator/controllers/ray/utils/constant.go,
kubernetes-sigs/lws:api/leaderworkerset/v1 (labels of the pods that they make).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fleet.inventory import WorkloadId
from fleet.object_names import can_own
from fleet.workload_kinds import NO_WORKLOADS, OWNER_LINKS_MAX, TEMPLATE_HASHES

MAKERS = (
    "ReplicaSet",
    "StatefulSet",
    "Deployment",
    "Job",
    "LeaderWorkerSet",
    "RayCluster",
    "JobSet",
    "Revision",
    "Configuration",
    "Service",
)
"""Kinds that own pods and may have a controller of their own."""

Parents = Mapping[tuple[str, str, str], tuple[str, str]]
"""Kind, namespace and name of an object to kind and name of its controller."""

_GROUP_NAME, _GROUP_NUMBER = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"


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
        kind, name = str(reference.get("kind")), str(reference.get("name"))
        if reference.get("controller", len(references) == 1) and kind not in NO_WORKLOADS and can_own(kind, name):
            return kind, name
    return None


def workload_of_pod(pod: Mapping[str, Any], parents: Parents) -> WorkloadId:
    """The workload that a pod belongs to in the end; the pod itself where nobody owns it.

    Args:
        parents: controllers of what may own pods. Of what is not among them (it is too new, or may not be read) labels
            of the pod show who made it: a ReplicaSet's name ends in the hash that the pod carries, and so on.
    """
    metadata = pod["metadata"]
    namespace = str(metadata["namespace"])
    here = ("Pod", str(metadata["name"]))
    above = controller_of(pod)
    for _ in range(OWNER_LINKS_MAX):
        if above is None:
            break
        here = above
        above = parents.get((here[0], namespace, here[1])) or _told_maker(here, metadata.get("labels") or {})
    return WorkloadId(f"{namespace}/{here[0]}/{here[1]}")


def top_owner(workload: WorkloadId, parents: Parents) -> WorkloadId:
    """The workload that keeps another one in the end, as far as controllers are known; itself where nobody does."""
    namespace, kind, name = workload.split("/", 2)
    here = (kind, name)
    for _ in range(OWNER_LINKS_MAX):
        above = parents.get((here[0], namespace, here[1]))
        if above is None:
            break
        here = above
    return WorkloadId(f"{namespace}/{here[0]}/{here[1]}")


def _told_maker(here: tuple[str, str], labels: Mapping[str, Any]) -> tuple[str, str] | None:
    """Who made an object, by what its pod's labels say."""
    kind, name = here
    if kind == "ReplicaSet":
        return _maker_of_replica_set(name, labels)
    if kind == "Revision" and labels.get("serving.knative.dev/configuration"):
        return "Configuration", str(labels["serving.knative.dev/configuration"])
    if kind == "RayCluster" and labels.get("ray.io/originated-from-crd") in ("RayService", "RayJob"):
        maker = labels.get("ray.io/originated-from-cr-name")
        return (str(labels["ray.io/originated-from-crd"]), str(maker)) if maker else None
    if kind == "Pod":
        # The workers of a group are those of a StatefulSet that the group's leader owns.
        group, number = labels.get(_GROUP_NAME), labels.get(_GROUP_NUMBER)
        return ("LeaderWorkerSet", str(group)) if group and name == f"{group}-{number}" else None
    return None


def _maker_of_replica_set(name: str, labels: Mapping[str, Any]) -> tuple[str, str] | None:
    for label, kind in TEMPLATE_HASHES:
        template_hash = labels.get(label)
        maker = name.removesuffix(f"-{template_hash}")
        if template_hash and maker and maker != name:
            return kind, maker
    return None
