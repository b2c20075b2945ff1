"""A broker for bars, of the version that `gputide admin engines` fetches, and what a process and those below took."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gputide.operate.engine_cache import default_cache_path
from gputide.operate.engine_parts import Engine
from gputide.operate.engine_process import read_register
from gputide.operate.engines import down, up


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


def print_nothing(_text: str) -> None:
    """Engines' own words would stand between the lines of the bar."""
