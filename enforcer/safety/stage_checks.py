"""Checks of one stage before it is begun: quotas, and whether anybody gives new pods their seats.

The API server would refuse what is beyond a quota half way through, pod by pod, and Volcano would let pods wait that
ask for more than the capability of their queue or of one above it. A stage whose pods nobody seats would roll them for
nothing: they come up wherever a card fits. Called by the guard, and by previews.

Sources: kubernetes:pkg/quota/v1/evaluator/core/pods.go, volcano-sh/volcano:pkg/scheduler/plugins/capacity/capacity.go,
volcano-sh/apis:pkg/apis/scheduling/v1beta1/types.go (QueueSpec).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from enforcer.backends.planned_seats import SEATS_FIELD
from enforcer.backends.volcano import QUEUE_ANNOTATION
from enforcer.cluster import ClusterReader
from enforcer.manifest import Manifest, template_of
from enforcer.record.journal import ObjectIntent, StageRecord
from enforcer.snapshot import Snapshot
from fleet.errors import Misconfigured, Refused
from fleet.sentences import sentence
from fleet.units import parse_quantity

MENDED_BY = "install it: kubectl apply -f docs/admission.yaml, or helm upgrade --set admission.enabled=true …"


def check_admission(stage: int, objects: Iterable[ObjectIntent], reader: ClusterReader) -> None:
    """Refuse a stage that seats pods while new pods are not given their seats.

    Raises:
        Refused: gputide's admission webhook is missing, does not look at the pods' namespaces, or does not answer.
        Misconfigured: a right is missing.
        Unavailable: the cluster can't be reached.
    """
    namespaces = {
        intent.namespace for intent in objects if any(part.field == SEATS_FIELD and part.new for part in intent.fields)
    }
    why = reader.why_unseated(sorted(namespaces)) if namespaces else None
    if why is not None:
        raise Refused(sentence("guard.unseated", stage=str(stage), why=why, mend=MENDED_BY))


def check_quotas(record: StageRecord, snapshot: Snapshot, reader: ClusterReader) -> None:
    """Refuse a stage whose pods would ask for more than a namespace's quotas or a queue of Volcano allow.

    Pods are changed without surge, so what counts is what they ask for after the stage, against what they ask for now.
    What a stage moves to another queue (`backends.volcano_low_priority_queue`) is not held against that queue.

    Raises:
        Refused: naming quota or queue, resource, value and limit.
    """
    more: dict[tuple[str, str], dict[str, Decimal]] = {}
    for intent in record.objects:
        owner = snapshot.owners.get(intent.workload)
        if owner is None:
            continue
        pods = len(snapshot.pods.get(intent.workload, ()))
        queue = template_of(owner).get("metadata", {}).get("annotations", {}).get(QUEUE_ANNOTATION)
        for place in (("ResourceQuota", intent.namespace), *((("Queue", queue),) if queue else ())):
            known = more.setdefault(place, {})
            for resource, amount in _difference(intent).items():
                known[resource] = known.get(resource, Decimal(0)) + amount * pods
    for (kind, name), wanted in sorted(more.items()):
        growing = {resource: amount for resource, amount in wanted.items() if amount > 0}
        if growing:
            for quota in reader.list_objects(kind, name) if kind == "ResourceQuota" else _queues(name, reader):
                _check_quota(record, quota, growing)


def _queues(name: str, reader: ClusterReader) -> Iterator[Manifest]:
    """A queue of Volcano and those above it; none for a name that a tenant made up."""
    left = {queue["metadata"]["name"]: queue for queue in reader.list_objects("Queue")}
    while (queue := left.pop(name, None)) is not None:
        yield queue
        name = str(queue.get("spec", {}).get("parent") or "")


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
    spec, status, metadata = quota.get("spec", {}), quota.get("status", {}), quota["metadata"]
    hard: Mapping[str, Any] = status.get("hard") or spec.get("hard") or spec.get("capability") or {}
    used: Mapping[str, Any] = status.get("used") or status.get("allocated") or {}
    name = "/".join(part for part in (metadata.get("namespace"), metadata["name"]) if part)
    for resource, amount in sorted(growing.items()):
        for key in (f"requests.{resource}", f"limits.{resource}", resource):
            if key not in hard:
                continue
            total, limit = _amount(used.get(key)) + amount, _amount(hard[key])
            if total > limit:
                raise Refused(
                    sentence(
                        "guard.quota", stage=str(record.stage), plan=record.plan_id, used=f"{key}={total}",
                        quota=f"{quota['kind']} {name}", limit=str(limit),
                    )
                )  # fmt: skip


def _amount(text: Any) -> Decimal:
    if text is None:
        return Decimal(0)
    try:
        return parse_quantity(str(text))
    except Misconfigured:
        # What is no quantity the API server refuses by itself.
        return Decimal(0)
