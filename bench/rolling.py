"""Running `gputide run rollup` processes, as the bars start and end them, and what their warehouse shows from outside.

What is in the warehouse is read from the Parquet files that its manifest names, without gputide's own code.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from bench.measured_run import GPUTIDE

_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def rolling_up(data: Path, *settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """A running roll-up on a data folder, with settings as `--set` takes them."""
    options = [part for setting in settings for part in ("--set", setting)]
    process = subprocess.Popen([str(GPUTIDE), "--data-dir", str(data), "--quiet", *options, "run", "rollup"])
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process (proc(5), `stat`)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class NewCards:
    """The cards of `card_usage` in a warehouse; mutable: it reads each file once."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self._read: set[Path] = set()

    def look(self) -> tuple[float, set[str]]:
        """When it looked, epoch seconds, and the cards in files that the manifest names for the first time."""
        try:
            manifest = (self._warehouse / "MANIFEST").read_bytes()
        except FileNotFoundError:
            manifest = b""
        looked_at, found = time.time(), set()
        for path in self._warehouse.glob("card_usage/dt=*/cluster=*/*.parquet"):
            if path not in self._read and path.name.encode() in manifest:
                self._read.add(path)
                found.update(pq.read_table(path, columns=["card"], partitioning=None).column("card").to_pylist())
        return looked_at, found


def wait_until_empty(data: Path, seconds_max: float) -> None:
    """Waits until all lanes of the file bus are committed to their ends; ends the bar where they never are."""
    until = time.monotonic() + seconds_max
    while time.monotonic() < until:
        if all(map(_is_empty, (data / "bus", *data.glob("bus-*")))):
            return
        time.sleep(0.2)
    sys.exit(f"the bus of {data} was not empty in {seconds_max:g} s")


def _is_empty(lane: Path) -> bool:
    segments = sorted(lane.glob("segment-*"))
    if not segments:
        return True
    end = int(segments[-1].name.removeprefix("segment-")) + segments[-1].stat().st_size
    try:
        return int((lane / "committed").read_text()) >= end
    except FileNotFoundError:
        return end == 0
