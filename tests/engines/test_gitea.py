"""A plan as a pull request of a real forge: Gitea, whose API Forgejo has too."""

from __future__ import annotations

import base64
import getpass
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from enforcer.forge.forge import RequestState
from enforcer.forge.forge_github import GiteaForge
from enforcer.forge.pull_request import draft, send
from fleet.errors import Misconfigured, Refused, Unavailable
from fleet.settings.forge import ForgeKind, ForgeSettings
from gputide.operate.engine_process import kill_process, start_process, wait_until
from gputide.operate.engines import free_port
from tests.enforcer.forge.test_pull_request import BRANCH, EDITED, PLAN, RANKER, a_patch
from tests.engines.conftest import cannot_run
from tests.engines.go_peers import build_gitea
from tests.waiting import text_of, until

pytestmark = pytest.mark.engines
_OTHERS = 120
"""Files beside the one that is meant: more than a page of a tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gitea:
    """A server with one user, `team`."""

    url: str
    token: Path

    def ask(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> Any:
        body = None if content is None else json.dumps(content).encode()
        headers = {"Authorization": f"token {self.token.read_text()}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{self.url}/api/v1{path}", body, headers, method=method)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            found = answer.read()
        return json.loads(found) if found else None


@pytest.fixture(scope="module")
def gitea(engines_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gitea]:
    try:
        peer = build_gitea(engines_cache, tell=print)
    except Unavailable as absence:
        cannot_run(str(absence))
    folder, port = tmp_path_factory.mktemp("gitea"), free_port()
    settings: dict[str, dict[str, object]] = {
        "": {"RUN_MODE": "prod", "RUN_USER": getpass.getuser(), "WORK_PATH": folder},
        "server": {
            "HTTP_ADDR": "127.0.0.1", "HTTP_PORT": port, "ROOT_URL": f"http://127.0.0.1:{port}/", "DISABLE_SSH": "true",
            "OFFLINE_MODE": "true", "STATIC_ROOT_PATH": peer.parts,
        },
        "database": {"DB_TYPE": "sqlite3", "PATH": folder / "gitea.db"},
        "repository": {"ROOT": folder / "repositories"},
        "security": {"INSTALL_LOCK": "true", "SECRET_KEY": "of a test alone"},
        "indexer": {"ISSUE_INDEXER_TYPE": "db"},
        "cron": {"ENABLED": "false"},
        "actions": {"ENABLED": "false"},
        "log": {"LEVEL": "Warn"},
    }  # fmt: skip
    config = folder / "app.ini"
    lines = [f"[{section}]" if section else "" for section in settings]
    config.write_text(
        "\n".join(
            "\n".join((line, *(f"{key} = {value}" for key, value in values.items())))
            for line, values in zip(lines, settings.values(), strict=True)
        )
    )
    environ = {
        **os.environ, "HOME": str(folder), "GITEA_WORK_DIR": str(folder), "USER": getpass.getuser(),
        "GITEA_I_AM_BEING_UNSAFE_RUNNING_AS_ROOT": "true",
    }  # fmt: skip

    def told(*words: str) -> str:
        command = [str(peer.program), "--config", str(config), *words]
        return subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout

    told("migrate")
    user = ("--username", "team", "--password", "Of-a-test-1", "--email", "team@example.org")
    told("admin", "user", "create", *user, "--must-change-password=false")
    scopes = "write:repository,write:user,write:issue"
    token = folder / "token"
    said = told("admin", "user", "generate-access-token", "--username", "team", "--scopes", scopes, "--raw")
    token.write_text(said.split()[-1])
    command = [str(peer.program), "--config", str(config), "web"]
    server = start_process("gitea", command, folder=folder, log=folder / "log", environ=environ)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: text_of(f"{url}/api/v1/version") != "", server, seconds_max=90)
        yield Gitea(url=url, token=token)
    finally:
        kill_process(server)


@pytest.fixture
def settings(gitea: Gitea, request: pytest.FixtureRequest) -> ForgeSettings:
    """Return the settings for a repository of this test's own, with its manifests on `main`."""
    name = f"fleet-{abs(hash(request.node.name))}"
    gitea.ask("POST", "/user/repos", {"name": name, "auto_init": True, "default_branch": "main"})
    files = {"clusters/a/ranker.yaml": RANKER} | {f"clusters/a/other/{one}.yaml": "a: 1\n" for one in range(_OTHERS)}
    write(gitea, name, "main", files)
    return ForgeSettings(
        kind=ForgeKind.GITEA, url=f"{gitea.url}/api/v1", repository=f"team/{name}", path="clusters/a",
        token_file=gitea.token,
    )  # fmt: skip


