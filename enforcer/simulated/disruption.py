"""Whether a disruption budget lets a pod be evicted, as the eviction API decides it.

Pure. Source: kubernetes:pkg/registry/core/pod/storage/eviction.go, kubernetes:pkg/controller/disruption/disruption.go.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from enforcer.manifest import Manifest


def budget_allows(budget: Manifest, pod: Manifest, pods: Sequence[Manifest]) -> bool:
    """Whether a budget leaves room for the eviction of a pod.

    Args:
        budget: PodDisruptionBudget.
        pod: the pod to be evicted.
        pods: all pods of the namespace.
    """
    spec = budget["spec"]
    if not _is_selected(spec.get("selector", {}), pod):
        return True
    chosen = [entry for entry in pods if _is_selected(spec.get("selector", {}), entry)]
    healthy = sum(_is_healthy(entry) for entry in chosen)
    if not _is_healthy(pod):
        # A pod that is not ready may go while the others are enough (unhealthyPodEvictionPolicy IfHealthyBudget).
        return healthy >= _least(spec, len(chosen))
    return healthy - 1 >= _least(spec, len(chosen))


def _least(spec: Manifest, expected: int) -> int:
    if "minAvailable" in spec:
        return _count(spec["minAvailable"], expected)
    if "maxUnavailable" in spec:
        return max(0, expected - _count(spec["maxUnavailable"], expected))
    return 0


def _count(bound: Any, expected: int) -> int:
    if isinstance(bound, str) and bound.endswith("%"):
        return math.ceil(int(bound[:-1]) * expected / 100)
    return int(bound)


def _is_selected(selector: Manifest, pod: Manifest) -> bool:
    labels = pod["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def _is_healthy(pod: Manifest) -> bool:
    containers = pod.get("status", {}).get("containerStatuses", ())
    return bool(containers) and all(entry.get("ready", False) for entry in containers)
