"""`Forge` of GitLab.

A commit names of each file the last commit that it was read in; GitLab refuses it where a file changed since. A new
branch starts at the commit that was read.

Source: docs.gitlab.com/api: branches, repositories, repository_files, commits, merge_requests (version 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from enforcer.forge.forge import Commit, FileChange, ForgeRequest, RequestState, StoredFile
from enforcer.forge.rest import PAGES_MAX, Rest, content_of, field, is_plain_path, rows, too_many
from fleet.errors import Refused
from fleet.settings.forge import ForgeSettings

_PAGE = 100
_STATES = {"opened": RequestState.OPEN, "locked": RequestState.OPEN, "merged": RequestState.MERGED}


class GitlabForge:
    """See `enforcer.forge.forge.Forge`."""

    def __init__(self, settings: ForgeSettings) -> None:
        self._rest = Rest(settings, {})
        self._project = ("projects", settings.repository or "")
        self._base = settings.base_branch
        self._path = settings.path

    def head(self, branch: str) -> str | None:
        """See `Repository`."""
        found = self._rest.find(*self._project, "repository", "branches", branch)
        return None if found is None else str(field(found, "commit", "id"))

    def files(self, commit: str) -> Sequence[StoredFile]:
        """See `Repository`."""
        found: list[StoredFile] = []
        query = {"ref": commit, "recursive": "true", "per_page": str(_PAGE)}
        if self._path:
            query["path"] = self._path
        for page in range(1, PAGES_MAX + 1):
            answer = self._rest.find(*self._project, "repository", "tree", query={**query, "page": str(page)})
            entries = rows([] if answer is None else answer)
            for entry in entries:
                path, mode = field(entry, "path"), field(entry, "mode")
                if mode.startswith("100") and is_plain_path(path):
                    found.append(StoredFile(path=path, blob=field(entry, "id"), mode=mode))
            if len(entries) < _PAGE:
                return found
        raise too_many(f"files of {self._project[1]}")

    def read(self, file: StoredFile) -> bytes:
        """See `Repository`."""
        return content_of(self._rest.get(*self._project, "repository", "blobs", file.blob))

    def commit(self, commit: Commit) -> str:
        """See `Repository`."""
        content: dict[str, Any] = {
            "branch": commit.branch,
            "commit_message": commit.message,
            "actions": [self._action(one, commit) for one in commit.files],
        }
        if commit.is_new:
            content["start_sha"] = commit.parent
        return str(field(self._rest.send("POST", *self._project, "repository", "commits", content=content), "id"))

    def newest(self, branch: str) -> ForgeRequest | None:
        """See `Requests`."""
        query = {"state": "all", "source_branch": branch, "target_branch": self._base, "per_page": "20"}
        found = rows(self._rest.get(*self._project, "merge_requests", query={**query, "order_by": "created_at"}))
        # A fork may have a branch of the same name.
        own = [
            one for one in found
            if field(one, "source_project_id", kind=int) == field(one, "target_project_id", kind=int)
        ]  # fmt: skip
        return request_of(own[0]) if own else None

    def put(self, branch: str, title: str, body: str, *, number: int | None) -> ForgeRequest:
        """See `Requests`."""
        said = {"title": title, "description": body}
        requests = (*self._project, "merge_requests")
        if number is not None:
            return request_of(self._rest.send("PUT", *requests, str(number), content=said))
        opened = {**said, "source_branch": branch, "target_branch": self._base}
        return request_of(self._rest.send("POST", *requests, content=opened))

    def _action(self, change: FileChange, commit: Commit) -> dict[str, str]:
        action = {"action": "create", "file_path": change.path, "content": change.text}
        if change.was is None:
            return action
        kept = self._rest.find(
            *self._project, "repository", "files", change.path,
            query={"ref": commit.parent if commit.is_new else commit.branch},
        )  # fmt: skip
        if kept is None or field(kept, "blob_id") != change.was.blob:
            raise Refused(f"cannot change {change.path}: it was changed since it was read; try again")
        return {**action, "action": "update", "last_commit_id": field(kept, "last_commit_id")}


def request_of(found: Any) -> ForgeRequest:
    """A merge request of GitLab.

    Raises:
        Corrupt: it is none.
    """
    body = found.get("description") if isinstance(found, dict) else None
    return ForgeRequest(
        number=field(found, "iid", kind=int),
        url=field(found, "web_url"),
        state=_STATES.get(field(found, "state"), RequestState.CLOSED),
        title=field(found, "title"),
        body=body if isinstance(body, str) else "",
    )
