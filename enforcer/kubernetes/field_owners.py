"""Gives fields that were written back to their former owners; those that nobody owned become nobody's.

Every write makes its sender the owner of the fields that it changes, and takes them from their owner. A former value
that was written back would stay ours for ever: a conflict for server-side apply of the one who set it first. Leaving a
field out of an apply deletes its value, so the list of owners itself is written without our part of it and with theirs,
as client-go does when it moves fields between managers: the API server takes the owners that an update names. Who owned
a field is noted before the first write (`owned_by_others`) and kept with what the stage is going to do.

Pure. Called by `enforcer.kubernetes.writer`.

Source: kubernetes/apimachinery:pkg/util/managedfields/internal/fieldmanager.go (Update, decodeLiveOrNew),
kubernetes/client-go:util/csaupgrade/upgrade.go, kubernetes-sigs/structured-merge-diff:fieldpath/serialize-pe.go.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from enforcer.manifest import Manifest, path_parts

_ITSELF = "."


def owned_by_others(entries: Sequence[Manifest], manager: str, fields: Sequence[str]) -> tuple[Manifest, ...]:
    """Owners of some fields of an object, but for one manager.

    Args:
        entries: `metadata.managedFields` as the server has it.

    Returns:
        Entries of the same form, cut down to these fields.
    """
    found = []
    for entry in entries:
        tree = _cut([path_parts(field) for field in fields], entry.get("fieldsV1") or {})
        if tree and entry.get("manager") != manager:
            found.append({**entry, "fieldsV1": tree})
    return tuple(found)


def disowned(
    entries: Sequence[Manifest], manager: str, fields: Sequence[str], former: Sequence[Manifest] = ()
) -> list[Manifest]:
    """The owners of an object's fields, with some fields of one manager given to their former owners.

    Args:
        manager: who gives up.
        former: who owned them (`owned_by_others`); a field that the manager does not own now has a new owner already.

    Returns:
        What `metadata.managedFields` shall be; a single empty entry, by which the server forgets all, where nobody is
        left.
    """
    found: list[Manifest] = []
    given: list[list[str]] = []
    for entry in entries:
        if entry.get("manager") != manager or entry.get("subresource"):
            found.append(entry)
            continue
        tree = copy.deepcopy(entry.get("fieldsV1") or {})
        for parts in map(path_parts, fields):
            if _cut([parts], tree):
                given.append(parts)
                _take_away(tree, parts)
        if tree:
            found.append({**entry, "fieldsV1": tree})
    for owner in former:
        tree = _cut(given, owner["fieldsV1"])
        if not tree:
            continue
        place = next((place for place, entry in enumerate(found) if _manager(entry) == _manager(owner)), None)
        if place is None:
            found.append({**owner, "fieldsV1": tree})
        else:
            found[place] = {**found[place], "fieldsV1": _united(found[place].get("fieldsV1") or {}, tree)}
    return found or [{}]


def _manager(entry: Manifest) -> tuple[Any, ...]:
    """What the server distinguishes owners by."""
    return tuple(entry.get(name) for name in ("manager", "operation", "apiVersion", "subresource"))


def _cut(paths: Sequence[Sequence[str]], tree: dict[str, Any]) -> dict[str, Any]:
    """A tree of fields, cut down to some paths; a field that is owned whole stays whole."""
    found: dict[str, Any] = {}
    for key, inner in tree.items():
        rest = [parts[1:] for parts in paths if _is_named(key, parts[0])]
        if not rest:
            continue
        if not inner or any(not parts for parts in rest):
            found[key] = copy.deepcopy(inner)
        elif kept := _cut(rest, inner):
            found[key] = kept
    # Who owns no field of a map any more loses the map itself too.
    return {_ITSELF: {}, **found} if found and _ITSELF in tree else found


def _united(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    shared = {key: _united(one[key], other[key]) for key in one.keys() & other.keys()}
    return {**one, **other, **shared}


def _take_away(tree: dict[str, Any], parts: Sequence[str]) -> None:
    """Take a path out of a tree of fields, and holders that are empty then; a field that is owned whole goes whole."""
    key = next((key for key in tree if _is_named(key, parts[0])), None)
    if key is None:
        return
    inner = tree[key]
    if len(parts) > 1 and inner:
        _take_away(inner, parts[1:])
        if inner.keys() - {_ITSELF}:
            return
    del tree[key]


def _is_named(key: str, name: str) -> bool:
    """Whether a key of a tree is a field (`f:name`) or an item of a list by one of its keys (`k:{"name":"server"}`)."""
    if key.startswith("k:"):
        return name in json.loads(key[2:]).values()
    return key == f"f:{name}"
