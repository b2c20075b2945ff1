"""What a forge is asked for: the files of a branch, one commit on a branch of ours, and one request for it.

Called by `enforcer.forge.pull_request`; adapters: `forge_github`, `forge_gitea`, `forge_gitlab`. None of them can write
to the base branch, for `Commit` is refused with its name, and none can merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class RequestState(StrEnum):
    """What became of a request."""

    OPEN = "open"
    MERGED = "merged"
    CLOSED = "closed"
    """Without being merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of a commit.

    Attributes:
        path: within the repository, as the forge writes it; checked before it is used (`rest.is_plain_path`).
        blob: Git's id of its content.
        mode: Git's mode; `100644` as a rule.
    """

    path: str
    blob: str
    mode: str = "100644"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A file as it shall be.

    Attributes:
        was: the file that was read, which it must still be; None for one that must not be there yet.
        before: its text then; empty for a new one.
    """

    path: str
    was: StoredFile | None
    before: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit.

    Attributes:
        branch: our branch.
        parent: the commit that was read; the branch must still be there, or begins there.
        is_new: the branch does not exist yet.
    """

    branch: str
    parent: str
    is_new: bool
    message: str
    files: tuple[FileChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgeRequest:
    """A pull request.

    Attributes:
        number: within the repository.
        url: its page, for people.
    """

    number: int
    url: str
    state: RequestState
    title: str
    body: str


class Repository(Protocol):
    """The files. Everything raises `Unavailable`, `Misconfigured` (token, rights, repository) or `Corrupt`."""

    def head(self, branch: str) -> str | None:
        """The commit at the end of a branch; None where there is no such branch."""
        ...

    def files(self, commit: str) -> Sequence[StoredFile]:
        """Plain files of a commit below the folder of the settings, in the forge's order."""
        ...

    def read(self, file: StoredFile) -> bytes:
        """A file's content."""
        ...

    def commit(self, commit: Commit) -> str:
        """Write a commit, as a whole; returns its id.

        Raises:
            Refused: branch or file is not as it was read.
        """
        ...


class Requests(Protocol):
    """The requests. Raises as `Repository`."""

    def newest(self, branch: str) -> ForgeRequest | None:
        """The newest request from a branch of ours to the base branch, whatever became of it; None where none was."""
        ...

    def put(self, branch: str, title: str, body: str, *, number: int | None) -> ForgeRequest:
        """Open a request, or give the one of a number this title and body."""
        ...


class Forge(Repository, Requests, Protocol):
    """Both, as every forge has them."""
