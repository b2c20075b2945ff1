"""Which record is made of which kind of object; autoscalers are read here. Pure.

An autoscaler that names no target, or has impossible bounds, counts as none. Called by the watches that feed
`exporter.allocation.state`.

Sources: kubernetes/api:autoscaling/v2/types.go; kedacore/keda:apis/keda/v1alpha1/scaledobject_types.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from exporter.allocation.manifest import Shared, mapping, text, whole
from exporter.allocation.nodes import node_record
from exporter.allocation.pods import owned_record, pod_record
from exporter.allocation.queues import (
    cluster_queue_record,
    kai_queue_record,
    local_queue_record,
    pod_group_record,
    quota_record,
    volcano_queue_record,
    workload_record,
)
from exporter.allocation.records import AutoscalerRecord, Key, PublishedRecord, Record
from exporter.cluster.reader import Watched
from fleet.autoscaling import Autoscaler, AutoscalerKind
from fleet.errors import Corrupt
from fleet.gpu_policy import gpu_policy
from fleet.grammars.claims import parse_claim, parse_published, parse_taint_rule
from wire.kubernetes.page import Manifest

_HPA_MIN = 1
_KEDA_MIN, _KEDA_MAX = 0, 100
_KEDA_TARGET = "Deployment"
_REPLICAS_MAX = 10**9 - 1


def key_of(manifest: Manifest) -> Key:
    """Namespace and name of an object."""
    metadata = mapping(manifest.get("metadata"))
    return text(metadata.get("namespace")), text(metadata.get("name"))


def version_of(manifest: Manifest) -> str | None:
    """Version of an object, which changes whenever the object does; None where it has none."""
    version = mapping(manifest.get("metadata")).get("resourceVersion")
    return version if isinstance(version, str) and version else None


def record_of(
    watched: Watched, manifest: Manifest, shared: Shared, device_resources: AbstractSet[str] = frozenset()
) -> Record | None:
    """What is kept of an object; None where nothing of it matters.

    Raises:
        Corrupt: a custom object is not of its kind's shape.
    """
    match watched:
        case Watched.NODES:
            return node_record(manifest, shared, device_resources)
        case Watched.PODS:
            return pod_record(manifest, shared, device_resources)
        case Watched.RESOURCE_SLICES:
            spec = manifest.get("spec")
            if not isinstance(spec, dict):
                raise Corrupt("cannot read ResourceSlice: it has no spec")
            return PublishedRecord(node=text(spec.get("nodeName")) or None, devices=parse_published(manifest))
        case _ if watched in _OF_AMOUNTS:
            return _OF_AMOUNTS[watched](manifest, device_resources)
        case _:
            return _OF_ONE_OBJECT[watched](manifest)


def pod_autoscaler_record(manifest: Mapping[str, object]) -> AutoscalerRecord | None:
    """Reads a HorizontalPodAutoscaler of autoscaling/v2."""
    spec = mapping(manifest.get("spec"))
    return _record(
        manifest,
        AutoscalerKind.HORIZONTAL_POD_AUTOSCALER,
        target_kind="",
        replicas_min=_bound(spec.get("minReplicas"), _HPA_MIN),
        replicas_max=_bound(spec.get("maxReplicas"), None),
    )


def scaled_object_record(manifest: Mapping[str, object]) -> AutoscalerRecord | None:
    """Reads a ScaledObject of KEDA."""
    spec = mapping(manifest.get("spec"))
    return _record(
        manifest,
        AutoscalerKind.SCALED_OBJECT,
        target_kind=_KEDA_TARGET,
        replicas_min=_bound(spec.get("minReplicaCount"), _KEDA_MIN),
        replicas_max=_bound(spec.get("maxReplicaCount"), _KEDA_MAX),
    )


def _record(
    manifest: Mapping[str, object],
    kind: AutoscalerKind,
    *,
    target_kind: str,
    replicas_min: int | None,
    replicas_max: int | None,
) -> AutoscalerRecord | None:
    target = mapping(mapping(manifest.get("spec")).get("scaleTargetRef"))
    name = text(target.get("name"))
    target_kind = text(target.get("kind")) or target_kind
    if not name or not target_kind or replicas_min is None or replicas_max is None or replicas_min > replicas_max:
        return None
    return AutoscalerRecord(
        namespace=text(mapping(manifest.get("metadata")).get("namespace")),
        target_kind=target_kind,
        target=name,
        autoscaler=Autoscaler(kind=kind, replicas_min=replicas_min, replicas_max=replicas_max),
    )


def _bound(value: object, absent: int | None) -> int | None:
    found = absent if value is None else whole(value)
    return None if found is None or found > _REPLICAS_MAX else found


_OF_ONE_OBJECT = {
    Watched.REPLICA_SETS: owned_record,
    Watched.STATEFUL_SETS: owned_record,
    Watched.JOBS: owned_record,
    Watched.POD_GROUPS: pod_group_record,
    Watched.WORKLOADS: workload_record,
    Watched.KAI_QUEUES: kai_queue_record,
    Watched.RESOURCE_CLAIMS: parse_claim,
    Watched.TAINT_RULES: parse_taint_rule,
    Watched.POD_AUTOSCALERS: pod_autoscaler_record,
    Watched.SCALED_OBJECTS: scaled_object_record,
    Watched.GPU_POLICIES: gpu_policy,
    Watched.CLUSTER_POLICIES: gpu_policy,
}

_OF_AMOUNTS = {
    Watched.RESOURCE_QUOTAS: quota_record,
    Watched.VOLCANO_QUEUES: volcano_queue_record,
    Watched.CLUSTER_QUEUES: cluster_queue_record,
    Watched.LOCAL_QUEUES: local_queue_record,
}
