"""The rollup as Flink SQL, generated from `fleet.schema`: no Python runs in the job.

Records in the *rows* format come from a Kafka topic. Per identity and time, an OVER aggregate counts how often each
measure was there: only the first occurrence is added (its memory is the job's state, let go of after
`rollup.repeat_memory_seconds`). Sums are kept by *event* window, flushed by a *processing-time* window: a late row
makes one more additive row for its window, nothing waits for a watermark and nothing is dropped. Pure text; called by
`rollup_flink` and by `gputide rollup --engine flink --explain`.

What can't be read goes to a dead-letter topic as it came: no header `schema` of this version, or no JSON object of it.
A row in a readable record whose `hash` or time is missing, or can't be read as an integer, is passed over and counted
nowhere: dead letters are whole records, and sending one would show as unread what its other rows have added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from fleet.schema import (
    CARD_MEASURES,
    CARD_USAGE,
    POD_USAGE,
    SCHEMA_VERSION,
    SLICE_MEASURES,
    TABLES,
    ColumnKind,
    Merge,
    Table,
)

HEADER = "schema"
"""Header of every record; its value is the schema's version in ASCII digits."""
DEAD_SUFFIX = ".dead"
"""What the name of the dead-letter topic ends with."""
RECORD_START = f'{{"schema_version":{SCHEMA_VERSION},"body":"'
"""What every record of this version begins with; `row_records` writes it."""

_USAGE_MEASURES = {POD_USAGE.name: SLICE_MEASURES, CARD_USAGE.name: CARD_MEASURES}
_FLINK_TYPES = {
    ColumnKind.TEXT: "STRING",
    ColumnKind.INTEGER: "BIGINT",
    ColumnKind.REAL: "DOUBLE",
    ColumnKind.TIME_MS: "BIGINT",
    ColumnKind.HISTOGRAM: "MULTISET<INT>",
}
_USAGE_TABLES = (POD_USAGE, CARD_USAGE)
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkTopic:
    """The topic that the job reads, and as whom.

    Attributes:
        servers: brokers, `HOST:PORT,…`.
        topic: its name.
        group: consumer group whose offsets show how far checkpoints are.
        properties: further properties of the Kafka client, such as those of TLS and SASL.
        is_resumed_by_group: begin where the group's offsets are, instead of at the oldest record.
    """

    servers: str
    topic: str
    group: str
    properties: Mapping[str, str] = field(default_factory=dict)
    is_resumed_by_group: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkStatements:
    """What a job is made of.

    Attributes:
        definitions: tables and views, in order.
        inserts: what runs, as one job.
    """

    definitions: tuple[str, ...]
    inserts: tuple[str, ...]

    def __str__(self) -> str:
        """The job as a script."""
        inserts = "\n".join(f"{text};" for text in self.inserts)
        return ";\n\n".join((*self.definitions, f"EXECUTE STATEMENT SET BEGIN\n{inserts}\nEND;")) + "\n"


def flink_statements(
    topic: FlinkTopic, *, staging: str, window_seconds: int, flush_seconds: int, histograms: bool = True
) -> FlinkStatements:
    """The whole job.

    Args:
        topic: where records come from; the dead-letter topic stands beside it.
        staging: URI of the folder that takes the Parquet files, one folder per table below it.
        window_seconds: length of the event windows.
        flush_seconds: how long sums are gathered before they are written.
        histograms: False leaves the histograms empty; a benchmark shows by it what they cost.
    """
    definitions = [_records(topic)]
    definitions += [_sink(table, staging) for table in TABLES]
    definitions += [_unnested(table) for table in TABLES]
    definitions += [_counted(table) for table in _USAGE_TABLES]
    inserts = [
        _usage_insert(table, window_seconds, flush_seconds, histograms)
        if table.name in _USAGE_MEASURES
        else _sighting_insert(table, flush_seconds)
        for table in TABLES
    ]
    definitions += [_payloads(topic), _dead_letters(topic)]
    inserts.append(_dead_insert())
    return FlinkStatements(definitions=tuple(definitions), inserts=tuple(inserts))


def fingerprint(*, window_seconds: int, flush_seconds: int) -> str:
    """Tells a job from one whose state it could not read: by its SQL, wherever its topic and files are."""
    nowhere = FlinkTopic(servers="", topic="", group="")
    statements = flink_statements(nowhere, staging="", window_seconds=window_seconds, flush_seconds=flush_seconds)
    return sha256(str(statements).encode()).hexdigest()


def name_in_sql(name: str) -> str:
    """A name as an identifier."""
    return "`" + name.replace("`", "``") + "`"


def text_in_sql(text: str) -> str:
    """A text as a literal."""
    return "'" + text.replace("'", "''") + "'"


