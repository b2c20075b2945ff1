"""Probes what one container gets of its card (framebuffer, lending, compute, gate, pause), as a result to be signed.

What the container was granted is read from where its backend says it: HAMi's library by its environment
(Project-HAMi/HAMi:pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go): `CUDA_DEVICE_MEMORY_LIMIT_0`,
`CUDA_DEVICE_SM_LIMIT`, `CUDA_DEVICE_MEMORY_SHARED_CACHE`. The caller may say otherwise. Called by
`gputide admin probe`.

- *Framebuffer and lending*: see `framebuffer`.
- *Compute*: short kernels that fill the whole card, one after the other. Each keeps the card busy for a known time, so
  the share is kernels × their time / the time that all took; the rest is a limiter that holds launches back. Again
  with graphs, which pass by limiters that only know launches (Project-HAMi/HAMi#1445).
- *Gate*: whether launches stop where the monitor shuts them out for low priority, by the same field of the region. A
  core limit that is not forced leaves the gate open while nobody else is there, which says nothing.
- *Pause*: how fast the container falls asleep and wakes by its shared region. The region is mounted into the container,
  so the probe can write what the node's agent would. One thread launches short kernels and notes when each launch came
  back; another one writes. The container is asleep when no launch came back for a while; the pause took until the last
  one that did.

Every figure is measured or None; None says that it was not tried, or that what it needs is not there.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from enforcer.agent.region_writing import open_for_writing, pause, resume, set_recent_kernel
from enforcer.probe.framebuffer import measure_framebuffer, measure_lending
from enforcer.probe.gpu import Gpu
from fleet.errors import Misconfigured
from fleet.grammars.hami import CORE_POLICY_ENV
from fleet.probe_results import ProbeResult
from fleet.regions.fields import BLOCKED


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeReading:
    """How compute is limited.

    Attributes:
        granted_ratio: share of the card, 0-1; None where there is no limit, or nobody said.
        launched_ratio: share of the time in which kernels ran, launched one by one, 0-1.
        graph_ratio: the same, launched as graphs; None where graphs can't be recorded.
    """

    granted_ratio: float | None
    launched_ratio: float
    graph_ratio: float | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseReading:
    """How a pause through the shared region works.

    Attributes:
        pause_seconds: from the write until no kernel was launched any more, the worst of several; None where it never
            came to that.
        resume_seconds: from the write until the next launch, likewise.
        graph_pauses: True where launches of graphs stop as well; None where graphs can't be recorded.
    """

    pause_seconds: float | None
    resume_seconds: float | None
    graph_pauses: bool | None


ROUNDS = 3
SILENCE_SECONDS = 0.5
"""Without a launch for so long it is asleep; kernels take milliseconds."""
PATIENCE_SECONDS = 5.0
"""Who still launches after so long does not sleep. The library looks once a second."""
_KERNEL_NANOSECONDS = 1_000_000
_GATE_SECONDS = 0.001
"""Time between two writes that keep the gate shut."""


def measure_pause(gpu: Gpu, region: Path, *, patience_seconds: float = PATIENCE_SECONDS) -> PauseReading:
    """Sleep and wake some times.

    Raises:
        Refused: the region is in doubt; nobody was put to sleep.
    """
    launching = _Launching(gpu, lambda: gpu.spin(_KERNEL_NANOSECONDS))
    pauses, resumes = _rounds(launching, region, patience_seconds)
    by_graph: bool | None = None
    if gpu.record_spin_graph(_KERNEL_NANOSECONDS):
        graph_pauses, _ = _rounds(_Launching(gpu, gpu.spin_by_graph), region, patience_seconds)
        by_graph = None not in graph_pauses
    return PauseReading(pause_seconds=_worst(pauses), resume_seconds=_worst(resumes), graph_pauses=by_graph)


def measure_gate(gpu: Gpu, region: Path, *, patience_seconds: float = PATIENCE_SECONDS) -> bool:
    """Shut the gate of low priority and look whether launches stop at it; it is open again afterwards.

    Raises:
        Refused: the region is in doubt; nothing was written.
    """
    launching = _Launching(gpu, lambda: gpu.spin(_KERNEL_NANOSECONDS))
    launching.start()
    try:
        _until_launched(launching, time.monotonic(), patience_seconds)
        with open_for_writing(region) as opened:
            began = time.monotonic()
            try:
                while time.monotonic() - began < patience_seconds:
                    # Again and again: the library marks every launch there, and the monitor opens what it did not shut.
                    set_recent_kernel(opened, BLOCKED)
                    if time.monotonic() - max(launching.last_at, began) >= SILENCE_SECONDS:
                        return True
                    time.sleep(_GATE_SECONDS)
            finally:
                set_recent_kernel(opened, 0)
        return False
    finally:
        launching.stop()


class _Launching:
    """A thread that launches until it is stopped; mutable: `last_at` is when the last launch came back."""

    def __init__(self, gpu: Gpu, launch: Callable[[], None]) -> None:
        self._gpu, self._launch = gpu, launch
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe-launches", daemon=True)
        self.last_at = time.monotonic()
        self.failure: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._launch()
                self._gpu.wait()
                self.last_at = time.monotonic()
        except Exception as exc:  # noqa: BLE001 - raised again by `stop`, in the thread that waits for it
            self.failure = exc


def _rounds(
    launching: _Launching, region: Path, patience_seconds: float
) -> tuple[list[float | None], list[float | None]]:
    pauses: list[float | None] = []
    resumes: list[float | None] = []
    launching.start()
    try:
        _until_launched(launching, time.monotonic(), patience_seconds)
        while len(pauses) < ROUNDS and None not in pauses:
            with open_for_writing(region) as opened:
                try:
                    pause(opened)
                    began = time.monotonic()
                    pauses.append(_until_silent(launching, began, patience_seconds))
                finally:
                    resume(opened)
                woken = time.monotonic()
            resumes.append(_until_launched(launching, woken, patience_seconds) if pauses[-1] is not None else None)
    finally:
        launching.stop()
    return pauses, resumes


def _until_silent(launching: _Launching, began: float, patience_seconds: float) -> float | None:
    while time.monotonic() - began < patience_seconds:
        if time.monotonic() - max(launching.last_at, began) >= SILENCE_SECONDS:
            return max(0.0, launching.last_at - began)
        time.sleep(0.001)
    return None


def _until_launched(launching: _Launching, since: float, patience_seconds: float) -> float | None:
    while time.monotonic() - since < patience_seconds:
        if launching.last_at > since:
            return launching.last_at - since
        time.sleep(0.001)
    return None


def _worst(seconds: list[float | None]) -> float | None:
    known = [value for value in seconds if value is not None]
    return max(known) if known and len(known) == len(seconds) else None


KERNEL_SECONDS = 0.002
"""Time of one kernel: long against the cost of a launch, short against a limiter's step of some 120 ms."""
WARM_UP_SECONDS = 2.0
"""Before anything is counted: a token bucket begins full, and clocks rise."""
_IN_FLIGHT = 8


