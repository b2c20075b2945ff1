"""One soak: a fleet that grows while things go wrong, then a quiet time, then every sample is looked for.

Lag is that of a beacon, one card scraped every few seconds: the age of the newest of its samples that the warehouse
counts. A fault is over when it has ended, nobody's body waits and the lag is back where it was before the first. The
slope of memory is the median of the slopes between all pairs of readings of the quiet time (Theil and Sen), which a
single jump of an allocator does not move.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.soak.faults import FAULTS, Stage
from bench.soak.prometheus_fleet import TAKEN, PrometheusFleet
from bench.soak.spoiled_machine import SpoiledMachine
from bench.soak.system import BEACON, FLEET, Reading, SoakSystem

OURS = ("receiver", "rollup", "page")
BEACON_SECONDS = 5.0
_READING_SECONDS = 5.0
_BEACON_SAMPLES = 22
_FIRST_SHARE = 0.25
"""Of the cards, at the beginning."""
_WARM_SHARE, _QUIET_SHARE = 0.1, 0.4
"""Of the time, before the first fault and after the last."""
_FAULT_SECONDS_MAX = 20.0
_RECOVERY_SECONDS_MAX = 300.0
_LAG_MORE = 1.5
_WAITING_SECONDS_MAX = 1.0
"""A body is answered sooner than this, unless something is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakTask:
    """What is to be run.

    Attributes:
        cards: at the end; a quarter of them at the beginning.
        interval_seconds: between two scrapes of a card.
        seconds: how long.
        has_engines: Kafka, Flink and Hive instead of files and DuckDB.
    """

    cards: int
    interval_seconds: float
    seconds: float
    has_engines: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSeen:
    """How one fault went.

    Attributes:
        name: which.
        cards: how many cards were scraped then.
        seconds: how long it lasted.
        recovery_seconds: from its end until all was as before; None where that did not come.
        lag_seconds_max: how late the warehouse got.
        refused: bodies of the fleet that were not taken at once: it bit.
    """

    name: str
    cards: int
    seconds: float
    recovery_seconds: float | None
    lag_seconds_max: float
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakResult:
    """How a soak went.

    Attributes:
        samples_made: of usage, by the fleet.
        samples_found: in the warehouse at the end, minus those made is what was lost (below) or counted twice (above).
        faults: one after the other.
        lag_seconds: median of the quiet time.
        slope_mib_per_hour: growth of the resident memory of our parts in the quiet time, by part.
        cpu_cores: processor time of each part in the quiet time, cores.
        rss_mib: resident memory of each part at the end.
        restarts: parts that ended by themselves, and how often.
        refused: answers of the receiver by status, of what was sent again.
        quiet_seconds: how long the quiet time was.
    """

    samples_made: int
    samples_found: int
    faults: Sequence[FaultSeen]
    lag_seconds: float
    slope_mib_per_hour: Mapping[str, float]
    cpu_cores: Mapping[str, float]
    rss_mib: Mapping[str, float]
    restarts: Mapping[str, int]
    refused: Mapping[int, int]
    quiet_seconds: float


@dataclass(slots=True)
class _Watch:
    """Looks at everything every few seconds; mutable: filled as time goes."""

    system: SoakSystem
    beacon: PrometheusFleet
    lags: list[tuple[float, float]] = field(default_factory=list)
    readings: list[tuple[float, Mapping[str, Reading]]] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        while not self.is_over.wait(_READING_SECONDS):
            self.readings.append((time.monotonic(), self.system.readings()))
            self.lags.append((time.monotonic(), self.lag_seconds()))

    def lag_seconds(self) -> float:
        """How much of the beacon is not in the warehouse yet."""
        made = self.beacon.samples_made
        return max(0.0, (made - self.system.samples(BEACON)) / _BEACON_SAMPLES * BEACON_SECONDS)

    def lags_since(self, moment: float) -> list[float]:
        return [lag for at, lag in list(self.lags) if at >= moment] or [0.0]


def run_soak(folder: Path, task: SoakTask, tell: Callable[[str], None] | None = None) -> SoakResult:
    """Run one soak in a folder.

    Raises:
        Unavailable: an engine or the C compiler can't be had here.
    """
    say = tell or (lambda text: print(text, file=sys.stderr, flush=True))
    machine = SpoiledMachine(folder)
    system = SoakSystem(folder, machine, has_engines=task.has_engines)
    try:
        system.start()
        return _soaked(system, machine, task, say)
    finally:
        system.stop()


