"""What tests of the rollup on Flink are built from: a Java machine that many share, a rollup."""

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
from pipeline.flink.description import FlinkDescription, FlinkTopic
from pipeline.flink.process import FlinkEnvironment, FlinkProcess
from pipeline.flink.publish import FlinkPublisher
from pipeline.flink.state import FlinkState, uri_of
from pipeline.rollup.rollup_flink import FlinkRollup
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.engines.running import Kafka
from tests.pipeline.builders import USAGE_TABLES, Sample, expected_rows, stored_rows

SETTLE_SECONDS = 240.0
LATE_DAYS = 2
JAVA_OPTIONS = "-Xmx640m -Xms128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class TopicBus(KafkaWriter):
    """A Kafka topic as the intake writes it, with the settings that it is reached by."""

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(settings)
        self.settings = settings


class SharedProcess(FlinkProcess):
    """One Java machine for the jobs of many tests."""

    def end(self) -> None:
        """Leave it running."""

    def finish(self) -> None:
        super().end()


def environment_of(flink: FlinkStock) -> FlinkEnvironment:
    """A small Java machine that is quick to start."""
    return FlinkEnvironment(
        java=flink.java, class_path=flink.class_path, program=flink.program,
        log_configuration=flink.home / "conf" / "log4j-cli.properties", environ=os.environ, java_options=JAVA_OPTIONS,
    )  # fmt: skip


def topic_settings(kafka: Kafka, topic: str) -> KafkaSettings:
    """A topic of two partitions, read by a group of its name."""
    return KafkaSettings(servers=(kafka.bootstrap,), topic=topic, group=topic, partitions=2, record_bytes_max=1 << 20)


def rollup_of(
    bus: TopicBus,
    warehouse: DuckdbWarehouse,
    folder: Path,
    process_of: Callable[[str], FlinkProcess],
    *,
    window_seconds: int = 60,
    crash_point: Callable[[str], None] = lambda _name: None,
    **options: Any,
) -> FlinkRollup:
    """A rollup with short intervals."""
    state, settings, topic = FlinkState(folder), bus.settings, bus.settings.topic
    source = FlinkTopic(servers=",".join(settings.servers), topic=topic, group=topic)
    return FlinkRollup(
        state,
        FlinkDescription(
            topic=source, staging=uri_of(state.staging), window_seconds=window_seconds, late_days=LATE_DAYS
        ),
        FlinkJobOptions(**{"parallelism": 1, "checkpoint_milliseconds": 300, "restarts": "none", **options}),
        program=Path("/program.jar"),
        publisher=FlinkPublisher(
            state,
            warehouse,
            source=f"flink-{topic}",
            dead_letters=KafkaDeadLetters(settings, topic),
            crash_point=crash_point,
        ),
        progress=KafkaProgress(settings, topic, topic),
        process_of=process_of,
    )


def drain(rollup: FlinkRollup) -> int:
    """Takes in everything that is on the topic now; gives how many records could not be read."""
    rollup.settle(seconds_max=SETTLE_SECONDS)
    corrupt = 0
    while (step := rollup.step()) is not None:
        corrupt += step.corrupt
    return corrupt


def assert_oracle(warehouse: DuckdbWarehouse, samples: list[Sample]) -> None:
    """Stored rows of both tables and all levels are those of a dictionary."""
    for table in USAGE_TABLES:
        assert stored_rows(warehouse, table) == expected_rows(samples, table)
