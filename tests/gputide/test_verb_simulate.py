"""`gputide plan simulate` as a user meets it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gputide.conftest import Program


def test_same_call_says_the_same(small_fleet: Path, tmp_path: Path, program: Program) -> None:
    call = ("plan", "simulate", str(small_fleet), "--policy", "percentile", "--replan", "daily", "--format", "json")
    first, second = (program(tmp_path, *call) for _ in range(2))
    assert first.status == 0, first.err
    assert first.out == second.out


def test_our_plan_is_played_beside_whole_cards(small_fleet: Path, tmp_path: Path, program: Program) -> None:
    said = program(
        tmp_path / "data", "plan", "simulate", str(small_fleet), "--policy", "whole-cards", "--policy", "gputide",
        "--format", "json",
    )  # fmt: skip
    assert said.status == 0, said.err
    whole, ours = said.document["performances"]
    assert said.document["schema"] == "gputide.simulation/v1"
    assert (whole["policy"], whole["saved_ratio"], whole["violation_ratio"]) == ("whole-cards", 0.0, 0.0)
    assert ours["relief"] is True
    assert ours["saved_ratio"] > 0
    assert ours["cards_peak"] >= ours["cards_opening"]
    assert not (tmp_path / "data").exists()


def test_table_has_a_row_for_each_policy(small_fleet: Path, tmp_path: Path, program: Program) -> None:
    said = program(
        tmp_path, "plan", "simulate", str(small_fleet), "--policy", "maxima", "--policy", "idle-culler", "--no-relief",
        "--replan", "daily", "--days", "2",
    )  # fmt: skip
    assert said.status == 0, said.err
    assert "maxima" in said.out
    assert "idle-culler" in said.out


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--policy", "hope"), 2, "hope"),
        (("--reaction", "0s"), 2, "--reaction 0s"),
        (("--load-rate", "0GiB"), 2, "--load-rate 0GiB"),
        (("--days", "10"), 3, "--days 10"),
        (("--days", "0"), 2, "--days"),
    ],
)
def test_wrong_use_is_said(
    arguments: tuple[str, ...], status: int, words: str, small_fleet: Path, tmp_path: Path, program: Program
) -> None:
    said = program(tmp_path, "plan", "simulate", str(small_fleet), *arguments)
    assert said.status == status
    assert words in said.err


def test_smaller_workers_get_more_done_and_are_evicted_within_the_limit(
    small_fleet: Path, tmp_path: Path, program: Program
) -> None:
    # Work is placed beside services only where something holds it back: mGPU does so itself.
    def played(workers: str) -> dict[str, Any]:
        said = program(
            tmp_path, "--set", "enforcer.backend=mgpu", "--set", f"low_priority.worker_ratios={workers}",
            "plan", "simulate", str(small_fleet), "--policy", "gputide", "--format", "json",
        )  # fmt: skip
        assert said.status == 0, said.err
        found: dict[str, Any] = json.loads(said.out)["performances"][0]
        return found

    large, small = played("0.5"), played("0.1,0.5")
    assert small["low_priority_gpu_hours"] > large["low_priority_gpu_hours"]
    assert small["evictions_per_worker_hour"] <= 0.05


def test_folder_without_a_trace_is_named(tmp_path: Path, program: Program) -> None:
    said = program(tmp_path, "plan", "simulate", str(tmp_path / "nowhere"))
    assert said.status == 6
    assert "nowhere" in said.err
