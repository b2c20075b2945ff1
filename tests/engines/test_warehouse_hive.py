"""The Hive warehouse keeps the warehouse's contract on a real Hive, and SQL gives the answers that we give."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from fleet.data_folder import open_data_folder
from fleet.errors import Corrupt, GputideError, Unavailable
from fleet.schema import INVENTORY_NODES, POD_USAGE
from fleet.settings.pipeline import HiveSettings
from pipeline.remote_write.decode import Version
from pipeline.warehouse import hive_ddl as ddl
from pipeline.warehouse.compact import compact, remove_replaced, retain
from pipeline.warehouse.hive_session import HiveSession
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from pipeline.warehouse.warehouse_hive import HiveWarehouse
from tests.contracts.rollup import RollupContract
from tests.contracts.warehouse import NOON, WarehouseContract, name_of, node_part
from tests.pipeline.builders import (
    FAR_OFF,
    LONG_AGO,
    body_of,
    expected_rows,
    file_bus,
    intake_of,
    roll_up,
    small_fleet,
    stored_rows,
)

pytestmark = pytest.mark.engines


@pytest.fixture
def settings(hive, fresh_database):
    return HiveSettings(host=hive.host, port=hive.port, database=fresh_database)


@pytest.fixture
def folder(hive, fresh_database):
    return hive.files / fresh_database


@pytest.fixture
def sql(settings):
    with closing(HiveSession(settings)) as session:
        yield session


@pytest.fixture
def warehouse(folder, settings):
    with closing(HiveWarehouse(folder, settings)) as opened:
        yield opened


class TestHiveWarehouse(WarehouseContract):
    @pytest.fixture
    def reopened(self, warehouse, folder, settings):
        def reopen():
            warehouse.close()
            return HiveWarehouse(folder, settings)

        return reopen


class TestRollupIntoHive(RollupContract):
    @pytest.fixture
    def bus(self, tmp_path):
        return file_bus(tmp_path / "bus")

    @pytest.fixture
    def rollup(self, bus, warehouse):
        return lambda: roll_up(bus, warehouse)


def test_windows_summed_by_hive_are_those_that_we_give(folder, settings, sql, tmp_path):
    bus, samples = file_bus(tmp_path / "bus"), small_fleet(pods=3, hours=26)
    with closing(HiveWarehouse(folder, settings)) as warehouse:
        for piece in (samples[::2], samples[1::2]):  # two appends: rows of one window in two files
            intake_of(bus).take(body_of(piece), Version.V2)
            roll_up(bus, warehouse)
        assert stored_rows(warehouse, POD_USAGE) == expected_rows(samples, POD_USAGE)
    table = f"`{settings.database}`.`pod_usage`"
    where = "cluster = 'c1' AND window_seconds = 3600"
    found = (
        DuckdbWarehouse(folder)
        .windows(POD_USAGE, cluster="c1", level_seconds=3600, since=LONG_AGO, until=FAR_OFF)
        .to_pylist()
    )
    columns = ("samples", "duty_cycle_ratio_count", "duty_cycle_ratio_sum", "framebuffer_used_bytes_sum")
    sums = ", ".join(f"sum({name})" for name in columns)
    asked = f"SELECT window_start, card, {sums}, max(duty_cycle_ratio_max) FROM {table} WHERE {where}"
    told = sql.rows(f"{asked} GROUP BY window_start, card")
    assert len(told) > 75
    names = ("window_start", "card", *columns, "duty_cycle_ratio_max")
    assert sorted(told) == sorted(tuple(row[name] for name in names) for row in found)
    bins = sql.rows(
        f"SELECT card, bin, sum(number) FROM {table} LATERAL VIEW explode(duty_cycle_ratio_histogram) h AS bin, number "
        f"WHERE {where} GROUP BY card, bin"
    )
    counted: dict[tuple[str, int], int] = {}
    for row in found:
        for place, number in row["duty_cycle_ratio_histogram"] or ():
            counted[row["card"], place] = counted.get((row["card"], place), 0) + number
    assert len(counted) > 200
    assert {(card, place): number for card, place, number in bins} == counted


ALTERATIONS = {
    "managed": ("ALTER TABLE {t} SET TBLPROPERTIES ('EXTERNAL'='FALSE')", "it is a MANAGED_TABLE"),
    "type": ("ALTER TABLE {t} CHANGE COLUMN last_seen last_seen double", "column last_seen is double, not bigint"),
    "renamed": (
        "ALTER TABLE {t} CHANGE COLUMN labels tags string",
        "column labels is missing; column tags is not ours",
    ),
    "gained": ("ALTER TABLE {t} ADD COLUMNS (note string)", "column note is not ours"),
    "moved": ("ALTER TABLE {t} SET LOCATION 'file:/srv/elsewhere'", "its files lie in file:/srv/elsewhere, not in"),
    "format": ("ALTER TABLE {t} SET FILEFORMAT TEXTFILE", "its files are read by"),
    "partition": (
        "ALTER TABLE {t} PARTITION (dt='2026-01-05', cluster='c1') SET LOCATION 'file:/srv/elsewhere'",
        "its files lie in file:/srv/elsewhere, not in",
    ),
}


@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_altered_table_is_refused_with_the_difference_and_nothing_is_written(folder, settings, sql, alteration):
    with closing(HiveWarehouse(folder, settings)) as warehouse:
        warehouse.append(name_of(0, 10), (node_part("a", NOON),))
    statement, difference = ALTERATIONS[alteration]
    sql.execute(statement.format(t=f"`{settings.database}`.`inventory_nodes`"))
    files = files_of(folder)
    with closing(HiveWarehouse(folder, settings)) as warehouse:
        with pytest.raises(Corrupt, match=difference):
            warehouse.append(name_of(10, 20), (node_part("b", NOON),))
        assert [node.node for node in warehouse.inventory("c1").nodes] == ["a"]
    assert files_of(folder) == files


def test_table_with_other_partitions_is_refused(folder, settings, sql):
    sql.execute(f"CREATE DATABASE {settings.database}")
    sql.execute(
        f"CREATE EXTERNAL TABLE {settings.database}.inventory_nodes (node string) PARTITIONED BY (dt string) "
        "STORED AS PARQUET"
    )
    with closing(HiveWarehouse(folder, settings)) as warehouse, pytest.raises(Corrupt, match="it is partitioned by"):
        warehouse.append(name_of(0, 10), (node_part("a", NOON),))
    assert files_of(folder) == []
    assert sql.rows(f"SHOW TABLES IN {settings.database}") == [("inventory_nodes",)]


def test_columns_that_the_schema_has_gained_are_added(folder, settings, sql):
    older = replace(INVENTORY_NODES, columns=tuple(c for c in INVENTORY_NODES.columns if c.name != "taints"))
    sql.execute(ddl.create_database(settings.database))
    sql.execute(ddl.create_table(settings.database, older, f"file:{folder}/inventory_nodes"))
    with closing(HiveWarehouse(folder, settings)) as warehouse:
        warehouse.append(name_of(0, 10), (node_part("a", NOON),))
    assert sql.rows(f"SELECT node, taints FROM {settings.database}.inventory_nodes") == [("a", "")]
    with closing(HiveWarehouse(folder, settings)) as warehouse:
        assert warehouse.append(name_of(10, 20), (node_part("b", NOON),))


def test_warehouse_without_hive_is_taken_over_by_hive(folder, settings, sql):
    with closing(DuckdbWarehouse(folder)) as embedded:
        for start, name, cluster in ((0, "a", "c1"), (1, "b", "c2"), (2, "c", "c1")):
            embedded.append(name_of(start, start + 1), (node_part(name, NOON, cluster),))
    with closing(HiveWarehouse(folder, settings)) as warehouse:
        assert warehouse.migrate() == 2
    query = f"SELECT cluster, node FROM {settings.database}.inventory_nodes"
    assert sorted(sql.rows(query)) == [("c1", "a"), ("c1", "c"), ("c2", "b")]
    with closing(HiveWarehouse(folder, settings)) as warehouse:
        assert warehouse.migrate() == 0


@pytest.mark.parametrize(
    "cluster",
    [
        "__HIVE_DEFAULT_PARTITION__", "x__HIVE_DEFAULT_ZOOKEEPER_PARTITION__", "a_INTERMEDIATE_ORIGINAL", "..",
        "a'b/c;${d}", "%41", "_hidden", "Ω" * 90,
    ],
)  # fmt: skip
def test_cluster_of_any_name_has_its_partition(cluster, folder, settings, sql):
    with closing(HiveWarehouse(folder, settings)) as warehouse:
        assert warehouse.append(name_of(0, 1), (node_part("a", NOON, cluster), node_part("b", NOON, "plain")))
        assert [node.node for node in warehouse.inventory(cluster).nodes] == ["a"]
        assert set(sql.rows(f"SELECT node FROM {settings.database}.inventory_nodes")) == {("a",), ("b",)}
        assert warehouse.append(name_of(1, 2), (node_part("c", NOON, cluster),))
        list(compact(warehouse, now=NOON, files_max=1))
        assert set(sql.rows(f"SELECT node FROM {settings.database}.inventory_nodes")) == {("a",), ("b",), ("c",)}
    with closing(HiveWarehouse(folder, settings)) as again:
        assert again.migrate() == 0


def files_of(folder: Path) -> list[str]:
    """Names of all files of rows."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.parquet"))


