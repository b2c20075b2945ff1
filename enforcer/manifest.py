"""One field of a Kubernetes manifest: named by a path, read, written and compared as the API server would.

A path is dotted; a bracket picks a key of a map or the item of that name in a list:
`spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]`. Called by the backends, which render
changes, by the clusters, which carry them out, and by undo, which takes them back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fleet.errors import Corrupt, Misconfigured
from fleet.units import quantity_equal

Manifest = dict[str, Any]
"""A Kubernetes object as the API server sends it."""

_PART = re.compile(r"([A-Za-z][A-Za-z0-9]*)|\[([^\[\]]+)\]")
_NUMBERS = frozenset(
    {
        "spec.minReadySeconds",
        "spec.minReplicaCount",
        "spec.minReplicas",
        "spec.parallelism",
        "spec.progressDeadlineSeconds",
        "spec.replicas",
        "spec.updateStrategy.rollingUpdate.partition",
    }
)
# Kubernetes' IntOrString: a text that is no percentage is refused, so digits are written as a number.
_NUMBERS_OR_PERCENT = frozenset(
    {
        "spec.strategy.rollingUpdate.maxSurge",
        "spec.strategy.rollingUpdate.maxUnavailable",
        "spec.updateStrategy.rollingUpdate.maxSurge",
        "spec.updateStrategy.rollingUpdate.maxUnavailable",
    }
)
_BOOLEANS = frozenset({"spec.paused", "spec.suspend", "spec.unschedulable"})
# Lists of claims are written whole: what else stands in an item has several forms.
_CLAIMS = re.compile(r"spec\.template\.spec\.(resourceClaims|(initC|c)ontainers\[[^\[\]]+\]\.resources\.claims)")
# What a field means where it is absent.
_DEFAULTS = {
    "spec.minReadySeconds": "0",
    "spec.paused": "false",
    "spec.suspend": "false",
    "spec.updateStrategy.rollingUpdate.partition": "0",
}


def field_of(manifest: Mapping[str, Any], path: str) -> str | None:
    """The value at a path, as text.

    Args:
        manifest: the object.
        path: where, see the module.

    Returns:
        Text as it stands; numbers and booleans as JSON; None where there is nothing.

    Raises:
        Corrupt: the path is not the grammar.
    """
    value: Any = manifest
    for name in _parts(path):
        value = _child(value, name)
        if value is None:
            return None
    if isinstance(value, Mapping) and "value" in value and "name" in value:
        value = value["value"]
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def set_field(manifest: Manifest, path: str, value: str | None) -> None:
    """Write a value at a path, in place; None takes it away.

    Args:
        manifest: the object.
        path: where, see the module. Maps on the way are made; a list item that is not there is made for `env` only.
        value: text as `field_of` gives it.

    Raises:
        Corrupt: the path is not the grammar, or leads through a list item that does not exist.
    """
    parts = _parts(path)
    holder: Any = manifest
    for name in parts[:-1]:
        inner = _child(holder, name)
        if inner is None:
            if value is None:
                return
            if not isinstance(holder, dict):
                raise Corrupt(f"cannot write {path}: there is no {name!r} in the object")
            inner = holder[name] = [] if name == "env" else {}
        holder = inner
    _put(holder, parts[-1], value, path)


def values_equal(path: str, first: str | None, second: str | None) -> bool:
    """Whether two values of a field mean the same to the API server.

    Resource quantities are equal when they are the same number (`4000` comes back as `4k`); a map entry that is absent
    differs from any value, but some fields mean something where they are absent: `spec.suspend` is false then.
    """
    if path in _DEFAULTS:
        return (first or _DEFAULTS[path]) == (second or _DEFAULTS[path])
    if first is None or second is None or first == second:
        return first == second
    if ".resources." in path:
        try:
            return quantity_equal(first, second)
        except Misconfigured:
            return False
    return False


def workload_parts(workload: str) -> tuple[str, str, str]:
    """Namespace, kind and name of `namespace/Kind/name`.

    Raises:
        Corrupt: not three parts.
    """
    parts = workload.split("/")
    if len(parts) != 3 or not all(parts):
        raise Corrupt(f"cannot read workload {workload!r}: expected namespace/Kind/name")
    return parts[0], parts[1], parts[2]


def template_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod template of an owner; empty where it has none."""
    found = manifest.get("spec", {}).get("template", {})
    return found if isinstance(found, Mapping) else {}


def _put(holder: Any, name: str, value: str | None, path: str) -> None:
    if isinstance(holder, list):
        found = next((item for item in holder if item.get("name") == name), None)
        if value is None:
            if found is not None:
                holder.remove(found)
        elif found is not None:
            found["value"] = value
        else:
            holder.append({"name": name, "value": value})
        return
    if not isinstance(holder, dict):
        raise Corrupt(f"cannot write {path}: its holder is {type(holder).__name__}, expected a map or a list")
    if value is None:
        holder.pop(name, None)
    else:
        is_number = path in _NUMBERS or (path in _NUMBERS_OR_PERCENT and value.isdecimal())
        is_list = _CLAIMS.fullmatch(path) is not None
        holder[name] = json.loads(value) if is_number or is_list or path in _BOOLEANS else value


def _child(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return next((item for item in value if isinstance(item, Mapping) and item.get("name") == name), None)
    return value.get(name) if isinstance(value, Mapping) else None


def _parts(path: str) -> list[str]:
    parts: list[str] = []
    place = 0
    while place < len(path):
        if path[place] == "." and parts:
            place += 1
        match = _PART.match(path, place)
        if match is None:
            raise Corrupt(f"cannot read field path {path!r} at {place}: expected a name or [key]")
        parts.append(match[1] or match[2])
        place = match.end()
    if not parts:
        raise Corrupt("cannot read an empty field path")
    return parts
