"""The words that all SQL of the Flink job is made of: its topic, what a row of a record looks like, quoting.

Pure text; called by `flink.sql` and `flink.sql_unread`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.schema import SCHEMA_VERSION, USAGE_MEASURES, ColumnKind, Merge, Table

HEADER = "schema"
"""Header of every record; its value is the schema's version in ASCII digits."""
DEAD_SUFFIX = ".dead"
"""What the name of the dead-letter topic ends with."""
RECORD_START = f'{{"schema_version":{SCHEMA_VERSION},"body":"'
"""What every record of this version begins with; `records.json_rows` writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkTopic:
    """The topic that the job reads, and as whom.

    Attributes:
        servers: brokers, `HOST:PORT,…`.
        group: consumer group whose offsets show how far checkpoints are.
        properties: further properties of the Kafka client, such as those of TLS and SASL.
        is_resumed_by_group: begin where the group's offsets are, instead of at the oldest record.
    """

    servers: str
    topic: str
    group: str
    properties: Mapping[str, str] = field(default_factory=dict)
    is_resumed_by_group: bool = False


def name_in_sql(name: str) -> str:
    """A name as an identifier."""
    return "`" + name.replace("`", "``") + "`"


def text_in_sql(text: str) -> str:
    """A text as a literal."""
    return "'" + text.replace("'", "''") + "'"


def kafka_options(topic: FlinkTopic) -> dict[str, str]:
    """Options of a source that reads the topic, without its format."""
    return {
        "connector": "kafka",
        "topic": topic.topic,
        "properties.bootstrap.servers": topic.servers,
        "properties.group.id": topic.group,
        "properties.auto.offset.reset": "earliest",
        **{f"properties.{name}": value for name, value in sorted(topic.properties.items())},
        "scan.startup.mode": "group-offsets" if topic.is_resumed_by_group else "earliest-offset",
    }


def table_in_sql(name: str, columns: list[str], options: Mapping[str, str]) -> str:
    """A temporary table."""
    body = ",\n".join(columns)
    written = ",\n".join(f"  {text_in_sql(key)} = {text_in_sql(value)}" for key, value in options.items())
    return f"CREATE TEMPORARY TABLE {name_in_sql(name)} (\n{body}\n) WITH (\n{written}\n)"


def field_types(table: Table) -> dict[str, str]:
    """Fields of one row in a record, quoted, and their types."""
    fields = {"`hash`": "BIGINT", **{name_in_sql(name): "STRING" for name in texts_of(table)}}
    if table.name not in USAGE_MEASURES:
        times = [column.name for column in table.columns if column.kind is ColumnKind.TIME_MS]
        return fields | {name_in_sql(name): "BIGINT" for name in times}
    fields["`ts_ms`"] = "BIGINT"
    for column in USAGE_MEASURES[table.name]:
        fields[name_in_sql(column.measure.value)] = "BIGINT"
        if column.has_histogram:
            fields[name_in_sql(column.measure.value + "_bin")] = "INT"
    return fields


def time_of(table: Table) -> str:
    """Name of the time that no row may be without."""
    return "ts_ms" if table.name in USAGE_MEASURES else "last_seen"


def texts_of(table: Table) -> list[str]:
    """Names of the texts that make an identity."""
    return [column.name for column in table.columns if column.merge is Merge.KEY and column.kind is ColumnKind.TEXT]


def is_known() -> str:
    """Whether the header of a record names this version."""
    return f"DECODE(`headers`[{text_in_sql(HEADER)}], 'UTF-8') = '{SCHEMA_VERSION}'"


def rows_of_records(table: Table) -> str:
    """`FROM` and `WHERE` of all rows `r` of one table, in records whose header is right."""
    rows = f"UNNEST(`records`.{name_in_sql(table.name)}) AS r ({', '.join(field_types(table))})"
    return f"FROM `records` CROSS JOIN {rows}\nWHERE {is_known()}"


def is_whole(table: Table) -> str:
    """Whether a row `r` has all that a row needs; what is of another type was read as null."""
    return "(" + " AND ".join(f"r.{name_in_sql(name)} IS NOT NULL" for name in needed(table)) + ")"


def needed(table: Table) -> list[str]:
    """Names of the fields that no row may be without."""
    return ["hash", time_of(table), *texts_of(table)]
