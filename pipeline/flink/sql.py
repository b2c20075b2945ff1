"""The rollup as Flink SQL, generated from `fleet.schema`: no Python runs in the job.

Records in the *rows* format come from a Kafka topic. Per identity and time, an OVER aggregate counts how often each
measure was there: only the first occurrence is added (its memory is the job's state, let go of after
`rollup.repeat_memory_seconds`). Sums are kept by *event* window, flushed by a *processing-time* window: a late row
makes one more additive row for its window, nothing waits for a watermark and nothing is dropped. Pure text; called by
`gputide.container.flink` and by `gputide run rollup --engine flink --explain`.

What can't be read, a record or a row of one, goes to files of its own (`flink.sql_unread`).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from fleet.schema import CARD_USAGE, POD_USAGE, TABLES, USAGE_MEASURES, ColumnKind, Table
from pipeline.flink.sql_unread import PLACE, UNREAD_INSERT, unread_definitions
from pipeline.flink.sql_words import (
    FlinkTopic,
    field_types,
    is_whole,
    kafka_options,
    name_in_sql,
    rows_of_records,
    table_in_sql,
    texts_of,
)

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
class FlinkStatements:
    """What a job is made of.

    Attributes:
        definitions: tables and views, in order.
        inserts: what runs, as one job.
    """

    definitions: tuple[str, ...]
    inserts: tuple[str, ...]

    def __str__(self) -> str:
        inserts = "\n".join(f"{text};" for text in self.inserts)
        return ";\n\n".join((*self.definitions, f"EXECUTE STATEMENT SET BEGIN\n{inserts}\nEND;")) + "\n"


def flink_statements(
    topic: FlinkTopic, *, staging: str, window_seconds: int, flush_seconds: int, histograms: bool = True
) -> FlinkStatements:
    """The whole job.

    Args:
        staging: URI of the folder that takes the Parquet files, one folder per table below it.
        flush_seconds: how long sums are gathered before they are written.
        histograms: False leaves the histograms empty; a benchmark shows by it what they cost.
    """
    definitions = [_records(topic)]
    definitions += [_sink(table, staging) for table in TABLES]
    definitions += [_unnested(table) for table in TABLES]
    definitions += [_counted(table) for table in _USAGE_TABLES]
    inserts = [
        _usage_insert(table, window_seconds, flush_seconds, histograms)
        if table.name in USAGE_MEASURES
        else _sighting_insert(table, flush_seconds)
        for table in TABLES
    ]
    definitions += unread_definitions(topic, staging)
    inserts.append(UNREAD_INSERT)
    return FlinkStatements(definitions=tuple(definitions), inserts=tuple(inserts))


def fingerprint(*, window_seconds: int, flush_seconds: int) -> str:
    """Distinguishes a job from one whose state it could not read: by its SQL, wherever its topic and files are."""
    nowhere = FlinkTopic(servers="", topic="", group="")
    statements = flink_statements(nowhere, staging="", window_seconds=window_seconds, flush_seconds=flush_seconds)
    return sha256(str(statements).encode()).hexdigest()


def _records(topic: FlinkTopic) -> str:
    columns = ["  `schema_version` INT"]
    columns += [f"  {name_in_sql(table.name)} ARRAY<ROW<{_typed(table)}>>" for table in TABLES]
    columns += ["  `headers` MAP<STRING, BYTES> METADATA VIRTUAL", *PLACE, "  `arrived` AS PROCTIME()"]
    options = {**kafka_options(topic), "format": "json", "json.ignore-parse-errors": "true"}
    return table_in_sql("records", columns, options)


def _sink(table: Table, staging: str) -> str:
    columns = [f"  {name_in_sql(column.name)} {_FLINK_TYPES[column.kind]}" for column in table.columns]
    options = {
        "connector": "filesystem",
        "path": f"{staging}/{table.name}",
        "format": "parquet",
        "parquet.compression": "ZSTD",
    }
    return table_in_sql(f"{table.name}_files", columns, options)


def _typed(table: Table) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in field_types(table).items())


def _unnested(table: Table) -> str:
    """The whole rows of all records whose header is right."""
    return (
        f"CREATE TEMPORARY VIEW {name_in_sql(table.name + '_rows')} AS\n"
        f"SELECT {', '.join('r.' + name for name in field_types(table))}, `arrived`\n"
        f"{rows_of_records(table)} AND {is_whole(table)}"
    )


def _counted(table: Table) -> str:
    """Beside each row, how often its (identity, time) and each of its measures were there, itself included."""
    fields = ", ".join(field_types(table))
    counts = ["COUNT(*) OVER w AS `times`"]
    counts += [
        f"COUNT({name_in_sql(column.measure.value)}) OVER w AS {name_in_sql(column.measure.value + '_times')}"
        for column in USAGE_MEASURES[table.name]
    ]
    rows = name_in_sql(table.name + "_rows")
    nulls = ", ".join(f"CAST(NULL AS {kind})" for kind in field_types(table).values())
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
    texts = [name_in_sql(name) for name in texts_of(table)]
    inner = [f"(`ts_ms` - 1) - MOD(`ts_ms` - 1, {window_ms}) AS `start_ms`", *texts]
    inner.append("CASE WHEN `times` = 1 THEN 1 ELSE 0 END AS `is_first`")
    outer = ["`start_ms`", f"CAST({window_seconds} AS BIGINT)", *texts, "SUM(CAST(`is_first` AS BIGINT))"]
    first_of_any = ["`times` = 1"]
    for column in USAGE_MEASURES[table.name]:
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
    texts = [name_in_sql(name) for name in texts_of(table)]
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
