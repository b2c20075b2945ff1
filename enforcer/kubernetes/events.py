"""Leaves events on objects, where `kubectl describe` looks for them: by the object's UID, in its namespace.

The same event again is counted, not written twice. Called by the writer and by the store of plans.

Sources: kubernetes/api:core/v1 (Event), kubernetes/kubectl:pkg/describe/describe.go (searchEvents).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from enforcer.kubernetes.json_patch import json_patch
from enforcer.manifest import Manifest
from fleet.units import format_time
from wire.kubernetes.refusals import Conflict, Deed
from wire.kubernetes.write import FIELD_MANAGER, JSON_PATCH, Call, WritingApi

_MESSAGE_LENGTH_MAX = 1000
_NAMESPACE = "default"
"""Where events on objects of no namespace lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to an object.

    Attributes:
        reason: one word.
        message: a sentence.
        is_warning: somebody should look at it.
    """

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
