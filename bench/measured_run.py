"""Runs one command of gputide as a process and measures it from outside: wall time, CPU time, peak memory.

Shared by the bars; the operating system's own accounting of the finished process is what is quoted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GPUTIDE = ROOT / ".venv" / "bin" / "gputide"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """What one process took.

    Attributes:
        wall_seconds: from start to exit.
        cpu_seconds: user and system time.
        rss_bytes_max: largest resident set, of it or of a process that it waited for.
        tree_bytes_max: most memory that it and all processes below it took at one time, shared pages once, looked at
            five times a second; 0 where nobody looked.
        process_bytes_max: most that any one of them took, likewise.
        status: exit status.
        output: what it wrote to standard output.
    """

    wall_seconds: float
    cpu_seconds: float
    rss_bytes_max: int
    tree_bytes_max: int
    process_bytes_max: int
    status: int
    output: str


def run_measured(
    command: list[str],
    *,
    cwd: Path | None = None,
    environ: dict[str, str] | None = None,
    watches_tree: bool = False,
) -> MeasuredRun:
    """Run a command to its end; standard error passes through.

    Args:
        command: program and arguments.
        cwd: working folder.
        environ: environment; this process's own unless given.
        watches_tree: whether the memory of processes below it is looked at as well.
    """
    started = time.perf_counter()
    most = [0, 0]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cwd, env=environ) as process:
        if watches_tree:
            threading.Thread(target=_watch, args=(process, most), daemon=True).start()
        output = process.stdout.read() if process.stdout is not None else ""
        _, wait_status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(wait_status)
    return MeasuredRun(
        wall_seconds=time.perf_counter() - started,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        rss_bytes_max=usage.ru_maxrss * 1024,
        tree_bytes_max=most[0],
        process_bytes_max=most[1],
        status=process.returncode,
        output=output,
    )


def _watch(process: subprocess.Popen[str], most: list[int]) -> None:
    while process.returncode is None:
        found = _tree_bytes(process.pid)
        most[:] = max(most[0], sum(found)), max(most[1], *found)
        time.sleep(0.2)


def _tree_bytes(pid: int) -> list[int]:
    """Proportional set size of a process and of each below it; of one that has just ended 0."""
    found = [0]
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        found = [next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))]
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                found += _tree_bytes(int(child))
    except (OSError, StopIteration):
        pass
    return found


def gputide(data_dir: Path, *arguments: str, watches_tree: bool = False) -> MeasuredRun:
    """Run one verb on a data folder; a status other than 0 ends the bar with what the verb said."""
    command = [str(GPUTIDE), "--data-dir", str(data_dir), "--quiet", *arguments]
    run = run_measured(command, watches_tree=watches_tree)
    if run.status != 0:
        sys.exit(f"gputide {' '.join(arguments)} ended with status {run.status}")
    return run


def at_size(figures: Sequence[float], sizes: Sequence[int], size: int) -> float:
    """A figure at a size: as measured, else on the line through the smallest and the largest.

    Args:
        sizes: of each figure, two at least, rising.
    """
    if size in sizes:
        return figures[sizes.index(size)]
    slope = (figures[-1] - figures[0]) / (sizes[-1] - sizes[0])
    return figures[-1] + slope * (size - sizes[-1])


def traces() -> Path | None:
    """The folder of real traces beside the checkout, None where it is absent."""
    named = os.environ.get("GPUTIDE_TRACES")
    folder = Path(named) if named else ROOT.parent / "shared" / "traces"
    return folder if folder.is_dir() else None


def print_bar(name: str, value: float | str, bar: str, *, holds: bool | None, **more: object) -> None:
    """Print one line of a bar."""
    line = {"name": name, "value": value, "bar": bar, "baseline": None, "ratio": None, "holds": holds, **more}
    print(json.dumps(line, ensure_ascii=False), flush=True)


def print_unmeasured(name: str, bar: str, why: str) -> None:
    """Print the line of a bar that this machine can't measure."""
    print_bar(name, "", bar, holds=None, why=why)
