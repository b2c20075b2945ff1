"""A forge over HTTP on a real bare repository: GitHub's and GitLab's REST as they are published, as far as is asked.

It refuses what the real ones refuse: no token, a version header that is missing, a branch that moved, a file that
changed, a second open request of one branch. It keeps every call, and every branch that was written.

Sources: docs.github.com/rest (2022-11-28), docs.gitlab.com/api (v4).
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

TOKEN = "glpat-0123456789abcdef"
Answered = tuple[int, Any]


class Refusal(Exception):
    """An answer of another status than fine."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True, kw_only=True)
class Asked:
    """One call."""

    method: str
    path: str
    query: dict[str, str]
    content: Any


@dataclass(slots=True, kw_only=True)
class ForgeDouble:
    """A forge with one repository, `team/fleet`. mutable: requests and calls grow."""

    kind: str
    folder: Path
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    calls: list[Asked] = field(default_factory=list)
    redirect: str | None = None
    too_long: bool = False

    def git(self, *words: str, given: bytes | None = None) -> str:
        """What git says of the bare repository."""
        who = ["-c", "user.name=forge", "-c", "user.email=forge@example.org"]
        done = subprocess.run(
            ["git", *who, "-C", str(self.folder), *words], input=given, capture_output=True, check=False
        )  # fmt: skip
        if done.returncode != 0:
            raise Refusal(404, done.stderr.decode())
        return done.stdout.decode().strip()

    def write(self, branch: str, files: dict[str, str], *, message: str = "by people") -> str:
        """A commit by somebody else on a branch, made where it is missing."""
        head = self.head(branch)
        tree = self.tree_with(head, {path: ("100644", text.encode()) for path, text in files.items()})
        sha = self.git("commit-tree", tree, *(["-p", head] if head else []), "-m", message)
        self.git("update-ref", f"refs/heads/{branch}", sha)
        return sha

    def head(self, branch: str) -> str | None:
        """The end of a branch."""
        try:
            return self.git("rev-parse", "--verify", "-q", f"refs/heads/{branch}")
        except Refusal:
            return None

    def read(self, branch: str, path: str) -> str:
        """A file of a branch, with its last line break."""
        done = subprocess.run(
            ["git", "-C", str(self.folder), "show", f"refs/heads/{branch}:{path}"], capture_output=True, check=True
        )
        return done.stdout.decode()

    def merge(self) -> None:
        """What a person does: the newest request becomes part of its base, and its branch goes."""
        request = self.requests[-1]
        head = self.head(request["head"])
        assert head is not None
        tree = self.git("rev-parse", f"{head}^{{tree}}")
        base = self.head(request["base"])
        sha = self.git("commit-tree", tree, "-p", str(base), "-p", head, "-m", "merge")
        self.git("update-ref", f"refs/heads/{request['base']}", sha)
        self.git("update-ref", "-d", f"refs/heads/{request['head']}")
        request["state"] = "merged"

    def tree_with(self, base: str | None, files: dict[str, tuple[str, bytes]]) -> str:
        """A tree with some files changed."""
        index = self.folder / "scratch-index"
        index.unlink(missing_ok=True)
        environ = {"GIT_INDEX_FILE": str(index), "PATH": "/usr/bin:/bin"}

        def run(*words: str, given: bytes | None = None) -> str:
            command = ["git", "-C", str(self.folder), *words]
            return subprocess.run(command, input=given, capture_output=True, check=True, env=environ).stdout.decode()

        if base:
            run("read-tree", base)
        for path, (mode, content) in files.items():
            blob = self.git("hash-object", "-w", "--stdin", given=content)
            run("update-index", "--add", "--cacheinfo", f"{mode},{blob},{path}")
        return run("write-tree").strip()

    def answer(self, asked: Asked) -> Answered:
        """One call's answer."""
        self.calls.append(asked)
        return (_github if self.kind == "github" else _gitlab)(self, asked)

    def open(self, head: str, base: str, title: str, body: str) -> dict[str, Any]:
        """A new request."""
        if any((one["head"], one["state"]) == (head, "open") for one in self.requests):
            raise Refusal(409 if self.kind == "gitlab" else 422, "another open request exists for this branch")
        if self.head(head) is None:
            raise Refusal(422, "head is invalid")
        number = len(self.requests) + 1
        self.requests.append(
            {"number": number, "head": head, "base": base, "state": "open", "title": title, "body": body}
        )
        return self.requests[-1]

    def entries(self, commit: str) -> list[dict[str, str]]:
        """A commit's tree."""
        found = []
        for line in filter(None, self.git("ls-tree", "-r", "-t", commit).splitlines()):
            mode, kind, rest = line.split(" ", 2)
            sha, path = rest.split("\t", 1)
            found.append({"mode": mode, "type": kind, "sha": sha, "path": path})
        return found


