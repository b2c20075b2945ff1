"""The schema of `fleet.schema` as Hive's external tables: statements, and what Hive says of a table that exists.

Pure text: `warehouse_hive` sends the statements and reads the answers. Grammar: Hive's language manual, DDL. Tables are
external and Parquet, partitioned by `dt` (UTC date) and `cluster` (the name made harmless for paths, as in the names
of folders). Hive can't have a data column of a partition's name, so the column `cluster` of the files, which holds the
true name, is not among the table's columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet.schema import ColumnKind, Table

PARTITION_KEYS = {"dt": "string", "cluster": "string"}
"""Partition columns and their types, in order."""

_TYPES = {
    ColumnKind.TEXT: "string",
    ColumnKind.INTEGER: "bigint",
    ColumnKind.REAL: "double",
    ColumnKind.TIME_MS: "bigint",
    ColumnKind.HISTOGRAM: "map<int,bigint>",
}
_PARQUET_SERDE = "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"
_COLUMNS_PROPERTY = "gputide.columns"
_HANDS_OFF = "'external.table.purge'='false', 'discover.partitions'='false'"
"""Against defaults of some distributions: a dropped table's files stay, and no folder becomes a partition by itself.

A folder that another has replaced (`warehouse.files`) looks like a partition of its own to those who go by its name.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HivePartition:
    """One partition as statements name it.

    Attributes:
        date: `YYYY-MM-DD`.
        cluster: the partition's value, harmless in paths.
        location: URI of its folder.
    """

    date: str
    cluster: str
    location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HiveTable:
    """What Hive says of a table.

    Attributes:
        columns: type by name of each data column.
        partition_keys: type by name of each partition column, in order.
        location: URI of its folder.
        kind: `EXTERNAL_TABLE`, `MANAGED_TABLE` or `VIRTUAL_VIEW`.
        serde: Java class that reads its files.
        recorded: names of the columns that gputide made, as it wrote them down; empty where it did not.
    """

    columns: Mapping[str, str]
    partition_keys: Mapping[str, str]
    location: str
    kind: str
    serde: str
    recorded: tuple[str, ...]


def hive_columns(table: Table) -> dict[str, str]:
    """Type by name of each data column."""
    return {column.name: _TYPES[column.kind] for column in table.columns if column.name not in PARTITION_KEYS}


def create_database(database: str) -> str:
    """Makes the database where it is missing, in Hive's own folder: only its tables have folders of ours."""
    return f"CREATE DATABASE IF NOT EXISTS {hive_quoted(database)}"


def show_tables(database: str) -> str:
    """Asks for the names of the tables."""
    return f"SHOW TABLES IN {hive_quoted(database)}"


def create_table(database: str, table: Table, location: str) -> str:
    """Makes a table where it is missing."""
    columns = ", ".join(f"{hive_quoted(name)} {kind}" for name, kind in hive_columns(table).items())
    keys = ", ".join(f"{hive_quoted(name)} {kind}" for name, kind in PARTITION_KEYS.items())
    return (
        f"CREATE EXTERNAL TABLE IF NOT EXISTS {_table(database, table)} ({columns}) PARTITIONED BY ({keys}) "
        f"STORED AS PARQUET LOCATION {hive_literal(location)} TBLPROPERTIES ({_recorded(table)}, {_HANDS_OFF})"
    )


def add_columns(database: str, table: Table, names: Sequence[str]) -> tuple[str, ...]:
    """Adds columns that the schema has gained, if any, to all partitions, and writes down that they are ours."""
    kinds = hive_columns(table)
    columns = ", ".join(f"{hive_quoted(name)} {kinds[name]}" for name in names)
    altered = f"ALTER TABLE {_table(database, table)}"
    adding = (f"{altered} ADD COLUMNS ({columns}) CASCADE",) if names else ()
    return (*adding, f"{altered} SET TBLPROPERTIES ({_recorded(table)})")


def describe_table(database: str, table: Table) -> str:
    """Asks for what `table_of` reads."""
    return f"DESCRIBE FORMATTED {_table(database, table)}"


def describe_partition(database: str, table: Table, partition: HivePartition) -> str:
    """Asks for what `location_of` reads."""
    return f"DESCRIBE FORMATTED {_table(database, table)} {_partition(partition)}"


def show_partitions(database: str, table: Table) -> str:
    """Asks for the names of all partitions, as `partition_name` writes them."""
    return f"SHOW PARTITIONS {_table(database, table)}"


def add_partitions(database: str, table: Table, partitions: Iterable[HivePartition]) -> str:
    """Makes partitions where they are missing, all or none."""
    added = " ".join(f"{_partition(item)} LOCATION {hive_literal(item.location)}" for item in partitions)
    return f"ALTER TABLE {_table(database, table)} ADD IF NOT EXISTS {added}"


def set_location(database: str, table: Table, partition: HivePartition) -> str:
    """Puts another folder in the place of a partition's, in one step for all readers."""
    location = hive_literal(partition.location)
    return f"ALTER TABLE {_table(database, table)} {_partition(partition)} SET LOCATION {location}"


