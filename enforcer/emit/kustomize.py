"""A plan as a Kustomize component: one patch per object; and what is made of it: a post-renderer of Helm, a Git branch.

Built-in kinds get strategic merge patches, which find containers by their names; others JSON patches, as Kustomize
knows nothing of their lists (kubernetes-sigs/kustomize:api/types/patch.go). A patch is for whatever its target selects,
by regular expressions, and a target that selects nothing is no error there (kubernetes-sigs/kustomize:
api/types/selector.go): so names are escaped, and manifests that name no namespace, as charts and bases often do, are
selected as well.

A chart keeps its values, because no tool can know which value sets which field; its output is patched on its way to the
cluster (`helm upgrade RELEASE CHART --post-renderer ./post-render.sh`). Patches for other releases change nothing.
A release of which the plan changes nothing is refused: it is the wrong one, or its manifests differ from the plan's.

A branch grows by one commit per recommendation, so anybody who reviews it can drop one commit and keep the rest; the
overlay that shall use it names the folder in its `components`. It is made in a work tree of its own, so that what
somebody has open is not touched.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from enforcer.admission import PLAN_ANNOTATION
from enforcer.emit.object_patch import ObjectPatch
from fleet.errors import Misconfigured, Refused, Unavailable
from fleet.yaml_text import load_yaml

COMPONENT_FILE = "kustomization.yaml"
_MADE_FILE = "made.yaml"
"""Objects of our own that patched ones name."""
_BETWEEN = "---\n"

_UNNAMED = "default"
"""What Kustomize takes for the namespace of a manifest that names none."""

_WORDS_MAX = 200
"""A file's name has at most 255 bytes, an object's alone may have 253."""

_FOREIGN = re.compile(r"[^A-Za-z0-9.-]")

_GIT_SECONDS_MAX = 60.0


def kustomize_files(patches: Sequence[ObjectPatch], made: Sequence[str] = ()) -> Mapping[str, str]:
    """File name to text: `kustomization.yaml` and one file per object.

    Args:
        patches: what changes, in order; several of one object are applied one after the other.
        made: objects of our own that must be there first, as YAML.
    """
    files = {_patch_file(number, patch): _patch_text(patch) for number, patch in enumerate(patches, 1)}
    component = _component_text(list(zip(files, patches, strict=True)), has_made=bool(made))
    return {COMPONENT_FILE: component, **({_MADE_FILE: _BETWEEN.join(made)} if made else {}), **files}


def grown_files(
    held: Mapping[str, str], patches: Sequence[ObjectPatch], made: Sequence[str] = (), *, is_merged: bool
) -> Mapping[str, str]:
    """Files of a component that keeps what it holds, patches of other stages among it; only what is new or another.

    Patches that it holds are left out, others come after them. A JSON patch of an object that has one takes its place
    until that one is merged, since it begins where that one does; afterwards it begins where that one ends.

    Args:
        held: its files as they are, name to text; none where there is no component yet.
        patches: as for `kustomize_files`.
        is_merged: what is held is in the base branch.

    Raises:
        Refused: what is held is no component.
    """
    if COMPONENT_FILE not in held:
        return kustomize_files(patches, made)
    try:
        component = load_yaml(held[COMPONENT_FILE])
        paths = {_of_target(one["target"]): str(one["path"]) for one in component["patches"]}
        numbers = [int(path[:3]) for path in paths.values() if path[:3].isdecimal()]
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as exc:
        raise Refused(f"cannot add to {COMPONENT_FILE}: it is something else than a list of patches") from exc
    known = {held.get(str(one["path"])) for one in component["patches"]}
    files: dict[str, str] = {}
    for number, patch in enumerate(
        (one for one in patches if _patch_text(one) not in known), max(numbers, default=0) + 1
    ):
        path = None if is_merged or patch.merges_by_name else paths.get(_of_target(_target(patch, [])))
        if path is None:
            path = _patch_file(number, patch)
            component["patches"].append({"path": path, "target": _target(patch, patches)})
        files[path] = _patch_text(patch)
    _narrow(component["patches"])
    before = held[_MADE_FILE].split(_BETWEEN) if _MADE_FILE in held else []
    objects = list(dict.fromkeys([*before, *made]))
    if objects != before:
        files[_MADE_FILE] = _BETWEEN.join(objects)
        component["resources"] = list(dict.fromkeys([*component.get("resources", ()), _MADE_FILE]))
    return {**files, COMPONENT_FILE: _dumped(component)} if files else {}


def _narrow(entries: Sequence[Mapping[str, Any]]) -> None:
    """Leave no manifest without a namespace to the patches of two namespaces, as `_target` does within one writing."""
    spaces: dict[tuple[str, ...], set[str]] = {}
    for *named, space in (_of_target(entry["target"]) for entry in entries):
        spaces.setdefault(tuple(named), set()).add(space)
    for target in (entry["target"] for entry in entries):
        *named, space = _of_target(target)
        if space and len(spaces[tuple(named)]) > 1:
            target["namespace"] = space


def _of_target(target: Mapping[str, str]) -> tuple[str, str, str]:
    """Kind, name and namespace that a patch is for."""
    space, end = target.get("namespace", ""), f"|{_UNNAMED})"
    return target["kind"], target["name"], space.removeprefix("(").removesuffix(end) if space.endswith(end) else space


def _component_text(patches: Sequence[tuple[str, ObjectPatch]], *, has_made: bool = False) -> str:
    """The component that names patches.

    Args:
        has_made: a file of objects that are made first stands beside it.
    """
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1alpha1",
        "kind": "Component",
        **({"resources": [_MADE_FILE]} if has_made else {}),
        "patches": [
            {"path": name, "target": _target(patch, [other for _, other in patches])} for name, patch in patches
        ],
    }
    return _dumped(content)


def _dumped(content: Any) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=120)


def _patch_file(number: int, patch: ObjectPatch) -> str:
    """Name of a patch's file: a number, for order, and what it concerns; made of letters that every system takes."""
    words = "-".join((patch.kind.kind.lower(), patch.namespace or "cluster", patch.name))
    return f"{number:03d}-{_FOREIGN.sub('_', words[:_WORDS_MAX])}.yaml"


