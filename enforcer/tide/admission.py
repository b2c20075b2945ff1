"""Who may work at night on what services left: suspended Jobs that are marked for it, and Kueue's queues.

A Job with the label `gputide.io/tide: night` waits suspended by day (batch/v1: `spec.suspend`; its pods are stopped
when it is suspended again). A queue of Kueue that is named in the settings is held by day (`spec.stopPolicy` of a
ClusterQueue: `Hold` admits nobody new, `HoldAndDrain` evicts too; `None` admits). Before anybody is stopped, he is
asked to save: an annotation on the Job and an event say until when.

Sources: kubernetes/api:batch/v1/types.go; kubernetes-sigs/kueue:apis/kueue/v1beta1/clusterqueue_types.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from enforcer.cluster import ClusterReader
from enforcer.manifest import Manifest, field_of
from enforcer.record.journal import FieldIntent, ObjectIntent
from fleet.units import format_time

TIDE_LABEL = "gputide.io/tide"
SAVE_BY_ANNOTATION = "gputide.io/save-by"
"""On a Job: when its pods will be stopped, ISO 8601."""

_SAVE_BY = f"metadata.annotations[{SAVE_BY_ANNOTATION}]"


def opened(reader: ClusterReader, queues: Sequence[str]) -> tuple[ObjectIntent, ...]:
    """What lets low priority in: Jobs that wait for the night, and queues.

    Args:
        reader: the cluster.
        queues: names of ClusterQueues.

    Raises:
        Unavailable: it can't be reached.
    """
    found = [
        _intent(job, FieldIntent(field="spec.suspend", old="true", new="false"))
        for job in reader.list_objects("Job")
        if _is_of_the_night(job) and field_of(job, "spec.suspend") == "true"
    ]
    for queue in reader.list_objects("ClusterQueue"):
        policy = field_of(queue, "spec.stopPolicy")
        if queue["metadata"]["name"] in queues and policy in ("Hold", "HoldAndDrain"):
            found.append(_intent(queue, FieldIntent(field="spec.stopPolicy", old=policy, new="None")))
    return tuple(found)


def running(reader: ClusterReader, intents: Sequence[ObjectIntent]) -> tuple[Manifest, ...]:
    """Jobs of those that were let in that still run.

    Raises:
        Unavailable: the cluster can't be reached.
    """
    found = []
    for intent in intents:
        job = reader.get(*intent.key) if intent.kind == "Job" else None
        if job is not None and field_of(job, "spec.suspend") != "true" and not _is_over(job):
            found.append(job)
    return tuple(found)


def asked_to_save(job: Manifest, until: datetime) -> ObjectIntent:
    """The annotation that asks a Job to save what it has."""
    old = field_of(job, _SAVE_BY)
    return _intent(job, FieldIntent(field=_SAVE_BY, old=old, new=format_time(until)))


def _is_of_the_night(job: Manifest) -> bool:
    return (job["metadata"].get("labels") or {}).get(TIDE_LABEL) == "night"


def _is_over(job: Manifest) -> bool:
    conditions = job.get("status", {}).get("conditions") or ()
    return any(entry.get("type") in ("Complete", "Failed") and entry.get("status") == "True" for entry in conditions)


def _intent(manifest: Manifest, *fields: FieldIntent) -> ObjectIntent:
    metadata = manifest["metadata"]
    return ObjectIntent(
        kind=manifest["kind"],
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        resource_version=metadata["resourceVersion"],
        recommendation="tide",
        fields=fields,
    )