def drop_partitions(database: str, table: Table, partitions: Iterable[HivePartition]) -> str:
    """Takes partitions away, all or none; the files of an external table stay."""
    dropped = ", ".join(map(_partition, partitions))
    return f"ALTER TABLE {_table(database, table)} DROP IF EXISTS {dropped}"


def table_of(rows: Iterable[Sequence[str | None]]) -> HiveTable:
    """Reads the answer to `describe_table`: rows of name, type or value, and comment, in sections."""
    columns: dict[str, str] = {}
    keys: dict[str, str] = {}
    facts: dict[str, str] = {}
    section: dict[str, str] | None = columns
    for row in rows:
        name, value, comment = ((cell or "").strip() for cell in row[:3])
        if name.startswith("#"):
            if name == "# Partition Information":
                section = keys
            elif name.startswith(("# Detailed", "# Storage")):
                section = None
        elif section is not None:
            if name:
                section[name] = value
        elif name:
            facts[name.rstrip(":")] = value
        elif value:
            facts[value] = comment
    return HiveTable(
        columns=columns,
        partition_keys=keys,
        location=facts.get("Location", ""),
        kind=facts.get("Table Type", ""),
        serde=facts.get("SerDe Library", ""),
        recorded=tuple(name for name in facts.get(_COLUMNS_PROPERTY, "").split(",") if name),
    )


def location_of(rows: Iterable[Sequence[str | None]]) -> str:
    """The folder of a partition, from the answer to `describe_partition`."""
    return table_of(rows).location


def new_columns(table: Table, found: HiveTable) -> tuple[str, ...]:
    """Columns that the schema has gained since gputide made the table: to be added, and no difference."""
    return tuple(
        name
        for name in hive_columns(table)
        if name not in found.columns and found.recorded and name not in found.recorded
    )


def differences(table: Table, found: HiveTable, location: str) -> tuple[str, ...]:
    """What somebody has altered, in words; empty where the table is as gputide made it.

    Args:
        location: where its folder must be.
    """
    gained = new_columns(table, found)
    wanted = {name: kind for name, kind in hive_columns(table).items() if name not in gained}
    told = [
        f"column {name} is missing"
        if name not in found.columns
        else f"column {name} is {found.columns[name]}, not {kind}"
        for name, kind in wanted.items()
        if found.columns.get(name) != kind
    ]
    told += [f"column {name} is not ours" for name in found.columns if name not in wanted and name not in gained]
    if list(found.partition_keys.items()) != list(PARTITION_KEYS.items()):
        told.append(f"it is partitioned by ({_spelled(found.partition_keys)}), not by ({_spelled(PARTITION_KEYS)})")
    if found.kind != "EXTERNAL_TABLE":
        told.append(f"it is a {found.kind or 'thing without a type'}, not an EXTERNAL_TABLE")
    if found.serde != _PARQUET_SERDE:
        told.append(f"its files are read by {found.serde or 'nothing'}, not by {_PARQUET_SERDE}")
    if not is_same_location(found.location, location):
        told.append(f"its files lie in {found.location or 'no folder'}, not in {location}")
    return tuple(told)


def is_same_location(one: str, other: str) -> bool:
    """Whether two URIs name one folder, however many slashes each way of writing it has."""
    return _location_parts(one) == _location_parts(other)


def partition_name(partition: HivePartition) -> str:
    """The name of a partition as `SHOW PARTITIONS` prints it.

    Hive escapes characters that file systems or its own syntax give a meaning (`FileUtils.escapePathName`); of those
    that a harmless name may hold, that is the percent sign alone.
    """
    return f"dt={partition.date}/cluster={partition.cluster.replace('%', '%25')}"


def hive_quoted(name: str) -> str:
    """A name as one of Hive's identifiers."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def hive_literal(text: str) -> str:
    r"""A text as one of Hive's literals.

    Beside quotes, what stands for something before or while Hive reads a statement is written as `\uXXXX`: `$`
    (variables), control characters and everything that is not ASCII.
    """
    return "'" + "".join(_literal_character(character) for character in text) + "'"


def _literal_character(character: str) -> str:
    if character in "\\'\"":
        return f"\\{character}"
    if character in "$;" or not " " <= character <= "~":
        units = character.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))
    return character


def _table(database: str, table: Table) -> str:
    return f"{hive_quoted(database)}.{hive_quoted(table.name)}"


def _partition(partition: HivePartition) -> str:
    return f"PARTITION (dt={hive_literal(partition.date)}, cluster={hive_literal(partition.cluster)})"


def _recorded(table: Table) -> str:
    return f"{hive_literal(_COLUMNS_PROPERTY)}={hive_literal(','.join(hive_columns(table)))}"


def _spelled(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _location_parts(location: str) -> tuple[str, str, str]:
    scheme, _, rest = location.partition(":") if ":" in location.partition("/")[0] else ("file", "", location)
    authority = ""
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
    return scheme.lower(), authority.lower(), "/" + "/".join(part for part in rest.split("/") if part)
