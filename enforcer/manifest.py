"""One field of a Kubernetes manifest: named by a path, read, written and compared as the API server would.

A path is dotted; a bracket picks a key of a map, the item of that name in a list, or the word of that number in a
command: `spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]`, `….args[3]`. Called by the
backends, which render changes, by the clusters, which carry them out, and by undo, which takes them back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fleet.errors import Corrupt, Misconfigured
from fleet.json_text import json_value
from fleet.units import quantity_equal

Manifest = dict[str, Any]
"""A Kubernetes object as the API server sends it."""

_PART = re.compile(r"([A-Za-z][A-Za-z0-9]*)|\[([^\[\]]+)\]")
# The last name of a path says what a field holds; a key in brackets is the user's and holds text.
_NUMBERS = frozenset(
    {
        "maxReplicas",
        "minReadySeconds",
        "minReplicaCount",
        "minReplicas",
        "parallelism",
        "partition",
        "progressDeadlineSeconds",
        "replicas",
    }
)
# Kubernetes' IntOrString: a text that is no percentage is refused, so digits are written as a number.
_NUMBERS_OR_PERCENT = frozenset({"maxSurge", "maxUnavailable"})
_BOOLEANS = frozenset({"active", "paused", "suspend", "unschedulable"})
# Lists that are written whole: what else stands in an item has several forms.
_LISTS = frozenset({"claims", "matchExpressions", "nodeSelectorTerms", "resourceClaims", "workersToDelete"})
# Lists of words, whose items are known by their place.
_WORDS = ("args", "command")
_SIGNALS = frozenset({"metadata.annotations[hami.io/node-handshake]"})
# What a field means where it is absent.
_DEFAULTS = {"active": "true", "minReadySeconds": "0", "partition": "0", "paused": "false", "suspend": "false"}
# Lists whose items are known by another key than `name` (ray-project/kuberay: groups of workers).
_ITEM_KEYS = ("name", "groupName")
# Entries of lists in the configuration of device plugins (vgpu-manager, HAMi).
_TEXT_KEYS = ("nodeName", "name")
# Holders that mean nothing empty: one that is emptied is taken away, as it was not there before we came.
_EMPTY_IS_NOTHING = frozenset(
    {
        "affinity",
        "annotations",
        "deploymentStrategy",
        "env",
        "labels",
        "metadata",
        "nodeAffinity",
        "nodeSelector",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "rollingUpdate",
        "rollingUpdateConfiguration",
        "rolloutStrategy",
        "runPolicy",
        "scaleStrategy",
    }
)


def field_of(manifest: Mapping[str, Any], path: str) -> str | None:
    """The value at a path, as text.

    Args:
        path: where, see the module.

    Returns:
        Text as it stands; numbers and booleans as JSON; None where there is nothing.

    Raises:
        Corrupt: the path is not the grammar.
    """
    value: Any = manifest
    parts = path_parts(path)
    for name in parts:
        value = _child(value, name)
        if value is None:
            return None
    if isinstance(value, Mapping) and "value" in value and "name" in value:
        value = value["value"]
    elif isinstance(value, Mapping) and parts[-2:-1] == ["env"] and "valueFrom" not in value:
        # The server leaves out the value of a variable where it is empty.
        value = ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def set_field(manifest: Manifest, path: str, value: str | None) -> None:
    """Write a value at a path, in place; None takes it away.

    Args:
        path: where, see the module. Maps on the way are made; a list item that is not there is made for `env` only.
        value: text as `field_of` gives it; a word behind the last of a command is added.

    Raises:
        Corrupt: the path is not the grammar, or leads through a list item that does not exist.
    """
    parts = path_parts(path)
    holder: Any = manifest
    holders = [holder]
    for name in parts[:-1]:
        inner = _child(holder, name)
        if inner is None:
            if value is None:
                return
            if not isinstance(holder, dict):
                raise Corrupt(f"cannot write {path}: there is no {name!r} in the object")
            inner = holder[name] = [] if name == "env" or name in _WORDS else {}
        holder = inner
        holders.append(holder)
    if isinstance(holder, list) and parts[-2] in _WORDS:
        _put_word(holder, parts[-1], value, path)
    else:
        _put(holder, parts[-1], value, path)
    if value is None:
        _drop_emptied(holders, parts)


def is_signal(path: str) -> bool:
    """Whether a field is a word between programs that rewrite it every few seconds.

    It is written, and never held against anything. HAMi's handshake is one: scheduler and plugin answer by it.
    """
    return path in _SIGNALS


def values_equal(path: str, first: str | None, second: str | None) -> bool:
    """Whether two values of a field mean the same to the API server.

    Resource quantities are equal when they are the same number (`4000` comes back as `4k`); a map entry that is absent
    differs from any value, but some fields mean something where they are absent: `spec.suspend` is false then. A signal
    says nothing that lasts.
    """
    if is_signal(path):
        return True
    default = _DEFAULTS.get(_last_name(path))
    if default is not None:
        return (first or default) == (second or default)
    if first is None or second is None or first == second:
        return first == second
    if ".resources." in path:
        try:
            return quantity_equal(first, second)
        except Misconfigured:
            return False
    return False


def json_taken_back(old: str | None, new: str | None, current: str | None) -> tuple[str | None, bool]:
    """A text of JSON in which somebody changed other places since, without what a plan wrote into it.

    Entries of lists are known by their names; of each only keys that have the plan's value go back to what they were.

    Args:
        old: what stood there before the plan.
        current: what stands there.

    Returns:
        The text, None where it can't be read; and whether everything of the plan is taken out of it.
    """
    try:
        before, ours, now = (json.loads(text or "null") for text in (old, new, current))
    except (ValueError, RecursionError):
        return None, False
    if not isinstance(now, list | dict) or type(ours) is not type(now):
        return None, False
    found, is_whole = _back(before, ours, now)
    return json.dumps(found), is_whole


def _back(before: Any, ours: Any, now: Any) -> tuple[Any, bool]:
    if before in (ours, now):
        return now, True
    if isinstance(ours, dict) and isinstance(now, dict):
        return _keys_back(before if isinstance(before, dict) else {}, ours, now)
    if isinstance(ours, list) and isinstance(now, list):
        named = [_by_name(entries if isinstance(entries, list) else []) for entries in (before, ours, now)]
        if all(entries is not None for entries in named):
            first, second, third = (entries or {} for entries in named)
            found, is_whole = _keys_back(first, second, third)
            emptied = {name for name in second if name not in first and len(found.get(name, "")) == 1}
            return [entry for name, entry in found.items() if name not in emptied], is_whole
    return (before, True) if now == ours else (now, False)


def _keys_back(before: Manifest, ours: Manifest, now: Manifest) -> tuple[Manifest, bool]:
    found, is_whole = dict(now), True
    for key, value in ours.items():
        if key not in now or (key in before and before[key] == value):
            continue
        if key in before or isinstance(value, dict):
            found[key], is_back = _back(before.get(key), value, now[key])
            is_whole &= is_back
        elif now[key] == value:
            if key not in _TEXT_KEYS:
                del found[key]
        else:
            is_whole = False
    return found, is_whole


def _by_name(entries: list[Any]) -> Manifest | None:
    """Entries by their names, in their order; None where one has none, or two have the same."""
    found: Manifest = {}
    for entry in entries:
        name = next((entry[key] for key in _TEXT_KEYS if key in entry), None) if isinstance(entry, dict) else None
        if not isinstance(name, str) or name in found:
            return None
        found[name] = entry
    return found


def workload_parts(workload: str) -> tuple[str, str, str]:
    """Namespace, kind and name of `namespace/Kind/name`.

    Raises:
        Corrupt: not three parts.
    """
    parts = workload.split("/")
    if len(parts) != 3 or not all(parts):
        raise Corrupt(f"cannot read workload {workload!r}: expected namespace/Kind/name")
    return parts[0], parts[1], parts[2]


def without_empty(value: Any) -> Any:
    """A value without empty maps and lists: the API server keeps one whose last entry was taken out, or drops it."""
    if isinstance(value, Mapping):
        kept = {key: without_empty(entry) for key, entry in value.items()}
        return {key: entry for key, entry in kept.items() if entry not in ({}, [], None)}
    return [without_empty(entry) for entry in value] if isinstance(value, list) else value


def template_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod template that stands where a Deployment has it; empty where there is none.

    Other kinds have theirs elsewhere, or several: `enforcer.kinds` finds them, and gives backends a view in which each
    stands here.
    """
    found = manifest.get("spec", {}).get("template", {})
    return found if isinstance(found, Mapping) else {}


