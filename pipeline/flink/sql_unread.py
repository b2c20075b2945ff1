"""What the Flink job can't read: into files beside the rows, exactly once, for the publisher to keep and count.

A record whose header `schema` is of another version, or that is no JSON object of this one, goes there as it came. A
row inside a readable record that has no hash, no time or not all texts of its identity, or has one of another type,
goes there alone, as it was read: a dead letter with its whole record would show as unread what the other rows have
added. `flink.unread` takes the files to the dead letters. Pure text; called by `flink.sql`.

Not seen here, since Flink's JSON format reads them as absent: a measure of another type, a row that is no object, and
a table's rows that are no array.
"""

from __future__ import annotations

from fleet.schema import TABLES, Table
from pipeline.flink.sql_words import (
    DEAD_SUFFIX,
    RECORD_START,
    FlinkTopic,
    field_types,
    is_known,
    is_whole,
    kafka_options,
    name_in_sql,
    needed,
    rows_of_records,
    table_in_sql,
    text_in_sql,
)

UNREAD_FOLDER = "unread"
"""Folder below `staging` with one row per record or row that could not be read."""
PLACE = (
    "  `from_partition` INT METADATA FROM 'partition' VIRTUAL",
    "  `from_offset` BIGINT METADATA FROM 'offset' VIRTUAL",
)
"""Columns that say where a record lies on the topic."""
UNREAD_INSERT = (
    "INSERT INTO `unread_files`\nSELECT `payload`, `kind`, `reason`, `from_partition`, `from_offset`\nFROM `unread`"
)
"""What runs."""

_RECORD = "record"


def unread_definitions(topic: FlinkTopic, staging: str) -> list[str]:
    """Tables and views, in order; they build on the table `records`.

    Args:
        staging: URI of the folder that takes files.
    """
    return [_payloads(topic), _unread(), _files(staging)]


def _payloads(topic: FlinkTopic) -> str:
    """The same topic as bytes: the JSON format passes over what it can't read and says nothing."""
    columns = ["  `payload` BYTES", "  `headers` MAP<STRING, BYTES> METADATA VIRTUAL", *PLACE]
    # A group of its own: the offsets of the job's group must say how far the rows are.
    options = {**kafka_options(topic), "properties.group.id": topic.group + DEAD_SUFFIX, "format": "raw"}
    return table_in_sql("payloads", columns, options)


def _unread() -> str:
    pieces = [_unread_records(), *(_unread_rows(table) for table in TABLES)]
    return "CREATE TEMPORARY VIEW `unread` AS\n" + "\nUNION ALL\n".join(pieces)


def _unread_records() -> str:
    # Decoded, so that bytes that are no UTF-8 are kept as they are.
    text = "DECODE(`payload`, 'UTF-8')"
    begins_right = f"STARTSWITH({text}, {text_in_sql(RECORD_START)})"
    return (
        f"SELECT `payload`, {text_in_sql(_RECORD)} AS `kind`,\n"
        f"  CASE WHEN ({is_known()}) IS NOT TRUE THEN 'its header does not name the schema of this program'\n"
        f"       WHEN ({begins_right}) IS NOT TRUE THEN 'it does not begin as records of this schema do'\n"
        "       ELSE 'it is no JSON object' END AS `reason`, `from_partition`, `from_offset`\n"
        "FROM `payloads`\n"
        f"WHERE ({is_known()}) IS NOT TRUE OR ({begins_right}) IS NOT TRUE OR NOT ({text} IS JSON OBJECT)"
    )


def _unread_rows(table: Table) -> str:
    fields = ", ".join(f"KEY {text_in_sql(name.strip('`'))} VALUE r.{name}" for name in field_types(table))
    missing = ", ".join(
        f"CASE WHEN r.{name_in_sql(name)} IS NULL THEN {text_in_sql(name)} END" for name in needed(table)
    )
    return (
        f"SELECT ENCODE(JSON_OBJECT({fields}), 'UTF-8'), {text_in_sql(table.name)},\n"
        f"  'a row lacks, or has of another type: ' || CONCAT_WS(', ', {missing}), `from_partition`, `from_offset`\n"
        f"{rows_of_records(table)} AND NOT {is_whole(table)}"
    )


def _files(staging: str) -> str:
    columns = ["  `payload` BYTES", "  `kind` STRING", "  `reason` STRING"]
    columns += ["  `from_partition` INT", "  `from_offset` BIGINT"]
    options = {
        "connector": "filesystem",
        "path": f"{staging}/{UNREAD_FOLDER}",
        "format": "parquet",
        "parquet.compression": "ZSTD",
    }
    return table_in_sql("unread_files", columns, options)
