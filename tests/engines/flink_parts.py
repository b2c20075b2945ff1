"""What tests of the rollup on Flink are built from: a topic of rows, a Java machine that many share, a rollup."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet.settings.pipeline import KafkaSettings
from gputide.operate.engine_flink import FlinkStock
from pipeline.bus.bus_kafka import KafkaWriter
from pipeline.bus.dead_letters_kafka import KafkaDeadLetters
from pipeline.bus.kafka_survey import KafkaProgress
from pipeline.flink.configuration import FlinkJobOptions
from pipeline.flink.process import FlinkEnvironment, FlinkProcess
from pipeline.flink.publish import FlinkPublisher
from pipeline.flink.sql import fingerprint, flink_statements
from pipeline.flink.sql_words import DEAD_SUFFIX, FlinkTopic
from pipeline.flink.state import FlinkState
from pipeline.records.json_rows import pack_rows
from pipeline.rollup.rollup_flink import FlinkRollup
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.engines.running import Kafka
from tests.pipeline.builders import USAGE_TABLES, Sample, expected_rows, stored_rows

SETTLE_SECONDS = 240.0
JAVA_OPTIONS = "-Xmx640m -Xms128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class RowsBus:
    """A Kafka topic as the intake writes it for Flink; the format of its records says so to `intake_of`."""

    pack_record = staticmethod(pack_rows)

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self._writer = KafkaWriter(settings)

    @property
    def lanes(self) -> int:
        return self._writer.lanes

    def append_all(self, payloads: Any) -> None:
        self._writer.append_all(payloads)

    def close(self) -> None:
        self._writer.close()


class SharedProcess(FlinkProcess):
    """One Java machine for the jobs of many tests."""

    def end(self) -> None:
        """Leave it running."""

    def finish(self) -> None:
        super().end()


def environment_of(flink: FlinkStock) -> FlinkEnvironment:
    """A small Java machine that is quick to start."""
    return FlinkEnvironment(python=flink.python, environ=flink.environ(os.environ), java_options=JAVA_OPTIONS)


def rows_settings(kafka: Kafka, topic: str) -> KafkaSettings:
    """A topic of two partitions, read by a group of its name."""
    return KafkaSettings(servers=(kafka.bootstrap,), topic=topic, group=topic, partitions=2, record_bytes_max=1 << 20)


def rollup_of(
    bus: RowsBus,
    warehouse: DuckdbWarehouse,
    folder: Path,
    process_of: Callable[[str], FlinkProcess],
    *,
    window_seconds: int = 60,
    crash_point: Callable[[str], None] = lambda _name: None,
    **options: Any,
) -> FlinkRollup:
    """A rollup with short intervals."""
    state = FlinkState(folder)
    topic = bus.settings.topic

    def statements(is_resumed_by_group: bool) -> Any:
        source = FlinkTopic(
            servers=",".join(bus.settings.servers), topic=topic, group=topic, is_resumed_by_group=is_resumed_by_group
        )
        return flink_statements(source, staging=state.staging.as_uri(), window_seconds=window_seconds, flush_seconds=1)

    return FlinkRollup(
        state,
        statements,
        FlinkJobOptions(
            **{
                "parallelism": 1,
                "checkpoint_milliseconds": 300,
                "flush_seconds": 1,
                "memory_seconds": 3600,
                "restarts": "none",
                **options,
            }
        ),
        publisher=FlinkPublisher(
            state,
            warehouse,
            source=f"flink-{topic}",
            dead_letters=KafkaDeadLetters(bus.settings, topic),
            crash_point=crash_point,
        ),
        progress=[KafkaProgress(bus.settings, topic, group) for group in (topic, topic + DEAD_SUFFIX)],
        process_of=process_of,
        fingerprint=fingerprint(window_seconds=window_seconds, flush_seconds=1),
    )


def drain(rollup: FlinkRollup) -> int:
    """Takes in everything that is on the topic now; gives how many records or rows could not be read."""
    rollup.settle(seconds_max=SETTLE_SECONDS)
    corrupt = 0
    while (step := rollup.step()) is not None:
        corrupt += step.corrupt
    return corrupt


def assert_oracle(warehouse: DuckdbWarehouse, samples: list[Sample]) -> None:
    """Stored rows of both tables and all levels are those of a dictionary."""
    for table in USAGE_TABLES:
        assert stored_rows(warehouse, table) == expected_rows(samples, table)
