"""Kubernetes' arithmetic of availability: amounts that are numbers or percentages, and what disruption budgets allow.

Pure. Called by the guard, by the holds of a rollout, by `doctor`, and by the simulated cluster's controllers and
eviction API.

Source: kubernetes/apimachinery:pkg/util/intstr/intstr.go (GetScaledValueFromIntOrPercent),
kubernetes:pkg/controller/disruption/disruption.go (getExpectedPodCount, countHealthyPods, updatePdbStatus),
kubernetes:pkg/registry/core/pod/storage/eviction.go.
"""

from __future__ import annotations

from collections.abc import Sequence

from enforcer.manifest import Manifest
from fleet.errors import Refused
from fleet.selectors import selects_labels


def scaled(bound: int | str, total: int, *, up: bool) -> int:
    """How many of `total` an amount means that is a number or a percentage.

    Args:
        total: what a percentage is of.
        up: whether a part of one counts as one.

    Raises:
        Refused: it is neither.
    """
    text = str(bound)
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdigit()):
        raise Refused(f"cannot count pods by {bound!r}: it is neither a number nor a percentage")
    if number == text:
        return int(text)
    return (int(number) * total + (99 if up else 0)) // 100


def selects(budget: Manifest, pod: Manifest) -> bool:
    """Whether a budget counts a pod: of its namespace, by its selector; an empty one takes all, an absent one none."""
    selector = budget.get("spec", {}).get("selector")
    if selector is None or pod["metadata"].get("namespace") != budget["metadata"].get("namespace"):
        return False
    return selects_labels(selector, pod["metadata"].get("labels") or {})


def least_healthy(budget: Manifest, expected: int) -> int:
    """How many of `expected` pods a budget wants to be healthy at any time; percentages are rounded up."""
    spec = budget.get("spec", {})
    if "maxUnavailable" in spec:
        return max(0, expected - scaled(spec["maxUnavailable"], expected, up=True))
    return scaled(spec.get("minAvailable", 0), expected, up=True)


def disruptions_allowed(budget: Manifest, selected: Sequence[Manifest]) -> int:
    """How many of the pods that a budget selects it lets be unavailable now, besides those that are so already.

    Never more than the disruption controller says, where that has counted the budget as it stands.
    """
    allowed = max(0, sum(map(is_healthy, selected)) - least_healthy(budget, len(selected)))
    status = budget.get("status") or {}
    is_counted = int(status.get("observedGeneration", 0)) >= int(budget["metadata"].get("generation", 1))
    return min(allowed, int(status.get("disruptionsAllowed", 0))) if is_counted else allowed


def allows_eviction(budget: Manifest, pod: Manifest, pods: Sequence[Manifest]) -> bool:
    """Whether a budget leaves room for the eviction of a pod, as the eviction API decides it."""
    if not selects(budget, pod):
        return True
    chosen = [entry for entry in pods if selects(budget, entry)]
    # A pod that is not ready may go while the others are enough (unhealthyPodEvictionPolicy IfHealthyBudget).
    return sum(map(is_healthy, chosen)) - is_healthy(pod) >= least_healthy(budget, len(chosen))


def is_healthy(pod: Manifest) -> bool:
    """Whether a pod counts as healthy: it is ready and not on its way out."""
    if "deletionTimestamp" in pod["metadata"]:
        return False
    status = pod.get("status", {})
    ready = next((entry for entry in status.get("conditions") or () if entry.get("type") == "Ready"), None)
    if ready is not None:
        return bool(ready.get("status") == "True")
    containers = status.get("containerStatuses") or ()
    return bool(containers) and all(entry.get("ready", False) for entry in containers)
