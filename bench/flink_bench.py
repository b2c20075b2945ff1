"""A broker for bars, of the version that `gputide admin engines` fetches, and a roll-up on Flink as a user runs it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.measured_run import GPUTIDE
from fleet.settings.pipeline import KafkaSettings
from gputide.operate.engine_cache import default_cache_path
from gputide.operate.engine_parts import Engine
from gputide.operate.engine_process import read_register
from gputide.operate.engines import down, up

SETTLE_SECONDS = 900.0


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """A broker with its data in a folder; gives HOST:PORT."""
    folder.mkdir()
    try:
        up(folder, [Engine.KAFKA], cache=default_cache_path(), ports={}, tell=print_nothing)
        yield f"127.0.0.1:{read_register(folder)[Engine.KAFKA].ports['port']}"
    finally:
        down(folder, [Engine.KAFKA], tell=print_nothing)


def cpu_seconds_below(pid: int) -> float:
    """CPU time of a process and of all below it, those that ended included."""
    ticks: dict[int, int] = {}
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        number = int(path.parent.name)
        parents[number] = int(fields[1])
        ticks[number] = sum(map(int, fields[11:15]))
    found = {pid}
    while more := {number for number, parent in parents.items() if parent in found} - found:
        found |= more
    return sum(ticks.get(number, 0) for number in found) / os.sysconf("SC_CLK_TCK")


@contextmanager
def rolling_up(kafka: KafkaSettings, folder: Path, more: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """`gputide run rollup --engine flink` on a topic, from start to SIGTERM.

    Args:
        more: settings besides the topic's.
    """
    words = {"bus.kind": "kafka", "kafka.servers": kafka.servers[0], "kafka.topic": kafka.topic, **more}
    command = [str(GPUTIDE), "--data-dir", str(folder)]
    command += [word for name, value in words.items() for word in ("--set", f"{name}={value}")]
    command += ["run", "rollup", "--engine", "flink"]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(120)


def wait_for(folder: Path, rows: int, process: subprocess.Popen[bytes]) -> None:
    """Until as many rows lie in the warehouse."""
    deadline = time.monotonic() + SETTLE_SECONDS
    known: dict[Path, int] = {}
    while (found := samples_in(folder / "warehouse", known)) != rows:
        if time.monotonic() > deadline or process.poll() is not None:
            raise SystemExit(f"{found} of {rows} rows are in the warehouse")
        time.sleep(1.0)


def samples_in(warehouse: Path, known: dict[Path, int]) -> int:
    """Samples of the windows of a day, over the files that upkeep has not replaced.

    Args:
        known: of files that were read before, how many they hold.
    """
    total = 0
    newest: dict[tuple[Path, str], Path] = {}
    for folder in sorted(warehouse.glob("*_usage/dt=*/cluster=*"), key=lambda path: (len(path.name), path.name)):
        newest[folder.parent, folder.name.partition("@")[0]] = folder
    for folder in newest.values():
        for path in folder.glob("*.parquet"):
            if path.name.startswith("."):
                continue
            if path not in known:
                try:
                    rows = pq.read_table(path, columns=["window_seconds", "samples"], partitioning=None)
                except OSError:
                    return -1
                days = rows.filter(pc.equal(rows.column("window_seconds"), 86_400))
                known[path] = pc.sum(days.column("samples")).as_py() or 0
            total += known[path]
    return total


def print_nothing(_text: str) -> None:
    """Engines' own words would stand between the lines of the bar."""
