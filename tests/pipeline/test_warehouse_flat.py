"""What a warehouse knows of its files and of counted samples stays small, through kills and beside other writers."""

from __future__ import annotations

import os
import resource
import shutil
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from fleet.durable import Held
from fleet.errors import Corrupt
from fleet.schema import CARD_USAGE, POD_USAGE, Measure
from pipeline.remote_write.decode import Version
from pipeline.rollup.rollup_duckdb import EmbeddedRollup
from pipeline.warehouse.compact import compact, remove_replaced, retain, tidy_indexes
from pipeline.warehouse.manifest import Manifest, ManifestLine
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.contracts.warehouse import NOON, name_of, node_part
from tests.crashes import DeadlyFuse, was_killed
from tests.pipeline.builders import (
    DAY_MS,
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

NOW = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(days=9)
LONG_NAME = "c" * 8000
"""A cluster whose name makes a line of 8 kB, so that a manifest is mostly past after 130 of them."""
LINES = 140


def fill(warehouse: DuckdbWarehouse, lines: int = LINES, start: int = 0) -> None:
    for number in range(start, start + lines):
        warehouse.append(name_of(number, number + 1), (node_part(f"n{number}", NOON, LONG_NAME),))


def known(warehouse: DuckdbWarehouse) -> tuple[int, set[str]]:
    nodes = {node.node for node in warehouse.inventory(LONG_NAME).nodes}
    return warehouse.applied_offset("bus"), nodes


def test_manifest_that_is_mostly_past_becomes_a_checkpoint_and_says_the_same(tmp_path: Path) -> None:
    with closing(DuckdbWarehouse(tmp_path)) as warehouse:
        fill(warehouse)
        size = (tmp_path / "MANIFEST").stat().st_size
        assert size < 1 << 18
        assert known(DuckdbWarehouse(tmp_path)) == known(warehouse)
        assert known(warehouse) == (LINES, {f"n{number}" for number in range(LINES)})
        assert len(warehouse.files.live()) == LINES


def test_reader_that_is_open_across_checkpoints_sees_every_append(tmp_path: Path) -> None:
    reader = DuckdbWarehouse(tmp_path)
    with closing(DuckdbWarehouse(tmp_path)) as warehouse:
        for number in range(3 * LINES):
            fill(warehouse, 1, number)
            if number % 7 == 0:
                assert reader.applied_offset("bus") == number + 1
        assert known(reader) == known(warehouse)
        assert [file.path for file in reader.files.live()] == [file.path for file in warehouse.files.live()]


def test_two_writers_across_checkpoints_lose_nothing(tmp_path: Path) -> None:
    with closing(DuckdbWarehouse(tmp_path)) as first, closing(DuckdbWarehouse(tmp_path)) as second:
        for number in range(LINES):
            for source, warehouse in (("a", first), ("b", second)):
                part = node_part(f"{source}{number}", NOON, LONG_NAME)
                assert warehouse.append(name_of(number, number + 1, source), (part,))
        fresh = DuckdbWarehouse(tmp_path)
        assert (fresh.applied_offset("a"), fresh.applied_offset("b")) == (LINES, LINES)
        assert len(known(fresh)[1]) == 2 * LINES
        assert (tmp_path / "MANIFEST").stat().st_size < 1 << 20


def test_damaged_checkpoint_is_corrupt(tmp_path: Path) -> None:
    with closing(DuckdbWarehouse(tmp_path)) as warehouse:
        fill(warehouse)
    manifest = tmp_path / "MANIFEST"
    manifest.write_bytes(manifest.read_bytes().replace(b'"applied":{"bus":1', b'"applied":{"bus":2'))
    with pytest.raises(Corrupt, match="damaged"):
        DuckdbWarehouse(tmp_path).clusters()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_killed_at_every_moment_around_a_checkpoint_nothing_is_lost(tmp_path: Path) -> None:
    with closing(DuckdbWarehouse(tmp_path / "full")) as warehouse:
        start = 120
        fill(warehouse, start)
        while True:
            shutil.rmtree(tmp_path / "before", ignore_errors=True)
            shutil.copytree(tmp_path / "full", tmp_path / "before")
            fill(warehouse, 1, start)
            if _size(tmp_path / "full") < _size(tmp_path / "before"):
                break
            start += 1
    sizes, is_killed, moment = [], True, 0
    while is_killed:
        moment += 1
        folder = shutil.copytree(tmp_path / "before", tmp_path / f"copy-{moment}")
        is_killed = was_killed(partial(_fill_killed, folder, moment, start))
        with closing(DuckdbWarehouse(folder)) as warehouse:
            assert known(warehouse)[0] in (start, start + 1)
            fill(warehouse, 2, start)
            assert known(warehouse) == (start + 2, {f"n{number}" for number in range(start + 2)})
        assert not list(folder.glob(".MANIFEST*"))
        sizes.append(_size(folder))
    assert moment > 5
    assert max(sizes) < 1 << 19


def _size(folder: Path) -> int:
    return (folder / "MANIFEST").stat().st_size


def _fill_killed(folder: Path, moment: int, start: int) -> None:
    with closing(DuckdbWarehouse(folder, crash_point=DeadlyFuse(moment))) as warehouse:
        fill(warehouse, 1, start)


class Chain:
    """A bus and a warehouse that samples are sent through, one append per call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bus = file_bus(folder / "bus")
        self.warehouse = DuckdbWarehouse(folder / "warehouse")

    def send(self, samples: list[Sample]) -> None:
        intake_of(self.bus).take(body_of(samples), Version.V2)
        roll_up(self.bus, self.warehouse)

    def tidy(self, late_days: int = 28) -> int:
        return len(list(tidy_indexes(self.warehouse, now=NOW, files_max=1, late_days=late_days)))

    def indexes(self) -> list[str]:
        return [file.path for file in self.warehouse.files.live() if file.is_index]

    def check(self, samples: list[Sample]) -> None:
        for table in USAGE_TABLES:
            assert stored_rows(self.warehouse, table) == expected_rows(samples, table)


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain(tmp_path)


def test_indexes_are_merged_by_the_hour_and_repeats_still_count_once(chain: Chain) -> None:
    samples = small_fleet(pods=2, hours=5)
    for piece in range(4):
        chain.send(samples[piece::5])
    assert chain.tidy() == 2
    assert len(chain.indexes()) == 2 * 5
    assert chain.tidy() == 0
    chain.send(samples)
    chain.send(samples)
    chain.check(samples)
    assert chain.tidy() == 2
    assert len(chain.indexes()) == 2 * 5
    chain.send([*samples, Sample(0, Measure.POWER, START_MS + 600_000, 9.0)])
    chain.check([*samples, Sample(0, Measure.POWER, START_MS + 600_000, 9.0)])


def test_days_that_ended_before_the_span_are_closed_and_what_comes_of_them_is_late(chain: Chain) -> None:
    days = [Sample(pod, Measure.POWER, START_MS + day * DAY_MS + 600_000, 1.0) for day in range(5) for pod in range(2)]
    chain.send(days)
    assert chain.tidy(late_days=2) == 2  # of the fifth day's newest sample, the first two days
    assert {path.split("/")[2] for path in chain.indexes()} == {f"dt=2026-01-0{day}" for day in (7, 8, 9)}
    further = [Sample(0, Measure.POWER, START_MS + day * DAY_MS + 900_000, 1.0) for day in range(5)]
    intake_of(chain.bus).take(body_of([*days, *further]), Version.V2)
    rollup = EmbeddedRollup(lambda: (chain.bus,), chain.warehouse, chunk_bytes=1 << 20)
    step = rollup.step()
    assert step is not None
    assert (step.samples, step.late, step.repeats) == (15, 4 + 2, 6)
    chain.check([*days, *further[2:]])
    # Another program that opens the folder knows it as well, and so it is after a merge.
    list(compact(chain.warehouse, now=NOW, files_max=1))
    chain.warehouse.close()
    chain.warehouse = DuckdbWarehouse(chain.folder / "warehouse")
    chain.send(days)
    chain.check([*days, *further[2:]])


def test_a_clock_that_is_ahead_or_behind_closes_no_day_before_its_time(chain: Chain) -> None:
    chain.send([Sample(0, Measure.POWER, START_MS + 600_000, 1.0)])
    assert chain.tidy(late_days=1) == 0  # nine days ago, and the newest of its cluster
    chain.send([Sample(0, Measure.POWER, START_MS + 400 * DAY_MS, 1.0)])
    late = list(tidy_indexes(chain.warehouse, now=NOW - timedelta(days=8), files_max=1, late_days=1))
    assert late == []


def test_replaced_files_are_forgotten_once_they_are_gone(chain: Chain) -> None:
    samples = small_fleet(pods=2, hours=5)
    for piece in range(4):
        chain.send(samples[piece::5])
    list(compact(chain.warehouse, now=NOW, files_max=1))
    chain.tidy()
    manifest = Manifest(chain.folder / "warehouse")
    assert len(manifest.replaced()) == 4 * 4
    assert remove_replaced(chain.warehouse, now=NOW + timedelta(seconds=120), keep_seconds=60) == 16
    assert manifest.replaced() == []
    on_disk = {str(path.relative_to(chain.folder / "warehouse")) for path in chain.folder.rglob("*.parquet")}
    assert on_disk == {file.path for file in chain.warehouse.files.live()}
    chain.send(samples)
    chain.check(samples)


def test_what_a_long_round_replaces_late_is_kept_as_long_as_what_it_replaced_first(chain: Chain) -> None:
    samples = small_fleet(pods=2, hours=5)
    for piece in range(4):
        chain.send(samples[piece::5])
    for _ in compact(chain.warehouse, now=NOW, files_max=1):
        time.sleep(0.2)
    times = sorted({at_ms for _, at_ms in Manifest(chain.folder / "warehouse").replaced()})
    assert len(times) == 2
    assert times[1] - times[0] >= 200


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_killed_at_every_moment_of_the_indexes_upkeep_every_sample_counts_once(chain: Chain) -> None:
    samples = [Sample(0, Measure.POWER, START_MS + 600_000 * number, 1.0) for number in (1, 2, 3, 436, 437, 450)]
    for piece in range(3):
        chain.send(samples[piece::3])
    chain.warehouse.close()
    expected = expected_rows(samples, POD_USAGE, (60,))
    is_killed, moment = True, 0
    while is_killed:
        moment += 1
        folder = shutil.copytree(chain.folder / "warehouse", chain.folder / f"copy-{moment}")
        is_killed = was_killed(partial(_tidy_killed, folder, moment))
        with closing(DuckdbWarehouse(folder)) as warehouse:
            bus = file_bus(chain.folder / f"bus-{moment}")
            intake_of(bus).take(body_of(samples), Version.V2)
            roll_up(bus, warehouse)
            assert stored_rows(warehouse, POD_USAGE, levels=(60,)) == expected
            list(tidy_indexes(warehouse, now=NOW, files_max=1, late_days=1))
            remove_replaced(warehouse, now=NOW + timedelta(days=1), keep_seconds=1)
        there = {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")}
        assert there == {file.path for file in DuckdbWarehouse(folder).files.live()}
    assert moment >= 5


def _tidy_killed(folder: Path, moment: int) -> None:
    with closing(DuckdbWarehouse(folder, crash_point=DeadlyFuse(moment))) as warehouse:
        list(tidy_indexes(warehouse, now=NOW, files_max=1, late_days=1))


def test_append_that_began_before_a_merge_and_ended_after_it_is_there_and_merged_the_next_time(tmp_path: Path) -> None:
    with closing(DuckdbWarehouse(tmp_path)) as first, closing(DuckdbWarehouse(tmp_path)) as second:
        for number, node in enumerate("ab"):
            first.append(name_of(number, number + 1), (node_part(node, NOON),))

        def parts():
            yield node_part("c", NOON)
            assert len(list(compact(second, now=NOW, files_max=1))) == 1

        assert first.append(name_of(2, 3), parts())
        assert first.append(name_of(3, 4), (node_part("d", NOON),))
        for warehouse in (first, second):
            assert [node.node for node in warehouse.inventory("c1").nodes] == ["a", "b", "c", "d"]
        assert [item.files_before for item in compact(second, now=NOW, files_max=1)] == [3]
        remove_replaced(second, now=NOW + timedelta(days=1), keep_seconds=1)
        assert [node.node for node in first.inventory("c1").nodes] == ["a", "b", "c", "d"]
        assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_append_that_ended_after_its_partition_was_dropped_is_kept_until_the_next_time(tmp_path: Path) -> None:
    with closing(DuckdbWarehouse(tmp_path)) as first, closing(DuckdbWarehouse(tmp_path)) as second:
        first.append(name_of(0, 1), (node_part("a", NOON),))

        def parts():
            yield node_part("b", NOON)
            assert len(list(retain(second, now=NOON + timedelta(days=9), days=2, finest_days=None))) == 1

        assert first.append(name_of(1, 2), parts())
        assert [node.node for node in second.inventory("c1").nodes] == ["b"]
        assert len(list(retain(second, now=NOON + timedelta(days=9), days=2, finest_days=None))) == 1
        assert first.clusters() == ()


@pytest.mark.parametrize("moment", ["before publishing", "before manifest"])
def test_sample_that_two_processes_take_in_at_once_counts_once(tmp_path: Path, moment: str) -> None:
    samples = small_fleet(pods=2, hours=2)
    buses = [file_bus(tmp_path / f"bus-{number}") for number in range(2)]
    for bus in buses:
        intake_of(bus).take(body_of(samples), Version.V2)
    intake_of(buses[0]).take(body_of([Sample(5, Measure.POWER, START_MS + 600_000, 7.0)]), Version.V2)
    meanwhile = [True]

    def crash_point(name: str) -> None:
        if name == moment and meanwhile:
            meanwhile.clear()
            with closing(DuckdbWarehouse(tmp_path / "warehouse")) as other:
                roll_up(buses[1], other)

    warehouse = DuckdbWarehouse(tmp_path / "warehouse", crash_point=crash_point)
    roll_up(buses[0], warehouse)
    assert not meanwhile
    assert stored_rows(warehouse, CARD_USAGE) == expected_rows(samples, CARD_USAGE)
    assert stored_rows(warehouse, POD_USAGE) == expected_rows(
        [*samples, Sample(5, Measure.POWER, START_MS + 600_000, 7.0)], POD_USAGE
    )
    assert all(bus.waiting_bytes == 0 for bus in buses)
    warehouse.close()


def test_measures_of_one_sample_that_two_processes_take_in_at_once_are_one_sample(tmp_path: Path) -> None:
    samples = [Sample(0, measure, START_MS + 600_000, 0.5) for measure in (Measure.DUTY_CYCLE, Measure.SM_ACTIVE)]
    buses = [file_bus(tmp_path / f"bus-{number}") for number in range(2)]
    for bus, sample in zip(buses, samples, strict=True):
        intake_of(bus).take(body_of([sample]), Version.V2)
    meanwhile = [True]

    def crash_point(name: str) -> None:
        if name == "before manifest" and meanwhile:
            meanwhile.clear()
            with closing(DuckdbWarehouse(tmp_path / "warehouse")) as other:
                roll_up(buses[1], other)

    with closing(DuckdbWarehouse(tmp_path / "warehouse", crash_point=crash_point)) as warehouse:
        roll_up(buses[0], warehouse)
        assert not meanwhile
        assert stored_rows(warehouse, POD_USAGE) == expected_rows(samples, POD_USAGE)


def test_one_process_at_a_time_does_upkeep_beside_those_that_append(tmp_path: Path) -> None:
    with closing(DuckdbWarehouse(tmp_path)) as first, closing(DuckdbWarehouse(tmp_path)) as second:
        for number, node in enumerate("abc"):
            first.append(name_of(number, number + 1), (node_part(node, NOON),))
        with first.files.upkeep():
            with pytest.raises(Held, match="as upkeep"):
                list(compact(second, now=NOW, files_max=1))
            assert second.append(name_of(0, 1, "other"), (node_part("d", NOON),))
        assert len(list(compact(second, now=NOW, files_max=1))) == 1


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_what_a_killed_process_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    def work() -> None:
        def crash_point(name: str) -> None:
            if name == "before manifest":
                DeadlyFuse(0).blow()

        DuckdbWarehouse(tmp_path, crash_point=crash_point).append(name_of(0, 1, "dead"), (node_part("x", NOON),))

    assert was_killed(work)
    with closing(DuckdbWarehouse(tmp_path)) as living:

        def parts():
            yield node_part("a", NOON)
            assert len(list(tmp_path.rglob("*.parquet"))) == 1
            with closing(DuckdbWarehouse(tmp_path)) as other:
                other.append(name_of(0, 1, "other"), (node_part("b", NOON),))
                with other.files.upkeep():
                    pass

        assert living.append(name_of(0, 1), parts())
        assert [node.node for node in living.inventory("c1").nodes] == ["a", "b"]


def line(number: int) -> ManifestLine:
    return ManifestLine(names=name_of(number, number + 1, f"lane-{number:04d}"))


def test_line_of_which_storage_takes_a_part_leaves_nothing_behind(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    manifest.add(line(0))
    size, hard = _size(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    for room in range(0, size, 7):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, hard))
        try:
            with pytest.raises(Corrupt, match="cannot write"):
                manifest.add(line(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert _size(tmp_path) == size
    manifest.add(line(1))
    assert Manifest(tmp_path).applied() == manifest.applied() == {"lane-0000": 1, "lane-0001": 2}


def test_line_of_another_is_durable_before_anybody_goes_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was killed between writing its line and the sync would else lose what the bus was let go of for it."""
    mine, theirs = Manifest(tmp_path), Manifest(tmp_path)
    mine.add(ManifestLine(names=name_of(0, 1, "a")))
    theirs.add(ManifestLine(names=name_of(0, 1, "b")))
    synced: list[int] = []
    sync = os.fsync

    def noted(number: int) -> None:
        synced.append(os.fstat(number).st_ino)
        sync(number)

    monkeypatch.setattr(os, "fsync", noted)
    for _ in range(2):
        assert mine.applied() == {"a": 1, "b": 1}
        assert synced == [mine.path.stat().st_ino]


@pytest.mark.parametrize("other", [line(2), ManifestLine(names=name_of(0, 1, "a"))])
def test_line_that_was_read_and_then_cut_off_does_not_count(tmp_path: Path, other: ManifestLine) -> None:
    manifest, reader = Manifest(tmp_path), Manifest(tmp_path)
    for number in (8, 9, 0):
        manifest.add(line(number))
    size = _size(tmp_path)
    manifest.add(line(1))
    assert len(reader.applied()) == 4
    os.truncate(tmp_path / "MANIFEST", size)  # as its writer does where the disk refuses it
    assert "lane-0001" not in reader.applied()
    manifest.add(line(1))
    assert len(reader.applied()) == 4
    os.truncate(tmp_path / "MANIFEST", size)
    Manifest(tmp_path).add(other)
    assert reader.applied() == Manifest(tmp_path).applied()
    reader.add(line(3))
    assert Manifest(tmp_path).applied() == reader.applied()
    assert "lane-0001" not in reader.applied()


def test_merge_that_is_stopped_once_it_is_in_the_manifest_keeps_its_files(chain: Chain) -> None:
    samples = small_fleet(pods=2, hours=5)
    for piece in range(4):
        chain.send(samples[piece::5])
    chain.warehouse.close()

    def crash_point(name: str) -> None:
        if name == "after line":
            raise KeyboardInterrupt  # as SIGTERM does in `gputide run rollup`

    stopped = DuckdbWarehouse(chain.folder / "warehouse", crash_point=crash_point)
    with closing(stopped), pytest.raises(KeyboardInterrupt):
        list(tidy_indexes(stopped, now=NOW, files_max=1, late_days=28))
    chain.warehouse = DuckdbWarehouse(chain.folder / "warehouse")
    chain.send(samples)
    chain.check(samples)
