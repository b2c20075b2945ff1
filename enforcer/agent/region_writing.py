"""Writes single fields of a container's shared region: framebuffer limits, and which processes sleep.

Only where nothing is in doubt: exact size and version of a released layout, the mark at the beginning, cards with
proper ids, a possible number of processes; else the region is refused by the reason's own word and no byte is
written. A limit or a pause is read back; `recent_kernel` is not, because library and monitor write it at any moment.
What takes effect, and when (Project-HAMi/HAMi-core:src/allocator/allocator.c, src/cuda/memory.c and
src/multiprocess/multiprocess_memory_limit.c, all released versions):

- `limit` is read at every allocation. A limit below what is in use takes nothing back: the next allocation fails, and
  the driver's own query of free memory does too.
- A process whose slot's `status` is not 1 sleeps, in steps of a second, before its next allocation, copy or kernel
  launch; a launch of a CUDA graph does not look. New processes join awake.

The library's semaphore is never taken: its owner is a process id inside the container, so nobody could see that we
hold it. Slots move while processes come and go, so a pause is written to every slot that has a process, looked at
again, and repeated by its caller.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fleet.errors import Refused
from fleet.regions.doubts import RegionDoubt
from fleet.regions.fields import (
    CARD_ID_BYTES,
    CARDS_MAX,
    MAGIC,
    PROCESS_RUNNING,
    PROCESS_SUSPENDED,
    PROCESSES_MAX,
    RegionField,
)
from fleet.regions.files import open_region, size_of
from fleet.regions.layouts import Layout, LayoutName, candidates, find_layout, locate, parse_card_id

_WRITABLE = frozenset({LayoutName.V0, LayoutName.V1_1, LayoutName.V1_1_ODD, LayoutName.V1_2})
"""Layouts that releases wrote and that are known to the byte; the oldest is known by its size alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRegion:
    """A region that held together when it was opened; valid while its `open_for_writing` lasts.

    Attributes:
        limits: framebuffer limit of each, bytes; 0 = none.
        processes: slots in use.
    """

    fd: int
    layout: Layout
    cards: tuple[str, ...]
    limits: tuple[int, ...]
    processes: int


@contextmanager
def open_for_writing(path: Path) -> Iterator[CheckedRegion]:
    """Opens a region whose every field is where it should be.

    Args:
        path: the file; a link in its last part is not followed.

    Raises:
        Refused: something is in doubt; nothing was written.
    """
    opened = open_region(str(path), writable=True)
    if isinstance(opened, RegionDoubt):
        raise _refusal(path, opened)
    try:
        yield check_region(path, opened)
    except OSError as exc:
        raise Refused(f"cannot write the region {path.name}: {exc.strerror}") from exc
    finally:
        os.close(opened)


def write_limits(region: CheckedRegion, limits: Mapping[str, int]) -> None:
    """Sets framebuffer limits of some cards.

    Args:
        limits: by card, bytes, above 0 (0 would lift the limit).

    Raises:
        Refused: a card is not the region's, a limit is not above 0, or the file changed its size meanwhile.
    """
    for card, limit in limits.items():
        if card not in region.cards:
            raise Refused(f"cannot limit framebuffer of {card}: the region holds {', '.join(region.cards)}")
        if not 0 < limit < 2**63:
            raise Refused(f"cannot limit framebuffer of {card} to {limit} bytes: expected more than 0")
    for card, limit in limits.items():
        place = locate(region.layout, RegionField.LIMIT, card=region.cards.index(card))
        _write(region, place, struct.pack("<Q", limit))


def pause(region: CheckedRegion, slots: int = PROCESSES_MAX) -> int:
    """Puts every process in the first slots to sleep; returns how many were awake.

    Raises:
        Refused: the file changed its size meanwhile.
    """
    return _set_status(region, PROCESS_RUNNING, PROCESS_SUSPENDED, slots)


def resume(region: CheckedRegion, slots: int = PROCESSES_MAX) -> int:
    """Wakes every process in the first slots that sleeps; returns how many slept.

    Raises:
        Refused: the file changed its size meanwhile.
    """
    return _set_status(region, PROCESS_SUSPENDED, PROCESS_RUNNING, slots)


