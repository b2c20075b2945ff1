"""Processes that publish Iceberg tables at once, or are killed half way: tables stay readable, the next mends them."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from fleet.data_folder import open_data_folder
from fleet.errors import EXIT_FINE, Unavailable
from fleet.schema import POD_USAGE, TABLES
from pipeline.remote_write.decode import Version
from pipeline.warehouse.compact import compact
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.gputide.conftest import Program
from tests.pipeline.builders import (
    USAGE_TABLES,
    Sample,
    body_of,
    expected_rows,
    file_bus,
    intake_of,
    roll_up,
    small_fleet,
)
from tests.pipeline.test_iceberg_tables import merged

pytestmark = pytest.mark.long

KILLED = -9
NOW = datetime(2026, 2, 1, tzinfo=UTC)
PUBLISH = ("admin", "warehouse", "publish")
COMMITS = (1, 2, 5, 9, 2, 3, 1, 4)
"""Of each publisher the one at which it is killed; the first of them make the tables."""
ROUNDS = 3
PIECES = 40
FLEET = small_fleet(pods=2, hours=30)


class Shop:
    """A data folder with a warehouse that grows, and its tables as a reader finds them; mutable."""

    def __init__(self, data: Path) -> None:
        open_data_folder(data, create=True)
        self.data = data
        self.sent: list[Sample] = []
        self._bus, self._pieces = file_bus(data / "own-bus"), 0
        self.warehouse = DuckdbWarehouse(data / "warehouse")
        self.database = f"sqlite:///{data}/tables.db"
        # What was replaced is kept for as short as can be, so that whatever may be removed is.
        self.options = ("--set", f"iceberg.database={self.database}", "--set", "warehouse.keep_replaced_seconds=1")

    def grow(self, *, merges: bool) -> None:
        """Takes in further samples, and merges all files of a partition into one."""
        samples = FLEET[self._pieces :: PIECES]
        self._pieces += 1
        self.sent += samples
        assert intake_of(self._bus).take(body_of(samples), Version.V2).status == 204
        roll_up(self._bus, self.warehouse)
        if merges:
            list(compact(self.warehouse, now=NOW, files_max=1))

    def check_readable(self) -> None:
        """Every file of every snapshot that a reader may ask for is there."""
        with closing(SqlCatalog("gputide", uri=self.database, warehouse="file:///nowhere")) as catalogue:
            for _, name in catalogue.list_tables("gputide") if catalogue.namespace_exists("gputide") else ():
                table = catalogue.load_table(f"gputide.{name}")
                for snapshot in table.snapshots():
                    for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files():
                        assert Path(task.file.file_path.removeprefix("file://")).exists(), (name, snapshot.snapshot_id)
                table.scan().to_arrow()

    def check_whole(self) -> None:
        """The tables name the files that count, each once, and have every row that was sent."""
        live = {(file.table, file.path) for file in self.warehouse.files.live() if not file.is_index}
        named = []
        with closing(SqlCatalog("gputide", uri=self.database, warehouse="file:///nowhere")) as catalogue:
            for table in TABLES:
                scan = catalogue.load_table(f"gputide.{table.name}").scan()
                folder = f"file://{self.data}/warehouse/"
                named += [(table.name, task.file.file_path.removeprefix(folder)) for task in scan.plan_files()]
                if table in USAGE_TABLES:
                    assert merged(scan.to_arrow()) == expected_rows(self.sent, table)
        assert len(named) == len(set(named))
        assert set(named) == live
        assert any(table == POD_USAGE.name for table, _ in named)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "data")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_whichever_commit_a_publisher_is_killed_at_the_next_one_mends_the_tables(
    shop: Shop, program: Program, moment: str
) -> None:
    killed = 0
    for number, commit in enumerate(COMMITS):
        shop.grow(merges=number % 3 == 2)
        killed += program(shop.data, *shop.options, *PUBLISH, dies_at=("sqlite", commit, moment)).status == KILLED
        shop.check_readable()
    assert killed >= len(COMMITS) // 2  # one with little to say ends before its commit comes
    assert program(shop.data, *shop.options, *PUBLISH).status == EXIT_FINE
    shop.check_whole()


def test_publishers_and_upkeep_at_the_same_moment_and_one_killed_leave_each_file_once(shop: Shop) -> None:
    chance = np.random.default_rng(8)
    command = [sys.executable, "-m", "gputide.cli", "--data-dir", str(shop.data), "--quiet", *shop.options]
    upkeep = ["admin", "warehouse", "compact", "--keep-seconds", "0"]
    statuses = []
    for number in range(ROUNDS):
        shop.grow(merges=number % 2 == 1)
        running = [subprocess.Popen([*command, *words]) for words in (PUBLISH, PUBLISH, upkeep)]
        deadline = time.monotonic() + chance.uniform(0.3, 3.0)
        while running[0].poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        running[0].kill()
        statuses += [one.wait() for one in running]
        shop.check_readable()
        alone = subprocess.run([*command, *PUBLISH], check=False)
        assert alone.returncode == EXIT_FINE
        shop.check_whole()
    assert set(statuses) <= {KILLED, EXIT_FINE, Unavailable.exit_status}
    assert KILLED in statuses
