"""How framebuffer is limited where a probe runs, and how what is held beyond the card takes turns on it.

*Framebuffer*: allocates until it is refused, to the last byte, and tries one way around the limit. The limit of an
interception library is compared with what the process holds, so what counts is the sum. Allocation goes by halving
steps, largest first; an interception library counts single bytes, the driver itself whole pages of 2 MiB (CUDA C++
Programming Guide, virtual memory management), so without one the end is found within a page. All of it is given back.
*Lending*: where more was given than the card has, whether what rests makes room for what works, how much of it stays
on the card all the same, and how fast it comes back. That the bytes beyond the card lie in host memory follows: they
are nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from enforcer.host_memory import CGROUP_FOLDER, OWN_GROUPS, host_memory
from enforcer.probe.gpu import Gpu
from fleet.probe_results import LENT_RATIO_MIN
from fleet.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class FramebufferReading:
    """How framebuffer is limited.

    Attributes:
        granted_bytes: what the container was granted; None where nobody said.
        told_bytes: total framebuffer as programs see it.
        allocated_bytes: most that could be allocated, to the byte that the driver rounds to.
        is_refused: True where an allocation was refused before the card was full.
        managed_escapes: True where unified memory was given beyond that; None where it was not tried.
        spilled_bytes: what was given beyond the card's own framebuffer; 0 where nothing was, None where the card's
            size is not known.
    """

    granted_bytes: int | None
    told_bytes: int
    allocated_bytes: int
    is_refused: bool
    managed_escapes: bool | None
    spilled_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LendingReading:
    """How parts of what is held beyond the card take turns on it.

    Attributes:
        kept_bytes: what stays on the card while the rest is in use, at most; the context is part of it.
        bytes_per_second: how fast one part takes the place of another, counted in both directions.
    """

    kept_bytes: int
    bytes_per_second: float


_MANAGED_BYTES = 64 * MIB
HOST_RATIO_MAX = 0.5
"""Share of the host memory that is left which a probe may fill: nobody is to be killed for it."""


def spill_bytes_left(proc_folder: Path, cgroup_folder: Path = CGROUP_FOLDER) -> int:
    """Host memory that a probe may fill, bytes: half of what the node and the container have left.

    Args:
        proc_folder: see `host_memory`.
        cgroup_folder: where the container sees its own control group.

    Returns:
        0 where the node does not say what it has left.
    """
    left = [found.available_bytes for found in host_memory(proc_folder, OWN_GROUPS, cgroup_folder)]
    return int(HOST_RATIO_MAX * min(left, default=0))


def measure_framebuffer(
    gpu: Gpu,
    *,
    granted_bytes: int | None,
    card_bytes: int | None,
    spill_bytes_max: int,
) -> FramebufferReading:
    """Fill the framebuffer that there is.

    Args:
        card_bytes: framebuffer of the whole card; None where nobody said. Beyond it lies host memory.
        spill_bytes_max: most that is taken beyond the card, so that the node keeps its memory.
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
    )


def _managed_escapes(gpu: Gpu) -> bool:
    """True where unified memory is given although everything is taken."""
    address = gpu.allocate(_MANAGED_BYTES, managed=True)
    if address is None:
        return False
    gpu.free(address)
    return True


LENDING_PARTS = 64
"""Parts of equal size that lending is measured with: what stays on the card is known to one of them."""
_SAME_SPEED = 4.0
"""Up to so many times the time of what surely lies on the card, all of it does; over the link it takes a hundred."""
_PAGE_BYTES = 2 * MIB
"""What the driver moves at a time (CUDA C++ Programming Guide, virtual memory management)."""


def measure_lending(gpu: Gpu, found: FramebufferReading, card_bytes: int) -> LendingReading | None:
    """Hold as much as was found once more, and let its parts take turns on the card.

    The parts that were allocated last grow in number until they don't all stay on the card together: that much of it
    is lent, the rest is kept by the others. Then the parts before them, which had to leave for that, are written again,
    and once more when they are back: the difference is the time that their way back takes. What must have moved in it
    at least is what the card can't hold, in either direction; of one that holds twice its framebuffer that is all.

    Args:
        found: what `measure_framebuffer` found.
        card_bytes: framebuffer of the whole card.

    Returns:
        None where too little lies beyond the card, where it stays there, or where it is on the card all the time, which
        is larger than was said.
    """
    beyond = found.allocated_bytes - card_bytes
    if beyond < LENT_RATIO_MIN * card_bytes:
        return None
    free, told = gpu.memory_info()
    size = (found.allocated_bytes - max(0, told - free)) // LENDING_PARTS // _PAGE_BYTES * _PAGE_BYTES
    parts: list[int] = []
    try:
        while len(parts) < LENDING_PARTS:
            address = gpu.allocate(size)
            if address is None:
                return None
            parts.append(address)
        resident = _resident_parts(gpu, parts, size)
        if resident == 0:
            return None
        many = min(resident, LENDING_PARTS // 2)
        former, latter = parts[-2 * many : -many], parts[-many:]
        _write(gpu, former, size)
        _write(gpu, latter, size)
        back = _write(gpu, former, size)
        # A busy machine may make it slow, never fast.
        again = min(_write(gpu, former, size) for _ in range(3))
    finally:
        for address in parts:
            gpu.free(address)
    if back < _SAME_SPEED * again:
        return None
    return LendingReading(
        kept_bytes=max(0, card_bytes - resident * size),
        bytes_per_second=2 * min(beyond, many * size) / (back - again),
    )


def _resident_parts(gpu: Gpu, parts: Sequence[int], size: int) -> int:
    """How many of the parts that were allocated last stay on the card together."""
    _write(gpu, parts, size)
    _write(gpu, parts[-1:], size)
    each = max(_write(gpu, parts[-1:], size) for _ in range(3))
    least, most = 0, len(parts)
    while least < most:
        many = (least + most + 1) // 2
        _write(gpu, parts[-many:], size)
        # A busy machine may make it slow once.
        if any(_write(gpu, parts[-many:], size) <= _SAME_SPEED * each * many for _ in range(2)):
            least = many
        else:
            most = many - 1
    return least


def _write(gpu: Gpu, parts: Sequence[int], size: int) -> float:
    """Seconds that writing parts takes."""
    began = time.monotonic()
    for address in parts:
        gpu.fill(address, size)
    return time.monotonic() - began


def _power_below(size: int) -> int:
    return 1 << (size.bit_length() - 1)
