"""Writes what stages of a plan would change as files, instead of changing anything, for `gputide apply --emit`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from enforcer.emit.git import commit_branch
from enforcer.emit.kubectl import kubectl_files
from enforcer.emit.kustomize import helm_files, kustomize_files
from enforcer.emit.object_patch import object_patches, of_repositories
from enforcer.preview import StagePreview
from fleet.durable import unwritable
from fleet.errors import Misconfigured, Refused
from fleet.units import format_count


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


def emit_files(plan_id: str, stages: Sequence[StagePreview], form: EmitForm, target: Path) -> str:
    """Write what stages would change; returns what was written and where, in words.

    Args:
        stages: its stages, each on top of the ones before.
        target: empty folder, made where it is missing; for `git` the repository.

    Raises:
        Misconfigured: the target holds something already.
        Refused: a stage can't be carried out, or nothing is left to change.
        Unavailable: git can't be reached.
    """
    for stage in stages:
        if stage.refusal is not None:
            raise Refused(f"cannot emit stage {stage.stage}: {stage.refusal}")
    patches = object_patches([diff for stage in stages for diff in stage.objects])
    own = of_repositories(patches)
    made = list(dict.fromkeys(diff.after for stage in stages for diff in stage.made))
    if not (patches if form is EmitForm.KUBECTL else own):
        raise Refused(f"cannot emit plan {plan_id}: nothing is left to change")
    if form is EmitForm.GIT:
        branch = commit_branch(target, plan_id, own, made)
        return f"{format_count(len(own))} patches on branch {branch} of {target}"
    files = {
        EmitForm.KUBECTL: lambda: kubectl_files(plan_id, patches, made),
        EmitForm.KUSTOMIZE: lambda: kustomize_files(own, made),
        EmitForm.HELM: lambda: helm_files(plan_id, own, made),
    }[form]()
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