def test_readers_through_sql_see_every_row_once_while_partitions_are_merged(folder, settings, sql):
    answers: list[list[tuple[str, ...]]] = []
    faults: list[Exception] = []
    is_over = threading.Event()
    query = f"SELECT node FROM {settings.database}.inventory_nodes WHERE dt = '2026-01-05'"

    def read() -> None:
        with closing(HiveSession(settings)) as session:
            while not is_over.is_set():
                try:
                    answers.append(sorted(session.rows(query)))
                except GputideError as exc:
                    faults.append(exc)
                    return

    with closing(HiveWarehouse(folder, settings)) as warehouse:
        for number, node in enumerate("abc"):
            warehouse.append(name_of(number, number + 1), (node_part(node, NOON),))
        reader = threading.Thread(target=read)
        reader.start()
        try:
            for number in range(SWITCHES):
                (upkeep,) = compact(warehouse, now=NOON + timedelta(seconds=number), files_max=0)
                assert (upkeep.files_after, upkeep.rows_after) == (1, 3)
        finally:
            is_over.set()
            reader.join()
        assert faults == []
        assert len(answers) >= SWITCHES // 2
        assert [answer for answer in answers if answer != [("a",), ("b",), ("c",)]] == []
        # The last folder is the one that Hive reads: the others can go, and what comes later is seen.
        assert remove_replaced(warehouse, now=NOON + timedelta(hours=1), keep_seconds=60) == SWITCHES + 2
        warehouse.append(name_of(3, 4), (node_part("d", NOON),))
        assert sorted(sql.rows(query)) == [("a",), ("b",), ("c",), ("d",)]
        assert len(list(retain(warehouse, now=NOON + timedelta(days=3), days=1, finest_days=None))) == 1
        assert sql.rows(query) == []
        assert sql.rows(f"SHOW PARTITIONS {settings.database}.inventory_nodes") == []
        warehouse.append(name_of(4, 5), (node_part("e", NOON),))
        assert sql.rows(query) == [("e",)]