def _soaked(system: SoakSystem, machine: SpoiledMachine, task: SoakTask, say: Callable[[str], None]) -> SoakResult:
    fleet = PrometheusFleet(
        system.address, token=system.token(FLEET), cluster=FLEET, cards=round(task.cards * _FIRST_SHARE),
        interval_seconds=task.interval_seconds,
    )  # fmt: skip
    beacon = PrometheusFleet(
        system.address, token=system.token(BEACON), cluster=BEACON, cards=1, interval_seconds=BEACON_SECONDS,
        connections=1,
    )  # fmt: skip
    began = time.monotonic()
    fleet.start()
    beacon.start()
    watch = _Watch(system=system, beacon=beacon)
    watching = threading.Thread(target=watch.look, daemon=True)
    watching.start()
    time.sleep(task.seconds * _WARM_SHARE)
    usual = max(watch.lags_since(began)) * _LAG_MORE + 2 * BEACON_SECONDS
    say(f"{fleet.cards} cards for {task.seconds * _WARM_SHARE:.0f} s: lag up to {max(watch.lags_since(began)):.0f} s")
    stage = Stage(system=system, machine=machine, fleet=fleet)
    faults = [fault for fault in FAULTS if task.has_engines or not fault.needs_engines]
    slot_seconds = task.seconds * (1 - _WARM_SHARE - _QUIET_SHARE) / len(faults)
    seen = []
    for place, fault in enumerate(faults):
        fleet.grow(round(task.cards * (_FIRST_SHARE + (1 - _FIRST_SHARE) * (place + 1) / len(faults))))
        slot_ends, started, refused = time.monotonic() + slot_seconds, time.monotonic(), fleet.refused
        fault_seconds = min(_FAULT_SECONDS_MAX, slot_seconds / 2)
        with fault.lasts(stage, fault_seconds):
            time.sleep(fault_seconds)
        recovery = _recovered(watch, fleet, beacon, usual)
        time.sleep(max(0.0, slot_ends - time.monotonic()))
        seen.append(
            FaultSeen(
                name=fault.name, cards=fleet.cards, seconds=fault_seconds, recovery_seconds=recovery,
                lag_seconds_max=max(watch.lags_since(started)), refused=fleet.refused - refused,
            )
        )  # fmt: skip
        told = "did not recover" if recovery is None else f"all as before {recovery:.0f} s after its end"
        say(
            f"{fault.name}, {fault_seconds:.0f} s, {fleet.cards} cards: {told}, lag {seen[-1].lag_seconds_max:.0f} s, "
            f"{seen[-1].refused} bodies refused"
        )
    quiet = time.monotonic()
    time.sleep(max(_READING_SECONDS * 3, began + task.seconds - quiet))
    quiet_seconds = time.monotonic() - quiet
    watch.is_over.set()
    watching.join()
    readings = [(at, found) for at, found in watch.readings if at >= quiet]
    for sender in (fleet, beacon):
        sender.end()
    say("senders are done; the bus is drained")
    system.drain()
    first, last = readings[0], readings[-1]
    return SoakResult(
        samples_made=fleet.samples_made,
        samples_found=system.samples(FLEET),
        faults=tuple(seen),
        lag_seconds=statistics.median(watch.lags_since(quiet)),
        slope_mib_per_hour={
            name: slope([(at, found[name].rss_bytes / 2**20) for at, found in readings]) * 3600 for name in OURS
        },
        cpu_cores={
            name: (last[1][name].cpu_seconds - first[1][name].cpu_seconds) / (last[0] - first[0]) for name in last[1]
        },
        rss_mib={name: reading.rss_bytes / 2**20 for name, reading in last[1].items()},
        restarts=dict(system.restarts),
        refused={status: count for status, count in fleet.statuses.items() if status != TAKEN},
        quiet_seconds=quiet_seconds,
    )


def _recovered(
    watch: _Watch, fleet: PrometheusFleet, beacon: PrometheusFleet, usual_lag_seconds: float
) -> float | None:
    """Seconds until no body waits and the lag is usual; None where that does not come."""
    started = time.monotonic()
    while time.monotonic() - started < _RECOVERY_SECONDS_MAX:
        waiting = max(fleet.waiting_seconds, beacon.waiting_seconds)
        if waiting < _WAITING_SECONDS_MAX and watch.lag_seconds() <= usual_lag_seconds:
            return time.monotonic() - started
        time.sleep(0.5)
    return None


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Median slope between all pairs of points (Theil 1950, Sen 1968), value per second; 0 for fewer than two."""
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for earlier, later in itertools.combinations(points, 2)
        if later[0] > earlier[0]
    ]
    return statistics.median(slopes) if slopes else 0.0
