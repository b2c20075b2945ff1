"""The Hive warehouse under kills: writer, metastore and HiveServer2 die between file and partition, and all rows are
there once, for us and through SQL.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from fleet.errors import Unavailable
from fleet.schema import CARD_USAGE, POD_USAGE
from fleet.settings.pipeline import HiveSettings
from pipeline.remote_write.decode import Version
from pipeline.warehouse.hive_session import HiveSession
from pipeline.warehouse.warehouse_hive import HiveWarehouse
from tests.contracts.warehouse import NOON, name_of, node_part
from tests.crashes import DeadlyFuse, was_killed
from tests.pipeline.builders import (
    USAGE_TABLES,
    body_of,
    expected_rows,
    file_bus,
    intake_of,
    roll_up,
    small_fleet,
    stored_rows,
)

pytestmark = pytest.mark.engines

KILLS = 36
APPENDS = 4


@pytest.fixture
def settings(hive, fresh_database):
    return HiveSettings(host=hive.host, port=hive.port, database=fresh_database, request_seconds=120)


@pytest.fixture
def folder(hive, fresh_database):
    return hive.files / fresh_database


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_writer_killed_at_every_moment_of_an_append_leaves_each_row_once(folder, settings, tmp_path):
    samples = small_fleet(pods=2, hours=26)
    bus = file_bus(tmp_path / "bus")
    # Samples of a pod and its card stand in pairs; each append has some of both tables and days.
    pieces = [[sample for n, sample in enumerate(samples) if n // 2 % APPENDS == place] for place in range(APPENDS)]
    bodies = [body_of(piece) for piece in pieces]
    kills = 0
    for number, body in enumerate(bodies):
        intake_of(bus).take(body, Version.V2)

        def work(moments: int) -> None:
            with closing(HiveWarehouse(folder, settings, crash_point=DeadlyFuse(moments))) as warehouse:
                roll_up(file_bus(tmp_path / "bus"), warehouse)

        # The first append makes partitions, later ones find them; each is killed at its 1st, 2nd, … moment.
        moments = 1
        while was_killed(partial(work, moments)):
            moments, kills = moments + 1, kills + 1
        with closing(HiveWarehouse(folder, settings)) as warehouse:
            assert len(files_of(folder, "pod_usage")) == 2 * (number + 1)
            assert warehouse.applied_offset(bus.source) == bus.committed() > 0
    assert kills >= KILLS
    with closing(HiveWarehouse(folder, settings)) as warehouse:
        for table in USAGE_TABLES:
            assert stored_rows(warehouse, table) == expected_rows(samples, table)
    with closing(HiveSession(settings)) as sql:
        for table, of_card in ((POD_USAGE, False), (CARD_USAGE, True)):
            query = f"SELECT sum(duty_cycle_ratio_count), count(DISTINCT dt) FROM {settings.database}.{table.name}"
            found = [row for key, row in expected_rows(samples, table).items() if key[0] == 86_400]
            counted = sum(row["duty_cycle_ratio_count"] for row in found)
            assert sql.rows(f"{query} WHERE window_seconds = 86400") == [(counted, 2)], of_card


@pytest.mark.parametrize("victim", ["metastore", "server"])
@pytest.mark.parametrize("moment", ["before publishing", "after partitions"])
def test_hive_killed_between_file_and_partition_adds_nothing_until_it_is_back(hive, folder, settings, victim, moment):
    kill = {"metastore": hive.kill_metastore, "server": hive.kill_server}[victim]
    is_due = [True]

    def crash_point(name: str) -> None:
        if is_due[0] and name == moment:
            is_due[0] = False
            kill()

    parts = (node_part("a", NOON), node_part("b", NOON, "c2"))
    samples, bus = small_fleet(pods=1, hours=2), file_bus(folder.with_name(f"{folder.name}-bus"))
    with closing(HiveWarehouse(folder, settings, crash_point=crash_point)) as warehouse:
        if moment == "before publishing":
            with pytest.raises(Unavailable):
                warehouse.append(name_of(0, 10), parts)
        else:
            # Two tables: the first has its partition when Hive dies, the second has none.
            intake_of(bus).take(body_of(samples), Version.V2)
            with pytest.raises(Unavailable):
                roll_up(bus, warehouse)
            assert bus.committed() == 0
        assert not is_due[0]
        assert warehouse.clusters() == ()
        assert files_of(folder, "*") == []
        hive.restart()
        if moment == "before publishing":
            assert warehouse.append(name_of(0, 10), parts)
            assert not warehouse.append(name_of(0, 10), parts)
            query = f"SELECT cluster, node FROM {settings.database}.inventory_nodes"
            with closing(HiveSession(settings)) as sql:
                assert sorted(sql.rows(query)) == [("c1", "a"), ("c2", "b")]
        else:
            roll_up(bus, warehouse)
            for table in USAGE_TABLES:
                assert stored_rows(warehouse, table) == expected_rows(samples, table)


def test_hive_that_is_away_is_said_so_and_reading_goes_on_without_it(hive, folder, settings):
    with closing(HiveWarehouse(folder, settings)) as warehouse:
        warehouse.append(name_of(0, 10), (node_part("a", NOON),))
    away = settings.model_copy(update={"port": hive.metastore_port, "request_seconds": 3})
    nobody = settings.model_copy(update={"port": 1})
    for elsewhere in (away, nobody):
        with closing(HiveWarehouse(folder, elsewhere)) as warehouse:
            with pytest.raises(Unavailable, match=f"127.0.0.1:{elsewhere.port}"):
                warehouse.append(name_of(10, 20), (node_part("b", NOON),))
            assert [node.node for node in warehouse.inventory("c1").nodes] == ["a"]


def files_of(folder: Path, table: str) -> list[str]:
    """Names of all files of a table's rows."""
    return sorted(str(path.relative_to(folder)) for path in folder.glob(f"{table}/dt=*/**/*.parquet"))