def measure_compute(gpu: Gpu, *, granted_ratio: float | None, seconds: float) -> ComputeReading:
    """Keep the card as busy as the container may."""
    nanoseconds = round(KERNEL_SECONDS * 1e9)
    launched = _share(gpu, lambda: gpu.spin(nanoseconds), seconds)
    graph = _share(gpu, gpu.spin_by_graph, seconds) if gpu.record_spin_graph(nanoseconds) else None
    return ComputeReading(granted_ratio=granted_ratio, launched_ratio=launched, graph_ratio=graph, seconds=seconds)


def _share(gpu: Gpu, launch: Callable[[], None], seconds: float) -> float:
    """Share of the time in which kernels ran, 0-1."""
    _run(gpu, launch, min(WARM_UP_SECONDS, seconds))
    kernels, took = _run(gpu, launch, seconds)
    return min(1.0, kernels * KERNEL_SECONDS / took)


def _run(gpu: Gpu, launch: Callable[[], None], seconds: float) -> tuple[int, float]:
    """Kernels that were run, and the time that they took, seconds."""
    began = time.monotonic()
    kernels = 0
    while time.monotonic() - began < seconds:
        # Some in flight, so that the card never waits for us; waited for, so that none is counted that did not run.
        for _ in range(_IN_FLIGHT):
            launch()
        gpu.wait()
        kernels += _IN_FLIGHT
    return kernels, time.monotonic() - began


