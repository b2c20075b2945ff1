"""Merging and dropping partitions changes what lies on the disk, never an answer."""

from __future__ import annotations

import shutil
import signal
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from fleet.errors import NotEnoughData
from fleet.schema import POD_USAGE, WINDOW_SECONDS, Measure
from pipeline.remote_write.decode import Version
from pipeline.warehouse.compact import compact, remove_replaced, retain
from pipeline.warehouse.parquet_reads import _asked
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

NOW = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(days=3)


class Chain:
    """A bus and a warehouse that samples are sent through, one append per call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bus = file_bus(folder / "bus")
        self.warehouse = DuckdbWarehouse(folder / "warehouse")

    def send(self, samples: list[Sample]) -> None:
        intake_of(self.bus).take(body_of(samples), Version.V2)
        roll_up(self.bus, self.warehouse)

    def files(self) -> list[str]:
        """Row files that count."""
        return [file.path for file in self.warehouse.files.live() if not file.is_index]

    def on_disk(self) -> list[str]:
        """Row files that are there."""
        folder = self.folder / "warehouse"
        return sorted(str(path.relative_to(folder)) for path in folder.glob("*_usage/**/*.parquet"))


@pytest.fixture
def chain(tmp_path):
    return Chain(tmp_path)


def check(warehouse: DuckdbWarehouse, samples: list[Sample]) -> None:
    for table in USAGE_TABLES:
        assert stored_rows(warehouse, table) == expected_rows(samples, table)


def test_merged_partitions_hold_one_file_each_and_give_the_same_answers(chain):
    samples = small_fleet(pods=2, hours=26)
    for piece in range(3):
        chain.send(samples[piece::3])
    before = chain.warehouse.history("c1")
    assert len(chain.files()) == 12  # two tables, two days
    done = list(compact(chain.warehouse, now=NOW, files_max=2))
    assert [(upkeep.files_before, upkeep.files_after) for upkeep in done] == [(3, 1)] * 4
    assert all(upkeep.rows_after < upkeep.rows_before for upkeep in done)
    assert len(chain.files()) == 4
    check(chain.warehouse, samples)
    after = chain.warehouse.history("c1")
    assert (after.slices.since, after.slices.step_seconds) == (before.slices.since, before.slices.step_seconds)
    place = [after.slices.keys.index(key) for key in before.slices.keys]
    for measure, mean in before.slices.mean.items():
        np.testing.assert_array_equal(after.slices.mean[measure][place], mean)
        np.testing.assert_array_equal(after.slices.peak[measure][place], before.slices.peak[measure])
    assert list(compact(chain.warehouse, now=NOW, files_max=2)) == []


def test_merged_sightings_are_the_same_inventory(tmp_path):
    with closing(DuckdbWarehouse(tmp_path)) as warehouse:
        for number, node in enumerate("abca"):
            seen = NOON + timedelta(minutes=number)
            warehouse.append(name_of(number, number + 1), (node_part(node, seen), node_part(node, seen, "../c2")))
        before = [warehouse.inventory(cluster) for cluster in ("c1", "../c2")]
        assert len(list(compact(warehouse, now=NOW, files_max=2))) == 2
        assert [warehouse.inventory(cluster) for cluster in ("c1", "../c2")] == before
        assert [node.node for node in before[0].nodes] == ["a", "b", "c"]


def test_samples_that_come_again_after_a_merge_count_once_and_later_ones_are_added(chain):
    samples = small_fleet(pods=2, hours=4)
    for piece in range(3):
        chain.send(samples[piece::5])
    list(compact(chain.warehouse, now=NOW, files_max=2))
    chain.send(samples)
    check(chain.warehouse, samples)
    assert {path.split("/")[2] for path in chain.files()} == {"cluster=c1@1"}
    list(compact(chain.warehouse, now=NOW, files_max=1))
    assert {path.split("/")[2] for path in chain.files()} == {"cluster=c1@2"}
    check(chain.warehouse, samples)


def test_replaced_files_stay_for_readers_for_as_long_as_they_are_kept(chain):
    samples = small_fleet(pods=1, hours=2)
    for piece in range(3):
        chain.send(samples[piece::3])
    old = set(chain.on_disk())
    list(compact(chain.warehouse, now=NOW, files_max=2))
    assert old < set(chain.on_disk())
    assert remove_replaced(chain.warehouse, now=NOW + timedelta(seconds=60), keep_seconds=60) == 0
    assert remove_replaced(chain.warehouse, now=NOW + timedelta(seconds=120), keep_seconds=60) == len(old)
    assert chain.on_disk() == sorted(chain.files())
    check(DuckdbWarehouse(chain.folder / "warehouse"), samples)


def test_days_beyond_their_time_are_dropped_and_others_stay(chain):
    days = [
        Sample(0, Measure.DUTY_CYCLE, START_MS + day * DAY_MS + 600_000, 0.25 + day / 10, of_card=of_card)
        for day in range(3)
        for of_card in (False, True)
    ]
    chain.send(days)
    done = list(retain(chain.warehouse, now=NOW, days=2, finest_days=None))
    assert [(upkeep.date, upkeep.files_after) for upkeep in done] == [("2026-01-05", 0)] * 2
    check(chain.warehouse, days[2:])
    list(retain(chain.warehouse, now=NOW + timedelta(days=9), days=2, finest_days=None))
    assert chain.warehouse.clusters() == ()
    with pytest.raises(NotEnoughData):
        chain.warehouse.history("c1")
    # What comes late goes into a folder of its own: in the old one lie files that count no longer.
    late = [Sample(1, Measure.DUTY_CYCLE, START_MS + 1_200_000, 0.5)]
    chain.send(late)
    check(chain.warehouse, late)
    remove_replaced(chain.warehouse, now=NOW + timedelta(days=10), keep_seconds=60)
    check(DuckdbWarehouse(chain.folder / "warehouse"), late)
    assert chain.on_disk() == chain.files()


def test_finest_windows_go_first_and_coarser_ones_stay(chain):
    samples = small_fleet(pods=2, hours=30)
    chain.send(samples)
    done = list(retain(chain.warehouse, now=NOW, days=None, finest_days=2))
    assert {upkeep.date for upkeep in done} == {"2026-01-05"}
    second_day = {
        key: row for key, row in expected_rows(samples, POD_USAGE, (60,)).items() if key[1] >= START_MS + DAY_MS
    }
    assert stored_rows(chain.warehouse, POD_USAGE, levels=(60,)) == second_day
    coarser = WINDOW_SECONDS[1:]
    assert stored_rows(chain.warehouse, POD_USAGE, levels=coarser) == expected_rows(samples, POD_USAGE, coarser)
    assert list(retain(chain.warehouse, now=NOW, days=None, finest_days=2)) == []


def test_each_row_group_of_a_merged_file_holds_one_level(chain):
    samples = small_fleet(pods=2, hours=3)
    for piece in range(3):
        chain.send(samples[piece::3])
    list(compact(chain.warehouse, now=NOW, files_max=2))
    for path in chain.files():
        file = pq.ParquetFile(chain.folder / "warehouse" / path)
        groups = [
            set(file.read_row_group(group).column("window_seconds").to_pylist()) for group in range(file.num_row_groups)
        ]
        assert groups == [{level} for level in WINDOW_SECONDS]


def test_a_signal_while_duckdb_is_at_work_is_what_its_handler_raises():
    former = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt), _asked("cannot read") as connection:
            connection.sql("SELECT * FROM range(20000000) AS t(x) ORDER BY hash(x)").to_arrow_table()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_killed_at_every_moment_a_merge_or_drop_is_done_wholly_or_not_at_all(chain):
    samples = [Sample(0, Measure.POWER, START_MS + hour * 3_600_000 + 60_000, float(hour)) for hour in (1, 5, 9, 30)]
    for piece in (samples[:1], samples[1:2], samples[2:]):  # three files of the first day, one of the second
        chain.send(piece)
    chain.warehouse.close()
    everything = expected_rows(samples, POD_USAGE, (60,))
    second_day = {key: row for key, row in everything.items() if key[1] >= START_MS + DAY_MS}
    ends = []
    for moment in range(1, 100):
        folder = shutil.copytree(chain.folder / "warehouse", chain.folder / f"copy-{moment}")
        is_killed = is_killed_at(moment, folder)
        with closing(DuckdbWarehouse(folder)) as warehouse:
            rows = stored_rows(warehouse, POD_USAGE, levels=(60,))
            assert rows in (everything, second_day)
            ends.append(rows == second_day)
            warehouse.files.take_writing()
            assert not (folder / "REPLACING.json").exists()
            assert {str(path.relative_to(folder)) for path in folder.glob("pod_usage/*/*/*")} >= {
                file.path for file in warehouse.files.live() if not file.is_index
            }
        if not is_killed:
            break
    assert len(ends) >= 8
    assert ends == sorted(ends)
    assert (ends[0], ends[-1]) == (False, True)


def is_killed_at(moment: int, folder: Path) -> bool:
    """Merges everything and drops the first day in a process that is killed at its n-th moment, if it has so many."""

    def work() -> None:
        with closing(DuckdbWarehouse(folder, crash_point=DeadlyFuse(moment))) as warehouse:
            list(compact(warehouse, now=NOW, files_max=2))
            list(retain(warehouse, now=NOW, days=2, finest_days=None))

    return was_killed(work)
