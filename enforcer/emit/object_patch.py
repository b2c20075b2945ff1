"""One object's change in the two forms in which tools take it: JSON patch, and a patch that merges by name.

A JSON patch (RFC 6902) names places in lists by number, so it is for objects as the API server has them. In a
repository the same object may list its containers in another order and leave out what the server fills in: there the
strategic merge patch is right, which finds containers and variables by their names
(kubernetes/community:contributors/devel/sig-api-machinery/strategic-merge-patch.md). Tools know such lists of built-in
kinds only. Pure.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from enforcer.kubernetes.json_patch import Operation, differences
from enforcer.kubernetes.kinds import kind_named
from enforcer.manifest import Manifest, set_field
from enforcer.preview import ObjectDiff
from fleet.errors import Corrupt
from wire.kubernetes.resource import ApiResource

_BUILT_IN_GROUPS = frozenset({"", "apps", "batch"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPatch:
    """One object's change.

    Attributes:
        resource_version: version that was read; None where an earlier patch of the plan has changed it since.
        is_whole: `before` and `after` are whole objects; otherwise the fields that change, and nothing else is known.
    """

    kind: ApiResource
    namespace: str
    name: str
    recommendation: str
    resource_version: str | None
    is_whole: bool
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    @property
    def key(self) -> tuple[ApiResource, str, str]:
        """Kind, namespace and name."""
        return self.kind, self.namespace, self.name

    @property
    def title(self) -> str:
        """What for, in one line: it stands in comments of scripts."""
        return " ".join(self.recommendation.split())

    @property
    def merges_by_name(self) -> bool:
        """Whether tools know which lists of this kind are merged by name."""
        return self.kind.group in _BUILT_IN_GROUPS

    @property
    def operations(self) -> list[Operation]:
        """JSON patch from before to after."""
        return differences("", _spoken(self.before), _spoken(self.after))

    @property
    def merge_patch(self) -> dict[str, Any]:
        """What merges into the object: lists of built-in kinds by name, all else by key; None takes away."""
        return _merge(_spoken(self.before), _spoken(self.after))

    @property
    def strategic_patch(self) -> dict[str, Any]:
        """Strategic merge patch, with the object's identity."""
        found = self.merge_patch
        metadata = {**self.identity["metadata"], **found.get("metadata", {})}
        return {**self.identity, **found, "metadata": metadata}

    @property
    def identity(self) -> dict[str, Any]:
        """What every manifest of this object holds."""
        group, version = self.kind.group, self.kind.versions[0]
        metadata = {"name": self.name, **({"namespace": self.namespace} if self.namespace else {})}
        return {
            "apiVersion": f"{group}/{version}" if group else version,
            "kind": self.kind.kind,
            "metadata": metadata,
        }  # fmt: skip

    def backwards(self) -> ObjectPatch:
        """The change that takes this one back."""
        return replace(self, resource_version=None, before=self.after, after=self.before)


def object_patches(diffs: Sequence[ObjectDiff]) -> tuple[ObjectPatch, ...]:
    """Patches of what a preview shows, in its order; what the stages before did is part of what is there.

    Raises:
        Refused: a kind that nothing is known of.
        Corrupt: a preview that can't be read.
    """
    found: list[ObjectPatch] = []
    for diff in diffs:
        before, after = yaml.safe_load(diff.before), yaml.safe_load(diff.after)
        if not isinstance(before, dict) or not isinstance(after, dict):
            raise Corrupt(f"cannot read the preview of {diff.kind} {diff.namespace}/{diff.name}: expected an object")
        is_whole = "kind" in before
        patch = ObjectPatch(
            kind=kind_named(diff.kind),
            namespace=diff.namespace,
            name=diff.name,
            recommendation=diff.recommendation,
            resource_version=diff.resource_version,
            is_whole=is_whole,
            before=before if is_whole else _of_fields(before, after),
            after=after if is_whole else _of_fields(after, before),
        )
        is_changed_before = any(entry.key == patch.key for entry in found)
        found.append(replace(patch, resource_version=None) if is_changed_before else patch)
    return tuple(entry for entry in found if entry.operations)


def of_repositories(patches: Sequence[ObjectPatch]) -> tuple[ObjectPatch, ...]:
    """The patches of objects that people keep as files: pods are made by their owners, nodes by the cluster."""
    return tuple(patch for patch in patches if patch.kind.kind not in ("Pod", "Node"))


def _of_fields(values: Mapping[str, str], other: Mapping[str, str]) -> Manifest:
    """The part of an object that single fields are; what only the other side has is made as far as its holder."""
    manifest: Manifest = {}
    for path in sorted({*values, *other}):
        set_field(manifest, path, values.get(path, other.get(path)))
        if path not in values:
            set_field(manifest, path, None)
    return manifest


def _spoken(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an object that users write: without what the server says of it."""
    spoken = copy.deepcopy({key: value for key, value in manifest.items() if key != "status"})
    for field in ("resourceVersion", "uid", "generation", "creationTimestamp", "managedFields", "selfLink"):
        spoken.get("metadata", {}).pop(field, None)
    return spoken


def _merge(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if type(old) is type(new) and old == new:
            continue
        if key not in after:
            found[key] = None
        elif isinstance(old, Mapping) and isinstance(new, Mapping):
            found[key] = _merge(old, new)
        elif isinstance(new, list) and _is_named(new) and (old is None or (isinstance(old, list) and _is_named(old))):
            found[key] = _merge_named(old or [], new)
        else:
            found[key] = new
    return found


def _is_named(items: Sequence[Any]) -> bool:
    return all(isinstance(item, Mapping) and isinstance(item.get("name"), str) for item in items)


def _merge_named(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    old = {item["name"]: item for item in before}
    new = {item["name"]: item for item in after}
    found: list[dict[str, Any]] = [{"$patch": "delete", "name": name} for name in old if name not in new]
    for name, item in new.items():
        if item != old.get(name):
            found.append({"name": name, **_merge(old.get(name, {}), item)})
    return found
