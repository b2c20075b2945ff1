"""The difference of two manifests as the API server takes it, on the condition that nobody changed the object since.

The version that was read goes with it as a value to be written: the server refuses a write of any other version than
the one it has, where a failed `test` would look like any other bad request. Called by the writer; an
admission answers with the bare differences.

Source: RFC 6902; kubernetes/apiserver:pkg/endpoints/handlers/patch.go, pkg/registry/generic/registry/store.go.
"""

from __future__ import annotations

from typing import Any

Operation = dict[str, Any]


def json_patch(before: dict[str, Any], after: dict[str, Any], resource_version: str) -> list[Operation]:
    """Operations that make `before` into `after`.

    Returns:
        The condition and the operations; empty where nothing differs.
    """
    operations = differences("", before, after)
    if not operations:
        return []
    return [{"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version}, *operations]


def differences(path: str, before: Any, after: Any) -> list[Operation]:
    """Operations that make one value into another, on no condition.

    Args:
        path: where the values stand, as a JSON pointer; empty for the whole document.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        found: list[Operation] = []
        for key in sorted(before.keys() | after.keys()):
            place = f"{path}/{_escaped(key)}"
            if key not in after:
                found.append({"op": "remove", "path": place})
            elif key not in before:
                found.append({"op": "add", "path": place, "value": after[key]})
            else:
                found += differences(place, before[key], after[key])
        return found
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            operation
            for number, (old, new) in enumerate(zip(before, after, strict=True))
            for operation in differences(f"{path}/{number}", old, new)
        ]
    # A boolean equals its number in this language, and not in JSON.
    if type(before) is type(after) and before == after:
        return []
    return [{"op": "replace", "path": path, "value": after}]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
