"""The embedded rollup keeps the rollup's contract, through kills at every point."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from fleet.schema import Measure
from pipeline.remote_write.decode import Version
from pipeline.rollup.rollup_duckdb import EmbeddedRollup
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.contracts.rollup import RollupContract
from tests.crashes import Fuse, Killed
from tests.pipeline.builders import (
    START_MS,
    USAGE_TABLES,
    Sample,
    body_of,
    expected_rows,
    file_bus,
    intake_of,
    roll_up,
    small_fleet,
    stored_rows,
)

pytestmark = pytest.mark.long


class TestEmbeddedRollup(RollupContract):
    @pytest.fixture
    def bus(self, tmp_path):
        return file_bus(tmp_path / "bus", segment_bytes=4096)

    @pytest.fixture
    def warehouse(self, tmp_path):
        return DuckdbWarehouse(tmp_path / "warehouse")

    @pytest.fixture
    def rollup(self, bus, warehouse):
        return lambda: roll_up(bus, warehouse, chunk_bytes=2000)


def test_killed_at_any_moment_and_started_again_gives_the_same_rows(tmp_path):
    samples = small_fleet(pods=1, hours=2)
    bodies = [body_of([samples[place] for place in piece]) for piece in np.array_split(np.arange(len(samples)), 2)]
    moments = 0
    while True:
        moments += 1
        folder = tmp_path / str(moments)
        fuse = Fuse(moments)
        bus = file_bus(folder / "bus", segment_bytes=2048, crash_point=fuse)
        warehouse = DuckdbWarehouse(folder / "warehouse", crash_point=fuse)
        try:
            _send_and_roll_up(bus, warehouse, bodies)
            break
        except Killed:
            bus.close()
            warehouse.close()
        bus = file_bus(folder / "bus", segment_bytes=2048)
        warehouse = DuckdbWarehouse(folder / "warehouse")
        _send_and_roll_up(bus, warehouse, bodies)
        table = USAGE_TABLES[moments % 2]
        assert stored_rows(warehouse, table, levels=[3600]) == expected_rows(samples, table, levels=[3600]), moments
        bus.close()
        warehouse.close()
    assert moments > 20


def _send_and_roll_up(bus, warehouse, bodies):
    intake = intake_of(bus)
    for body in bodies:
        assert intake.take(body, Version.V2).status == 204
        roll_up(bus, warehouse)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from([Measure.DUTY_CYCLE, Measure.POWER]),
            st.integers(0, 40),
            st.booleans(),
        ),
        min_size=1,
        max_size=40,
        unique=True,
    ),
    st.randoms(use_true_random=False),
)
def test_rows_depend_on_the_set_of_samples_only(tmp_path_factory, places, random):
    samples = [
        Sample(pod, measure, START_MS - 300_000 + place * 20_000, (place % 10) / 10, of_card)
        for pod, measure, place, of_card in places
    ]
    folder = tmp_path_factory.mktemp("set")
    bus, warehouse = file_bus(folder / "bus"), DuckdbWarehouse(folder / "warehouse")
    sent = samples + random.sample(samples, len(samples) // 2)
    random.shuffle(sent)
    intake = intake_of(bus)
    while sent:
        size = random.randint(1, len(sent))
        intake.take(body_of(sent[:size]), Version.V2)
        sent = sent[size:]
        if random.random() < 0.5:
            roll_up(bus, warehouse)
    roll_up(bus, warehouse)
    for table in USAGE_TABLES:
        assert stored_rows(warehouse, table, levels=[60]) == expected_rows(samples, table, levels=[60])
    bus.close()


def test_step_stops_reading_when_it_has_enough_rows_and_goes_on_from_there(tmp_path):
    samples = small_fleet(pods=1, hours=3)
    bus, warehouse = file_bus(tmp_path / "bus"), DuckdbWarehouse(tmp_path / "warehouse")
    for sample in samples:
        intake_of(bus).take(body_of([sample]), Version.V2)
    rollup = EmbeddedRollup(lambda: (bus,), warehouse, chunk_bytes=1 << 24, rows_per_step_max=10)
    steps = []
    while (step := rollup.step()) is not None:
        steps.append(step)
    assert [step.samples for step in steps[:-1]] == [10] * (len(steps) - 1)
    assert stored_rows(warehouse, USAGE_TABLES[0]) == expected_rows(samples, USAGE_TABLES[0])


def test_record_that_is_none_of_ours_is_counted_and_the_rest_rolled_up(tmp_path):
    sample = Sample(0, Measure.DUTY_CYCLE, START_MS + 1, 0.5)
    bus, warehouse = file_bus(tmp_path / "bus"), DuckdbWarehouse(tmp_path / "warehouse")
    bus.append(b"foreign")
    bus.append(b"GTR1" + b"\0" * 40)
    intake_of(bus).take(body_of([sample]), Version.V2)
    step = EmbeddedRollup(lambda: (bus,), warehouse, chunk_bytes=1 << 20).step()
    assert step is not None
    assert (step.records, step.corrupt, step.samples) == (3, 2, 1)
    assert stored_rows(warehouse, USAGE_TABLES[0]) == expected_rows([sample], USAGE_TABLES[0])


def test_a_warehouse_that_lacks_what_its_bus_is_committed_to_is_warned_of_and_no_other(tmp_path):
    bus = file_bus(tmp_path / "bus")
    warned = []
    for name in ("first", "first", "new"):
        warehouse = DuckdbWarehouse(tmp_path / name)
        with capture_logs() as logs:
            intake_of(bus).take(body_of(small_fleet(pods=1, hours=1)), Version.V2)
            roll_up(bus, warehouse)
        warehouse.close()
        warned.append(["committed beyond" in entry["event"] for entry in logs if entry["log_level"] == "warning"])
    assert warned == [[], [], [True]]


_ROLLUP = """
import os, signal, sys
from pathlib import Path
from pipeline.bus.bus_file import FileBus
from pipeline.rollup.rollup_duckdb import EmbeddedRollup
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
left = [int(sys.argv[2])]
def crash_point(name):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
folder = Path(sys.argv[1])
bus = FileBus(folder / "bus", segment_bytes=1 << 20, bytes_max=1 << 24, crash_point=crash_point)
rollup = EmbeddedRollup(lambda: (bus,), DuckdbWarehouse(folder / "warehouse", crash_point=crash_point), chunk_bytes=600)
while rollup.step() is not None:
    pass
"""


@pytest.mark.parametrize("moment", [3, 11])
def test_rollup_after_kill_9_goes_on_without_help(tmp_path, repository, moment):
    samples = small_fleet(pods=1, hours=5)
    bus = file_bus(tmp_path / "bus")
    for piece in np.array_split(np.arange(len(samples)), 6):
        intake_of(bus).take(body_of([samples[place] for place in piece]), Version.V2)
    bus.close()
    command = [sys.executable, "-c", _ROLLUP, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    killed = subprocess.run([*command, str(moment)], check=False, env=environment, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    roll_up(file_bus(tmp_path / "bus"), DuckdbWarehouse(tmp_path / "warehouse"))
    for table in USAGE_TABLES:
        assert stored_rows(DuckdbWarehouse(tmp_path / "warehouse"), table) == expected_rows(samples, table)