def set_recent_kernel(region: CheckedRegion, value: int) -> None:
    """Writes `recent_kernel`, and does not mind if somebody else does at the same moment.

    Raises:
        Refused: the file changed its size meanwhile.
    """
    _check_size(region)
    os.pwrite(region.fd, struct.pack("<i", value), locate(region.layout, RegionField.RECENT_KERNEL))


def _set_status(region: CheckedRegion, old: int, new: int, slots: int) -> int:
    layout = region.layout
    # Not those in use alone: while one process leaves, another one is copied into its slot.
    raw = _read(region, locate(layout, RegionField.PID, process=0), slots * layout.slot_bytes)
    pids, statuses = (
        np.ndarray((slots,), "<i4", raw, layout.fields[field].offset, (layout.slot_bytes,))
        for field in (RegionField.PID, RegionField.STATUS)
    )
    changing = np.flatnonzero((pids > 0) & (statuses == old)).tolist()
    for slot in changing:
        _write(region, locate(layout, RegionField.STATUS, process=slot), struct.pack("<i", new))
    return len(changing)


def check_region(path: Path, fd: int) -> CheckedRegion:
    """Checks an open region; see `open_for_writing`, which closes it too."""
    size = size_of(fd)
    shapes = candidates(size)
    if not shapes:
        raise _refusal(path, RegionDoubt.UNKNOWN_SIZE)
    raw = os.pread(fd, shapes[0].region_bytes, 0)
    if len(raw) < shapes[0].region_bytes or size_of(fd) != size:
        raise _refusal(path, RegionDoubt.UNKNOWN_SIZE)
    if struct.unpack_from("<i", raw, 0)[0] != MAGIC:
        raise _refusal(path, RegionDoubt.UNINITIALISED)
    (processes,) = struct.unpack_from("<i", raw, shapes[0].tail_offset)
    if not 0 <= processes <= PROCESSES_MAX:
        raise _refusal(path, RegionDoubt.PROCESS_COUNT_IMPOSSIBLE)
    layout = find_layout(size, raw, processes)
    if layout is None or layout.name not in _WRITABLE:
        raise _refusal(path, RegionDoubt.UNKNOWN_VERSION)
    cards = _cards(path, layout, raw)
    place = locate(layout, RegionField.LIMIT)
    limits = struct.unpack_from(f"<{CARDS_MAX}Q", raw, place)[: len(cards)]
    return CheckedRegion(fd=fd, layout=layout, cards=cards, limits=limits, processes=processes)


def _cards(path: Path, layout: Layout, raw: bytes) -> tuple[str, ...]:
    (count,) = struct.unpack_from("<Q", raw, locate(layout, RegionField.DEVICE_NUM))
    if count > CARDS_MAX:
        raise _refusal(path, RegionDoubt.CARD_COUNT_IMPOSSIBLE)
    if count == 0:
        raise _refusal(path, RegionDoubt.NO_CARDS)
    cards = []
    for number in range(count):
        start = locate(layout, RegionField.UUIDS, card=number)
        card = parse_card_id(raw[start : start + CARD_ID_BYTES])
        if card is None:
            raise _refusal(path, RegionDoubt.CARD_ID_MALFORMED)
        cards.append(card)
    if len(set(cards)) < len(cards):
        raise _refusal(path, RegionDoubt.CARD_REPEATED)
    return tuple(cards)


def _read(region: CheckedRegion, offset: int, size: int) -> bytes:
    raw = os.pread(region.fd, size, offset)
    if len(raw) < size:
        raise Refused(f"cannot read the region: {RegionDoubt.UNKNOWN_SIZE}: it was cut short while it was open")
    return raw


def _write(region: CheckedRegion, offset: int, value: bytes) -> None:
    """One aligned value, in one call; the pages are the ones that the container has mapped."""
    _check_size(region)
    os.pwrite(region.fd, value, offset)
    if _read(region, offset, len(value)) != value:
        raise Refused("cannot write the region: somebody else wrote the same field at the same moment")


def _check_size(region: CheckedRegion) -> None:
    if size_of(region.fd) != region.layout.file_bytes:
        raise Refused(f"cannot write the region: {RegionDoubt.UNKNOWN_SIZE}: its size changed while it was open")


def _refusal(path: Path, doubt: RegionDoubt) -> Refused:
    return Refused(f"cannot write the region {path.name}: {doubt}")
