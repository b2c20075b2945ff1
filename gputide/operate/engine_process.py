"""Processes that outlive the command that started them: a group of its own, a log file, a record to find it by.

A record names a process by its number *and* the tick at which the kernel started it, so that a number which went to
somebody else's process is never taken for ours. What was started in a folder stands in its `engines.json`, written
after every step, so that anybody who comes next finds all that runs, however the last one ended. Called by
`gputide.operate.engines`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.durable import write_durably
from fleet.errors import Corrupt, Unavailable
from gputide.operate.engine_parts import Engine

_POLL_SECONDS = 0.1
_TAIL_LINES = 25
_TAIL_BYTES = 65_536
_START_TICKS_FIELD = 22
"""Of `/proc/PID/stat`, counted from 1; see proc(5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """One process that was started here.

    Attributes:
        started_ticks: when the kernel started it, clock ticks since the machine booted.
    """

    name: str
    pid: int
    started_ticks: int
    log: Path


def start_process(
    name: str, command: list[str], *, folder: Path, log: Path, environ: Mapping[str, str]
) -> ProcessRecord:
    """Start a process in a group of its own; its output is appended to the log.

    Raises:
        Unavailable: the program can't be started.
    """
    with log.open("ab") as output:
        try:
            # Not waited for: it is meant to live on when this process has ended.
            started = subprocess.Popen(
                command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        except OSError as exc:
            raise Unavailable(f"cannot start {name}: {command[0]}: {exc.strerror}") from exc
    started.returncode = 0  # else Python warns of a child that nobody waited for
    return ProcessRecord(name=name, pid=started.pid, started_ticks=_started_ticks(started.pid) or 0, log=log)


def is_alive(record: ProcessRecord) -> bool:
    """Whether the very process of the record still runs."""
    _reap(record.pid)
    return _started_ticks(record.pid) == record.started_ticks


def stop_process(record: ProcessRecord, *, patience_seconds: float = 20.0) -> bool:
    """Ask a process to end, and its whole group; make it end when patience is over.

    Returns:
        Whether it was still running.
    """
    if not is_alive(record):
        return False
    _signal_group(record, signal.SIGTERM)
    _signal_group(record, signal.SIGCONT)  # one that was paused could not even hear it
    if not _ends_within(record, patience_seconds):
        kill_process(record)
    return True


def kill_process(record: ProcessRecord) -> None:
    """End a process and its whole group at once, as a power cut would; returns when it is gone."""
    if is_alive(record):
        _signal_group(record, signal.SIGKILL)
        _ends_within(record, float("inf"))


def wait_until(answers: Callable[[], bool], record: ProcessRecord, *, seconds_max: float) -> None:
    """Wait until a started process answers.

    Args:
        answers: whether it does, tried again and again.

    Raises:
        Unavailable: it ended, or time ran out; the message ends with the log's last lines.
    """
    deadline = time.monotonic() + seconds_max
    while not answers():
        if not is_alive(record):
            raise Unavailable(f"cannot start {record.name}: it ended by itself\n{log_tail(record.log)}")
        if time.monotonic() > deadline:
            raise Unavailable(
                f"cannot start {record.name}: no answer within {seconds_max:.0f} s\n{log_tail(record.log)}"
            )
        time.sleep(_POLL_SECONDS)


def log_tail(log: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log, with its name above them."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            last = file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError as exc:
        return f"{log}: {exc.strerror}"
    return "\n".join([f"the end of {log}:", *(f"  | {line}" for line in last)])


def _ends_within(record: ProcessRecord, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_alive(record):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS / 2)
    return True


def _signal_group(record: ProcessRecord, number: signal.Signals) -> None:
    if not is_alive(record):
        return
    try:
        os.killpg(record.pid, number)
    except ProcessLookupError:
        return  # it ended in between


def _started_ticks(pid: int) -> int | None:
    """When the kernel started a process; None where there is none or only its exit status is left.

    The first thread of a killed process may be gone while others hold its ports and files: it runs until the last.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold blanks and parentheses
    is_gone = fields[0] in ("Z", "X") and threads <= 1
    return None if is_gone else int(fields[_START_TICKS_FIELD - 3])


def _reap(pid: int) -> None:
    """Take the exit status of a process that this one started; nothing where another one did."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


FILE_NAME = "engines.json"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """One engine of a folder.

    Attributes:
        ports: by the names of its kind; kept when it ends, so that it comes back where its clients look for it.
        processes: the newest of every part, by the part's name, in the order of starting.
    """

    engine: Engine
    ports: Mapping[str, int]
    processes: Mapping[str, ProcessRecord]


def read_register(folder: Path) -> dict[Engine, EngineRun]:
    """All engines that were ever started in a folder; empty where none was.

    Raises:
        Corrupt: the file is not one of ours.
    """
    path = folder / FILE_NAME
    try:
        document = json.loads(path.read_bytes())
        if document["version"] != _VERSION:
            version = str(document["version"])[:64]
            raise Corrupt(f"cannot read {path}: version {version!r}, this program writes {_VERSION}")
        return {run.engine: run for run in map(_run, document["engines"])}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        why = str(exc)[:200]
        raise Corrupt(f"cannot read {path}: {why!r}; stop what runs there by hand and remove the file") from exc


def write_register(folder: Path, runs: Mapping[Engine, EngineRun]) -> None:
    """Write the file anew.

    Raises:
        Corrupt: the storage can't take it.
    """
    document = {
        "version": _VERSION,
        "engines": [
            {
                "engine": run.engine.value,
                "ports": dict(run.ports),
                "processes": [
                    {"name": name, "pid": record.pid, "started_ticks": record.started_ticks, "log": str(record.log)}
                    for name, record in run.processes.items()
                ],
            }
            for run in runs.values()
        ],
    }
    write_durably(folder / FILE_NAME, json.dumps(document, indent=1).encode() + b"\n")


def _run(document: Any) -> EngineRun:
    records = [
        ProcessRecord(
            name=str(process["name"]),
            pid=int(process["pid"]),
            started_ticks=int(process["started_ticks"]),
            log=Path(process["log"]),
        )
        for process in document["processes"]
    ]
    return EngineRun(
        engine=Engine(document["engine"]),
        ports={str(name): int(port) for name, port in document["ports"].items()},
        processes={record.name: record for record in records},
    )