def _patch_text(patch: ObjectPatch) -> str:
    """One patch."""
    content: Any = patch.strategic_patch if patch.merges_by_name else patch.operations
    return f"# {patch.title}\n" + _dumped(content)


def _target(patch: ObjectPatch, patches: Sequence[ObjectPatch]) -> dict[str, str]:
    target = {"version": patch.kind.versions[0], "kind": patch.kind.kind, "name": _escaped(patch.name)}
    if patch.kind.group:
        target["group"] = patch.kind.group
    if patch.namespace:
        # Where another namespace has one of the same name, nobody knows whose a manifest without one is.
        is_alone = all(other.namespace == patch.namespace for other in patches if _alike(other, patch))
        target["namespace"] = f"({patch.namespace}|{_UNNAMED})" if is_alone else patch.namespace
    return target


def _escaped(name: str) -> str:
    return name.replace(".", "\\.")


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


def commit_branch(repository: Path, plan_id: str, patches: Sequence[ObjectPatch], made: Sequence[str] = ()) -> str:
    """Make the branch; returns name of the branch.

    Args:
        repository: a Git repository with at least one commit.
        plan_id: plan; the branch is `gputide/<plan>`, the folder likewise.
        made: objects of our own that must be there first, as YAML; they come with the first commit.

    Raises:
        Misconfigured: no such repository.
        Refused: the branch is there already, or the folder is.
        Unavailable: there is no git, or it failed; the message holds what it said.
    """
    branch = f"gputide/{plan_id}"
    if not (repository / ".git").exists():
        raise Misconfigured(f"cannot make a branch in {repository}: it is no Git repository")
    if _git(repository, "branch", "--list", branch):
        raise Refused(f"cannot make branch {branch} in {repository}: it is there already; delete it first")
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        _git(repository, "worktree", "add", "-q", "-b", branch, str(tree))
        is_made = False
        try:
            _commit_all(tree, tree / "gputide" / plan_id, plan_id, patches, made)
            is_made = True
        finally:
            _git(repository, "worktree", "remove", "--force", str(tree))
            if not is_made:
                # Half a plan would look like a whole one, and stand in the next one's way.
                _git(repository, "branch", "-D", branch)
    return branch


def _commit_all(tree: Path, folder: Path, plan_id: str, patches: Sequence[ObjectPatch], made: Sequence[str]) -> None:
    if folder.exists():
        raise Refused(f"cannot make branch gputide/{plan_id}: what is there holds gputide/{plan_id} already")
    folder.mkdir(parents=True)
    if made:
        (folder / _MADE_FILE).write_text(_BETWEEN.join(made), encoding="utf-8")
    written: list[tuple[str, ObjectPatch]] = []
    named = [(_patch_file(number, patch), patch) for number, patch in enumerate(patches, 1)]
    for recommendation in dict.fromkeys(patch.recommendation for patch in patches):
        own = [(name, patch) for name, patch in named if patch.recommendation == recommendation]
        for name, patch in own:
            (folder / name).write_text(_patch_text(patch), encoding="utf-8")
        written = sorted([*written, *own], key=lambda entry: entry[0])
        (folder / COMPONENT_FILE).write_text(_component_text(written, has_made=bool(made)), encoding="utf-8")
        title = f"gputide {recommendation or 'configuration'} of plan {plan_id}"
        objects = "\n".join(f"{patch.kind.kind} {patch.namespace}/{patch.name}" for _, patch in own)
        _git(tree, "add", "--all")
        _git(tree, "commit", "-q", "-m", title, "-m", objects)


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=_GIT_SECONDS_MAX, check=False
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise Unavailable(f"cannot run git: {exc}") from exc
    if done.returncode != 0:
        raise Unavailable(f"cannot run git {words[0]}: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()
