"""The mark on an owner that is held, and how somebody else's change of it ends the hold in the same write.

Pure. While a stage holds an owner, an annotation says which of its fields are held, from which value to which. The
admission step is asked about every change of a marked owner: where somebody else changes its template, it puts the
former values back in that very write and takes the mark away. So a hotfix rolls by its owner's own strategy from the
start, also when the enforcer is gone, and needs no right to write. Where the admission does not answer, the enforcer
does the same at its next look, and else the pace ends (`enforcer.rollout.holding`).

A Deployment's annotations stay on its ReplicaSets, and `kubectl rollout undo` brings them back, so only a field that
still has its held value is put back.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

from enforcer.kinds.register import workload_kind
from enforcer.manifest import Manifest, field_of, set_field, values_equal
from enforcer.record.journal import HoldIntent
from fleet.errors import Corrupt, GputideError
from fleet.json_text import json_value

HELD_ANNOTATION = "gputide.io/held"
"""On an owner that is held: JSON, field to its value before and its value now."""

_FIELD = f"metadata.annotations[{HELD_ANNOTATION}]"


def marked(holds: Sequence[HoldIntent]) -> tuple[HoldIntent, ...]:
    """Holds, and the mark that says so."""
    if not holds:
        return ()
    canary = json.dumps({hold.field: [hold.old, hold.canary] for hold in holds}, sort_keys=True)
    rest = json.dumps({hold.field: [hold.old, hold.rest] for hold in holds}, sort_keys=True)
    return (*holds, HoldIntent(field=_FIELD, old=None, canary=canary, rest=rest))


def released(before: Manifest, after: Manifest) -> Manifest:
    """An owner that is being changed, without what holds it where its template is changed; else as it is."""
    text = field_of(before, _FIELD)
    if text is None or _templates(before) == _templates(after):
        return after
    found = copy.deepcopy(after)
    for field, (former, held) in _held(text).items():
        if values_equal(field, field_of(found, field), held):
            with suppress(Corrupt):  # somebody wrote a value there that no such field has
                set_field(found, field, former)
    set_field(found, _FIELD, None)
    return found


def _held(text: str) -> Mapping[str, tuple[str | None, str | None]]:
    """What a mark says; nothing where it was spoilt."""
    try:
        found = {str(field): (former, held) for field, (former, held) in json_value(text).items()}
        values = [value for pair in found.values() for value in pair]
        if not all(value is None or isinstance(value, str) for value in values):
            return {}
        for field in found:
            field_of({}, field)
    except (AttributeError, TypeError, ValueError, GputideError):
        return {}
    # Those who may annotate may not let us write anything else.
    return {field: pair for field, pair in found.items() if field.startswith("spec.")}


def _templates(owner: Manifest) -> list[Manifest]:
    return [template.body for template in workload_kind(str(owner.get("kind", ""))).templates(owner)]
