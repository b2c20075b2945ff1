"""A JobManager of a cluster runs the job: it goes on when the roll-up that started it is killed, and is found again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.schema import WINDOW_SECONDS
from fleet.settings.settings import load_settings
from gputide.doctor.checks import run_checks
from gputide.doctor.engines import flink_checks
from gputide.operate.engine_parts import Engine
from gputide.operate.engine_process import read_register
from gputide.operate.engines import down, up
from pipeline.bus.bus_kafka import KafkaWriter
from pipeline.remote_write.decode import Version
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.engines.kafka_parts import kafka_settings
from tests.engines.running import Kafka
from tests.pipeline.builders import USAGE_TABLES, body_of, expected_rows, intake_of, small_fleet, stored_rows

pytestmark = pytest.mark.engines

DEADLINE_SECONDS = 150.0
FORMER_SECONDS = 60


@pytest.fixture
def job_manager(engines_cache: Path, tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "cluster"
    up(folder, [Engine.FLINK], cache=engines_cache, ports={}, tell=print)
    try:
        yield f"http://127.0.0.1:{read_register(folder)[Engine.FLINK].ports['rest_port']}"
    finally:
        down(folder, [Engine.FLINK], tell=print)


@pytest.mark.parametrize("window_seconds", [60, 300])
def test_a_cluster_keeps_the_job_of_a_killed_rollup_until_settings_say_otherwise_and_no_row_is_lost(
    kafka: Kafka,
    fresh_topic: Callable[..., str],
    engines_cache: Path,
    job_manager: str,
    tmp_path: Path,
    repository: Path,
    window_seconds: int,
) -> None:
    settings = kafka_settings(kafka, fresh_topic(2), partitions=2)
    samples = small_fleet(pods=2, hours=3)
    given = {
        "bus.kind": "kafka", "kafka.servers": kafka.bootstrap,
        "kafka.topic": settings.topic, "kafka.group": settings.group, "flink.rest": job_manager,
        "flink.checkpoint_seconds": "3600",  # so every checkpoint is one that was asked for
    }  # fmt: skip
    options = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    program = [sys.executable, "-m", "gputide.cli", "--data-dir", str(tmp_path / "data")]
    command = [*program, *options, "run", "rollup", "--engine", "flink", "--cache", str(engines_cache)]
    environ = {**os.environ, "PYTHONPATH": str(repository)}
    first = subprocess.Popen(command, cwd=repository, env=environ, start_new_session=True)
    try:
        until(lambda: [job["status"] for job in jobs(job_manager)] == ["RUNNING"])
    finally:
        os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    writer = KafkaWriter(settings)
    assert intake_of(writer).take(body_of(samples), Version.V2).status == 204
    writer.close()
    (job,) = jobs(job_manager)
    assert job["status"] == "RUNNING"
    assert doctor_codes(given) == set()
    again = [*command, "--set", f"rollup.window_seconds={window_seconds}", "--drain"]
    done = subprocess.run(
        again, cwd=repository, env=environ, timeout=DEADLINE_SECONDS, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ended = {found["id"]: found["status"] for found in jobs(job_manager)}
    assert set(ended.values()) == {"FINISHED"}
    assert len(ended) == (1 if window_seconds == FORMER_SECONDS else 2)
    assert job["id"] in ended
    assert doctor_codes(given) == {"flink-no-job"}
    warehouse = DuckdbWarehouse(tmp_path / "data" / "warehouse")
    for table in USAGE_TABLES:
        levels = WINDOW_SECONDS if window_seconds == FORMER_SECONDS else WINDOW_SECONDS[1:]
        assert stored_rows(warehouse, table, levels=levels) == expected_rows(samples, table, levels)


def doctor_codes(given: dict[str, str]) -> set[str]:
    """What the doctor finds of Flink."""
    found = run_checks(flink_checks(load_settings(None, given, {})))
    return {one.kind.code for one in found if one.kind is not None}


def jobs(address: str) -> list[dict[str, str]]:
    """The jobs that the cluster knows, ended ones included."""
    with urllib.request.urlopen(f"{address}/jobs", timeout=10) as answer:
        found: list[dict[str, str]] = json.load(answer)["jobs"]
    return found


def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.5)