MEMORY_LIMIT_ENV = "CUDA_DEVICE_MEMORY_LIMIT_0"
CORE_LIMIT_ENV = "CUDA_DEVICE_SM_LIMIT"
REGION_ENV = "CUDA_DEVICE_MEMORY_SHARED_CACHE"

_NEVER = PauseReading(pause_seconds=None, resume_seconds=None, graph_pauses=None)
_LIMIT = re.compile(r"([0-9]{1,12})([kmgKMG]?)", re.ASCII)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What the probe's container was granted.

    Attributes:
        is_forced: its core limit holds even while nobody else is on the card.
    """

    framebuffer_bytes: int | None = None
    compute_ratio: float | None = None
    card_bytes: int | None = None
    region: Path | None = None
    is_forced: bool = False


def granted_by_environment(environ: Mapping[str, str]) -> Granted:
    """What the environment sets for HAMi's library.

    Raises:
        Misconfigured: a value is not what the library understands; the message names it.
    """
    limit = None
    if text := environ.get(MEMORY_LIMIT_ENV):
        match = _LIMIT.fullmatch(text)
        if match is None:
            raise Misconfigured(f"cannot read {MEMORY_LIMIT_ENV}={text[:40]!r}: expected a size such as 4000m")
        limit = int(match[1]) * _UNITS[match[2].lower()] or None
    ratio = None
    if text := environ.get(CORE_LIMIT_ENV):
        if not text.isdecimal() or int(text) > 100:
            raise Misconfigured(f"cannot read {CORE_LIMIT_ENV}={text[:40]!r}: expected percent, 0-100")
        ratio = int(text) / 100 if 0 < int(text) < 100 else None
    region = environ.get(REGION_ENV)
    return Granted(
        framebuffer_bytes=limit,
        compute_ratio=ratio,
        region=None if not region else Path(region),
        is_forced=environ.get(CORE_POLICY_ENV, "").lower() == "force",
    )


def probe(
    gpu: Gpu, granted: Granted, *, backend: str, node: str, now: datetime, seconds: float, spill_bytes_max: int
) -> ProbeResult:
    """Measure everything that can be measured.

    Args:
        gpu: the card; nobody else may work on it meanwhile.
        seconds: how long compute is measured, for launches and for graphs each.
        spill_bytes_max: most framebuffer that is asked for beyond the card, bytes.

    Raises:
        Refused: the container's region is in doubt.
    """
    framebuffer = measure_framebuffer(
        gpu, granted_bytes=granted.framebuffer_bytes, card_bytes=granted.card_bytes, spill_bytes_max=spill_bytes_max
    )
    lending = None
    if granted.card_bytes is not None and framebuffer.spilled_bytes:
        lending = measure_lending(gpu, framebuffer, granted.card_bytes)
    compute = measure_compute(gpu, granted_ratio=granted.compute_ratio, seconds=seconds)
    gate = None if granted.region is None else measure_gate(gpu, granted.region)
    if not gate and granted.compute_ratio is not None and not granted.is_forced:
        gate = None
    paused = _NEVER if granted.region is None else measure_pause(gpu, granted.region)
    return ProbeResult(
        backend=backend,
        node=node,
        card=gpu.card,
        measured_at=now,
        granted_framebuffer_bytes=framebuffer.granted_bytes,
        allocated_framebuffer_bytes=framebuffer.allocated_bytes,
        is_refused=framebuffer.is_refused,
        managed_escapes=framebuffer.managed_escapes,
        spilled_bytes=framebuffer.spilled_bytes,
        spill_bytes_per_second=None if lending is None else lending.bytes_per_second,
        granted_compute_ratio=compute.granted_ratio,
        compute_ratio=compute.launched_ratio,
        graph_compute_ratio=compute.graph_ratio,
        pause_seconds=paused.pause_seconds,
        resume_seconds=paused.resume_seconds,
        graph_pauses=paused.graph_pauses,
        gate_holds=gate,
        kept_bytes=None if lending is None else lending.kept_bytes,
    )
