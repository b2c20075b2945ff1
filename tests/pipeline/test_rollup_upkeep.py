"""Upkeep waits for an empty bus and for its hour, and never keeps samples waiting for more than one piece."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fleet.errors import Unavailable
from fleet.schema import Measure
from pipeline.remote_write.decode import Version
from pipeline.rollup.rollup import RollupStep, TendingRollup
from pipeline.rollup.rollup_duckdb import EmbeddedRollup
from pipeline.warehouse.compact import compact
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.contracts.warehouse import NOON, name_of, node_part
from tests.pipeline.builders import START_MS, Sample, body_of, file_bus, intake_of


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def warehouse(tmp_path):
    """Two partitions of two files each."""
    warehouse = DuckdbWarehouse(tmp_path / "warehouse")
    for number in range(4):
        part = node_part(f"n{number}", NOON + timedelta(days=number % 2))
        warehouse.append(name_of(number, number + 1, "other"), (part,))
    return warehouse


def merges_left(warehouse: DuckdbWarehouse) -> int:
    rows = [file for file in warehouse.files.live() if not file.is_index]
    return len(rows) - len(warehouse.files.partitions())


def test_upkeep_is_done_piece_by_piece_once_it_is_due_and_the_bus_is_empty(tmp_path, warehouse):
    bus, clock = file_bus(tmp_path / "bus"), Clock()

    def upkeep():
        return compact(warehouse, now=NOON, files_max=1)

    inner = EmbeddedRollup(lambda: (bus,), warehouse, chunk_bytes=1 << 20)
    rollup = TendingRollup(inner, upkeep, every_seconds=100, now_seconds=clock)
    assert rollup.step() is None
    assert merges_left(warehouse) == 2
    clock.seconds = 100
    intake_of(bus).take(body_of([Sample(0, Measure.POWER, START_MS, 5.0)]), Version.V2)
    assert rollup.step() is not None
    assert merges_left(warehouse) == 2
    for left in (1, 0, 0):
        assert rollup.step() is None
        assert merges_left(warehouse) == left
    clock.seconds = 199
    warehouse.append(name_of(4, 5, "other"), (node_part("late", NOON),))
    rollup.step()
    assert merges_left(warehouse) == 1
    clock.seconds = 200
    rollup.step()
    assert merges_left(warehouse) == 0


def test_upkeep_that_has_waited_as_long_again_is_done_while_the_bus_is_never_empty(warehouse):
    clock = Clock()

    class NeverEmpty:
        def step(self) -> RollupStep:
            return RollupStep(records=1, corrupt=0, samples=1, repeats=0, late=0, rows=1)

    def upkeep():
        return compact(warehouse, now=NOON, files_max=1)

    rollup = TendingRollup(NeverEmpty(), upkeep, every_seconds=100, now_seconds=clock)
    for seconds, left in ((100, 2), (199, 2), (200, 1), (201, 0), (202, 0)):
        clock.seconds = seconds
        assert rollup.step() is not None
        assert merges_left(warehouse) == left
    warehouse.append(name_of(4, 5, "other"), (node_part("late", NOON),))
    for seconds, left in ((302, 1), (401, 1), (402, 0)):
        clock.seconds = seconds
        rollup.step()
        assert merges_left(warehouse) == left


def test_upkeep_that_failed_begins_anew(tmp_path, warehouse):
    clock = Clock()
    tries: list[int] = []

    def upkeep():
        tries.append(len(tries))
        if len(tries) == 1:
            raise Unavailable("cannot reach it")
        yield from compact(warehouse, now=NOON, files_max=1)

    bus = file_bus(tmp_path / "bus")
    inner = EmbeddedRollup(lambda: (bus,), warehouse, chunk_bytes=1 << 20)
    rollup = TendingRollup(inner, upkeep, every_seconds=1, now_seconds=clock)
    clock.seconds = 1
    with pytest.raises(Unavailable):
        rollup.step()
    for _ in range(3):
        assert rollup.step() is None
    assert merges_left(warehouse) == 0
