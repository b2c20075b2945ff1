"""What Hive is told of the schema, and how its answers are read."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.schema import INVENTORY_NODES, POD_USAGE, TABLES, ColumnKind
from pipeline.warehouse import hive_ddl as ddl
from pipeline.warehouse.hive_ddl import HivePartition

LOCATION = "file:/srv/gputide/inventory_nodes"


def description(
    columns: dict[str, str] | None = None, keys: dict[str, str] | None = None, location: str = LOCATION, **facts: str
) -> list[tuple[str | None, ...]]:
    """What Hive 4 answers to `DESCRIBE FORMATTED`, blanks and all."""
    recorded = ",".join(ddl.hive_columns(INVENTORY_NODES))
    kind = facts.get("kind", "EXTERNAL_TABLE")
    serde = facts.get("serde", "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe")
    shown = ddl.hive_columns(INVENTORY_NODES) if columns is None else columns
    return [
        ("# col_name", "data_type", "comment"),
        *((name, kind, "") for name, kind in shown.items()),
        ("", None, None),
        ("# Partition Information", None, None),
        ("# col_name", "data_type", "comment"),
        *((name, kind, "") for name, kind in (ddl.PARTITION_KEYS if keys is None else keys).items()),
        ("", None, None),
        ("# Detailed Table Information", None, None),
        ("Database:           ", "gputide             ", None),
        ("Location:           ", location, None),
        ("Table Type:         ", f"{kind}      ", None),
        ("Table Parameters:", None, None),
        ("", "EXTERNAL            ", "TRUE                "),
        ("", "gputide.columns     ", facts.get("recorded", recorded)),
        ("", None, None),
        ("# Storage Information", None, None),
        ("SerDe Library:      ", serde, None),
    ]


def test_every_column_but_the_partitions_own_has_a_type():
    for table in TABLES:
        columns = ddl.hive_columns(table)
        assert [*columns] == [column.name for column in table.columns if column.name != "cluster"]
    kinds = {column.name: column.kind for column in POD_USAGE.columns}
    histograms = {
        name: kind for name, kind in ddl.hive_columns(POD_USAGE).items() if kinds[name] is ColumnKind.HISTOGRAM
    }
    assert set(histograms.values()) == {"map<int,bigint>"}
    assert len(histograms) == 2


def test_statement_that_makes_a_table():
    table = replace(INVENTORY_NODES, columns=(INVENTORY_NODES.columns[0], *INVENTORY_NODES.columns[-2:]))
    assert ddl.create_table("g", table, "file:/srv/x") == (
        "CREATE EXTERNAL TABLE IF NOT EXISTS `g`.`inventory_nodes` (`last_seen` bigint, `ended_at` bigint) "
        "PARTITIONED BY (`dt` string, `cluster` string) STORED AS PARQUET LOCATION 'file:/srv/x' "
        "TBLPROPERTIES ('gputide.columns'='last_seen,ended_at', "
        "'external.table.purge'='false', 'discover.partitions'='false')"
    )


def test_partitions_are_added_in_one_statement_and_dropped_in_one():
    two = [HivePartition(date=f"2026-01-0{day}", cluster="a%2Fb", location=f"file:/x/{day}") for day in (5, 6)]
    assert ddl.add_partitions("g", INVENTORY_NODES, two) == (
        "ALTER TABLE `g`.`inventory_nodes` ADD IF NOT EXISTS "
        "PARTITION (dt='2026-01-05', cluster='a%2Fb') LOCATION 'file:/x/5' "
        "PARTITION (dt='2026-01-06', cluster='a%2Fb') LOCATION 'file:/x/6'"
    )
    assert ddl.drop_partitions("g", INVENTORY_NODES, two).endswith(
        "DROP IF EXISTS PARTITION (dt='2026-01-05', cluster='a%2Fb'), PARTITION (dt='2026-01-06', cluster='a%2Fb')"
    )
    assert ddl.partition_name(two[0]) == "dt=2026-01-05/cluster=a%252Fb"


@given(st.text(max_size=40))
def test_literal_holds_nothing_that_hive_would_take_for_syntax_and_stands_for_the_text(text):
    literal = ddl.hive_literal(text)
    inside = literal[1:-1]
    assert re.fullmatch(r"(?:[^'\\$;\x00-\x1f\x7f-\U0010ffff]|\\['\"\\]|\\u[0-9a-f]{4})*", inside)
    units = re.sub(r"\\u([0-9a-f]{4})|\\(.)", lambda m: chr(int(m[1], 16)) if m[1] else m[2], inside)
    assert units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass") == text


def test_table_as_it_was_made_has_no_difference():
    found = ddl.table_of(description())
    assert ddl.differences(INVENTORY_NODES, found, "file:///srv/gputide/inventory_nodes/") == ()
    assert ddl.new_columns(INVENTORY_NODES, found) == ()


@pytest.mark.parametrize(
    ("altered", "difference"),
    [
        (
            {"columns": ddl.hive_columns(INVENTORY_NODES) | {"last_seen": "string"}},
            "column last_seen is string, not bigint",
        ),
        ({"columns": {"node": "string"}}, "column last_seen is missing"),
        ({"columns": ddl.hive_columns(INVENTORY_NODES) | {"note": "string"}}, "column note is not ours"),
        ({"keys": {"dt": "string"}}, "it is partitioned by (dt string), not by (dt string, cluster string)"),
        ({"keys": {"cluster": "string", "dt": "string"}}, "it is partitioned by (cluster string, dt string), not by"),
        ({"kind": "MANAGED_TABLE"}, "it is a MANAGED_TABLE, not an EXTERNAL_TABLE"),
        ({"serde": "org.x.OrcSerde"}, "its files are read by org.x.OrcSerde"),
        ({"location": "hdfs://n/srv/gputide/inventory_nodes"}, "its files lie in hdfs://n/srv"),
    ],
)
def test_each_alteration_is_told(altered, difference):
    found = ddl.table_of(description(**altered))
    assert difference in "; ".join(ddl.differences(INVENTORY_NODES, found, LOCATION))


def test_column_that_the_schema_has_gained_is_to_be_added_and_no_difference():
    older = {name: kind for name, kind in ddl.hive_columns(INVENTORY_NODES).items() if name != "taints"}
    found = ddl.table_of(description(older, recorded=",".join(older)))
    assert ddl.new_columns(INVENTORY_NODES, found) == ("taints",)
    assert ddl.differences(INVENTORY_NODES, found, LOCATION) == ()
    adding, recording = ddl.add_columns("g", INVENTORY_NODES, ("taints",))
    assert adding == "ALTER TABLE `g`.`inventory_nodes` ADD COLUMNS (`taints` string) CASCADE"
    assert "taints" in recording


def test_column_that_was_added_before_a_crash_is_only_written_down():
    older = ",".join(name for name in ddl.hive_columns(INVENTORY_NODES) if name != "taints")
    found = ddl.table_of(description(recorded=older))
    assert ddl.new_columns(INVENTORY_NODES, found) == ()
    assert ddl.differences(INVENTORY_NODES, found, LOCATION) == ()
    assert len(ddl.add_columns("g", INVENTORY_NODES, ())) == 1


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("file:/a/b", "file:///a/b/", True),
        ("/a/b", "file:/a/b", True),
        ("hdfs://NN:8020/a", "hdfs://nn:8020//a", True),
        ("file:/a/b", "file:/a/b%20", False),
        ("file:/a", "hdfs:/a", False),
        ("hdfs://one/a", "hdfs://two/a", False),
        ("", "file:/a", False),
    ],
)
def test_locations_are_compared_as_folders(one, other, is_same):
    assert ddl.is_same_location(one, other) is is_same
