"""What `verify` says of a fleet that is read in parts is what it says of the whole, to the byte, however it is cut."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fleet.data_folder import open_data_folder
from fleet.settings.settings import Settings
from gputide.cli import app
from gputide.container import history
from gputide.container.cluster import own_cluster
from gputide.container.measured_harm import harm_between
from gputide.replay.clock import read_replay_clock
from tests.gputide.conftest import CUT, Program

STEPS_PER_DAY = 144
SM = "sm_active_ratio"


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Which slices have SM activity after the plan was applied, by the number of each row's pod.

    Attributes:
        is_harm_seen: whether that is enough to see that what was moved is harmed.
    """

    name: str
    has_sm: Callable[[np.ndarray], np.ndarray]
    is_harm_seen: bool


COUNTERS = (
    Counters(name="all have it", has_sm=lambda pod: pod >= 0, is_harm_seen=True),
    Counters(name="one pod has it", has_sm=lambda pod: pod == 0, is_harm_seen=False),
    Counters(name="none has it", has_sm=lambda pod: pod < 0, is_harm_seen=True),
)
CUTS = ((1, 1), (7, 2), (30, 1))
"""Slices per part, and processes."""


def busier(trace: Path, target: Path, counters: Counters) -> None:
    """A trace in which pods work harder than was planned with, and only some have SM activity."""
    shutil.copytree(trace, target)
    usage = pq.read_table(target / "usage.parquet")
    pods = usage["pod"].to_pylist()
    number = {pod: place for place, pod in enumerate(sorted(set(pods)))}
    places = np.array([number[pod] for pod in pods])
    level = np.minimum(1.0, usage[SM].to_numpy() * 1.5 + 0.3)
    columns = {SM: np.where(counters.has_sm(places), level, np.nan), "duty_cycle_ratio": np.minimum(1.0, level * 1.02)}
    for name, values in columns.items():
        kind = usage[name].type
        made = pa.array(values, from_pandas=True).cast(kind)
        usage = usage.set_column(usage.column_names.index(name), name, made)
    pq.write_table(usage, target / "usage.parquet")


@pytest.fixture(scope="module")
def applied(small_fleet: Path, program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in which a plan was applied just now."""
    data = tmp_path_factory.mktemp("applied") / "data"
    for words in (
        ("admin", "replay", str(small_fleet), "--until", CUT),
        ("plan", "make"),
        ("plan", "approve"),
        ("apply", "--yes"),
    ):
        said = program(data, *words)
        assert said.status == 0, said.err
    return data


@pytest.mark.parametrize("counters", COUNTERS, ids=lambda one: one.name)
def test_verify_of_a_fleet_in_parts_is_that_of_the_whole_to_the_byte(
    applied: Path, small_fleet: Path, program: Program, tmp_path: Path, monkeypatch, counters: Counters
) -> None:
    data, trace = tmp_path / "data", tmp_path / small_fleet.name
    shutil.copytree(applied, data)
    busier(small_fleet, trace, counters)
    assert program(data, "admin", "replay", str(trace), "--from", CUT).status == 0
    folder, settings = open_data_folder(data, create=False), Settings()
    clock = read_replay_clock(folder)
    assert clock is not None
    asked = folder, settings, own_cluster(folder, settings), clock.now - timedelta(days=1), clock.now
    whole, harm = verified(data), harm_between(*asked)
    assert any(one.active_steps for one in harm.values())
    assert any(one["violation_ratio"] for one in json.loads(whole)["workloads"]) is counters.is_harm_seen
    monkeypatch.setattr(history, "WHOLE_CELLS_MAX", 0)
    for slices, processes in CUTS:
        monkeypatch.setattr(history, "CELLS_PER_PART", slices * STEPS_PER_DAY)
        assert verified(data, f"analyzer.processes={processes}") == whole, (slices, processes)
        assert harm_between(*asked) == harm, (slices, processes)
    assert not list(data.glob(".parts-*"))


def verified(data: Path, *settings: str) -> bytes:
    """The verb's JSON."""
    options = [word for text in settings for word in ("--set", text)]
    result = CliRunner().invoke(app, ["--data-dir", str(data), *options, "verify", "--format", "json"])
    assert result.exit_code in (0, 1), result.output
    return result.stdout_bytes
