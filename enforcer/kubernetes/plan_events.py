"""What happened to a plan between two of its statuses, as the events that `kubectl describe gpuplan` shows.

Pure. Called by the store of plans whenever it writes a status, so every process that reports leaves the same events.
"""

from __future__ import annotations

from collections.abc import Iterator

from enforcer.kubernetes.events import Event
from enforcer.manifest import Manifest
from enforcer.record.journal import StageState
from enforcer.record.plan_status import REFUSED, ConditionType


def events_between(before: Manifest, after: Manifest) -> Iterator[Event]:
    """Events of a change of status.

    Args:
        before: the status as it stood; empty where there was none.
        after: the status as it stands now.
    """
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
