"""Gives up fields that were written back: their values stay, and they are nobody's until somebody sets them again.

Every write makes its sender the owner of the fields that it changes, and takes them from whoever owned them. A former
value that was written back would stay ours for ever: a conflict for server-side apply of whoever set it first. Leaving
a field out of an apply deletes its value, so the list of owners itself is written without our part of it, as client-go
does when it moves fields between managers: the API server takes the owners that an update names.

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


def disowned(entries: Sequence[Manifest], manager: str, fields: Sequence[str]) -> list[Manifest]:
    """The owners of an object's fields, without one manager for some fields.

    Args:
        entries: `metadata.managedFields` as the server has it.
        manager: who gives up.
        fields: paths as in `enforcer.manifest`.

    Returns:
        What `metadata.managedFields` shall be; a single empty entry, by which the server forgets all, where nobody is
        left.
    """
    found = []
    for entry in entries:
        if entry.get("manager") != manager or entry.get("subresource"):
            found.append(entry)
            continue
        tree = copy.deepcopy(entry.get("fieldsV1") or {})
        for field in fields:
            _take_away(tree, path_parts(field))
        if tree:
            found.append({**entry, "fieldsV1": tree})
    return found or [{}]


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
