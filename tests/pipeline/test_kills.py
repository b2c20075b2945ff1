"""The embedded path under SIGKILL: receiver and rollup die 200 times, and every row is still the oracle's.

Each life is a fork of this process that takes bodies of three senders in at once, so that some go into one record, and
rolls them up, and is killed either at the n-th moment at which a crash would matter or by the clock. What it
acknowledged it says over a pipe, as the answer to a sender would.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline.records.rows import unpack
from pipeline.remote_write.decode import Version
from pipeline.rollup.rollup_duckdb import EmbeddedRollup
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.pipeline.builders import (
    USAGE_TABLES,
    Sample,
    body_of,
    expected_rows,
    file_bus,
    intake_of,
    read_all,
    roll_up,
    small_fleet,
    stored_rows,
)

pytestmark = pytest.mark.long

KILLS = 200
BODIES = 60
SENDERS = 3
LIFE_SECONDS_MAX = 0.05
"""How long a life lasts at most that is ended by the clock."""


class Life:
    """One process: sends bodies in its own order and rolls up in between, until something ends it."""

    def __init__(self, folder: Path, bodies: list[bytes], seed: int) -> None:
        self.folder = folder
        self.bodies = bodies
        self.random = np.random.default_rng(seed)
        self.points_left = int(self.random.integers(1, 40)) if seed % 2 else -1

    def crash_point(self, _name: str) -> None:
        self.points_left -= 1
        if self.points_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def live(self, acknowledgements: int) -> None:
        bus = file_bus(self.folder / "bus", segment_bytes=4000, crash_point=self.crash_point)
        warehouse = DuckdbWarehouse(self.folder / "warehouse", crash_point=self.crash_point)
        intake = intake_of(bus)
        rollup = EmbeddedRollup(lambda: (bus,), warehouse, chunk_bytes=2000)

        def send(random: np.random.Generator, between: Callable[[], object]) -> None:
            while True:
                number = int(random.integers(len(self.bodies)))
                if intake.take(self.bodies[number], Version.V2).status == 204:
                    os.write(acknowledgements, bytes([number]))
                if random.random() < 0.3:
                    between()

        for random in self.random.spawn(SENDERS - 1):
            threading.Thread(target=send, args=(random, lambda: None), daemon=True).start()
        send(self.random, rollup.step)


def ended_by_kill(life: Life, *, after_seconds: float | None) -> set[int]:
    """Lets a life run in a process of its own until it is killed; the numbers of the bodies that it acknowledged."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            life.live(writing)
        finally:
            os._exit(1)
    os.close(writing)
    clock = threading.Timer(after_seconds or 20.0, os.kill, (child, signal.SIGKILL))
    clock.start()
    with os.fdopen(reading, "rb") as pipe:
        said = set(pipe.read())
    _, status = os.waitpid(child, 0)
    clock.cancel()
    clock.join()
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    return said


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_200_kills_of_receiver_and_rollup_leave_the_rows_of_the_oracle(tmp_path: Path) -> None:
    samples = small_fleet(pods=2, hours=28)
    pieces: list[list[Sample]] = [samples[start::BODIES] for start in range(BODIES)]
    bodies = [body_of(piece) for piece in pieces]
    roll_up_once(tmp_path / "warm", bodies[0])
    random = np.random.default_rng(3)
    acknowledged: set[int] = set()
    for seed in range(KILLS):
        life = Life(tmp_path, bodies, seed)
        is_by_clock = life.points_left < 0
        acknowledged |= ended_by_kill(
            life, after_seconds=float(random.uniform(0.002, LIFE_SECONDS_MAX)) if is_by_clock else None
        )
    bus = file_bus(tmp_path / "bus", segment_bytes=4000)
    warehouse = DuckdbWarehouse(tmp_path / "warehouse")
    roll_up(bus, warehouse)
    # What nobody acknowledged may be there or not; a sender would send it again.
    intake = intake_of(bus)
    for number in sorted(set(range(BODIES)) - acknowledged):
        assert intake.take(bodies[number], Version.V2).status == 204
    roll_up(bus, warehouse)
    assert len(acknowledged) > BODIES // 2
    for table in USAGE_TABLES:
        assert stored_rows(warehouse, table) == expected_rows(samples, table)


def roll_up_once(folder: Path, body: bytes) -> None:
    """Loads and compiles everything, so that the lives that follow are forks of a warm process."""
    bus = file_bus(folder / "bus")
    intake_of(bus).take(body, Version.V2)
    assert all(unpack(record) for record in read_all(bus).records)
    roll_up(bus, DuckdbWarehouse(folder / "warehouse"))
    bus.close()
