"""Kafka, Flink and Hive on loopback, for development and tests: started in order, waited for, asked, stopped.

A folder holds one set of engines with their data and logs. What is started here outlives the command, is found again by
the folder's register, and nothing else is ever stopped. Called by `gputide.verbs.admin.engines` and by the tests of
engines.
"""

from __future__ import annotations

import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import FrameType

from fleet.durable import FolderLock
from fleet.errors import Misconfigured, Unavailable
from gputide.operate.engine_flink import FLINK, prepare_flink
from gputide.operate.engine_hive import HIVE
from gputide.operate.engine_kafka import KAFKA
from gputide.operate.engine_parts import Engine, EngineKind, Part
from gputide.operate.engine_process import (
    EngineRun,
    ProcessRecord,
    is_alive,
    read_register,
    start_process,
    stop_process,
    wait_until,
    write_register,
)
from gputide.operate.engine_stock import has_flink
from gputide.operate.engine_tools import Tell

_PORT_SECONDS_MAX = 5.0

KINDS: Mapping[Engine, EngineKind] = {kind.engine: kind for kind in (KAFKA, FLINK, HIVE)}
"""In the order in which they are started: as data flow."""


class State(StrEnum):
    """How one process is found."""

    READY = "ready"
    """No process is needed: what it is made of is there."""
    ANSWERS = "answers"
    SILENT = "silent"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartState:
    """One process, as it was found.

    Attributes:
        state: whether it runs, and answers.
        address: host and port where it answers when it does; the folder of Flink.
        pid: its process id, None where no process is needed.
    """

    engine: Engine
    part: str
    state: State
    address: str
    pid: int | None = None
    log: str | None = None


def fetch(engines: Sequence[Engine], *, cache: Path, tell: Tell) -> None:
    """Fetch what engines are made of into the cache, where it is not there yet.

    Raises:
        Unavailable: a tool is missing, or a registry could not be reached.
        Corrupt: what was fetched is not what the lock names, or the cache can't be written.
    """
    for engine in engines:
        KINDS[engine].prepare(cache, tell=tell)


def up(
    folder: Path, engines: Sequence[Engine], *, cache: Path, ports: Mapping[Engine, Mapping[str, int]], tell: Tell
) -> tuple[PartState, ...]:
    """Start the parts of engines that do not run, each after the one before it answers.

    Args:
        folder: holds their data, logs and register; made where it is missing.
        ports: wanted ports by engine and name; those of the last run, else free ones, for the rest.
        tell: is told in sentences what is being done.

    Returns:
        All parts of these engines.

    Raises:
        Unavailable: something is missing or does not answer, or another process starts or stops engines in this
            folder; then nothing of what this call started runs on.
        Corrupt: what was fetched is not what the lock names, or the folder can't be written.
    """
    folder = folder.resolve()
    with FolderLock(folder, "engines"):
        runs = read_register(folder)
        started: list[ProcessRecord] = []
        is_complete = False
        try:
            for kind in (kind for engine, kind in KINDS.items() if engine in engines):
                run = _with_ports(kind, runs.get(kind.engine), ports.get(kind.engine, {}))
                home = folder / kind.engine.value
                home.mkdir(exist_ok=True)
                for part in kind.lay_out(cache, home, run.ports, tell=tell):
                    if _answers(kind, run, part.name):
                        continue
                    run, record = _started(kind, run, part, home, started, tell)
                    runs[kind.engine] = run
                    write_register(folder, runs)
                    question = kind.questions[part.name]
                    port = run.ports[question.port_name]
                    ask = _asker(question.ask, port)
                    wait_until(ask, record, seconds_max=part.start_seconds_max)
                    tell(f"{kind.engine.value} {part.name} answers at 127.0.0.1:{port} (process {record.pid})")
            is_complete = True
        finally:
            if not is_complete:
                _take_back(folder, runs, started)
    return states(folder, engines)


def down(folder: Path, engines: Sequence[Engine], *, tell: Tell) -> int:
    """Stop what was started in a folder and still runs, the last started first; data and logs stay.

    Returns:
        How many processes were stopped.

    Raises:
        Unavailable: another process starts or stops engines in this folder.
        Corrupt: the register can't be read.
    """
    if not folder.is_dir():
        return 0
    stopped = 0
    with FolderLock(folder, "engines"):
        runs = read_register(folder)
        for engine in (engine for engine in reversed(tuple(KINDS)) if engine in engines and engine in runs):
            for record in reversed(tuple(runs[engine].processes.values())):
                if stop_process(record):
                    tell(f"stopped {engine.value} {record.name} (process {record.pid})")
                    stopped += 1
            runs[engine] = replace(runs[engine], processes={})
        write_register(folder, runs)
    return stopped


