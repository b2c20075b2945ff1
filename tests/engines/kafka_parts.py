"""What tests of Kafka are built from: settings for a broker of a test, and reading everything that a topic holds."""

from __future__ import annotations

from typing import Any

from fleet.settings.pipeline import KafkaSettings
from pipeline.bus.bus_kafka import open_lanes
from pipeline.rollup.rollup_duckdb import EmbeddedRollup
from tests.engines.running import Kafka


def kafka_settings(kafka: Kafka, topic: str, **changes: Any) -> KafkaSettings:
    """Settings with a topic and a group of their own and short waits."""
    given: dict[str, Any] = {
        "servers": (kafka.bootstrap,), "topic": topic, "group": f"group-of-{topic}", "partitions": 1,
        "request_seconds": 5, "delivery_seconds": 20, "linger_milliseconds": 0,
        "record_bytes_max": 1 << 20, **changes,
    }  # fmt: skip
    return KafkaSettings(**given)


def everything_in(settings: KafkaSettings) -> list[bytes]:
    """All readable records of all partitions."""
    _, lanes = open_lanes(settings)
    records: list[bytes] = []
    for lane in lanes:
        at = 0
        while (chunk := lane.read(at, bytes_max=1 << 24)) is not None:
            records += chunk.records
            at = chunk.end
        lane.close()
    return records


def roll_up_topic(settings: KafkaSettings, warehouse: Any, dead_letters: Any = None, **options: Any) -> int:
    """Rolls up all partitions until they are empty; returns how many records could not be read."""
    _, lanes = open_lanes(settings)
    rollup = EmbeddedRollup(lambda: lanes, warehouse, dead_letters=dead_letters, **{"chunk_bytes": 1 << 24, **options})
    corrupt = 0
    while (step := rollup.step()) is not None:
        corrupt += step.corrupt
    for lane in lanes:
        lane.close()
    return corrupt
