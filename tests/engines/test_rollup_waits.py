"""A running `gputide run rollup` outlives a broker that is away for a while."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.settings.pipeline import KafkaSettings
from pipeline.bus.bus_kafka import KafkaWriter
from pipeline.remote_write.decode import Version
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.engines.kafka_parts import kafka_settings
from tests.engines.running import Kafka
from tests.pipeline.builders import (
    USAGE_TABLES,
    Rows,
    Sample,
    body_of,
    expected_rows,
    intake_of,
    small_fleet,
    stored_rows,
)
from tests.waiting import until

pytestmark = pytest.mark.engines

PATIENCE = {"seconds_max": 90.0, "pause_seconds": 0.3}


def test_running_rollup_waits_for_a_broker_that_is_away_and_goes_on(
    kafka: Kafka, fresh_topic: Callable[..., str], tmp_path: Path, repository: Path
) -> None:
    settings = kafka_settings(kafka, fresh_topic())
    samples = small_fleet(pods=2, hours=2)
    first, second = samples[: len(samples) // 2], samples[len(samples) // 2 :]
    send(settings, first)
    given = {
        "bus.kind": "kafka", "kafka.servers": kafka.bootstrap, "kafka.topic": settings.topic,
        "kafka.group": settings.group, "kafka.request_seconds": "2",
    }  # fmt: skip
    options = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    said = tmp_path / "said"
    with said.open("w") as errors:
        rollup = subprocess.Popen(
            [sys.executable, "-m", "gputide.cli", "--data-dir", str(tmp_path / "data"), *options, "run", "rollup"],
            stderr=errors, cwd=repository, env={**os.environ, "PYTHONPATH": str(repository)},
        )  # fmt: skip
        try:
            until(lambda: found(tmp_path) == expected(first), **PATIENCE)
            kafka.kill()
            until(lambda: "trying again" in said.read_text(), **PATIENCE)
            kafka.start()
            send(settings, second)
            until(lambda: found(tmp_path) == expected(samples), **PATIENCE)
        finally:
            rollup.send_signal(signal.SIGTERM)
        assert rollup.wait(timeout=60) == 0, said.read_text()


def send(settings: KafkaSettings, samples: list[Sample]) -> None:
    """Put samples on the topic as a receiver does."""
    writer = KafkaWriter(settings)
    assert intake_of(writer).take(body_of(samples), Version.V2).status == 204
    writer.close()


def found(folder: Path) -> list[Rows]:
    """What the warehouse holds."""
    warehouse = DuckdbWarehouse(folder / "data" / "warehouse")
    return [stored_rows(warehouse, table) for table in USAGE_TABLES]


def expected(samples: list[Sample]) -> list[Rows]:
    """What the warehouse must hold."""
    return [expected_rows(samples, table) for table in USAGE_TABLES]
