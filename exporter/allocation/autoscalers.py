"""Turns autoscalers into records: whom each scales, between which bounds.

Pure. Custom resources are read by shape: one that names no target, or bounds that can't be, counts as none. Called by
`exporter.allocation.objects`.

Sources: kubernetes/api:autoscaling/v2/types.go; kedacore/keda:apis/keda/v1alpha1/scaledobject_types.go.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.allocation.manifest import mapping, text, whole
from exporter.allocation.records import AutoscalerRecord
from fleet.autoscaling import Autoscaler, AutoscalerKind

_HPA_MIN = 1
_KEDA_MIN, _KEDA_MAX = 0, 100
_KEDA_TARGET = "Deployment"
_REPLICAS_MAX = 10**9 - 1


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
