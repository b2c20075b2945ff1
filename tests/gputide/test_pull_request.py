"""`gputide apply --emit pull-request`, and what `plan show` says of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from enforcer.record.ledger import Ledger
from fleet.data_folder import open_data_folder
from tests.forge_double import TOKEN, ForgeDouble, forge_double
from tests.gputide.conftest import Program

EMIT = ("apply", "--emit", "pull-request")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForgeDouble]:
    with forge_double("github", tmp_path / "repository.git") as found:
        found.write("main", {"README.md": "# fleet\n"})
        yield found


@pytest.fixture
def settings(server: ForgeDouble, tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "token").write_text(TOKEN)
    named = {"kind": "github", "url": server.url, "repository": "team/fleet", "token_file": tmp_path / "token"}
    return tuple(word for name, value in named.items() for word in ("--set", f"forge.{name}={value}"))


def test_approved_stages_are_sent_once_and_their_state_is_shown(
    planned: Path, program: Program, server: ForgeDouble, settings: tuple[str, ...]
) -> None:
    refused = program(planned, *settings, *EMIT, "--yes")
    assert (refused.status, server.requests) == (4, [])
    assert "gputide plan approve --plan" in refused.err
    assert program(planned, "plan", "approve").status == 0

    dry = program(planned, *settings, *EMIT, "--format", "json")
    assert dry.status == 0, dry.err
    assert (server.requests, server.head(dry.document["branch"])) == ([], None)
    assert dry.document["files"]

    done = program(planned, *settings, *EMIT, "--yes", "--format", "json")
    assert done.status == 0, done.err
    assert done.document["request"]["state"] == "open"
    (request,) = server.requests
    assert (request["title"], request["body"]) == (dry.document["title"], dry.document["body"])
    for part in ("What changes", "What it saves", "What it risks", "How to undo it", "Free"):
        assert part in request["body"] + request["title"]
    again = program(planned, *settings, *EMIT, "--yes", "--format", "json")
    assert (again.document["changed"], len(server.requests)) == (False, 1)

    assert "pull request: https://git.example.org/team/fleet/pull/1 (open since" in program(planned, "plan", "show").out
    server.merge()
    assert "(open since" in program(planned, "plan", "show").out
    asked = program(planned, *settings, "plan", "show", "--pull-request", "--format", "json")
    assert asked.document["pull_request"]["state"] == "merged"
    assert "(merged since" in program(planned, "plan", "show").out
    ledger = Ledger(open_data_folder(planned, create=False).requests)
    assert [entry.event for entry in ledger.entries()] == [
        "request_intent", "request_seen", "request_intent", "request_seen",
    ]  # fmt: skip
    assert program(planned, "admin", "ledger", "verify").status == 0


def test_body_is_in_the_language_of_the_report_and_the_same_each_time(
    planned: Path, program: Program, settings: tuple[str, ...]
) -> None:
    assert program(planned, "plan", "approve").status == 0
    asked = (*settings, "--set", "report.language=zh", *EMIT, "--format", "json")
    first, second = (program(planned, *asked).document["body"] for _ in range(2))
    assert "如何撤销" in first
    assert first == second


def test_without_a_forge_its_settings_are_named(planned: Path, program: Program) -> None:
    said = program(planned, *EMIT)
    assert said.status == 2
    assert "forge.kind" in said.err
    halves = program(planned, "--set", "forge.kind=gitea", *EMIT)
    assert halves.status == 2
    assert "token_file" in halves.err


def test_plan_without_a_request_says_so(planned: Path, program: Program, settings: tuple[str, ...]) -> None:
    assert program(planned, *settings, "plan", "show", "--pull-request").status == 3
    assert "pull_request" not in json.loads(program(planned, "plan", "show", "--format", "json").out)


def test_stage_sent_by_itself_leaves_those_before_it_in_the_request(
    planned: Path, program: Program, server: ForgeDouble, settings: tuple[str, ...]
) -> None:
    assert program(planned, "plan", "approve").status == 0
    asked = (*settings, *EMIT, "--format", "json")
    whole = program(planned, *asked, "--stage", "1", "--stage", "2").document
    for stage in "12":
        sent = program(planned, *asked, "--stage", stage, "--yes")
        assert sent.status == 0, sent.err
    (request,) = server.requests
    assert (request["title"], request["body"]) == (whole["title"], whole["body"])
    for file in whole["files"]:
        assert server.read(whole["branch"], file["path"]) == file["text"]


def test_nothing_is_sent_while_changes_are_frozen_nor_of_a_plan_that_expired(
    planned: Path, program: Program, server: ForgeDouble, settings: tuple[str, ...]
) -> None:
    assert program(planned, "plan", "approve").status == 0
    assert program(planned, "apply", "--freeze").status == 0
    frozen = program(planned, *settings, *EMIT, "--yes")
    assert (frozen.status, server.requests) == (4, [])
    assert "froze" in frozen.err
    assert program(planned, *settings, *EMIT).status == 0
    assert program(planned, "apply", "--no-freeze").status == 0
    expires = datetime.fromisoformat(program(planned, "plan", "show", "--format", "json").document["expires_at"])
    late = program(planned, "--now", (expires + timedelta(hours=1)).isoformat(), *settings, *EMIT, "--yes")
    assert (late.status, server.requests) == (4, [])
    assert "expired" in late.err
