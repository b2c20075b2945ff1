"""Processes that share a warehouse share the lanes of its bus, evenly, and take those of one that is dead."""

from __future__ import annotations

import os
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from fleet.errors import Unavailable
from fleet.schema import CARD_USAGE, POD_USAGE, Measure
from pipeline.bus.bus_file import FileBus
from pipeline.remote_write.decode import Version
from pipeline.rollup.held_lanes import HeldLanes
from pipeline.rollup.rollup_duckdb import EmbeddedRollup
from pipeline.warehouse.compact import tidy_indexes
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.crashes import DeadlyFuse, was_killed
from tests.pipeline.builders import (
    DAY_MS,
    START_MS,
    Sample,
    body_of,
    expected_rows,
    file_bus,
    intake_of,
    small_fleet,
    stored_rows,
)


class Place:
    """A bus of several lanes beside a warehouse; each process, and each test, opens its own."""

    def __init__(self, folder: Path, lanes: int) -> None:
        self.folder = folder
        self.lanes = lanes

    def lane(self, number: int) -> FileBus:
        return file_bus(self.folder / f"bus-{number}")

    def held(self) -> HeldLanes:
        return HeldLanes(self.folder / "warehouse", lambda: range(self.lanes), self.lane)


def numbers(place: Place, held: HeldLanes) -> set[int]:
    sources = {place.lane(number).source: number for number in range(place.lanes)}
    return {sources[lane.source] for lane in held.now()}  # type: ignore[attr-defined]


def settled(place: Place, all_held: list[HeldLanes]) -> list[set[int]]:
    """What each has, once those that came first gave up what is beyond their share."""
    for held in all_held:
        held.now()
    return [numbers(place, held) for held in all_held]


@pytest.mark.parametrize(("lanes", "workers"), [(1, 1), (8, 2), (8, 3), (24, 4), (2, 4)])
def test_lanes_are_spread_evenly_and_each_is_held_once(tmp_path: Path, lanes: int, workers: int) -> None:
    place = Place(tmp_path, lanes)
    all_held = [place.held() for _ in range(workers)]
    shares = settled(place, all_held)
    assert sorted(lane for share in shares for lane in share) == list(range(lanes))
    assert max(map(len, shares)) == -(-lanes // workers)
    all_held[0].close()
    shares = settled(place, all_held[1:])
    assert {lane for share in shares for lane in share} == (set(range(lanes)) if workers > 1 else set())
    for held in all_held:
        held.close()


def test_lane_that_appears_later_is_taken(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    with closing(place.held()) as held:
        assert numbers(place, held) == {0}
        place.lanes = 3
        assert numbers(place, held) == {0, 1, 2}


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_lanes_of_a_killed_process_are_taken_and_go_on_where_it_was(tmp_path: Path) -> None:
    place = Place(tmp_path, 2)
    samples = small_fleet(pods=4, hours=2)
    for number in range(2):
        with closing(place.lane(number)) as bus:
            for piece in range(4):
                intake_of(bus).take(body_of(samples[4 * number + piece :: 8]), Version.V2)

    def work() -> None:
        fuse = DeadlyFuse(12)
        with closing(place.held()) as held:
            rollup = EmbeddedRollup(
                held.now, DuckdbWarehouse(tmp_path / "warehouse", crash_point=fuse), chunk_bytes=200
            )
            while rollup.step() is not None:
                pass

    assert was_killed(work)
    with closing(place.held()) as held, closing(DuckdbWarehouse(tmp_path / "warehouse")) as warehouse:
        rollup = EmbeddedRollup(held.now, warehouse, chunk_bytes=2000)
        assert not held.is_empty()
        while rollup.step() is not None:
            pass
        assert held.is_empty()
        for table in (POD_USAGE, CARD_USAGE):
            assert stored_rows(warehouse, table) == expected_rows(samples, table)


def test_what_waits_on_a_lane_of_another_process_is_not_drained(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    with closing(place.lane(0)) as bus:
        intake_of(bus).take(body_of(small_fleet(pods=1, hours=1)), Version.V2)
    with closing(place.held()) as first, closing(place.held()) as second:
        assert numbers(place, first) == {0}
        assert numbers(place, second) == set()
        assert not second.is_empty()
        assert (tmp_path / "warehouse/lanes/lane-0.lock").read_text().strip() == str(os.getpid())


def test_no_day_is_closed_of_which_another_lane_still_has_samples(tmp_path: Path) -> None:
    place = Place(tmp_path, 2)
    days = [Sample(pod, Measure.POWER, START_MS + day * DAY_MS + 600_000, 1.0) for day in range(6) for pod in range(2)]
    for number in range(2):
        with closing(place.lane(number)) as bus:
            for sample in days[number::2]:
                intake_of(bus).take(body_of([sample]), Version.V2)
    now = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(days=9)
    warehouse_of = partial(DuckdbWarehouse, tmp_path / "warehouse")
    with closing(warehouse_of()) as warehouse, closing(warehouse_of()) as slow, closing(place.held()) as held:
        fast_lane, slow_lane = place.lane(0), place.lane(1)
        fast = EmbeddedRollup(lambda: (fast_lane,), warehouse, chunk_bytes=1 << 20)
        rollup = EmbeddedRollup(lambda: (slow_lane,), slow, chunk_bytes=1)
        assert fast.step() is not None
        closed, late = [], 0
        while (step := rollup.step()) is not None:
            late += step.late
            found = tidy_indexes(warehouse, now=now, files_max=99, late_days=2, reached_ms=held.reached_ms())
            closed.append([folder.date[-2:] for folder in found])
        assert late == 0
        assert closed == [[], [], ["05"], ["06"], ["07"], []]
        for table in (CARD_USAGE, POD_USAGE):
            assert stored_rows(warehouse, table) == expected_rows(days, table)


def test_lane_that_can_not_be_closed_is_let_go_nevertheless(tmp_path: Path) -> None:
    class Stuck(FileBus):
        def close(self) -> None:
            super().close()
            raise Unavailable("cannot close: brokers are away")

    place = Place(tmp_path, 1)
    buses = [Stuck(tmp_path / "bus-0", segment_bytes=1 << 20, bytes_max=1 << 30)]
    held = HeldLanes(tmp_path / "warehouse", lambda: range(1), lambda _lane: buses[0])
    assert held.now() == buses
    with pytest.raises(Unavailable):
        held.close()
    with closing(place.held()) as other:
        assert numbers(place, other) == {0}


def test_lane_whose_commit_failed_goes_on_behind_what_the_warehouse_has(tmp_path: Path) -> None:
    samples = small_fleet(pods=4, hours=2)
    is_away = [False]

    def crash_point(name: str) -> None:
        if name == "before commit" and is_away[0]:
            raise Unavailable("cannot commit: brokers are away")

    lanes = [file_bus(tmp_path / f"bus-{number}", crash_point=crash_point) for number in range(2)]
    with closing(DuckdbWarehouse(tmp_path / "warehouse")) as warehouse:
        rollup = EmbeddedRollup(lambda: lanes, warehouse, chunk_bytes=1 << 20)
        for piece in range(3):
            for lane in lanes:
                intake_of(lane).take(body_of(samples[piece::3]), Version.V2)
            is_away[0] = piece == 1
            try:
                rollup.step()
            except Unavailable:
                assert piece == 1
        assert rollup.step() is None
        for table in (CARD_USAGE, POD_USAGE):
            assert stored_rows(warehouse, table) == expected_rows(samples, table)
    assert all(lane.waiting_bytes == 0 for lane in lanes)
