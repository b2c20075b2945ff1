"""Measures how fast a container falls asleep and wakes by its shared region: the probe puts itself to sleep.

The region is mounted into the container, so the probe can write to its own what the node's agent would. One thread
launches short kernels and notes when each launch came back; another one writes. Asleep means that no launch came back
for a while; the pause took until the last one that did. Called by `probe`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from enforcer.agent.region_writing import open_for_writing, pause, resume
from enforcer.probe.readings import Gpu, PauseReading

ROUNDS = 3
SILENCE_SECONDS = 0.5
"""Without a launch for so long it is asleep; kernels take milliseconds."""
PATIENCE_SECONDS = 5.0
"""Who still launches after so long does not sleep. The library looks once a second."""
_KERNEL_NANOSECONDS = 1_000_000


def measure_pause(gpu: Gpu, region: Path, *, patience_seconds: float = PATIENCE_SECONDS) -> PauseReading:
    """Sleep and wake some times.

    Args:
        gpu: the card.
        region: this container's region.
        patience_seconds: see `PATIENCE_SECONDS`.

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
