"""What goes wrong is said in one line with the value, the limit and the knob, and ends with the contract's status."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleet.durable import FolderLock
from tests.gputide.conftest import Program


def test_misspelt_setting_names_the_nearest(tmp_path: Path, program: Program) -> None:
    said = program(tmp_path / "data", "--set", "risk.presett=low", "cost", "prices", "list")
    assert said.status == 2
    assert "'risk.preset'" in said.err


def test_empty_data_folder_says_how_to_feed_it(tmp_path: Path, program: Program) -> None:
    said = program(tmp_path / "data", "workloads")
    assert said.status == 6
    assert "gputide demo" in said.err


def test_folder_with_other_files_is_left_alone(tmp_path: Path, small_fleet: Path, program: Program) -> None:
    (tmp_path / "thesis.txt").write_text("ten years of work")
    said = program(tmp_path, "admin", "replay", str(small_fleet))
    assert said.status == 6
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_newer_schema_is_refused(replayed: Path, program: Program) -> None:
    (replayed / "FORMAT.json").write_text(json.dumps({"schema_version": 99}))
    said = program(replayed, "workloads")
    assert said.status == 6
    assert "schema version is 99" in said.err


def test_locked_folder_names_the_holder(planned: Path, program: Program) -> None:
    with FolderLock(planned, "writer"):
        said = program(planned, "plan", "make")
    assert said.status == 5
    assert f"process {os.getpid()}" in said.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes to read-only folders")
def test_read_only_folder_is_said_so(planned: Path, program: Program) -> None:
    planned.chmod(0o500)
    try:
        said = program(planned, "plan", "make")
    finally:
        planned.chmod(0o700)
    assert said.status == 6
    assert "Permission denied" in said.err


@pytest.mark.parametrize("column", ["sm_active_ratio", "pod", "ts"])
def test_trace_with_a_missing_column_names_it(column: str, small_fleet: Path, tmp_path: Path, program: Program) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(small_fleet, broken)
    usage = pq.read_table(broken / "usage.parquet")
    pq.write_table(usage.drop_columns([column]), broken / "usage.parquet")
    said = program(tmp_path / "data", "admin", "replay", str(broken))
    assert said.status == 6
    assert column in said.err
    assert "usage.parquet" in said.err


def test_trace_with_an_unknown_card_names_it(small_fleet: Path, tmp_path: Path, program: Program) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(small_fleet, broken)
    pods = pq.read_table(broken / "pods.parquet")
    place = pods.column_names.index("card")
    cards = pods.column("card").to_pylist()
    cards[0] = "GPU-nobody-knows"
    pq.write_table(pods.set_column(place, "card", pa.array(cards)), broken / "pods.parquet")
    said = program(tmp_path / "data", "admin", "replay", str(broken))
    assert said.status == 6
    assert "GPU-nobody-knows" in said.err


def test_no_trace_there_is_said_so(tmp_path: Path, program: Program) -> None:
    said = program(tmp_path / "data", "admin", "replay", str(tmp_path / "nothing"))
    assert said.status == 6
    assert "nothing" in said.err


def test_expired_plan_is_refused(planned: Path, program: Program) -> None:
    assert program(planned, "plan", "approve").status == 0
    said = program(planned, "--now", "2026-02-19", "apply", "--yes")
    assert said.status == 4
    assert "expired" in said.err


def test_edited_plan_is_refused(planned: Path, program: Program) -> None:
    assert program(planned, "plan", "approve").status == 0
    path = next(file for file in (planned / "plans").glob("*.json") if file.name.count(".") == 1)
    raw = json.loads(path.read_text())
    raw["totals"]["cards_freed"] += 1
    path.write_text(json.dumps(raw))
    said = program(planned, "apply", "--yes")
    assert said.status == 4
    assert "edited" in said.err


def test_unknown_verb_is_wrong_use(tmp_path: Path, program: Program) -> None:
    assert program(tmp_path, "conjure").status == 2


def test_unknown_recommendation_is_wrong_use(planned: Path, program: Program) -> None:
    said = program(planned, "plan", "explain", "slice-9999")
    assert said.status == 2
    assert "slice-9999" in said.err


def test_web_app_and_usage_api_on_one_port_are_named(planned: Path, program: Program) -> None:
    usage = {
        "listen": "127.0.0.1:8050", "tls_certificate_file": "a", "tls_key_file": "a", "client_ca_file": "a",
        "front_proxy_names": '["a"]',
    }  # fmt: skip
    options = [word for name, value in usage.items() for word in ("--set", f"usage_api.{name}={value}")]
    said = program(planned, *options, "serve")
    assert said.status == 2, said.err
    assert "port 8050" in said.err
    assert "usage_api.listen" in said.err
