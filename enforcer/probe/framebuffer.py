"""Measures where framebuffer ends: allocates until it is refused, to the last byte, and tries one way around it.

The limit of an interception library is compared with what the process holds, so what counts is the sum. Allocation goes
by halving steps, largest first; an interception library counts single bytes, the driver itself whole pages of 2 MiB
(CUDA C++ Programming Guide, virtual memory management), so without one the end is found within a page. Everything is
given back at the end. Called by `probe`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from enforcer.probe.readings import FramebufferReading, Gpu
from fleet.units import MIB

_MANAGED_BYTES = 64 * MIB


def measure_framebuffer(
    gpu: Gpu,
    *,
    granted_bytes: int | None,
    card_bytes: int | None,
    spill_bytes_max: int,
    clock: Callable[[], float] = time.monotonic,
) -> FramebufferReading:
    """Fill the framebuffer that there is.

    Args:
        gpu: the card.
        granted_bytes: what the container was granted; None where nobody said.
        card_bytes: framebuffer of the whole card; None where nobody said. Beyond it lies host memory.
        spill_bytes_max: most that is taken beyond the card, so that the node keeps its memory.
        clock: seconds that never go back; for tests.
    """
    free, told = gpu.memory_info()
    context = max(0, told - free)
    ceiling = (card_bytes or told) + spill_bytes_max
    held: list[tuple[int, int]] = []
    is_refused = False
    try:
        step = _power_below(max(told, 1))
        while step >= 1:
            total = context + sum(size for _, size in held)
            address = gpu.allocate(step) if total + step <= ceiling else None
            if address is not None:
                held.append((address, step))
                continue
            is_refused = is_refused or total + step <= ceiling
            step //= 2
        total = context + sum(size for _, size in held)
        spilled = None if card_bytes is None else max(0, total - card_bytes)
        speed = _write_speed(gpu, held, spilled, clock) if spilled else None
        escapes = _managed_escapes(gpu) if is_refused else None
    finally:
        for address, _ in held:
            gpu.free(address)
    return FramebufferReading(
        granted_bytes=granted_bytes,
        told_bytes=told,
        allocated_bytes=total,
        is_refused=is_refused,
        managed_escapes=escapes,
        spilled_bytes=spilled,
        spill_bytes_per_second=speed,
    )


def _managed_escapes(gpu: Gpu) -> bool:
    """True where unified memory is given although everything is taken."""
    address = gpu.allocate(_MANAGED_BYTES, managed=True)
    if address is None:
        return False
    gpu.free(address)
    return True


def _write_speed(gpu: Gpu, held: list[tuple[int, int]], spilled: int, clock: Callable[[], float]) -> float:
    """Bytes per second at which everything that is held is written twice over, counted for what lies beyond."""
    for address, size in held:
        gpu.fill(address, size)
    began = clock()
    for address, size in held:
        gpu.fill(address, size)
    # What lies on the card is written a hundred times faster, so the time is that of the rest.
    return spilled / max(1e-6, clock() - began)


def _power_below(size: int) -> int:
    return 1 << (size.bit_length() - 1)
