"""A trace that can't be true is refused with file, column, row and limit, before anything of it is kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.exporter.builders import TraceFiles, card, pod, row
from tests.gputide.conftest import Program

Change = Callable[[TraceFiles], None]


def _usage(**changes: Any) -> Change:
    def change(files: TraceFiles) -> None:
        files.usage[3] |= changes

    return change


def _pods(**changes: Any) -> Change:
    def change(files: TraceFiles) -> None:
        files.pods[1] |= changes

    return change


def _cards(**changes: Any) -> Change:
    def change(files: TraceFiles) -> None:
        files.cards[1] |= changes

    return change


def _text_for_number(files: TraceFiles) -> None:
    files.types = {"duty_cycle_ratio": pa.string()}
    files.usage = [{**entry, "duty_cycle_ratio": "half"} for entry in files.usage]


def _text_for_time(files: TraceFiles) -> None:
    files.types = {"ts": pa.string()}
    files.usage = [{**entry, "ts": "yesterday"} for entry in files.usage]


def _two_clusters(files: TraceFiles) -> None:
    files.cards[1] = card("GPU-b", cluster="c2")


def _card_twice(files: TraceFiles) -> None:
    files.cards.append(card("GPU-b"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_usage(sm_active_ratio=1.5), ("usage.parquet", "sm_active_ratio", "1.5", "row 3", "at most 1")),
        (_usage(duty_cycle_ratio=-0.25), ("usage.parquet", "duty_cycle_ratio", "-0.25", "row 3", "at least 0")),
        (_usage(sm_active_ratio=float("nan")), ("usage.parquet", "sm_active_ratio", "nan", "row 3", "null where")),
        (_usage(duty_cycle_ratio=float("inf")), ("usage.parquet", "duty_cycle_ratio", "inf", "row 3")),
        (_usage(framebuffer_used_bytes=-1), ("usage.parquet", "framebuffer_used_bytes", "-1", "row 3")),
        (_usage(card="GPU-nobody"), ("GPU-nobody", "row 3", "cards.parquet")),
        (_usage(pod="web-9"), ("usage.parquet", "web-9", "row 3", "pods.parquet")),
        (_usage(ts=None), ("usage.parquet", "ts", "null", "row 3")),
        (_pods(card="GPU-nobody"), ("pods.parquet", "GPU-nobody", "row 1")),
        (_pods(compute_granted_ratio=1.01), ("pods.parquet", "compute_granted_ratio", "1.01", "row 1")),
        (_pods(framebuffer_granted_bytes=-5), ("pods.parquet", "framebuffer_granted_bytes", "-5", "row 1")),
        (_pods(priority="urgent"), ("pods.parquet", "priority", "urgent", "row 1")),
        (_pods(pod="team/web-1"), ("pods.parquet", "column pod", "'team/web-1'", "row 1", "up to 253 of")),
        (_pods(workload="web/a"), ("pods.parquet", "column workload", "'web/a'", "row 1", "up to 253 of")),
        (_pods(workload_kind="a/B"), ("pods.parquet", "column workload_kind", "'a/B'", "row 1", "up to 63 letters")),
        (_pods(namespace="a/b"), ("pods.parquet", "column namespace", "'a/b'", "row 1", "up to 63 of")),
        (_pods(container="Main"), ("pods.parquet", "column container", "'Main'", "row 1", "up to 63 of")),
        (_pods(node="n" * 254), ("pods.parquet", "column node", "'nnn", "row 1", "up to 253 of")),
        (_cards(framebuffer_bytes=0), ("cards.parquet", "framebuffer_bytes", "row 1")),
        (_two_clusters, ("cards.parquet", "2 clusters", "c1, c2")),
        (_card_twice, ("cards.parquet", "GPU-b")),
        (_text_for_number, ("usage.parquet", "duty_cycle_ratio", "string", "expected number")),
        (_text_for_time, ("usage.parquet", "ts", "string", "expected time")),
    ],
)
def test_value_that_cannot_be_is_named_and_nothing_is_kept(
    change: Change, said: tuple[str, ...], tmp_path: Path, program: Program
) -> None:
    files = TraceFiles()
    change(files)
    answer = program(tmp_path / "data", "admin", "replay", str(files.write(tmp_path / "trace")))
    assert answer.status == 6, answer.err
    assert answer.err.startswith("gputide: cannot")
    assert answer.err.count("\n") == 1
    for part in said:
        assert part in answer.err
    assert {path.name for path in (tmp_path / "data").rglob("*") if path.is_file()} <= {"FORMAT.json", "writer.lock"}


@pytest.mark.parametrize(
    ("name", "column"),
    [("usage", "sm_active_ratio"), ("usage", "pod"), ("usage", "ts"), ("pods", "workload"), ("cards", "card")],
)
def test_missing_column_is_named_with_those_that_are_there(
    name: str, column: str, tmp_path: Path, program: Program
) -> None:
    trace = TraceFiles().write(tmp_path / "trace", without=[column])
    if name != "cards":
        TraceFiles().write(tmp_path / "whole")
        for other in {"cards", "pods", "usage"} - {name}:
            shutil.copy(tmp_path / "whole" / f"{other}.parquet", trace)
    answer = program(tmp_path / "data", "admin", "replay", str(trace))
    assert answer.status == 6, answer.err
    assert f"{name}.parquet: column {column} is missing" in answer.err


@pytest.mark.parametrize("name", ["cards", "pods", "usage"])
def test_file_that_is_missing_or_cut_is_named(name: str, tmp_path: Path, program: Program) -> None:
    trace = TraceFiles().write(tmp_path / "trace")
    file = trace / f"{name}.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    cut = program(tmp_path / "data", "admin", "replay", str(trace))
    assert cut.status == 6, cut.err
    assert str(file) in cut.err
    file.unlink()
    missing = program(tmp_path / "data", "admin", "replay", str(trace))
    assert missing.status == 6, missing.err
    assert str(file) in missing.err


def test_trace_can_be_mended_and_fed_to_the_same_folder(tmp_path: Path, program: Program) -> None:
    files = TraceFiles()
    trace = tmp_path / "trace"
    broken = replace(files, usage=[*files.usage, row(70, "web-0", "GPU-a", sm_active_ratio=2.0)])
    assert program(tmp_path / "data", "admin", "replay", str(broken.write(trace))).status == 6
    mended = program(tmp_path / "data", "admin", "replay", str(files.write(trace)))
    assert mended.status == 0, mended.err
    fresh = program(tmp_path / "fresh", "admin", "replay", str(trace))
    assert fresh.status == 0, fresh.err
    assert mended.out == fresh.out


def test_order_of_rows_changes_nothing(tmp_path: Path, program: Program) -> None:
    told = []
    rows = TraceFiles().usage
    for name, usage in (("tidy", rows), ("unordered", rows[::-1])):
        trace = TraceFiles(usage=list(usage)).write(tmp_path / name / "trace", row_group_rows=4)
        replayed = program(tmp_path / name / "data", "admin", "replay", str(trace))
        assert replayed.status == 0, replayed.err
        analysed = program(tmp_path / name / "data", "workloads", "--format", "json")
        assert analysed.status == 0, analysed.err
        told.append(analysed.out)
    assert told[0] == told[1]


@pytest.mark.parametrize("change", [{}, {"sm_active_ratio": 0.9}])
def test_second_row_for_one_moment_is_refused(change: dict[str, float], tmp_path: Path, program: Program) -> None:
    rows = TraceFiles().usage
    trace = TraceFiles(usage=[*rows, {**rows[4], **change}]).write(tmp_path / "trace")
    said = program(tmp_path / "data", "admin", "replay", str(trace))
    assert said.status == 6
    assert "usage.parquet: row 12 repeats" in said.err


def test_second_trace_in_one_folder_is_refused(tmp_path: Path, program: Program) -> None:
    data = tmp_path / "data"
    assert program(data, "admin", "replay", str(TraceFiles().write(tmp_path / "first"))).status == 0
    before = program(data, "workloads", "--format", "json")
    second = program(data, "admin", "replay", str(TraceFiles().write(tmp_path / "second")))
    assert second.status == 2
    assert "first" in second.err
    assert "--data-dir" in second.err
    assert program(data, "workloads", "--format", "json").out == before.out


def test_replay_that_would_leave_a_gap_says_where_it_stands(tmp_path: Path, program: Program) -> None:
    trace = str(TraceFiles().write(tmp_path / "trace"))
    assert program(tmp_path / "data", "admin", "replay", trace, "--until", "2026-01-05T00:20").status == 0
    said = program(tmp_path / "data", "admin", "replay", trace, "--from", "2026-01-05T00:40")
    assert said.status == 2
    assert "--from 2026-01-05T00:20:00Z" in said.err


def test_pod_without_usage_is_known_as_granted_and_never_seen(tmp_path: Path, program: Program) -> None:
    files = TraceFiles(pods=[pod("web-0", "GPU-a"), pod("silent-0", "GPU-b")])
    files.usage = [entry for entry in files.usage if entry["pod"] == "web-0"]
    assert program(tmp_path / "data", "admin", "replay", str(files.write(tmp_path / "trace"))).status == 0
    said = program(tmp_path / "data", "workloads", "--format", "json")
    assert said.status == 0, said.err
    silent = next(item for item in said.document["workloads"] if "silent" in item["workload"])
    assert silent["state"] == "unknown"
    assert silent["coverage_ratio"] == 0