def _github(forge: ForgeDouble, asked: Asked) -> Answered:
    prefix = "/repos/team/fleet"
    if not asked.path.startswith(prefix):
        raise Refusal(404, "Not Found")
    path = asked.path.removeprefix(prefix)
    if (found := re.fullmatch(r"/branches/(.+)", path)) and asked.method == "GET":
        head = forge.head(found[1])
        if head is None:
            raise Refusal(404, "Branch not found")
        return 200, {"name": found[1], "commit": {"sha": head}}
    if found := re.fullmatch(r"/git/trees/(\w+)", path):
        assert asked.query == {"recursive": "1"}
        return 200, {"sha": found[1], "tree": forge.entries(found[1]), "truncated": forge.too_long}
    if found := re.fullmatch(r"/git/blobs/(\w+)", path):
        return 200, _blob(forge, found[1])
    if found := re.fullmatch(r"/git/commits/(\w+)", path):
        return 200, {"sha": found[1], "tree": {"sha": forge.git("rev-parse", f"{found[1]}^{{tree}}")}}
    return _github_git(forge, asked, path)


def _github_git(forge: ForgeDouble, asked: Asked, path: str) -> Answered:
    content, method = asked.content, asked.method
    if (method, path) == ("POST", "/git/trees"):
        if forge.git("cat-file", "-t", content["base_tree"]) != "tree":
            raise Refusal(422, "base_tree is not a tree")
        files = {one["path"]: (one["mode"], one["content"].encode()) for one in content["tree"]}
        return 201, {"sha": forge.tree_with(content["base_tree"], files)}
    if (method, path) == ("POST", "/git/commits"):
        parents = [word for parent in content["parents"] for word in ("-p", parent)]
        return 201, {"sha": forge.git("commit-tree", content["tree"], *parents, "-m", content["message"])}
    if (method, path) == ("POST", "/git/refs"):
        if forge.head(content["ref"].removeprefix("refs/heads/")) is not None:
            raise Refusal(422, "Reference already exists")
        forge.git("update-ref", content["ref"], content["sha"])
        return 201, {"ref": content["ref"]}
    if (found := re.fullmatch(r"/git/refs/heads/(.+)", path)) and method == "PATCH":
        head = forge.head(found[1])
        if not content["force"] and head != forge.git("merge-base", str(head), content["sha"]):
            raise Refusal(422, "Update is not a fast forward")
        forge.git("update-ref", f"refs/heads/{found[1]}", content["sha"])
        return 200, {"ref": found[1]}
    return _github_pulls(forge, asked, path)


def _github_pulls(forge: ForgeDouble, asked: Asked, path: str) -> Answered:
    def shown(one: dict[str, Any]) -> dict[str, Any]:
        state = "open" if one["state"] == "open" else "closed"
        merged = "2026-01-12T08:00:00Z" if one["state"] == "merged" else None
        url = f"https://git.example.org/team/fleet/pull/{one['number']}"
        return {**one, "state": state, "merged_at": merged, "html_url": url}

    if (asked.method, path) == ("GET", "/pulls"):
        owner, _, branch = asked.query["head"].partition(":")
        assert (owner, asked.query["direction"], asked.query["sort"]) == ("team", "desc", "created")
        own = [one for one in forge.requests if (one["head"], one["base"]) == (branch, asked.query["base"])]
        return 200, [shown(one) for one in reversed(own)][: int(asked.query["per_page"])]
    if (asked.method, path) == ("POST", "/pulls"):
        one = asked.content
        return 201, shown(forge.open(one["head"], one["base"], one["title"], one["body"]))
    if (found := re.fullmatch(r"/pulls/(\d+)", path)) and asked.method == "PATCH":
        forge.requests[int(found[1]) - 1].update(asked.content)
        return 200, shown(forge.requests[int(found[1]) - 1])
    raise Refusal(404, "Not Found")


def _gitlab(forge: ForgeDouble, asked: Asked) -> Answered:
    prefix = "/projects/team%2Ffleet"
    if not asked.path.startswith(prefix):
        raise Refusal(404, "404 Project Not Found")
    path, content = asked.path.removeprefix(prefix), asked.content
    if found := re.fullmatch(r"/repository/branches/([^/]+)", path):
        head = forge.head(unquote(found[1]))
        if head is None:
            raise Refusal(404, "404 Branch Not Found")
        return 200, {"name": unquote(found[1]), "commit": {"id": head}}
    if path == "/repository/tree":
        size, page = int(asked.query["per_page"]), int(asked.query["page"])
        below = asked.query.get("path", "")
        entries = [one for one in forge.entries(asked.query["ref"]) if one["path"].startswith(below)]
        return 200, [{**one, "id": one["sha"]} for one in entries[(page - 1) * size : page * size]]
    if found := re.fullmatch(r"/repository/blobs/(\w+)", path):
        return 200, _blob(forge, found[1])
    if found := re.fullmatch(r"/repository/files/([^/]+)", path):
        name, ref = unquote(found[1]), asked.query["ref"]
        return 200, {
            "file_path": name,
            "blob_id": forge.git("rev-parse", f"{ref}:{name}"),
            "last_commit_id": forge.git("log", "-1", "--format=%H", ref, "--", name),
        }
    if (asked.method, path) == ("POST", "/repository/commits"):
        return 201, {"id": _gitlab_commit(forge, content)}
    return _gitlab_requests(forge, asked, path)


