"""A broker and a Java machine of Flink for bars, of the versions that `gputide admin engines` fetches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gputide.operate.engine_cache import default_cache_path
from gputide.operate.engine_flink import prepare_flink
from gputide.operate.engine_parts import Engine
from gputide.operate.engine_process import read_register
from gputide.operate.engines import down, up
from pipeline.flink.process import FlinkEnvironment, FlinkProcess


class _Kept(FlinkProcess):
    """A process that several jobs share."""

    def end(self) -> None:
        """Leave it running."""

    def finish(self) -> None:
        super().end()


@contextmanager
def flink_process(scratch: Path) -> Iterator[FlinkProcess]:
    """A Java machine that jobs share; it ends with the context."""
    stock = prepare_flink(default_cache_path(), tell=print_nothing)
    environment = FlinkEnvironment(python=stock.python, environ=stock.environ(os.environ), java_options="-Xmx2g")
    process = _Kept(environment, "bench", scratch / "flink.log")
    try:
        yield process
    finally:
        process.finish()


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """A broker with its data in a folder; gives HOST:PORT."""
    folder.mkdir()
    try:
        up(folder, [Engine.KAFKA], cache=default_cache_path(), ports={}, tell=print_nothing)
        yield f"127.0.0.1:{read_register(folder)[Engine.KAFKA].ports['port']}"
    finally:
        down(folder, [Engine.KAFKA], tell=print_nothing)


def cpu_seconds_of(group: int) -> float:
    """CPU time of all processes of a group."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def print_nothing(_text: str) -> None:
    """Engines' own words would stand between the lines of the bar."""