def write(gitea: Gitea, name: str, branch: str, files: Mapping[str, str]) -> None:
    made = [
        {"operation": "create", "path": path, "content": base64.b64encode(text.encode()).decode()}
        for path, text in files.items()
    ]
    gitea.ask("POST", f"/repos/team/{name}/contents", {"branch": branch, "message": "by people", "files": made})


def test_request_is_opened_once_grows_and_is_seen_merged(gitea: Gitea, settings: ForgeSettings) -> None:
    forge = GiteaForge(settings)
    base = forge.head("main")
    drafted = draft(forge, settings, PLAN, [a_patch()])
    assert "\n".join(drafted.text.splitlines()[2:]) == EDITED
    request, is_changed = send(forge, drafted, title="free 3 cards", body="why\n\n- `a`\n")
    assert (request.number, request.state, is_changed) == (1, RequestState.OPEN, True)
    head = forge.head(BRANCH)
    again = send(forge, draft(forge, settings, PLAN, [a_patch()]), title="free 3 cards", body="why\n\n- `a`\n")
    assert again == (request, False)
    assert (forge.head(BRANCH), forge.head("main")) == (head, base)
    more = [a_patch(), a_patch("left")]
    grown, is_changed = send(forge, draft(forge, settings, PLAN, more), title="free 4 cards", body="more")
    assert (grown.number, grown.title, grown.body, is_changed) == (1, "free 4 cards", "more", True)
    merging = {"Do": "merge", "delete_branch_after_merge": True}

    def is_merged() -> bool:
        try:
            gitea.ask("POST", f"/repos/{settings.repository}/pulls/1/merge", merging)
        except OSError:  # it looks for conflicts first
            return False
        return True

    until(is_merged, seconds_max=60, pause_seconds=1)
    seen = forge.newest(BRANCH)
    assert seen is not None
    assert seen.state is RequestState.MERGED
    assert send(forge, draft(forge, settings, PLAN, more), title="t", body="b") == (seen, False)
    second, _ = send(forge, draft(forge, settings, PLAN, [*more, a_patch("later")]), title="t", body="b")
    assert (second.number, second.state) == (2, RequestState.OPEN)


def test_what_changed_since_it_was_read_is_not_written_over(gitea: Gitea, settings: ForgeSettings) -> None:
    forge = GiteaForge(settings)
    first = draft(forge, settings, PLAN, [a_patch()])
    send(forge, first, title="t", body="b")
    with pytest.raises(Refused, match=r"409|422"):
        send(forge, first, title="t", body="b")
    left = draft(forge, settings, PLAN, [a_patch(), a_patch("left")])
    write(gitea, str(settings.repository).partition("/")[2], BRANCH, {one.path: "theirs\n" for one in left.files})
    head = forge.head(BRANCH)
    with pytest.raises(Refused, match="already exists"):
        send(forge, left, title="t", body="b")
    assert forge.head(BRANCH) == head


def test_closed_request_and_wrong_token_are_said(gitea: Gitea, settings: ForgeSettings, tmp_path: Path) -> None:
    forge = GiteaForge(settings)
    request, _ = send(forge, draft(forge, settings, PLAN, [a_patch()]), title="t", body="b")
    gitea.ask("PATCH", f"/repos/{settings.repository}/pulls/{request.number}", {"state": "closed"})
    with pytest.raises(Refused, match="closed without being merged"):
        draft(forge, settings, PLAN, [a_patch()])
    other = tmp_path / "token"
    other.write_text("0" * 40)
    with pytest.raises(Misconfigured, match="token_file"):
        GiteaForge(settings.model_copy(update={"token_file": other})).head("main")
