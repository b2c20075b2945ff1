"""Writes what approved stages of a plan would change as files, instead of changing anything: `gputide apply --emit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from enforcer.emit.git import commit_branch
from enforcer.emit.helm import helm_files
from enforcer.emit.kubectl import kubectl_files
from enforcer.emit.kustomize import kustomize_files
from enforcer.emit.object_patch import object_patches, of_repositories
from enforcer.preview import preview
from enforcer.safety.guard import Guard
from fleet.data_folder import DataFolder
from fleet.decisions import Plan
from fleet.durable import unwritable
from fleet.errors import Misconfigured, Refused
from fleet.settings.settings import Settings
from fleet.units import format_count
from gputide.container.cluster import backend, check_own, moment_of_change, open_cluster
from gputide.container.enforcer import guard_policy
from gputide.container.plans import journal, plan_store


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """What was written.

    Attributes:
        said: what and where, in words.
        left_out: stages that were asked for and that nobody approved.
    """

    said: str
    left_out: tuple[int, ...]


def emit(
    folder: DataFolder,
    settings: Settings,
    now: datetime,
    plan: Plan,
    stages: Sequence[int],
    *,
    form: EmitForm,
    target: Path | None,
) -> Emitted:
    """Write the approved ones of some stages of a plan as files.

    Args:
        folder: data folder.
        settings: all settings.
        now: the clock of the data.
        plan: the plan.
        stages: which of its stages are asked for, each on top of the ones before.
        form: what to write.
        target: empty folder, made where it is missing; for `git` the repository.

    Raises:
        Misconfigured: no target, or one that holds something already.
        Refused: the plan is of another cluster, too few people approved, a stage can't be carried out, or nothing is
            left to change.
        Unavailable: the cluster, or git, can't be reached.
    """
    if target is None:
        raise Misconfigured(f"cannot emit {form.value} to nowhere: name a folder with -o, for git the repository")
    check_own(plan, folder, settings)
    approved = _approved(folder, settings, plan, stages)
    with open_cluster(folder, settings) as cluster:
        runs = journal(folder).runs(plan.plan_id)
        found = preview(plan, cluster, backend(settings, moment_of_change(cluster, now)), approved, runs)
    for stage in found:
        if stage.refusal is not None:
            raise Refused(f"cannot emit stage {stage.stage}: {stage.refusal}")
    patches = object_patches([diff for stage in found for diff in stage.objects])
    own = of_repositories(patches)
    left_out = tuple(stage for stage in stages if stage not in approved)
    made = list(dict.fromkeys(diff.after for stage in found for diff in stage.made))
    if not (patches if form is EmitForm.KUBECTL else own):
        raise Refused(f"cannot emit plan {plan.plan_id}: nothing is left to change")
    if form is EmitForm.GIT:
        branch = commit_branch(target, plan.plan_id, own, made)
        return Emitted(said=f"{format_count(len(own))} patches on branch {branch} of {target}", left_out=left_out)
    files = {
        EmitForm.KUBECTL: lambda: kubectl_files(plan.plan_id, patches, made),
        EmitForm.KUSTOMIZE: lambda: kustomize_files(own, made),
        EmitForm.HELM: lambda: helm_files(plan.plan_id, own, made),
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
    return Emitted(said=f"{format_count(len(files))} files in {target}", left_out=left_out)


def _approved(folder: DataFolder, settings: Settings, plan: Plan, stages: Sequence[int]) -> tuple[int, ...]:
    """Those of some stages that were approved: files travel to where no guard asks again."""
    approvals = plan_store(folder).approvals(plan.plan_id)
    given = {stage for approval in approvals for stage in approval.stages}
    found = tuple(stage for stage in stages if stage in given)
    if not found:
        wanted = " ".join(f"--stage {stage}" for stage in stages)
        raise Refused(
            f"cannot emit plan {plan.plan_id}: nobody approved what would be written; "
            f"`gputide plan approve --plan {plan.plan_id} {wanted}`"
        )
    freed = sum(entry.cards_freed for entry in plan.stages if entry.stage in found)
    Guard(guard_policy(settings, folder)).check_approvals(plan, found, approvals, freed)
    return found