def _put(holder: Any, name: str, value: str | None, path: str) -> None:
    if isinstance(holder, list):
        found = next((item for item in holder if item.get("name") == name), None)
        if value is None:
            if found is not None:
                holder.remove(found)
        elif found is None:
            holder.append(_variable(name, value))
        else:
            # A value beside a source is refused by the server.
            for key in ("value", "valueFrom"):
                found.pop(key, None)
            found.update(_variable(name, value))
        return
    if not isinstance(holder, dict):
        raise Corrupt(f"cannot write {path}: its holder is {type(holder).__name__}, expected a map or a list")
    if value is None:
        holder.pop(name, None)
    else:
        last = _last_name(path)
        is_number = last in _NUMBERS or (last in _NUMBERS_OR_PERCENT and value.isdecimal())
        holder[name] = _plain(value, path) if is_number or last in _LISTS or last in _BOOLEANS else value


def _plain(text: str, path: str) -> Any:
    try:
        return json_value(text)
    except ValueError as exc:
        raise Corrupt(f"cannot write {path}: {text[:64]!r} is no such value") from exc


def _put_word(words: list[Any], name: str, value: str | None, path: str) -> None:
    place = int(name) if name.isascii() and name.isdigit() else len(words) + 1
    if place > len(words):
        raise Corrupt(f"cannot write {path}: there are {len(words)} words")
    words[place : place + 1] = [] if value is None else [value]


def _variable(name: str, value: str) -> Manifest:
    """A variable of a container: by its value, or by its source as `field_of` names a whole one."""
    if '"valueFrom"' in value:
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict) and found.keys() == {"name", "valueFrom"} and found["name"] == name:
            return found
    return {"name": name, "value": value}


def _drop_emptied(holders: list[Any], parts: list[str]) -> None:
    """Take away what was emptied, from the inside out."""
    for place in range(len(holders) - 1, 0, -1):
        outer, name = holders[place - 1], parts[place - 1]
        if holders[place] or name not in _EMPTY_IS_NOTHING or not isinstance(outer, dict):
            return
        outer.pop(name, None)


def _last_name(path: str) -> str:
    """The name of a field; nothing where it is a key of the user's map."""
    return "" if path.endswith("]") else path.rpartition(".")[2]


def _child(value: Any, name: str) -> Any:
    if isinstance(value, list):
        if all(isinstance(item, str) for item in value):
            return next(iter(value[int(name) :]), None) if name.isascii() and name.isdigit() else None
        named = (item for item in value if isinstance(item, Mapping))
        return next((item for item in named if any(item.get(key) == name for key in _ITEM_KEYS)), None)
    return value.get(name) if isinstance(value, Mapping) else None


def path_parts(path: str) -> list[str]:
    """The names and keys of a path, from the outside in.

    Raises:
        Corrupt: the path is not the grammar.
    """
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
