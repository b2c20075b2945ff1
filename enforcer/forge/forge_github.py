"""`Forge` of GitHub, and what Gitea's API shares with it.

A commit is made of Git's own objects, all files at once: a tree on top of the one that was read, a commit on top of its
commit, then the branch moves there, which GitHub refuses where that would leave out a commit of somebody else.

Source: docs.github.com/rest (version 2022-11-28): branches, git/trees, git/blobs, git/commits, git/refs, pulls.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from enforcer.forge.forge import Commit, ForgeRequest, RequestState, StoredFile
from enforcer.forge.rest import PAGES_MAX, Rest, content_of, field, is_plain_path, rows, too_many
from fleet.settings.forge import ForgeSettings

_PLAIN_MODES = ("100644", "100755")
"""Of plain files: no links, and no other repositories."""
_PAGE = 100


class GithubForge:
    """See `enforcer.forge.forge.Forge`."""

    _headers: Mapping[str, str] = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}

    def __init__(self, settings: ForgeSettings) -> None:
        self._rest = Rest(settings, self._headers)
        self._owner, _, name = (settings.repository or "").partition("/")
        self._repo = ("repos", self._owner, name)
        self._base = settings.base_branch
        self._folder = f"{settings.path}/" if settings.path else ""

    def head(self, branch: str) -> str | None:
        """See `Repository`."""
        found = self._rest.find(*self._repo, "branches", branch)
        return None if found is None else self._commit_of(field(found, "commit", kind=dict))

    def files(self, commit: str) -> Sequence[StoredFile]:
        """See `Repository`."""
        found: list[StoredFile] = []
        for page in range(1, PAGES_MAX + 1):
            tree = self._rest.get(*self._repo, "git", "trees", commit, query=self._tree_query(page))
            entries = rows(field(tree, "tree", kind=list))
            for entry in entries:
                path, mode = field(entry, "path"), field(entry, "mode")
                if mode in _PLAIN_MODES and path.startswith(self._folder) and is_plain_path(path):
                    found.append(StoredFile(path=path, blob=field(entry, "sha"), mode=mode))
            if not (isinstance(tree, dict) and tree.get("truncated")):
                return found
            if not self._has_pages or not entries:
                break
        raise too_many(f"files of {'/'.join(self._repo[1:])}")

    def read(self, file: StoredFile) -> bytes:
        """See `Repository`."""
        return content_of(self._rest.get(*self._repo, "git", "blobs", file.blob))

    def commit(self, commit: Commit) -> str:
        """See `Repository`."""
        entries = [
            {"path": one.path, "mode": one.was.mode if one.was else "100644", "type": "blob", "content": one.text}
            for one in commit.files
        ]
        git = (*self._repo, "git")
        base = field(self._rest.get(*git, "commits", commit.parent), "tree", "sha")
        tree = self._rest.send("POST", *git, "trees", content={"base_tree": base, "tree": entries})
        written = {"message": commit.message, "tree": field(tree, "sha"), "parents": [commit.parent]}
        sha: str = field(self._rest.send("POST", *git, "commits", content=written), "sha")
        if commit.is_new:
            self._rest.send("POST", *git, "refs", content={"ref": f"refs/heads/{commit.branch}", "sha": sha})
        else:
            moved = {"sha": sha, "force": False}
            self._rest.send("PATCH", *git, "refs", "heads", *commit.branch.split("/"), content=moved)
        return sha

    def newest(self, branch: str) -> ForgeRequest | None:
        """See `Requests`."""
        query = {"state": "all", "head": f"{self._owner}:{branch}", "base": self._base, "sort": "created"}
        found = rows(self._rest.get(*self._repo, "pulls", query={**query, "direction": "desc", "per_page": "1"}))
        return request_of(found[0]) if found else None

    def put(self, branch: str, title: str, body: str, *, number: int | None) -> ForgeRequest:
        """See `Requests`."""
        said = {"title": title, "body": body}
        if number is not None:
            return request_of(self._rest.send("PATCH", *self._repo, "pulls", str(number), content=said))
        return request_of(
            self._rest.send("POST", *self._repo, "pulls", content={**said, "head": branch, "base": self._base})
        )

    _has_pages = False

    def _tree_query(self, page: int) -> dict[str, str]:
        del page
        return {"recursive": "1"}

    def _commit_of(self, commit: Mapping[str, Any]) -> str:
        return str(field(commit, "sha"))


def request_of(found: object) -> ForgeRequest:
    """A pull request, as GitHub and Gitea write it; only Gitea says in lists whether one was merged, both say when.

    Raises:
        Corrupt: it is none.
    """
    is_merged = isinstance(found, Mapping) and bool(found.get("merged_at") or found.get("merged"))
    is_open = field(found, "state") == "open"
    body = found.get("body") if isinstance(found, Mapping) else None
    return ForgeRequest(
        number=field(found, "number", kind=int),
        url=field(found, "html_url"),
        state=RequestState.MERGED if is_merged else RequestState.OPEN if is_open else RequestState.CLOSED,
        title=field(found, "title"),
        body=body if isinstance(body, str) else "",
    )


class GiteaForge(GithubForge):
    """`Forge` of Gitea and Forgejo: trees have pages, a commit is one call that names what each file was.

    Source: the OpenAPI document of Gitea 1.26, `/swagger.v1.json`: repoChangeFiles, GetTree, repoListPullRequests.
    """

    _headers: Mapping[str, str] = {}
    _has_pages = True

    def commit(self, commit: Commit) -> str:
        """See `Repository`."""
        where = {"branch": commit.branch} if not commit.is_new else {"branch": self._base, "new_branch": commit.branch}
        files = [
            {
                "path": one.path,
                "content": base64.b64encode(one.text.encode()).decode(),
                **({"operation": "create"} if one.was is None else {"operation": "update", "sha": one.was.blob}),
            }
            for one in commit.files
        ]
        done = self._rest.send(
            "POST", *self._repo, "contents", content={**where, "message": commit.message, "files": files}
        )
        return str(field(done, "commit", "sha"))

    def newest(self, branch: str) -> ForgeRequest | None:
        """See `Requests`."""
        for page in range(1, PAGES_MAX + 1):
            query = {"state": "all", "base_branch": self._base, "sort": "recentupdate", "limit": "50"}
            found = rows(self._rest.get(*self._repo, "pulls", query={**query, "page": str(page)}))
            # Once a branch is deleted, `ref` names the request instead; `label` goes on naming the branch.
            own = [request_of(one) for one in found if field(one, "head", "label") == branch and _is_inner(one)]
            if own:
                return max(own, key=lambda one: one.number)
            if not found:
                return None
        raise too_many(f"requests of {'/'.join(self._repo[1:])}")

    def _tree_query(self, page: int) -> dict[str, str]:
        return {"recursive": "true", "page": str(page), "per_page": str(_PAGE)}

    def _commit_of(self, commit: Mapping[str, Any]) -> str:
        return str(field(commit, "id"))


def _is_inner(request: object) -> bool:
    """Whether a request comes from the repository itself: a fork may have a branch of the same name."""
    return bool(field(request, "head", "repo_id", kind=int) == field(request, "base", "repo_id", kind=int))
