"""Limits that the cluster's owners set themselves, held against a stage: resource quotas and disruption budgets.

The API server would say no half way through, pod by pod; the guard says it before anything is changed.

Source: kubernetes:pkg/quota/v1/evaluator/core/pods.go, kubernetes:pkg/registry/core/pod/storage/eviction.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from enforcer.cluster import ClusterReader
from enforcer.kinds.register import pod_templates
from enforcer.manifest import Manifest
from enforcer.record.journal import ObjectIntent, StageRecord
from enforcer.rollout.holding import rolls_by_itself
from enforcer.seat import same_slices
from enforcer.snapshot import Snapshot
from fleet.errors import Misconfigured, Refused
from fleet.inventory import WorkloadId
from fleet.units import parse_quantity


def check_quotas(record: StageRecord, snapshot: Snapshot, reader: ClusterReader) -> None:
    """Refuse a stage whose pods would ask for more than a namespace's quotas allow.

    Pods are changed without surge, so what counts is what they ask for after the stage, against what they ask for now.

    Raises:
        Refused: naming quota, resource, value and limit.
    """
    more: dict[str, dict[str, Decimal]] = {}
    for intent in record.objects:
        if intent.workload not in snapshot.owners:
            continue
        pods = len(snapshot.pods.get(intent.workload, ()))
        for resource, amount in _difference(intent).items():
            known = more.setdefault(intent.namespace, {})
            known[resource] = known.get(resource, Decimal(0)) + amount * pods
    for namespace, wanted in sorted(more.items()):
        growing = {resource: amount for resource, amount in wanted.items() if amount > 0}
        if not growing:
            continue
        for quota in reader.list_objects("ResourceQuota", namespace):
            _check_quota(record, quota, growing)


def check_budgets(record: StageRecord, snapshot: Snapshot, reader: ClusterReader) -> None:
    """Refuse a stage that must evict pods which a disruption budget never lets go.

    Raises:
        Refused: naming the budget.
    """
    evicted: dict[str, list[WorkloadId]] = {}
    for move in record.moves:
        owner = snapshot.owners.get(move.workload)
        if owner is not None and not rolls_by_itself(owner) and move.new and not same_slices(move.old, move.new):
            evicted.setdefault(move.namespace, []).append(move.workload)
    for namespace, workloads in sorted(evicted.items()):
        for budget in reader.list_objects("PodDisruptionBudget", namespace):
            for workload in dict.fromkeys(workloads):
                labels = [
                    (template.body.get("metadata") or {}).get("labels") or {}
                    for template in pod_templates(snapshot.owners[workload])
                ]
                pods = len(snapshot.pods.get(workload, ()))
                if any(_is_selected(budget, one) for one in labels) and _forbids_all(budget, pods):
                    name = budget["metadata"]["name"]
                    raise Refused(
                        f"cannot change {workload}: its pods must be evicted, and PodDisruptionBudget "
                        f"{namespace}/{name} never lets one go ({_bound(budget)})"
                    )


def _difference(intent: ObjectIntent) -> dict[str, Decimal]:
    """What one pod asks for more after an intent, by resource."""
    found: dict[str, Decimal] = {}
    for part in intent.fields:
        if ".resources.limits[" not in part.field:
            continue
        resource = part.field.rpartition("[")[2].removesuffix("]")
        found[resource] = found.get(resource, Decimal(0)) + _amount(part.new) - _amount(part.old)
    return found


def _check_quota(record: StageRecord, quota: Manifest, growing: Mapping[str, Decimal]) -> None:
    hard: Mapping[str, Any] = quota.get("status", {}).get("hard") or quota.get("spec", {}).get("hard", {})
    used: Mapping[str, Any] = quota.get("status", {}).get("used", {})
    for resource, amount in sorted(growing.items()):
        for key in (f"requests.{resource}", f"limits.{resource}", resource):
            if key not in hard:
                continue
            total, limit = _amount(used.get(key)) + amount, _amount(hard[key])
            if total > limit:
                metadata = quota["metadata"]
                raise Refused(
                    f"cannot apply stage {record.stage} of plan {record.plan_id}: it would use {key}={total} of "
                    f"ResourceQuota {metadata['namespace']}/{metadata['name']}, limit {limit}"
                )


def _amount(text: Any) -> Decimal:
    if text is None:
        return Decimal(0)
    try:
        return parse_quantity(str(text))
    except Misconfigured:
        # What is no quantity the API server refuses by itself.
        return Decimal(0)


def _is_selected(budget: Manifest, labels: Mapping[str, Any]) -> bool:
    selector = budget.get("spec", {}).get("selector") or {}
    if selector.get("matchExpressions"):
        return False
    wanted: Iterable[tuple[str, Any]] = (selector.get("matchLabels") or {}).items()
    return all(labels.get(key) == value for key, value in wanted)


def _forbids_all(budget: Manifest, pods: int) -> bool:
    spec = budget.get("spec", {})
    if spec.get("maxUnavailable") in (0, "0%"):
        return True
    least = spec.get("minAvailable")
    return least == "100%" or (isinstance(least, int) and least >= pods)


def _bound(budget: Manifest) -> str:
    spec = budget.get("spec", {})
    name = "minAvailable" if "minAvailable" in spec else "maxUnavailable"
    return f"{name}={spec.get(name)}"