SWITCHES = 12


def test_switch_that_a_dead_metastore_missed_is_made_up_for(hive, folder, settings, sql):
    is_due = [True]

    def crash_point(name: str) -> None:
        if is_due[0] and name == "before switch":
            is_due[0] = False
            hive.kill_metastore()

    query = f"SELECT node FROM {settings.database}.inventory_nodes"
    with closing(HiveWarehouse(folder, settings, crash_point=crash_point)) as warehouse:
        for number, node in enumerate("ab"):
            warehouse.append(name_of(number, number + 1), (node_part(node, NOON),))
        with pytest.raises(Unavailable):
            list(compact(warehouse, now=NOON, files_max=1))
        assert [node.node for node in warehouse.inventory("c1").nodes] == ["a", "b"]
    hive.restart()
    assert sorted(sql.rows(query)) == [("a",), ("b",)]
    with closing(HiveWarehouse(folder, settings)) as warehouse:
        warehouse.append(name_of(2, 3), (node_part("c", NOON),))
        remove_replaced(warehouse, now=NOON + timedelta(hours=1), keep_seconds=60)
    assert sorted(sql.rows(query)) == [("a",), ("b",), ("c",)]


def test_verb_turns_an_embedded_warehouse_into_one_of_hive_and_merges_its_files(hive, settings, sql, fresh_database):
    data = hive.files / f"{fresh_database}-data"
    with closing(DuckdbWarehouse(open_data_folder(data, create=True).warehouse)) as embedded:
        for number, node in enumerate("abc"):
            embedded.append(name_of(number, number + 1), (node_part(node, NOON),))
    options = ["--data-dir", str(data), "--set", "warehouse.kind=hive", "--set", f"hive.port={settings.port}"]
    options += ["--set", f"hive.database={settings.database}", "admin", "warehouse"]
    told = [
        subprocess.run(
            [sys.executable, "-m", "gputide.cli", *options, word], capture_output=True, text=True, check=True
        ).stdout
        for word in ("migrate", "migrate", "compact")
    ]
    assert "1 partitions were missing" in told[0]
    assert "0 partitions were missing" in told[1]
    assert "1 partitions merged" in told[2]
    found = sql.rows(f"SELECT node FROM {settings.database}.inventory_nodes")
    assert sorted(found) == [("a",), ("b",), ("c",)]