def _records(topic: FlinkTopic) -> str:
    columns = ["  `schema_version` INT"]
    columns += [f"  {name_in_sql(table.name)} ARRAY<ROW<{_typed(table)}>>" for table in TABLES]
    columns += ["  `headers` MAP<STRING, BYTES> METADATA VIRTUAL", "  `arrived` AS PROCTIME()"]
    options = {**_kafka_options(topic), "format": "json", "json.ignore-parse-errors": "true"}
    return _table("records", columns, options)


def _payloads(topic: FlinkTopic) -> str:
    """The same topic as bytes: the JSON format passes over what it can't read and says nothing."""
    columns = ["  `payload` STRING", "  `headers` MAP<STRING, BYTES> METADATA VIRTUAL"]
    # A group of its own: the offsets of the job's group must say how far the rows are.
    options = {**_kafka_options(topic), "properties.group.id": topic.group + DEAD_SUFFIX, "format": "raw"}
    return _table("payloads", columns, options)


def _dead_letters(topic: FlinkTopic) -> str:
    options = {
        "connector": "kafka",
        "topic": topic.topic + DEAD_SUFFIX,
        "properties.bootstrap.servers": topic.servers,
        **{f"properties.{name}": value for name, value in sorted(topic.properties.items())},
        "format": "raw",
        "sink.delivery-guarantee": "at-least-once",
    }
    return _table("dead_letters", ["  `payload` STRING"], options)


def _kafka_options(topic: FlinkTopic) -> dict[str, str]:
    return {
        "connector": "kafka",
        "topic": topic.topic,
        "properties.bootstrap.servers": topic.servers,
        "properties.group.id": topic.group,
        "properties.auto.offset.reset": "earliest",
        **{f"properties.{name}": value for name, value in sorted(topic.properties.items())},
        "scan.startup.mode": "group-offsets" if topic.is_resumed_by_group else "earliest-offset",
    }


def _sink(table: Table, staging: str) -> str:
    columns = [f"  {name_in_sql(column.name)} {_FLINK_TYPES[column.kind]}" for column in table.columns]
    options = {
        "connector": "filesystem",
        "path": f"{staging}/{table.name}",
        "format": "parquet",
        "parquet.compression": "ZSTD",
    }
    return _table(f"{table.name}_files", columns, options)


def _table(name: str, columns: list[str], options: Mapping[str, str]) -> str:
    body = ",\n".join(columns)
    written = ",\n".join(f"  {text_in_sql(key)} = {text_in_sql(value)}" for key, value in options.items())
    return f"CREATE TEMPORARY TABLE {name_in_sql(name)} (\n{body}\n) WITH (\n{written}\n)"


def _field_types(table: Table) -> dict[str, str]:
    """Fields of one row in a record, quoted, and their types."""
    fields = {"`hash`": "BIGINT", **{name_in_sql(name): "STRING" for name in _texts(table)}}
    if table.name not in _USAGE_MEASURES:
        times = [column.name for column in table.columns if column.kind is ColumnKind.TIME_MS]
        return fields | {name_in_sql(name): "BIGINT" for name in times}
    fields["`ts_ms`"] = "BIGINT"
    for column in _USAGE_MEASURES[table.name]:
        fields[name_in_sql(column.measure.value)] = "BIGINT"
        if column.has_histogram:
            fields[name_in_sql(column.measure.value + "_bin")] = "INT"
    return fields


def _typed(table: Table) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in _field_types(table).items())


def _texts(table: Table) -> list[str]:
    return [column.name for column in table.columns if column.merge is Merge.KEY and column.kind is ColumnKind.TEXT]


def _is_known() -> str:
    return f"DECODE(`headers`[{text_in_sql(HEADER)}], 'UTF-8') = '{SCHEMA_VERSION}'"


def _unnested(table: Table) -> str:
    """The rows of all records whose header is right."""
    alias = list(_field_types(table))
    time = "`ts_ms`" if table.name in _USAGE_MEASURES else "`last_seen`"
    return (
        f"CREATE TEMPORARY VIEW {name_in_sql(table.name + '_rows')} AS\n"
        f"SELECT {', '.join('r.' + name for name in alias)}, `arrived`\n"
        f"FROM `records` CROSS JOIN UNNEST(`records`.{name_in_sql(table.name)}) AS r ({', '.join(alias)})\n"
        f"WHERE {_is_known()} AND r.`hash` IS NOT NULL AND r.{time} IS NOT NULL"
    )


