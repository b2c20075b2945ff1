"""The SQL of the Flink job holds what the schema says, and nothing that would lose or double rows."""

from __future__ import annotations

import re

from fleet.schema import CARD_USAGE, MEASURES, POD_USAGE, TABLES, ColumnKind, Merge
from pipeline.flink.sql import fingerprint, flink_statements
from pipeline.flink.sql_words import RECORD_START, FlinkTopic, text_in_sql
from pipeline.records import json_rows as row_records

TOPIC = FlinkTopic(servers="broker:9092", topic="samples", group="rollup", properties={"x": "it's"})
STATEMENTS = flink_statements(TOPIC, staging="file:///staging", window_seconds=60, flush_seconds=300)
TEXT = str(STATEMENTS)


def test_every_column_of_every_table_is_written_in_the_schemas_order() -> None:
    for table in TABLES:
        (sink,) = [text for text in STATEMENTS.definitions if f"TABLE `{table.name}_files`" in text]
        assert re.findall(r"^  `(\w+)` ", sink, re.MULTILINE) == [column.name for column in table.columns]
        (insert,) = [text for text in STATEMENTS.inserts if f"INTO `{table.name}_files`" in text]
        for column in table.columns:
            if column.merge is Merge.HISTOGRAM:
                assert f"COLLECT(`{column.name.removesuffix('_histogram')}_bin`)" in insert


def test_sums_are_flushed_by_the_clock_and_no_row_is_late() -> None:
    assert "WATERMARK" not in TEXT
    assert TEXT.count("DESCRIPTOR(`arrived`), INTERVAL '300' SECOND(3)") == len(TABLES)


def test_each_measure_is_added_at_its_first_occurrence_only() -> None:
    for column in MEASURES:
        name = column.measure.value
        assert f"COUNT(`{name}`) OVER w AS `{name}_times`" in TEXT
        assert f"CASE WHEN `{name}_times` = 1 THEN `{name}` END" in TEXT
    assert TEXT.count("PARTITION BY `hash`, `ts_ms` ORDER BY `arrived`") == 2


def test_window_of_a_sample_is_the_one_that_its_step_ends_in() -> None:
    assert TEXT.count("(`ts_ms` - 1) - MOD(`ts_ms` - 1, 60000)") == 2


def test_quotes_in_options_stay_inside_their_literal() -> None:
    assert "'properties.x' = 'it''s'" in TEXT
    assert text_in_sql("'; DROP") == "'''; DROP'"


def test_files_of_what_is_unread_take_records_of_another_header_beginning_or_form() -> None:
    (view,) = [text for text in STATEMENTS.definitions if "VIEW `unread`" in text]
    of_records = view.partition("UNION ALL")[0]
    assert "`headers`['schema']" in of_records
    assert text_in_sql(row_records.RECORD_START) in of_records
    assert "NOT (DECODE(`payload`, 'UTF-8') IS JSON OBJECT)" in of_records
    assert row_records.RECORD_START == RECORD_START


def test_a_row_is_either_added_or_unread() -> None:
    (unread,) = [text for text in STATEMENTS.definitions if "VIEW `unread`" in text]
    for table in TABLES:
        time = "ts_ms" if table in (CARD_USAGE, POD_USAGE) else "last_seen"
        texts = [column.name for column in table.columns if column.kind is ColumnKind.TEXT]
        whole = " AND ".join(f"r.`{name}` IS NOT NULL" for name in ("hash", time, *texts))
        (added,) = [text for text in STATEMENTS.definitions if f"VIEW `{table.name}_rows`" in text]
        assert added.endswith(f"AND ({whole})")
        assert f"AND NOT ({whole})" in unread


def test_a_job_that_is_resumed_by_its_group_begins_at_the_groups_offsets() -> None:
    resumed = FlinkTopic(servers="b:1", topic="t", group="g", is_resumed_by_group=True)
    text = str(flink_statements(resumed, staging="file:///s", window_seconds=60, flush_seconds=5))
    assert "'scan.startup.mode' = 'group-offsets'" in text
    assert "earliest-offset" not in text


def test_fingerprint_changes_with_the_windows_alone() -> None:
    assert fingerprint(window_seconds=60, flush_seconds=5) == fingerprint(window_seconds=60, flush_seconds=5)
    assert fingerprint(window_seconds=60, flush_seconds=5) != fingerprint(window_seconds=300, flush_seconds=5)
    assert fingerprint(window_seconds=60, flush_seconds=5) != fingerprint(window_seconds=60, flush_seconds=6)
