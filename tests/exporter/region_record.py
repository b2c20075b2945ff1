"""One region as a record, as tests read it: everything it says, process by process, and whether it can be trusted.

`exporter.regions.reader` reads all of a node as columns; both look at the bytes in the same way.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exporter.regions.batch import RegionBatch
from exporter.regions.decode import DutyDoubt, Figures
from exporter.regions.followed import FollowedRegion
from exporter.regions.looks import RegionLooks
from fleet.regions.doubts import OF_REGION_BITS, RegionDoubt, doubts_of
from fleet.regions.fields import RegionField
from fleet.regions.files import open_region
from fleet.regions.layouts import LayoutName


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCard:
    """One card as the container's region has it; None = not there, or not believed.

    Attributes:
        card: UUID of the card or MIG instance.
        framebuffer_used_bytes: bytes that the library counted.
        framebuffer_context_bytes: of these, contexts.
        framebuffer_module_bytes: of these, loaded code.
        framebuffer_data_bytes: of these, data.
        framebuffer_of_driver_bytes: bytes that the driver counts for the same processes.
        framebuffer_limit_bytes: limit; None also where there is none.
        compute_limit_ratio: limit, 0-1; 1 = none.
        duty_cycle_ratio: 0-1.
        duty_doubt: why the duty cycle is not there.
    """

    card: str
    framebuffer_used_bytes: int | None
    framebuffer_context_bytes: int | None
    framebuffer_module_bytes: int | None
    framebuffer_data_bytes: int | None
    framebuffer_of_driver_bytes: int | None
    framebuffer_limit_bytes: int | None
    compute_limit_ratio: float | None
    duty_cycle_ratio: float | None
    duty_doubt: DutyDoubt


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionProcess:
    """One living process.

    Attributes:
        slot: its slot.
        pid: process id inside the container.
        host_pid: process id on the host; None = the library did not find it.
        is_suspended: it sleeps before its next allocation or kernel launch.
        framebuffer_used_bytes: per card of the region, as counted; believed as far as the card's sum is.
    """

    slot: int
    pid: int
    host_pid: int | None
    is_suspended: bool
    framebuffer_used_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRecord:
    """What one region says.

    Attributes:
        layout: its layout; None where none fits.
        doubts: why it can't be trusted, the gravest first; none where it can.
        cards: its cards; none where the region as a whole is in doubt.
        processes: its living processes, likewise.
        priority: 0 is high.
        last_kernel_at_seconds: Unix seconds of the last kernel launch or process start.
        is_blocked: no kernel may be launched.
        is_recently_active: a kernel was launched a moment ago, as far as the library gates it.
        is_compute_limited: the compute limit is switched on.
    """

    layout: LayoutName | None = None
    doubts: tuple[RegionDoubt, ...] = ()
    cards: tuple[RegionCard, ...] = ()
    processes: tuple[RegionProcess, ...] = ()
    priority: int | None = None
    last_kernel_at_seconds: int | None = None
    is_blocked: bool | None = None
    is_recently_active: bool | None = None
    is_compute_limited: bool | None = None

    @property
    def is_trusted(self) -> bool:
        """Whether nothing in it is in doubt."""
        return not self.doubts


def read_region(
    path: Path, *, framebuffers: Mapping[str, float], now_seconds: float, deadline_seconds: float = 5.0
) -> RegionRecord:
    """Reads one region.

    Args:
        path: the file; a link in its last part is not followed.
        framebuffers: framebuffer of the cards of which it is known, bytes.
        now_seconds: Unix seconds.
        deadline_seconds: longest time that the call may take.

    Raises:
        Unavailable: it took longer.
    """
    opened = open_region(str(path))
    if isinstance(opened, RegionDoubt):
        return RegionRecord(doubts=(opened,))
    region = FollowedRegion(opened)
    record = None
    try:
        deadline_at = time.monotonic() + deadline_seconds
        for look in RegionLooks().at(
            [region], framebuffers=framebuffers, now_seconds=now_seconds, deadline_at=deadline_at
        ):
            if look.is_final[0]:
                record = _record(region, look.batch, look.figures, int(look.doubts[0]))
    finally:
        os.close(opened)
    if record is not None:
        return record
    return RegionRecord(layout=None if region.layout is None else region.layout.name, doubts=doubts_of(region.refused))


def _record(region: FollowedRegion, batch: RegionBatch, figures: Figures, doubts: int) -> RegionRecord:
    layout = batch.shape.layout.name
    if doubts & OF_REGION_BITS:
        return RegionRecord(layout=layout, doubts=doubts_of(doubts))
    return RegionRecord(
        layout=layout,
        doubts=doubts_of(doubts),
        cards=tuple(_card(figures, number, card) for number, card in enumerate(region.cards)),
        processes=_processes(batch, figures, len(region.cards)),
        priority=_integer(figures.state.priority[0]),
        last_kernel_at_seconds=_integer(figures.state.last_kernel_at[0]),
        is_blocked=_flag(figures.state.is_blocked[0]),
        is_recently_active=_flag(figures.state.is_recently_active[0]),
        is_compute_limited=_flag(figures.state.is_compute_limited[0]),
    )


def _card(figures: Figures, number: int, card: str) -> RegionCard:
    return RegionCard(
        card=card,
        framebuffer_used_bytes=_integer(figures.cards.framebuffer_used[0, number]),
        framebuffer_context_bytes=_integer(figures.cards.framebuffer_context[0, number]),
        framebuffer_module_bytes=_integer(figures.cards.framebuffer_module[0, number]),
        framebuffer_data_bytes=_integer(figures.cards.framebuffer_data[0, number]),
        framebuffer_of_driver_bytes=_integer(figures.cards.framebuffer_of_driver[0, number]),
        framebuffer_limit_bytes=_integer(figures.cards.framebuffer_limit[0, number]),
        compute_limit_ratio=_ratio(figures.cards.compute_limit[0, number]),
        duty_cycle_ratio=_ratio(figures.cards.duty_cycle[0, number]),
        duty_doubt=DutyDoubt(int(figures.cards.duty_doubt[0, number])),
    )


def _processes(batch: RegionBatch, figures: Figures, cards: int) -> tuple[RegionProcess, ...]:
    used = batch.column(RegionField.USED_TOTAL, cards)[0].tolist()
    return tuple(
        RegionProcess(
            slot=slot,
            pid=int(figures.pid[0, slot]),
            host_pid=int(figures.host_pid[0, slot]) or None,
            is_suspended=bool(figures.is_suspended[0, slot]),
            framebuffer_used_bytes=tuple(used[slot]),
        )
        for slot in np.flatnonzero(figures.is_live[0]).tolist()
    )


def _integer(value: float) -> int | None:
    return None if math.isnan(value) else int(value)


def _ratio(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _flag(value: float) -> bool | None:
    return None if math.isnan(value) else bool(value)
