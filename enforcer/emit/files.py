"""Writes what stages of a plan would change as files, instead of changing anything, for `gputide apply --emit`.

The form for kubectl is two POSIX shell scripts: one that applies the plan, one that takes it back. Every patch depends
on the version that was read, so the server refuses it where somebody changed the object since; the way back depends on
the values that the plan wrote. Every word that comes from a cluster is quoted.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from enforcer.emit.kustomize import commit_branch, helm_files, kustomize_files
from enforcer.emit.object_patch import ObjectPatch, object_patches, of_repositories
from enforcer.kubernetes.json_patch import Operation
from enforcer.preview import StagePreview
from fleet.durable import unwritable
from fleet.errors import Misconfigured, Refused
from fleet.units import format_count

_AMOUNT = re.compile(r"/resources/(limits|requests)/[^/]+$")
_SUFFIXES = ("", "k", "M", "G", "T", "P", "E")
"""Of thousands, as the API server writes them (kubernetes/apimachinery:pkg/api/resource/quantity.go)."""

_HEAD = """#!/bin/sh
# {what}
# It stops at the first object that is not as it was read; what was done until then stays.
set -eu
"""


class EmitForm(StrEnum):
    """What is written."""

    KUBECTL = "kubectl"
    """Two shell scripts: one applies, one takes back."""
    KUSTOMIZE = "kustomize"
    """A component."""
    HELM = "helm"
    """A post-renderer."""
    GIT = "git"
    """A branch of a repository, one commit per recommendation."""
    PULL_REQUEST = "pull-request"
    """A request of the forge that the settings name (`enforcer.forge`), which no folder takes."""


def stage_patches(plan_id: str, stages: Sequence[StagePreview]) -> tuple[tuple[ObjectPatch, ...], list[str]]:
    """What stages change of objects that people keep as files, and objects of our own that come first, as YAML.

    Raises:
        Refused: a stage can't be carried out, or nothing is left to change.
    """
    patches, made = _all_patches(stages)
    own = of_repositories(patches)
    if not own:
        raise Refused(f"cannot emit plan {plan_id}: nothing is left to change")
    return own, made


def _all_patches(stages: Sequence[StagePreview]) -> tuple[tuple[ObjectPatch, ...], list[str]]:
    for stage in stages:
        if stage.refusal is not None:
            raise Refused(f"cannot emit stage {stage.stage}: {stage.refusal}")
    patches = object_patches([diff for stage in stages for diff in stage.objects])
    return patches, list(dict.fromkeys(diff.after for stage in stages for diff in stage.made))


def emit_files(plan_id: str, stages: Sequence[StagePreview], form: EmitForm, target: Path, *, queues: str = "") -> str:
    """Write what stages would change; returns what was written and where, in words.

    Args:
        queues: what freed cards could be worth to queues, for a file `queues.txt`; none where empty, and none for git.
        stages: its stages, each on top of the ones before.
        target: empty folder, made where it is missing; for `git` the repository.

    Raises:
        Misconfigured: the target holds something already.
        Refused: a stage can't be carried out, or nothing is left to change.
        Unavailable: git can't be reached.
    """
    patches, made = _all_patches(stages)
    own = patches if form is EmitForm.KUBECTL and patches else stage_patches(plan_id, stages)[0]
    if form is EmitForm.GIT:
        branch = commit_branch(target, plan_id, own, made)
        return f"{format_count(len(own))} patches on branch {branch} of {target}"
    files = {
        EmitForm.KUBECTL: lambda: kubectl_files(plan_id, patches, made),
        EmitForm.KUSTOMIZE: lambda: kustomize_files(own, made),
        EmitForm.HELM: lambda: helm_files(plan_id, own, made),
    }[form]()
    files = {**files, **({"queues.txt": queues} if queues else {})}
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Misconfigured(f"cannot emit to {target}: it holds something already; name an empty folder")
    try:
        for name, text in files.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                path.chmod(0o755)
    except OSError as exc:
        raise unwritable(target, exc) from exc
    return f"{format_count(len(files))} files in {target}"


def kubectl_files(plan_id: str, patches: Sequence[ObjectPatch], made: Sequence[str] = ()) -> Mapping[str, str]:
    """File name to text: `apply.sh` and `restore.sh`.

    Args:
        made: objects of our own that must be there first, as YAML; they are left when the plan is taken back, for
            nobody names them then.
    """
    forward = [*map(_making, made), *(_command(patch) for patch in patches)]
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
            value = _as_served(_value_at(patch.before, operation["path"]), operation["path"])
            found.append({"op": "test", "path": operation["path"], "value": value})
        found.append(operation)
    return found


def _as_served(value: object, pointer: str) -> object:
    """A value as the API server gives it back: it writes quantities in its own form, `4000` as `4k`."""
    if isinstance(value, Mapping):
        return {key: _as_served(inner, f"{pointer}/{key}") for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_served(inner, f"{pointer}/{number}") for number, inner in enumerate(value)]
    if not isinstance(value, str) or not (value.isascii() and value.isdecimal()) or _AMOUNT.search(pointer) is None:
        return value
    amount, thousands = int(value), 0
    while amount and amount % 1000 == 0 and thousands < len(_SUFFIXES) - 1:
        amount, thousands = amount // 1000, thousands + 1
    return f"{amount}{_SUFFIXES[thousands]}"


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
    return f"\n# {patch.title}\n{shlex.join(words)}\n"


def _making(manifest: str) -> str:
    apply = "kubectl apply --server-side --field-manager=gputide --filename=-"
    return f"\nprintf '%s\\n' {shlex.quote(manifest)} | {apply}\n"


def _merged(patch: ObjectPatch) -> dict[str, Any]:
    found = patch.merge_patch
    if patch.resource_version is None:
        return found
    return {**found, "metadata": {**found.get("metadata", {}), "resourceVersion": patch.resource_version}}
