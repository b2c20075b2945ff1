"""Turns queues, quotas and groups that wait into records; of resources, only those that speak of cards.

Pure. Custom resources are read by shape: what a release does not write is absent. `device_resources` are further names
of resources that count GPU devices. Called by `exporter.allocation.objects`.

Sources: kubernetes/api:core/v1/types.go (ResourceQuota), volcano-sh/apis:pkg/apis/scheduling/v1beta1/types.go,
kubernetes-sigs/kueue:apis/kueue/v1beta1 and v1beta2, kai-scheduler/KAI-Scheduler:pkg/apis/scheduling/v2.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from exporter.allocation.manifest import mapping, objects, quantity, speaks_of_cards, text, whole
from exporter.allocation.records import AmountRecord, QueueRecord, WaitingRecord

_RESOURCES_MAX = 256
_KAI_RESOURCE = "nvidia.com/gpu"
_RUNNING_PHASES = ("Running", "Completed")
_KUEUE_COUNTS = ("pendingWorkloads", "admittedWorkloads")


def quota_record(manifest: Mapping[str, object], device_resources: AbstractSet[str]) -> QueueRecord | None:
    """Reads a ResourceQuota; None for one that says nothing of cards."""
    status = mapping(manifest.get("status"))
    hard = mapping(status.get("hard")) or mapping(mapping(manifest.get("spec")).get("hard"))
    amounts = _amounts({}, hard, mapping(status.get("used")), device_resources)
    return _queue("ResourceQuota", manifest, None, amounts) if amounts else None


def volcano_queue_record(manifest: Mapping[str, object], device_resources: AbstractSet[str]) -> QueueRecord:
    """Reads a Queue of Volcano."""
    spec, status = mapping(manifest.get("spec")), mapping(manifest.get("status"))
    deserved = {**mapping(mapping(spec.get("guarantee")).get("resource")), **mapping(spec.get("deserved"))}
    amounts = _amounts(deserved, mapping(spec.get("capability")), mapping(status.get("allocated")), device_resources)
    return _queue("volcano", manifest, spec.get("parent"), amounts, ("pending", "running"))


def cluster_queue_record(manifest: Mapping[str, object], device_resources: AbstractSet[str]) -> QueueRecord:
    """Reads a ClusterQueue of Kueue; its flavors are summed per resource."""
    spec, status = mapping(manifest.get("spec")), mapping(manifest.get("status"))
    nominal: dict[str, float] = {}
    limit: dict[str, float | None] = {}
    for group in objects(spec.get("resourceGroups")):
        for flavor in objects(group.get("flavors")):
            for resource in objects(flavor.get("resources")):
                name, amount = text(resource.get("name")), quantity(resource.get("nominalQuota"))
                if amount is None:
                    continue
                nominal[name] = nominal.get(name, 0.0) + amount
                # A flavor that may borrow without end makes the whole endless.
                so_far, more = limit.get(name, 0.0), quantity(resource.get("borrowingLimit"))
                limit[name] = None if so_far is None or more is None else so_far + amount + more
    cohort = text(spec.get("cohortName")) or text(spec.get("cohort"))
    # Outside a cohort there is nobody to borrow from.
    amounts = _amounts(nominal, limit if cohort else nominal, _flavor_usage(status), device_resources)
    return _queue("kueue", manifest, cohort, amounts, _KUEUE_COUNTS)


def local_queue_record(manifest: Mapping[str, object], device_resources: AbstractSet[str]) -> QueueRecord:
    """Reads a LocalQueue of Kueue."""
    amounts = _amounts({}, {}, _flavor_usage(mapping(manifest.get("status"))), device_resources)
    parent = mapping(manifest.get("spec")).get("clusterQueue")
    return _queue("kueue_local", manifest, parent, amounts, _KUEUE_COUNTS)


def kai_queue_record(manifest: Mapping[str, object]) -> QueueRecord:
    """Reads a Queue of KAI; -1 is no limit, and a quota of -1 is as much as there is."""
    spec, status = mapping(manifest.get("spec")), mapping(manifest.get("status"))
    gpu = mapping(mapping(spec.get("resources")).get("gpu"))
    deserved, limit = quantity(gpu.get("quota")), quantity(gpu.get("limit"))
    amount = AmountRecord(
        resource=_KAI_RESOURCE,
        deserved=None if deserved is None or deserved < 0 else deserved,
        limit=None if limit is None or limit < 0 else limit,
        used=quantity(mapping(status.get("allocated")).get(_KAI_RESOURCE)),
    )
    return _queue("kai", manifest, spec.get("parentQueue"), (amount,))


def _queue(
    kind: str,
    manifest: Mapping[str, object],
    parent: object,
    amounts: tuple[AmountRecord, ...],
    counts: tuple[str, str] | None = None,
) -> QueueRecord:
    """The record of a queue or quota; `counts` names where its status has pending and admitted workloads."""
    metadata, status = mapping(manifest.get("metadata")), mapping(manifest.get("status"))
    return QueueRecord(
        kind=kind,
        namespace=text(metadata.get("namespace")),
        name=text(metadata.get("name")),
        parent=text(parent) or None,
        amounts=amounts,
        pending=whole(status.get(counts[0])) if counts else None,
        admitted=whole(status.get(counts[1])) if counts else None,
    )


def pod_group_record(manifest: Mapping[str, object]) -> WaitingRecord | None:
    """Reads a PodGroup of Volcano; None for one that runs or has ended."""
    status = mapping(manifest.get("status"))
    phase = text(status.get("phase")) or "Pending"
    if phase in _RUNNING_PHASES:
        return None
    stuck = next(
        (entry for entry in objects(status.get("conditions"))
         if entry.get("type") == "Unschedulable" and entry.get("status") == "True"), None,
    )  # fmt: skip
    return _waiting("PodGroup", manifest, "queue", _word(stuck.get("reason")) if stuck is not None else _word(phase))


def workload_record(manifest: Mapping[str, object]) -> WaitingRecord | None:
    """Reads a Workload of Kueue; None for one that is admitted or finished."""
    conditions = {
        text(entry.get("type")): entry for entry in objects(mapping(manifest.get("status")).get("conditions"))
    }
    if any(conditions.get(word, {}).get("status") == "True" for word in ("Admitted", "Finished")):
        return None
    reserved = conditions.get("QuotaReserved", {})
    reason = "AdmissionChecks" if reserved.get("status") == "True" else _word(reserved.get("reason") or "Pending")
    return _waiting("Workload", manifest, "queueName", reason)


def _waiting(kind: str, manifest: Mapping[str, object], queue: str, reason: str) -> WaitingRecord:
    metadata, spec = mapping(manifest.get("metadata")), mapping(manifest.get("spec"))
    return WaitingRecord(
        kind=kind,
        namespace=text(metadata.get("namespace")),
        name=text(metadata.get("name")),
        queue=text(spec.get(queue)) or None,
        reason=reason,
    )


def _flavor_usage(status: Mapping[str, object]) -> dict[str, object]:
    used: dict[str, object] = {}
    # The older release of LocalQueue writes the singular.
    for flavor in objects(status.get("flavorsUsage") or status.get("flavorUsage")):
        for resource in objects(flavor.get("resources")):
            name, amount = text(resource.get("name")), quantity(resource.get("total"))
            if amount is not None:
                so_far = used.get(name, 0.0)
                used[name] = amount + (so_far if isinstance(so_far, float) else 0.0)
    return used


def _amounts(
    deserved: Mapping[str, object],
    limit: Mapping[str, object],
    used: Mapping[str, object],
    device_resources: AbstractSet[str],
) -> tuple[AmountRecord, ...]:
    names = sorted(name for name in {*deserved, *limit, *used} if speaks_of_cards(name, device_resources))
    return tuple(
        AmountRecord(
            resource=sys.intern(name),
            deserved=quantity(deserved.get(name)),
            limit=quantity(limit.get(name)),
            used=quantity(used.get(name)),
        )
        for name in names[:_RESOURCES_MAX]
    )


def _word(value: object) -> str:
    return text(value)[:63] or "unknown"