def _gitlab_commit(forge: ForgeDouble, content: dict[str, Any]) -> str:
    head = forge.head(content["branch"])
    if head is not None and "start_sha" in content:
        raise Refusal(400, f"A branch called '{content['branch']}' already exists")
    start = head or content["start_sha"]
    known = {one["path"]: one for one in forge.entries(start)}
    files = {}
    for action in content["actions"]:
        path = action["file_path"]
        if (action["action"] == "create") is (path in known):
            raise Refusal(400, "A file with this name already exists, or none does")
        if action["action"] == "update":
            last = forge.git("log", "-1", "--format=%H", start, "--", path)
            if action["last_commit_id"] != last:
                raise Refusal(400, "You are attempting to update a file that has changed since you started editing it.")
        files[path] = (known[path]["mode"] if path in known else "100644", action["content"].encode())
    sha = forge.git("commit-tree", forge.tree_with(start, files), "-p", start, "-m", content["commit_message"])
    forge.git("update-ref", f"refs/heads/{content['branch']}", sha)
    return sha


def _gitlab_requests(forge: ForgeDouble, asked: Asked, path: str) -> Answered:
    def shown(one: dict[str, Any]) -> dict[str, Any]:
        url = f"https://git.example.org/team/fleet/-/merge_requests/{one['number']}"
        state = "opened" if one["state"] == "open" else one["state"]
        kept = {"iid": one["number"], "title": one["title"], "description": one["body"], "state": state}
        return {**kept, "web_url": url, "source_project_id": 7, "target_project_id": 7}

    if (asked.method, path) == ("GET", "/merge_requests"):
        assert (asked.query["state"], asked.query["order_by"]) == ("all", "created_at")
        wanted = (asked.query["source_branch"], asked.query["target_branch"])
        return 200, [shown(one) for one in reversed(forge.requests) if (one["head"], one["base"]) == wanted]
    content = asked.content
    if (asked.method, path) == ("POST", "/merge_requests"):
        made = forge.open(
            content["source_branch"], content["target_branch"], content["title"], content["description"]
        )  # fmt: skip
        return 201, shown(made)
    if (found := re.fullmatch(r"/merge_requests/(\d+)", path)) and asked.method == "PUT":
        request = forge.requests[int(found[1]) - 1]
        request.update(title=content["title"], body=content["description"])
        return 200, shown(request)
    raise Refusal(404, "404 Not Found")


def _blob(forge: ForgeDouble, sha: str) -> dict[str, str]:
    found = subprocess.run(["git", "-C", str(forge.folder), "cat-file", "blob", sha], capture_output=True, check=True)
    # Both forges break the lines of what they encode.
    return {"sha": sha, "encoding": "base64", "content": base64.encodebytes(found.stdout).decode()}


@contextmanager
def forge_double(kind: str, folder: Path) -> Iterator[ForgeDouble]:
    """A forge on loopback while it is needed."""
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(folder)], check=True)
    forge = ForgeDouble(kind=kind, folder=folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            status, found = self._found(body)
            said = json.dumps(found).encode()
            self.send_response(status)
            if status == 302:
                self.send_header("Location", str(forge.redirect))
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST = do_PUT = do_PATCH = handle_one  # noqa: N815 - names of the base class

        def _found(self, body: bytes) -> Answered:
            parts = urlsplit(self.path)
            # GitLab's router sees what is quoted; GitHub's takes a quoted slash of a branch for one.
            path = parts.path if kind == "gitlab" else unquote(parts.path)
            query = dict(parse_qsl(parts.query))
            asked = Asked(method=self.command, path=path, query=query, content=json.loads(body) if body else None)
            if forge.redirect is not None:
                return 302, {}
            try:
                if self.headers["Authorization"] != f"Bearer {TOKEN}" or not self.headers["User-Agent"]:
                    raise Refusal(401, f"Bad credentials {self.headers['Authorization']}")
                if kind == "github" and self.headers["X-GitHub-Api-Version"] != "2022-11-28":
                    raise Refusal(400, "no version")
                if body and self.headers["Content-Type"] != "application/json":
                    raise Refusal(415, "no JSON")
                return forge.answer(asked)
            except Refusal as exc:
                return exc.status, {"message": str(exc)}

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    forge.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield forge
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
