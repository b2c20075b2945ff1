"""A plan as a Kustomize component: one patch per object, to be named in the `components` of the overlay it concerns.

Built-in kinds get strategic merge patches, which find containers by their names; others JSON patches, as Kustomize
knows nothing of their lists (kubernetes-sigs/kustomize:api/types/patch.go).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from enforcer.emit.object_patch import ObjectPatch

COMPONENT_FILE = "kustomization.yaml"


def kustomize_files(patches: Sequence[ObjectPatch]) -> Mapping[str, str]:
    """File name to text: `kustomization.yaml` and one file per object.

    Args:
        patches: what changes, in order; several of one object are applied one after the other.
    """
    files = {patch_file(number, patch): patch_text(patch) for number, patch in enumerate(patches, 1)}
    return {COMPONENT_FILE: component_text(list(zip(files, patches, strict=True))), **files}


def component_text(patches: Sequence[tuple[str, ObjectPatch]]) -> str:
    """The component that names patches.

    Args:
        patches: file and patch, in order.
    """
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1alpha1",
        "kind": "Component",
        "patches": [{"path": name, "target": _target(patch)} for name, patch in patches],
    }
    return yaml.safe_dump(content, sort_keys=False, width=120)


def patch_file(number: int, patch: ObjectPatch) -> str:
    """Name of a patch's file: a number, for order, and what it concerns; made of letters that every system takes."""
    words = (patch.kind.kind.lower(), patch.namespace or "cluster", patch.name)
    return f"{number:03d}-{'-'.join(words)}.yaml"


def patch_text(patch: ObjectPatch) -> str:
    """One patch."""
    content: Any = patch.strategic_patch if patch.merges_by_name else patch.operations
    return f"# {patch.recommendation}\n" + yaml.safe_dump(content, sort_keys=False, width=120)


def _target(patch: ObjectPatch) -> dict[str, str]:
    target = {"version": patch.kind.versions[0], "kind": patch.kind.kind, "name": patch.name}
    if patch.kind.group:
        target["group"] = patch.kind.group
    if patch.namespace:
        target["namespace"] = patch.namespace
    return target
