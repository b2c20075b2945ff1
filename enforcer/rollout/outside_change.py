"""Whether somebody else changed an owner while a stage of ours was under way: a hotfix, a rollback, an autoscaler.

Pure. A resource version moves with every status, so it says nothing. What counts is the specification: when a stage is
begun, a digest of every part of each owner's specification is kept (`digests`). Later the fields that we wrote are read
as if they had their former values; a part whose digest is another then was changed by somebody else, and so was a field
of ours with a value that is not ours. The rollout looks before it goes on, while it waits and while it watches; a stage
that finds such a change is taken back around it.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping

from enforcer.manifest import Manifest, field_of, set_field, values_equal
from enforcer.record.journal import FieldIntent, HoldIntent, ObjectIntent
from fleet.sentences import Sentence, sentence

_SPEC = "spec."


def digests(owner: Manifest, fields: Iterable[FieldIntent], holds: Iterable[HoldIntent]) -> dict[str, str]:
    """A digest of every part of an owner's specification, by name, with our fields at their former values."""
    former = copy.deepcopy(dict(owner))
    for part in fields:
        if _is_one_of(former, part.field, (part.old, part.new)):
            set_field(former, part.field, part.old)
    for hold in holds:
        if _is_one_of(former, hold.field, (hold.old, hold.canary, hold.rest)):
            set_field(former, hold.field, hold.old)
    spec: Mapping[str, object] = former.get("spec") or {}
    return {
        name: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
        for name, value in spec.items()
        # A part that is empty means what one that is absent means.
        if value not in (None, {}, [])
    }


def outside_change(intent: ObjectIntent, current: Manifest | None, *, is_written: bool) -> Sentence | None:
    """What somebody else changed of an owner since its stage was begun, in one sentence; None where nobody did.

    Args:
        is_written: whether the stage's fields were written, so that a former value was put back by somebody.
    """
    if intent.parts is None or current is None:
        return None
    ours = (
        *((part.field, (part.new,) if is_written else (part.old, part.new)) for part in intent.fields),
        *((hold.field, (hold.old, hold.canary, hold.rest)) for hold in intent.holds),
    )
    found = [field for field, values in ours if not _is_one_of(current, field, values)]
    now = digests(current, intent.fields, intent.holds)
    for name in sorted(now.keys() | intent.parts.keys()):
        path = f"{_SPEC}{name}"
        if now.get(name) != intent.parts.get(name) and not any(field.startswith(path) for field in found):
            found.append(path)
    if not found:
        return None
    fields = ", ".join(dict.fromkeys(found))
    return sentence("rollout.changed_outside", workload=intent.workload, fields=fields)


def _is_one_of(owner: Manifest, field: str, values: Iterable[str | None]) -> bool:
    now = field_of(owner, field)
    return any(values_equal(field, now, value) for value in values)
