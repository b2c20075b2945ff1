"""Measures how much of the card's time a container gets: short kernels that fill the whole card, one after the other.

Each keeps the card busy for a known time, so the share is kernels × their time / the time that all took. A limiter that
holds launches back makes the rest of the time. The same again with graphs, which pass by limiters that only know
launches (Project-HAMi/HAMi#1445). Called by `probe`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from enforcer.probe.readings import ComputeReading, Gpu

KERNEL_SECONDS = 0.002
"""Time of one kernel: long against the cost of a launch, short against a limiter's step of some 120 ms."""
WARM_UP_SECONDS = 2.0
"""Before anything is counted: a token bucket begins full, and clocks rise."""
_IN_FLIGHT = 8


def measure_compute(
    gpu: Gpu,
    *,
    granted_ratio: float | None,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> ComputeReading:
    """Keep the card as busy as the container may.

    Args:
        gpu: the card; nobody else may work on it meanwhile.
        granted_ratio: share of the card, 0-1; None where there is no limit, or nobody said.
        seconds: how long to measure, for launches and for graphs each.
        clock: seconds that never go back; for tests.
    """
    nanoseconds = round(KERNEL_SECONDS * 1e9)
    launched = _share(gpu, lambda: gpu.spin(nanoseconds), seconds, clock)
    graph = _share(gpu, gpu.spin_by_graph, seconds, clock) if gpu.record_spin_graph(nanoseconds) else None
    return ComputeReading(granted_ratio=granted_ratio, launched_ratio=launched, graph_ratio=graph, seconds=seconds)


def _share(gpu: Gpu, launch: Callable[[], None], seconds: float, clock: Callable[[], float]) -> float:
    """Share of the time in which kernels ran, 0-1."""
    _run(gpu, launch, min(WARM_UP_SECONDS, seconds), clock)
    kernels, took = _run(gpu, launch, seconds, clock)
    return min(1.0, kernels * KERNEL_SECONDS / took)


def _run(gpu: Gpu, launch: Callable[[], None], seconds: float, clock: Callable[[], float]) -> tuple[int, float]:
    """Kernels that were run, and the time that they took, seconds."""
    began = clock()
    kernels = 0
    while clock() - began < seconds:
        # Some in flight, so that the card never waits for us; waited for, so that none is counted that did not run.
        for _ in range(_IN_FLIGHT):
            launch()
        gpu.wait()
        kernels += _IN_FLIGHT
    return kernels, clock() - began
