"""What goes wrong during a soak: each fault as what begins it and what ends it.

A fault of the machine (disk, clock) is seen by all our processes at once; one of a process by that alone. A burst and
an explosion of labels come from the senders' side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Thread

from bench.paused_process import pause_process, resume_process
from bench.soak.prometheus_fleet import PrometheusFleet, explosion
from bench.soak.spoiled_machine import SpoiledMachine
from bench.soak.system import STRANGER, SoakSystem
from gputide.operate.engine_parts import Engine
from gputide.operate.engine_process import kill_process

SLOW_FLUSH_MILLISECONDS = 300
CLOCK_STEP_SECONDS = 7200
BURST_TIMES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What faults act on.

    Attributes:
        system: the processes.
        machine: their disk and clock.
        fleet: who sends.
    """

    system: SoakSystem
    machine: SpoiledMachine
    fleet: PrometheusFleet


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakFault:
    """One fault.

    Attributes:
        name: what people call it.
        needs_engines: only with Kafka, Flink and Hive.
        lasts: the fault, from entering it to leaving it; given the stage and how many seconds it will last.
    """

    name: str
    needs_engines: bool = False
    lasts: Callable[[Stage, float], AbstractContextManager[None]]


@contextmanager
def _killed(stage: Stage, part: str) -> Iterator[None]:
    stage.system.kill(part)
    yield
    stage.system.start_again(part)


@contextmanager
def _paused(stage: Stage, part: str) -> Iterator[None]:
    stage.system.pause(part)
    yield
    stage.system.go_on(part)


@contextmanager
def _slow_disk(stage: Stage, _seconds: float) -> Iterator[None]:
    stage.machine.disk(flush_milliseconds=SLOW_FLUSH_MILLISECONDS)
    yield
    stage.machine.disk()


@contextmanager
def _full_disk(stage: Stage, _seconds: float) -> Iterator[None]:
    stage.machine.disk(is_full=True)
    yield
    stage.machine.disk()


@contextmanager
def _clock_step(stage: Stage, seconds: int) -> Iterator[None]:
    stage.machine.clock(wrong_by_seconds=seconds)
    yield
    stage.machine.clock(wrong_by_seconds=0)


@contextmanager
def _burst(stage: Stage, _seconds: float) -> Iterator[None]:
    stage.fleet.hurry(BURST_TIMES)
    yield
    stage.fleet.hurry(1)


@contextmanager
def _label_explosion(stage: Stage, seconds: float) -> Iterator[None]:
    given = {"token": stage.system.token(STRANGER), "cluster": STRANGER}
    sending = Thread(target=lambda: explosion(stage.system.address, seconds=seconds, **given), daemon=True)
    sending.start()
    yield
    sending.join()


@contextmanager
def _engine_killed(stage: Stage, engine: Engine, part: str) -> Iterator[None]:
    kill_process(stage.system.engine_process(engine, part))
    yield
    stage.system.start_engines()


@contextmanager
def _engine_paused(stage: Stage, engine: Engine, part: str) -> Iterator[None]:
    record = stage.system.engine_process(engine, part)
    pause_process(record)
    yield
    resume_process(record)


FAULTS: tuple[SoakFault, ...] = (
    SoakFault(name="receiver killed", lasts=lambda stage, _: _killed(stage, "receiver")),
    SoakFault(name="receiver paused", lasts=lambda stage, _: _paused(stage, "receiver")),
    SoakFault(name="rollup killed", lasts=lambda stage, _: _killed(stage, "rollup")),
    SoakFault(name="page killed", lasts=lambda stage, _: _killed(stage, "page")),
    SoakFault(name="broker killed", needs_engines=True, lasts=lambda s, _: _engine_killed(s, Engine.KAFKA, "broker")),
    SoakFault(name="broker paused", needs_engines=True, lasts=lambda s, _: _engine_paused(s, Engine.KAFKA, "broker")),
    SoakFault(
        name="task manager killed",
        needs_engines=True,
        lasts=lambda s, _: _engine_killed(s, Engine.FLINK, "taskmanager"),
    ),
    SoakFault(
        name="metastore killed", needs_engines=True, lasts=lambda s, _: _engine_killed(s, Engine.HIVE, "metastore")
    ),
    SoakFault(name="slow disk", lasts=_slow_disk),
    SoakFault(name="full disk", lasts=_full_disk),
    SoakFault(name="clock two hours ahead", lasts=lambda stage, _: _clock_step(stage, CLOCK_STEP_SECONDS)),
    SoakFault(name="clock two hours behind", lasts=lambda stage, _: _clock_step(stage, -CLOCK_STEP_SECONDS)),
    SoakFault(name=f"burst x {BURST_TIMES}", lasts=_burst),
    SoakFault(name="label explosion", lasts=_label_explosion),
)
"""In the order in which they come."""
