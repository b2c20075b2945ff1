"""Leaves events on objects, where `kubectl describe` looks for them: by the object's UID, in its namespace.

The same event again is counted, not written twice. What happened to a plan between two of its statuses is said here
too, so that every process that reports leaves the same events. Called by the writer and by the store of plans.

Sources: kubernetes/api:core/v1 (Event), kubernetes/kubectl:pkg/describe/describe.go (searchEvents).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from enforcer.kubernetes.json_patch import json_patch
from enforcer.manifest import Manifest
from enforcer.record.journal import StageState
from enforcer.record.plan_status import REFUSED, ConditionType
from fleet.units import format_time
from wire.kubernetes.refusals import Conflict, Deed
from wire.kubernetes.write import FIELD_MANAGER, JSON_PATCH, Call, WritingApi

_MESSAGE_LENGTH_MAX = 1000
_NAMESPACE = "default"
"""Where events on objects of no namespace lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to an object."""

    reason: str
    message: str
    is_warning: bool = False


def write_event(api: WritingApi, about: Manifest, event: Event) -> None:
    """Leave an event on an object.

    Args:
        about: the object as it was read.

    Raises:
        Misconfigured: a right is missing.
        Unavailable: the cluster can't be reached or is too busy.
    """
    metadata, now = about["metadata"], format_time(api.now())
    namespace, name = metadata.get("namespace") or "", str(metadata["name"])
    place, message = namespace or _NAMESPACE, event.message[:_MESSAGE_LENGTH_MAX]
    uid = str(metadata.get("uid", ""))
    known_by = "\0".join((about["kind"], namespace, name, uid, event.reason, message))
    event_name = f"{name[:200].rstrip('.-')}.{hashlib.sha256(known_by.encode()).hexdigest()[:16]}"
    involved = {
        "apiVersion": about["apiVersion"],
        "kind": about["kind"],
        "namespace": namespace,
        "name": name,
        "uid": uid,
    }
    body = {
        "metadata": {"name": event_name, "namespace": place},
        "involvedObject": {key: value for key, value in involved.items() if value},
        "reason": event.reason,
        "message": message,
        "type": "Warning" if event.is_warning else "Normal",
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
    }
    path = f"/api/v1/namespaces/{place}/events"
    deed = Deed(verb="create", resource="events", namespace=place, name=event_name)
    try:
        api.send(Call(deed=deed, path=path, method="POST", body=body, query={"fieldManager": FIELD_MANAGER}))
    except Conflict:
        _count(api, path, event_name, place, now)


def _count(api: WritingApi, path: str, name: str, namespace: str, now: str) -> None:
    deed = Deed(verb="get", resource="events", namespace=namespace, name=name)
    before = api.get(deed, f"{path}/{name}")
    if before is None:
        return
    after = {**before, "count": int(before.get("count") or 1) + 1, "lastTimestamp": now}
    operations = json_patch(before, after, str(before["metadata"]["resourceVersion"]))
    deed = Deed(verb="patch", resource="events", namespace=namespace, name=name)
    call = Call(deed=deed, path=f"{path}/{name}", method="PATCH", body=operations, content_type=JSON_PATCH)
    try:
        api.send(call)
    except Conflict:
        # Somebody counted it at the same moment: an event is no ledger.
        return


def events_between(before: Manifest, after: Manifest) -> Iterator[Event]:
    """Events of a change of status."""
    known = {stage["stage"]: stage["state"] for stage in before.get("stages") or ()}
    changed = [stage for stage in after["stages"] if known.get(stage["stage"]) != stage["state"]]
    if kept := _stages(changed, StageState.PROMOTED):
        yield Event(reason="Promoted", message=f"kept stage {kept}")
    for stage in changed:
        if stage["state"] == StageState.RESTORED:
            why = stage["reason"] or "no reason was kept"
            yield Event(reason="TakenBack", message=f"took back stage {stage['stage']}: {why}", is_warning=True)
    if undone := _stages(changed, StageState.UNDONE):
        yield Event(reason="Undone", message=f"undid stage {undone}")
    refused = _message(after, ConditionType.APPLIED, "reason", REFUSED)
    if refused and refused != _message(before, ConditionType.APPLIED, "reason", REFUSED):
        yield Event(reason="Refused", message=refused, is_warning=True)
    departed = _message(after, ConditionType.DEPARTED, "status", "True")
    if departed and departed != _message(before, ConditionType.DEPARTED, "status", "True"):
        yield Event(reason="Departed", message=departed, is_warning=True)


def _stages(changed: list[Manifest], state: StageState) -> str:
    return ", ".join(str(stage["stage"]) for stage in changed if stage["state"] == state)


def _message(status: Manifest, kind: ConditionType, field: str, value: str) -> str:
    """The message of a condition, where a field of it has a value; empty where it has another one."""
    found = [one for one in status.get("conditions") or () if one.get("type") == kind and one.get(field) == value]
    return str(found[0].get("message", "")) if found else ""
