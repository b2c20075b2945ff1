"""One answer: a day of a real fleet through the embedded path and through Kafka, Flink and Hive, row by row."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fleet.data_folder import open_data_folder
from fleet.schema import CARD_USAGE, POD_USAGE, WINDOW_SECONDS
from fleet.settings.settings import load_settings
from gputide.container.warehouse import warehouse
from gputide.operate.engines import free_port
from tests.engines.running import Hive, Kafka
from tests.waiting import text_of, until

pytestmark = pytest.mark.engines

FIRST_DAY_ENDS = "2026-01-06"
ROWS_MIN = 700_000
"""Rows of that day, all tables and levels: a comparison of nothing must not pass."""
EVER = {"since": datetime(2000, 1, 1, tzinfo=UTC), "until": datetime(2100, 1, 1, tzinfo=UTC)}


def test_a_day_of_a_real_fleet_gives_the_same_rows_on_both_whole_paths(
    shared_traces: Path,
    tmp_path: Path,
    repository: Path,
    kafka: Kafka,
    hive: Hive,
    fresh_topic: Callable[..., str],
    fresh_database: str,
    flink: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = str(shared_traces / "fleet-servegen")
    embedded, engines = tmp_path / "embedded", tmp_path / "engines"
    run(repository, embedded, {}, "admin", "replay", trace, "--until", FIRST_DAY_ENDS)
    settings = {
        "bus.kind": "kafka",
        "kafka.servers": kafka.bootstrap,
        "kafka.topic": fresh_topic(2),
        "warehouse.kind": "hive",
        "hive.port": str(hive.port),
        "hive.database": fresh_database,
        "flink.home": str(flink.home),
        "flink.jars": str(flink.jars),
        "flink.checkpoint_seconds": "3",
    }
    with receiving(repository, engines, settings) as url:
        run(repository, tmp_path / "sender", {}, "admin", "replay", trace, "--until", FIRST_DAY_ENDS, "--to", url)
    run(repository, engines, settings, "run", "rollup", "--engine", "flink", "--drain")
    compared, differing = compare(opened(embedded, {}), opened(engines, settings))
    with capsys.disabled():
        print(f"\n   one answer: {compared:,} rows compared, {differing:,} differ")
    assert compared > ROWS_MIN
    assert differing == 0


def compare(left: Any, right: Any) -> tuple[int, int]:
    """Rows of all usage tables and levels and all sightings that were compared, and those that differ."""
    assert left.clusters() == right.clusters()
    compared = differing = 0
    for cluster in left.clusters():
        for table in (POD_USAGE, CARD_USAGE):
            for level in WINDOW_SECONDS:
                ours = left.windows(table, cluster=cluster, level_seconds=level, **EVER)
                theirs = right.windows(table, cluster=cluster, level_seconds=level, **EVER)
                compared += ours.num_rows
                if not ours.equals(theirs):
                    rows = {tuple(map(str, row.items())) for row in ours.to_pylist()}
                    differing += len(rows ^ {tuple(map(str, row.items())) for row in theirs.to_pylist()})
        ours, theirs = left.inventory(cluster), right.inventory(cluster)
        for name in ("cards", "nodes", "grants"):
            compared += len(getattr(ours, name))
            differing += len(set(getattr(ours, name)) ^ set(getattr(theirs, name)))
    return compared, differing


def opened(data: Path, settings: dict[str, str]) -> Any:
    """The warehouse of a data folder."""
    return warehouse(open_data_folder(data, create=False), load_settings(None, settings, {}))


@contextmanager
def receiving(repository: Path, data: Path, settings: dict[str, str]) -> Iterator[str]:
    """A receiver that runs, stopped as a service manager does."""
    port = free_port()
    process = subprocess.Popen(
        command(data, settings, "run", "receive", "--listen", f"127.0.0.1:{port}"), cwd=repository
    )
    try:
        until(lambda: text_of(f"http://127.0.0.1:{port}/healthz"), seconds_max=60)
        yield f"http://127.0.0.1:{port}/api/v1/write"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def run(repository: Path, data: Path, settings: dict[str, str], *words: str) -> None:
    """One verb of the program to its good end."""
    done = subprocess.run(
        command(data, settings, *words), cwd=repository, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


def command(data: Path, settings: dict[str, str], *words: str) -> list[str]:
    """The program's command line."""
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return [sys.executable, "-m", "gputide.cli", "--quiet", "--data-dir", str(data), *given, *words]
