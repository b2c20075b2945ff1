"""A plan as a branch of a Git repository: a Kustomize component that grows by one commit per recommendation.

Made in a work tree of its own, so that what somebody has open is not touched. Anybody who reviews the branch can drop
one commit and keep the rest; the overlay that shall use it names the folder in its `components`.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from enforcer.emit.kustomize import COMPONENT_FILE, MADE_FILE, component_text, patch_file, patch_text
from enforcer.emit.object_patch import ObjectPatch
from fleet.errors import Misconfigured, Refused, Unavailable

_SECONDS_MAX = 60.0


def commit_branch(repository: Path, plan_id: str, patches: Sequence[ObjectPatch], made: Sequence[str] = ()) -> str:
    """Make the branch.

    Args:
        repository: a Git repository with at least one commit.
        plan_id: plan; the branch is `gputide/<plan>`, the folder likewise.
        made: objects of our own that must be there first, as YAML; they come with the first commit.

    Returns:
        Name of the branch.

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
        (folder / MADE_FILE).write_text("---\n".join(made), encoding="utf-8")
    written: list[tuple[str, ObjectPatch]] = []
    named = [(patch_file(number, patch), patch) for number, patch in enumerate(patches, 1)]
    for recommendation in dict.fromkeys(patch.recommendation for patch in patches):
        own = [(name, patch) for name, patch in named if patch.recommendation == recommendation]
        for name, patch in own:
            (folder / name).write_text(patch_text(patch), encoding="utf-8")
        written = sorted([*written, *own], key=lambda entry: entry[0])
        (folder / COMPONENT_FILE).write_text(component_text(written, has_made=bool(made)), encoding="utf-8")
        title = f"gputide {recommendation or 'configuration'} of plan {plan_id}"
        objects = "\n".join(f"{patch.kind.kind} {patch.namespace}/{patch.name}" for _, patch in own)
        _git(tree, "add", "--all")
        _git(tree, "commit", "-q", "-m", title, "-m", objects)


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise Unavailable(f"cannot run git: {exc}") from exc
    if done.returncode != 0:
        raise Unavailable(f"cannot run git {words[0]}: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()