def _counted(table: Table) -> str:
    """Beside each row, how often its (identity, time) and each of its measures were there, itself included."""
    fields = ", ".join(_field_types(table))
    counts = ["COUNT(*) OVER w AS `times`"]
    counts += [
        f"COUNT({name_in_sql(column.measure.value)}) OVER w AS {name_in_sql(column.measure.value + '_times')}"
        for column in _USAGE_MEASURES[table.name]
    ]
    rows = name_in_sql(table.name + "_rows")
    nulls = ", ".join(f"CAST(NULL AS {kind})" for kind in _field_types(table).values())
    return (
        f"CREATE TEMPORARY VIEW {name_in_sql(table.name + '_counted')} AS\nSELECT *,\n  " + ",\n  ".join(counts) + "\n"
        # The union keeps the planner from merging the projection into the OVER aggregate, which would then carry the
        # record's whole arrays beside each row; its second half takes records without a version and is dropped below.
        f"FROM (SELECT {fields}, `arrived` FROM {rows}\n"
        f"      UNION ALL SELECT {nulls}, `arrived` FROM `records` WHERE `schema_version` < 0)\n"
        "WINDOW w AS (PARTITION BY `hash`, `ts_ms` ORDER BY `arrived` ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    )


def _usage_insert(table: Table, window_seconds: int, flush_seconds: int, histograms: bool) -> str:
    window_ms = window_seconds * 1000
    texts = [name_in_sql(name) for name in _texts(table)]
    inner = [f"(`ts_ms` - 1) - MOD(`ts_ms` - 1, {window_ms}) AS `start_ms`", *texts]
    inner.append("CASE WHEN `times` = 1 THEN 1 ELSE 0 END AS `is_first`")
    outer = ["`start_ms`", f"CAST({window_seconds} AS BIGINT)", *texts, "SUM(CAST(`is_first` AS BIGINT))"]
    first_of_any = ["`times` = 1"]
    for column in _USAGE_MEASURES[table.name]:
        name, times = column.measure.value, name_in_sql(column.measure.value + "_times")
        inner.append(f"CASE WHEN {times} = 1 THEN {name_in_sql(name)} END AS {name_in_sql(name)}")
        first_of_any.append(f"({times} = 1 AND {name_in_sql(name)} IS NOT NULL)")
        outer += [f"{word}({name_in_sql(name)})" for word in ("COUNT", "SUM", "MAX")]
        if column.has_histogram:
            bins = name_in_sql(name + "_bin")
            inner.append(f"CASE WHEN {times} = 1 AND {name_in_sql(name)} IS NOT NULL THEN {bins} END AS {bins}")
            outer.append(f"COLLECT({bins})" if histograms else "CAST(NULL AS MULTISET<INT>)")
    source = (
        f"(SELECT {', '.join(inner)}, `arrived`\n   FROM {name_in_sql(table.name + '_counted')}\n"
        f"   WHERE `hash` IS NOT NULL AND ({' OR '.join(first_of_any)}))"
    )
    return _windowed_insert(table, outer, source, ["`start_ms`", *texts], flush_seconds)


def _sighting_insert(table: Table, flush_seconds: int) -> str:
    texts = [name_in_sql(name) for name in _texts(table)]
    outer = [*texts, "MIN(`first_seen`)", "MAX(`last_seen`)", "MAX(`ended_at`)"]
    source = (
        f"(SELECT {', '.join(texts)}, COALESCE(`first_seen`, `last_seen`) AS `first_seen`, `last_seen`, `ended_at`,\n"
        f"     (`last_seen` - 1) / {_DAY_MS} AS `day`, `arrived`\n   FROM {name_in_sql(table.name + '_rows')})"
    )
    return _windowed_insert(table, outer, source, ["`day`", *texts], flush_seconds)


def _windowed_insert(table: Table, outer: list[str], source: str, keys: list[str], flush_seconds: int) -> str:
    view = name_in_sql(table.name + "_new")
    return (
        f"INSERT INTO {name_in_sql(table.name + '_files')}\n"
        f"WITH {view} AS {source}\n"
        f"SELECT {', '.join(outer)}\n"
        f"FROM TABLE(TUMBLE(TABLE {view}, DESCRIPTOR(`arrived`), {_interval(flush_seconds)}))\n"
        f"GROUP BY {', '.join(keys)}, window_start, window_end"
    )


def _interval(seconds: int) -> str:
    # A literal of more than two digits needs its precision named.
    return f"INTERVAL '{seconds}' SECOND({max(2, len(str(seconds)))})"


def _dead_insert() -> str:
    begins_right = f"STARTSWITH(`payload`, {text_in_sql(RECORD_START)})"
    return (
        "INSERT INTO `dead_letters`\nSELECT `payload` FROM `payloads`\n"
        f"WHERE ({_is_known()}) IS NOT TRUE OR ({begins_right}) IS NOT TRUE OR NOT (`payload` IS JSON OBJECT)"
    )
