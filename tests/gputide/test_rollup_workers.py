"""Several `gputide run rollup` on one folder: nothing is lost or counted twice, whichever of them is killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from fleet.data_folder import DataFolder, open_data_folder
from fleet.schema import Measure
from pipeline.bus.bus_file import FileBus
from pipeline.remote_write.decode import Version
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.gputide.conftest import Program
from tests.pipeline.builders import (
    START_MS,
    USAGE_TABLES,
    Sample,
    body_of,
    expected_rows,
    intake_of,
    stored_rows,
)
from tests.waiting import until

pytestmark = pytest.mark.long

LANES = 4
KILLS = 8
STEPS_PER_KILL = 30
QUICK = ("--set", "rollup.pause_seconds=0", "--set", "rollup.chunk_bytes=4000")
"""Steps that take little, one after the other, so that a kill falls into one."""


def lanes_of(data: Path) -> list[FileBus]:
    folder = DataFolder(path=data)
    return [FileBus(folder.bus(lane), segment_bytes=1 << 20, bytes_max=1 << 30) for lane in range(LANES)]


@contextmanager
def running(data: Path, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Some roll-ups, each a process; those that live at the end are ended."""
    workers = [started(data) for _ in range(count)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
            worker.wait()


def started(data: Path) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("gputide")), "--data-dir", str(data), *QUICK, "run", "rollup"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def has_lane(data: Path, pid: int) -> bool:
    """Whether a process has, or had, a lane."""
    return str(pid) in {path.read_text().strip() for path in data.glob("warehouse/lanes/lane-*.lock")}


def test_workers_that_are_killed_at_random_moments_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    data = tmp_path / "data"
    open_data_folder(data, create=True)
    chance = random.Random(5)
    intakes = [intake_of(bus) for bus in lanes_of(data)]
    samples: list[Sample] = []
    with running(data, 2) as workers:
        for step in range(KILLS * STEPS_PER_KILL):
            body = [
                Sample(pod, Measure.POWER, START_MS + 15_000 * (step + 1), float(pod), of_card)
                for pod in range(6)
                for of_card in (False, True)
            ]
            samples += body
            # The same body on two lanes, as where a sender was not answered and asked another receiver.
            for intake in chance.sample(intakes, 2):
                assert intake.take(body_of(body), Version.V2).status == 204
            time.sleep(0.05)
            if step % STEPS_PER_KILL == STEPS_PER_KILL - 1:
                place = chance.randrange(2)
                until(partial(has_lane, data, workers[place].pid))
                time.sleep(chance.uniform(0.0, 0.5))
                workers[place].kill()
                workers[place].wait()
                workers[place] = started(data)
        until(lambda: all(bus.waiting_bytes == 0 for bus in lanes_of(data)), seconds_max=120.0)
        # One that was just started again has no answer to SIGTERM yet; one that has a lane has.
        for worker in workers:
            until(partial(has_lane, data, worker.pid), seconds_max=120.0)
    assert [worker.returncode for worker in workers] == [0, 0]
    with closing(DuckdbWarehouse(DataFolder(path=data).warehouse)) as warehouse:
        for table in USAGE_TABLES:
            assert stored_rows(warehouse, table) == expected_rows(samples, table)


def test_drain_beside_a_running_rollup_ends_when_the_whole_bus_is_empty(tmp_path: Path, program: Program) -> None:
    data = tmp_path / "data"
    open_data_folder(data, create=True)
    with running(data, 1):
        for number, bus in enumerate(lanes_of(data)):
            body = body_of([Sample(number, Measure.POWER, START_MS + 60_000, 1.0)])
            assert intake_of(bus).take(body, Version.V2).status == 204
        assert program(data, "run", "rollup", "--drain").status == 0
        assert all(bus.waiting_bytes == 0 for bus in lanes_of(data))
