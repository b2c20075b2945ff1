"""A plan as a Kustomize component: one patch per object; and as a post-renderer of Helm, which is made of it.

Built-in kinds get strategic merge patches, which find containers by their names; others JSON patches, as Kustomize
knows nothing of their lists (kubernetes-sigs/kustomize:api/types/patch.go). A patch is for whatever its target selects,
by regular expressions, and a target that selects nothing is no error there (kubernetes-sigs/kustomize:
api/types/selector.go): so names are escaped, and manifests that name no namespace, as charts and bases often do, are
selected as well.

A chart keeps its values, because no tool can know which value sets which field; its output is patched on its way to the
cluster (`helm upgrade RELEASE CHART --post-renderer ./post-render.sh`). Patches for other releases change nothing.
A release of which the plan changes nothing is refused: it is the wrong one, or its manifests differ from the plan's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from enforcer.admission import PLAN_ANNOTATION
from enforcer.emit.object_patch import ObjectPatch

COMPONENT_FILE = "kustomization.yaml"
MADE_FILE = "made.yaml"
"""Objects of our own that patched ones name."""

_UNNAMED = "default"
"""What Kustomize takes for the namespace of a manifest that names none."""

_WORDS_MAX = 200
"""A file's name has at most 255 bytes, an object's alone may have 253."""


def kustomize_files(patches: Sequence[ObjectPatch], made: Sequence[str] = ()) -> Mapping[str, str]:
    """File name to text: `kustomization.yaml` and one file per object.

    Args:
        patches: what changes, in order; several of one object are applied one after the other.
        made: objects of our own that must be there first, as YAML.
    """
    files = {patch_file(number, patch): patch_text(patch) for number, patch in enumerate(patches, 1)}
    component = component_text(list(zip(files, patches, strict=True)), has_made=bool(made))
    return {COMPONENT_FILE: component, **({MADE_FILE: "---\n".join(made)} if made else {}), **files}


def component_text(patches: Sequence[tuple[str, ObjectPatch]], *, has_made: bool = False) -> str:
    """The component that names patches.

    Args:
        has_made: a file of objects that are made first stands beside it.
    """
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1alpha1",
        "kind": "Component",
        **({"resources": [MADE_FILE]} if has_made else {}),
        "patches": [
            {"path": name, "target": _target(patch, [other for _, other in patches])} for name, patch in patches
        ],
    }
    return yaml.safe_dump(content, sort_keys=False, width=120)


def patch_file(number: int, patch: ObjectPatch) -> str:
    """Name of a patch's file: a number, for order, and what it concerns; made of letters that every system takes."""
    words = "-".join((patch.kind.kind.lower(), patch.namespace or "cluster", patch.name))
    return f"{number:03d}-{words[:_WORDS_MAX]}.yaml"


def patch_text(patch: ObjectPatch) -> str:
    """One patch."""
    content: Any = patch.strategic_patch if patch.merges_by_name else patch.operations
    return f"# {patch.title}\n" + yaml.safe_dump(content, sort_keys=False, width=120)


def _target(patch: ObjectPatch, patches: Sequence[ObjectPatch]) -> dict[str, str]:
    target = {"version": patch.kind.versions[0], "kind": patch.kind.kind, "name": patch.name.replace(".", "\\.")}
    if patch.kind.group:
        target["group"] = patch.kind.group
    if patch.namespace:
        # Where another namespace has one of the same name, nobody knows whose a manifest without one is.
        is_alone = all(other.namespace == patch.namespace for other in patches if _alike(other, patch))
        target["namespace"] = f"({patch.namespace}|{_UNNAMED})" if is_alone else patch.namespace
    return target


def _alike(one: ObjectPatch, other: ObjectPatch) -> bool:
    return (one.kind, one.name) == (other.kind, other.name)


_SCRIPT = """#!/bin/sh
# Patches a Helm release with plan {plan_id}: helm upgrade RELEASE CHART --post-renderer ./post-render.sh
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R "$here/component" "$work/component"
cat > "$work/all.yaml"
printf 'resources: [all.yaml]\\ncomponents: [component]\\n' > "$work/kustomization.yaml"
kubectl kustomize "$work" > "$work/patched.yaml"
grep -Eq '^ *{mark}: "?{plan_id}"?$' "$work/patched.yaml" || {{
  echo "cannot patch this release: plan {plan_id} changes none of its objects" >&2
  exit 1
}}
cat "$work/patched.yaml"
"""


def helm_files(plan_id: str, patches: Sequence[ObjectPatch], made: Sequence[str] = ()) -> Mapping[str, str]:
    """File name to text: `post-render.sh` and the component that it uses."""
    component = {f"component/{name}": text for name, text in kustomize_files(patches, made).items()}
    return {"post-render.sh": _SCRIPT.format(plan_id=plan_id, mark=PLAN_ANNOTATION.replace(".", "\\.")), **component}
