"""Checks of one stage before it is begun: quotas, and whether anybody gives new pods their seats.

The API server would refuse what is beyond a quota half way through, pod by pod. A stage whose pods nobody seats would
roll them for nothing: they come up wherever a card fits. Called by the guard, and by previews.

Source: kubernetes:pkg/quota/v1/evaluator/core/pods.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from enforcer.backends.planned_seats import SEATS_FIELD
from enforcer.cluster import ClusterReader
from enforcer.manifest import Manifest
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
                    sentence(
                        "guard.quota", stage=str(record.stage), plan=record.plan_id, used=f"{key}={total}",
                        quota=f"{metadata['namespace']}/{metadata['name']}", limit=str(limit),
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
