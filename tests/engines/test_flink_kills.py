"""Kills of the job on a real Flink and of its publisher, at random points and at chosen ones, change no number."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fleet.errors import Unavailable
from gputide.operate.engine_flink import FlinkStock
from pipeline.flink.process import FlinkProcess
from pipeline.flink.state import FlinkState
from pipeline.remote_write.decode import Version
from pipeline.rollup.rollup_flink import FlinkRollup
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.engines.flink_parts import (
    SETTLE_SECONDS,
    TopicBus,
    assert_oracle,
    drain,
    environment_of,
    rollup_of,
)
from tests.pipeline.builders import body_of, intake_of, small_fleet

pytestmark = pytest.mark.engines

KILLS = 6
"""Each start of a Java machine and of the job in it takes 15 s of a core."""
PUBLISHER_KILLS = {1: "after intent", 3: "after append", 4: "before intent is removed"}
"""Rounds that end only when the publisher has died at this point; elsewhere it dies by chance."""
WANTED_SECONDS = 900.0
"""A busy machine may take minutes to the first checkpoint that has files."""


class Killed(Exception):
    """Stands for the death of the publishing process."""


class Victims:
    """The job's processes and the publisher, and how often each was killed where.

    Args:
        flink: what a job is run with.
        folder: for its log.
        is_window: whether the publisher is between files and publication: a batch is written down, its files are
            there, and the warehouse does not have it.
    """

    def __init__(self, flink: FlinkStock, folder: Path, is_window: Callable[[], bool]) -> None:
        self.killed: Counter[str] = Counter()
        self.started: list[FlinkProcess] = []
        self.wanted: str | None = None
        self.random = np.random.default_rng(4)
        self._flink = flink
        self._folder = folder
        self._is_window = is_window

    def process_of(self, token: str) -> FlinkProcess:
        """Starts a process."""
        self.started.append(FlinkProcess(environment_of(self._flink), token, self._folder / "flink.log"))
        return self.started[-1]

    def crash_point(self, name: str) -> None:
        """Kills the publisher at the point that is wanted, or by chance where none is."""
        if name != self.wanted and (self.wanted is not None or self.random.random() > 0.1):
            return
        assert name != "after intent" or self._is_window()
        self.killed[name] += 1
        raise Killed

    def kill_job(self) -> None:
        """Kills the job's process group where it runs."""
        if self.started and self.started[-1].is_alive():
            os.killpg(self.started[-1].pid, signal.SIGKILL)
            self.killed["job"] += 1


def test_job_and_publisher_killed_at_random_and_chosen_points_give_the_oracles_rows(
    bus: TopicBus, warehouse: DuckdbWarehouse, flink: FlinkStock, tmp_path: Path
) -> None:
    samples = small_fleet(pods=3, hours=10, seed=9)
    state = FlinkState(tmp_path / "flink")

    def is_window() -> bool:
        applied = warehouse.applied_offset(f"flink-{bus.settings.topic}")
        files = json.loads((state.batches / f"{applied}.json").read_bytes())["files"]
        return bool(files) and all((state.staging / file).exists() for file in files)

    victims = Victims(flink, tmp_path, is_window)
    random = victims.random
    sent = [samples[place] for place in random.permutation(len(samples))]
    sent += [samples[place] for place in random.integers(0, len(samples), len(samples) // 10)]
    intake = intake_of(bus)
    for number, piece in enumerate(np.array_split(np.arange(len(sent)), KILLS)):
        assert intake.take(body_of([sent[place] for place in piece.tolist()]), Version.V2).status == 204
        victims.wanted = PUBLISHER_KILLS.get(number)
        rollup = rollup_of(bus, warehouse, tmp_path / "flink", victims.process_of, crash_point=victims.crash_point)
        starting = threading.Timer(float(random.uniform(0.2, 6.0)), victims.kill_job)
        if number % 3 == 2:
            starting.start()
        try:
            rollup.start()
            run_for_a_while(rollup, state, victims)
        except Unavailable:
            assert starting.finished.is_set()
        except Killed:
            pass
        victims.kill_job()
        starting.cancel()
    running = rollup_of(bus, warehouse, tmp_path / "flink", victims.process_of)
    running.start()
    drain(running)
    running.stop()
    print(f"killed: {dict(victims.killed)}, {len(victims.started)} starts")
    assert len(list((state.folder / "scratch").iterdir())) == 1
    assert victims.killed["job"] >= KILLS
    assert all(victims.killed[point] for point in PUBLISHER_KILLS.values())
    assert_oracle(warehouse, samples)


def run_for_a_while(rollup: FlinkRollup, state: FlinkState, victims: Victims) -> None:
    """Publishes for up to four checkpoints, or until the publisher dies where that is wanted.

    By checkpoints, so that a slow machine kills at the same stages as a fast one.
    """
    last = newest_number(state) + int(victims.random.integers(0, 5))
    deadline = time.monotonic() + (SETTLE_SECONDS if victims.wanted is None else WANTED_SECONDS)
    while (victims.wanted is not None or newest_number(state) < last) and time.monotonic() < deadline:
        if rollup.step() is None:
            time.sleep(0.02)
    time.sleep(float(victims.random.uniform(0, 0.4)))  # anywhere between two checkpoints


def newest_number(state: FlinkState) -> int:
    """Number of the newest whole checkpoint."""
    newest = state.newest()
    return 0 if newest is None else newest.number