def states(folder: Path, engines: Sequence[Engine] = tuple(KINDS)) -> tuple[PartState, ...]:
    """How the parts are that were started in a folder and not stopped since.

    Raises:
        Corrupt: the register can't be read.
    """
    found = []
    runs = read_register(folder)
    for engine, kind in KINDS.items():
        if engine not in engines or engine not in runs:
            continue
        run = runs[engine]
        for name, record in run.processes.items():
            if not is_alive(record):
                state = State.DEAD
            else:
                state = State.ANSWERS if _answers(kind, run, name) else State.SILENT
            address = f"127.0.0.1:{run.ports[kind.questions[name].port_name]}"
            found.append(
                PartState(
                    engine=engine, part=name, state=state, address=address, pid=record.pid, log=str(record.log)
                )
            )  # fmt: skip
    return tuple(found)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now.

    It lies below those that clients are given (Linux: 32768 on): a client that calls an engine that is down, again and
    again, could be given the very port that it calls, and would be connected to itself and keep the engine from it.
    """
    for port in random.sample(range(10_000, 32_768), 1000):
        if _is_free(port):
            return port
    raise Unavailable("cannot find a free port of 127.0.0.1 between 10000 and 32767")


def environments(engines: Sequence[Engine], *, cache: Path) -> tuple[PartState, ...]:
    """What is ready without a process: Flink's environment, where it was fetched."""
    try:
        if Engine.FLINK not in engines or not has_flink(cache):
            return ()
        home = prepare_flink(cache, tell=lambda _: None).home
    except (Misconfigured, Unavailable):
        return ()
    return (PartState(engine=Engine.FLINK, part="environment", state=State.READY, address=str(home)),)


def _started(
    kind: EngineKind, run: EngineRun, part: Part, home: Path, started: list[ProcessRecord], tell: Tell
) -> tuple[EngineRun, ProcessRecord]:
    """Start one part, or take over the silent process of an earlier call, which may just need time."""
    old = run.processes.get(part.name)
    if old is not None and is_alive(old):
        tell(f"{kind.engine.value} {part.name} runs (process {old.pid}) but does not answer yet")
        return run, old
    port = run.ports[kind.questions[part.name].port_name]
    shares_port = [name for name, question in kind.questions.items() if run.ports[question.port_name] == port]
    is_ours = any(name in run.processes and is_alive(run.processes[name]) for name in shares_port)
    if not is_ours and not _is_free(port):
        raise Unavailable(
            f"cannot start {kind.engine.value} {part.name}: port {port} of 127.0.0.1 is taken by another program; "
            "name another one"
        )
    tell(f"starting {kind.engine.value} {part.name}")
    with _uninterrupted():
        record = start_process(
            part.name, part.command, folder=home, log=home / f"{part.name}.log", environ=part.environ
        )
        started.append(record)
    return replace(run, processes={**run.processes, part.name: record}), record


def _take_back(folder: Path, runs: dict[Engine, EngineRun], started: Sequence[ProcessRecord]) -> None:
    """Stop what was started, the last first, and strike it from the register."""
    for record in reversed(started):
        stop_process(record)
    for engine, run in runs.items():
        kept = {name: record for name, record in run.processes.items() if record not in started}
        runs[engine] = replace(run, processes=kept)
    write_register(folder, runs)


def _with_ports(kind: EngineKind, run: EngineRun | None, wanted: Mapping[str, int]) -> EngineRun:
    """The run with a port for every name: the wanted one, that of the last run, or a free one."""
    if run is None:
        run = EngineRun(engine=kind.engine, ports={}, processes={})
    is_running = any(is_alive(record) for record in run.processes.values())
    ports = {}
    for name in kind.port_names:
        last = run.ports.get(name)
        if is_running and last is not None:
            if wanted.get(name, last) != last:
                raise Unavailable(
                    f"cannot move {kind.engine.value} to {name.replace('_', ' ')} {wanted[name]}: it runs on {last}; "
                    f"say `gputide admin engines down {kind.engine.value}` first"
                )
            ports[name] = last
        elif name in wanted:
            ports[name] = wanted[name]
        else:
            ports[name] = last if last is not None and _comes_free(last) else free_port()
    return replace(run, ports=ports)


def _answers(kind: EngineKind, run: EngineRun, part: str) -> bool:
    record = run.processes.get(part)
    question = kind.questions[part]
    return record is not None and is_alive(record) and question.ask(run.ports[question.port_name])


def _asker(ask: Callable[[int], bool], port: int) -> Callable[[], bool]:
    return lambda: ask(port)


def _comes_free(port: int) -> bool:
    # A process that was killed a moment ago keeps its port until the last of its threads is gone.
    deadline = time.monotonic() + _PORT_SECONDS_MAX
    while not _is_free(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Java listens with this option too: connections of the last run that are still closing are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C and a request to end wait for a moment: a process must not run that nobody has noted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[tuple[int, FrameType | None]] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda got, frame: caught.append((got, frame))) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        for got, _ in caught:
            signal.raise_signal(got)
