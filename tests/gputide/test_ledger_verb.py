"""`gputide admin ledger` and doctor say who edited the ledgers; a torn head keeps nobody from an undo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gputide.conftest import Program


@pytest.fixture
def trusted(planned: Path, program: Program, tmp_path: Path) -> tuple[str, ...]:
    """Settings that name a key and an anchor; by them a stage was applied."""
    (tmp_path / "key").write_bytes(b"k" * 40)
    settings = (
        "--set", f"enforcer.ledger_key_file={tmp_path / 'key'}",
        "--set", f"enforcer.ledger_anchor_file={tmp_path / 'anchors.json'}",
    )  # fmt: skip
    assert program(planned, *settings, "plan", "approve", "--stage", "1").status == 0
    said = program(planned, *settings, "apply", "--stage", "1", "--yes")
    assert said.status == 0, said.err
    return settings


def test_head_that_a_power_cut_emptied_is_mended_and_undo_works(
    planned: Path, program: Program, trusted: tuple[str, ...]
) -> None:
    (planned / "ledger.jsonl.head").write_bytes(b"")
    said = program(planned, *trusted, "undo", "--yes")
    assert said.status == 0, said.err
    assert "head of a ledger was missing or torn" in said.err
    assert "workloads restored" in said.out
    again = program(planned, *trusted, "admin", "ledger", "verify", "--format", "json")
    assert (again.status, again.document["trust"]) == (0, "keyed, anchored")


def test_cut_ledger_is_named_until_somebody_accepts_it(
    planned: Path, program: Program, trusted: tuple[str, ...]
) -> None:
    ledger = planned / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    sound = program(planned, *trusted, "admin", "ledger", "verify", "--format", "json")
    assert sound.status == 0, sound.err
    looks = {look["name"]: look for look in sound.document["ledgers"]}
    assert looks["ledger.jsonl"]["entries"] == looks["ledger.jsonl"]["anchored"] == len(lines)
    ledger.write_bytes(b"".join(lines[:-1]))
    (planned / "ledger.jsonl.head").unlink()
    said = program(planned, *trusted, "admin", "ledger", "verify", "--format", "json")
    assert said.status == 1
    faults = [look["fault"] for look in said.document["ledgers"] if look["fault"]]
    assert len(faults) == 1
    assert f"ends with entry {len(lines) - 1}, but entry {len(lines)} is anchored outside the folder" in faults[0]
    doctor = program(planned, *trusted, "doctor", "data", "--format", "json")
    assert "ledger-broken" in {one["code"] for one in doctor.document["diagnoses"]}
    # The simulated cluster lies in the folder: nothing else knows what was changed.
    assert program(planned, *trusted, "undo", "--yes").status == 6
    assert program(planned, *trusted, "admin", "ledger", "accept").status == 0
    assert program(planned, *trusted, "admin", "ledger", "verify").status == 1
    assert program(planned, *trusted, "admin", "ledger", "accept", "--yes").status == 0
    assert program(planned, *trusted, "admin", "ledger", "verify").status == 0


def test_what_stands_behind_a_ledger_is_said(planned: Path, program: Program) -> None:
    said = program(planned, "admin", "ledger", "verify")
    assert said.status == 0
    assert "unkeyed, unanchored" in said.out
    found = program(planned, "doctor", "data", "--format", "json").document["diagnoses"]
    assert "not keyed (enforcer.ledger_key_file), not anchored" in json.dumps(found)


def test_key_and_anchor_inside_the_folder_are_refused(planned: Path, program: Program) -> None:
    for name in ("ledger_key_file", "ledger_anchor_file"):
        said = program(planned, "--set", f"enforcer.{name}={planned / 'x'}", "plan", "list")
        assert said.status == 2
        assert "it lies in data folder" in said.err


def test_a_cluster_that_is_away_speaks_against_no_ledger(planned: Path, program: Program, tmp_path: Path) -> None:
    """What lies in the folder is checked all the same; nothing is accepted that the cluster would know better."""
    place = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    content = {
        "clusters": [cluster],
        "contexts": [context],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    place.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **content}))
    away = ("--set", "enforcer.cluster=kubernetes", "--set", f"enforcer.kubeconfig={place}")
    said = program(planned, *away, "admin", "ledger", "verify", "--format", "json")
    assert (said.status, bool(said.document["unread"])) == (0, True), said.err
    found = {one["code"] for one in program(planned, *away, "doctor", "data", "--format", "json").document["diagnoses"]}
    assert "ledger-broken" not in found
    accepted = program(planned, *away, "admin", "ledger", "accept", "--yes")
    assert accepted.status == 4
    assert "the heads in the cluster can't be read" in accepted.err
