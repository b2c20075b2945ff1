"""A plan as two shell scripts for kubectl: one that applies it, one that takes it back.

Every patch depends on the version that was read, so the server refuses it where somebody changed the object since;
the way back depends on the values that the plan wrote. Every word that comes from a cluster is quoted. POSIX sh.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from enforcer.emit.object_patch import ObjectPatch
from enforcer.kubernetes.json_patch import Operation

_HEAD = """#!/bin/sh
# {what}
# It stops at the first object that is not as it was read; what was done until then stays.
set -eu
"""


def kubectl_files(plan_id: str, patches: Sequence[ObjectPatch]) -> Mapping[str, str]:
    """File name to text: `apply.sh` and `restore.sh`.

    Args:
        plan_id: plan.
        patches: what changes, in order.
    """
    forward = [_command(patch) for patch in patches]
    back = [_command(patch.backwards()) for patch in reversed(patches)]
    return {
        "apply.sh": _HEAD.format(what=f"Applies plan {plan_id}.") + "".join(forward),
        "restore.sh": _HEAD.format(what=f"Takes plan {plan_id} back.") + "".join(back),
    }


def _operations(patch: ObjectPatch) -> list[Operation]:
    if patch.resource_version is None:
        return _tested(patch)
    condition = {"op": "replace", "path": "/metadata/resourceVersion", "value": patch.resource_version}
    return [condition, *patch.operations]


def _tested(patch: ObjectPatch) -> list[Operation]:
    """Each operation after a test that the place still is as the plan left it."""
    found: list[Operation] = []
    for operation in patch.operations:
        if operation["op"] != "add":
            found.append({"op": "test", "path": operation["path"], "value": _value_at(patch.before, operation["path"])})
        found.append(operation)
    return found


def _value_at(manifest: Mapping[str, object], pointer: str) -> object:
    value: object = manifest
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        value = value[int(key)] if isinstance(value, list) else value[key] if isinstance(value, dict) else None
    return value


def _command(patch: ObjectPatch) -> str:
    words = ["kubectl", "patch", patch.kind.resource, patch.name]
    if patch.namespace:
        words += ["--namespace", patch.namespace]
    # Where only some fields are known, nobody knows which of their holders are there.
    kind, content = ("json", _operations(patch)) if patch.is_whole else ("merge", _merged(patch))
    words += [f"--type={kind}", "--field-manager=gputide", "--patch", json.dumps(content, separators=(",", ":"))]
    return f"\n# {patch.recommendation}\n{shlex.join(words)}\n"


def _merged(patch: ObjectPatch) -> dict[str, Any]:
    found = patch.merge_patch
    if patch.resource_version is None:
        return found
    return {**found, "metadata": {**found.get("metadata", {}), "resourceVersion": patch.resource_version}}
