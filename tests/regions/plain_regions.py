"""A second, naive hand that writes and reads shared regions: one number after the other, with offsets of its own.

Independent of `fleet.regions.layouts` and of the exporter's columns, so that tests and the fuzzer have something to
hold them against. Offsets are those of the facts (Project-HAMi/HAMi-core, commits as named in `fleet.regions.layouts`).
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MAGIC = 19920718
MIB = 1 << 20
NOW = 1_790_000_000.0
"""The time that tests call now; Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLayout:
    """One layout; offsets of slots are within the slot, `used` holds context, module, data, offset, total."""

    size: int
    minor: int | None
    num: int
    procs: int
    slot: int
    used: int
    used_step: int
    monitor: int
    util: int | None
    util_step: int
    status: int
    seqlock: int | None
    proc_num: int
    has_time: bool = True

    @property
    def uuids(self) -> int:
        return self.num + 8

    @property
    def limit(self) -> int:
        return self.num + 8 + 1536

    @property
    def sm_limit(self) -> int:
        return self.limit + 128


PLAIN = {
    "pre-v0": PlainLayout(
        size=804_681, minor=None, num=48, procs=1848, slot=784, used=8, used_step=40, monitor=648, util=None,
        util_step=0, status=776, seqlock=None, proc_num=804_664, has_time=False,
    ),
    "v0": PlainLayout(
        size=1_197_897, minor=None, num=48, procs=1848, slot=1168, used=8, used_step=40, monitor=648, util=776,
        util_step=24, status=1160, seqlock=None, proc_num=1_197_880, has_time=False,
    ),
    "v1.1": PlainLayout(
        size=2_008_953, minor=1, num=56, procs=1856, slot=1960, used=8, used_step=64, monitor=1032, util=1160,
        util_step=48, status=1928, seqlock=None, proc_num=2_008_896,
    ),
    "v1.1-dev": PlainLayout(
        size=2_008_953, minor=1, num=56, procs=1856, slot=1960, used=16, used_step=64, monitor=1040, util=1168,
        util_step=48, status=1936, seqlock=8, proc_num=2_008_896,
    ),
    "v1.1-odd": PlainLayout(
        size=2_008_985, minor=1, num=88, procs=1888, slot=1960, used=16, used_step=64, monitor=1040, util=1168,
        util_step=48, status=1936, seqlock=8, proc_num=2_008_928,
    ),
    "v1.2": PlainLayout(
        size=2_008_953, minor=2, num=56, procs=1856, slot=1960, used=8, used_step=64, monitor=1032, util=1160,
        util_step=48, status=1928, seqlock=1936, proc_num=2_008_896,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainProcess:
    """One process, with the same use on every card; bytes and percent."""

    pid: int = 7
    host_pid: int = 7007
    status: int = 1
    context: int = 300 * MIB
    module: int = 20 * MIB
    data: int = 1000 * MIB
    total: int | None = None
    monitor: int = 1400 * MIB
    sm_util: int = 35
    seqlock: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRegion:
    """What is written into a region."""

    layout: str = "v1.2"
    cards: Sequence[str] = ("GPU-00000001-0000-4000-8000-000000000001",)
    processes: Sequence[PlainProcess] = (PlainProcess(),)
    limit: int = 4000 * MIB
    sm_limit: int = 30
    switch: int = 1
    recent_kernel: int = 2
    priority: int = 1
    last_kernel_time: int = int(NOW) - 12
    magic: int = MAGIC
    major: int = 1
    minor: int | None = None
    card_count: int | None = None
    process_count: int | None = None


def write_region(path: Path, region: PlainRegion) -> None:
    """Write a region to a new (sparse) file."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write_open_region(fd, region)
    finally:
        os.close(fd)


def write_open_region(fd: int, region: PlainRegion) -> None:
    """Write a region into an empty open file."""
    layout = PLAIN[region.layout]
    os.ftruncate(fd, layout.size)

    def put(offset: int, form: str, *values: int) -> None:
        os.pwrite(fd, struct.pack(form, *values), offset)

    put(0, "<i", region.magic)
    if layout.minor is not None:
        put(4, "<II", region.major, layout.minor if region.minor is None else region.minor)
    put(layout.num, "<Q", len(region.cards) if region.card_count is None else region.card_count)
    for number, uuid in enumerate(region.cards):
        os.pwrite(fd, uuid.encode().ljust(96, b"\0"), layout.uuids + 96 * number)
    put(layout.limit, "<16Q", *[region.limit] * 16)
    put(layout.sm_limit, "<16Q", *[region.sm_limit] * 16)
    for number, process in enumerate(region.processes):
        start = layout.procs + number * layout.slot
        put(start, "<ii", process.pid, process.host_pid)
        total = process.context + process.module + process.data if process.total is None else process.total
        for card in range(len(region.cards)):
            parts = [part % 2**64 for part in (process.context, process.module, process.data, 0, total)]
            put(start + layout.used + card * layout.used_step, "<5Q", *parts)
            put(start + layout.monitor + card * 8, "<Q", process.monitor)
            if layout.util is not None:
                put(start + layout.util + card * layout.util_step + 16, "<Q", process.sm_util)
        put(start + layout.status, "<i", process.status)
        if layout.seqlock is not None:
            put(start + layout.seqlock, "<Q", process.seqlock)
    count = len(region.processes) if region.process_count is None else region.process_count
    put(layout.proc_num, "<4i", count, region.switch, region.recent_kernel, region.priority)
    if layout.has_time:
        put(layout.proc_num + 16, "<Q", region.last_kernel_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCard:
    """What a region says of one card; None = absent."""

    used: int | None
    context: int | None
    module: int | None
    data: int | None
    driver: int | None
    limit: int | None
    compute_limit: float | None
    duty: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the naive reader makes of a file.

    Attributes:
        layout: None where none fits.
        is_trusted: every rule holds.
        cards: figures per card; empty where the region as a whole is in doubt.
    """

    layout: str | None = None
    is_trusted: bool = False
    cards: Mapping[str, PlainCard] = field(default_factory=dict)


_UUID = re.compile(rb"(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\0")


def judge(fd: int, framebuffers: Mapping[str, float], now: float = NOW) -> Verdict:
    """Read a file number by number, and say whether each of them is what it can be."""
    size = os.fstat(fd).st_size
    names = [name for name, layout in PLAIN.items() if layout.size == size]
    if not names or _number(fd, 0, "<i") != MAGIC:
        return Verdict()
    name = _by_version(fd, names)
    if name is None:
        return Verdict()
    layout = PLAIN[name]
    cards = _cards(fd, layout)
    count = _number(fd, layout.proc_num, "<i")
    if cards is None or not 0 <= count <= 1024:
        return Verdict(layout=name)
    processes = _processes(fd, layout, count)
    if processes is None:
        return Verdict(layout=name)
    is_trusted = _state_is_possible(fd, layout, now)
    figures = {}
    for number, card in enumerate(cards):
        figures[card], is_fine = _card(fd, layout, number, processes, framebuffers.get(card, math.inf))
        is_trusted &= is_fine
    return Verdict(layout=name, is_trusted=is_trusted, cards=figures)


def _by_version(fd: int, names: list[str]) -> str | None:
    fitting = []
    for name in names:
        minor = PLAIN[name].minor
        if minor is None or (_number(fd, 4, "<I"), _number(fd, 8, "<I")) == (1, minor):
            fitting.append(name)
    if len(fitting) < 2:
        return fitting[0] if fitting else None
    votes = []
    for name in fitting:
        layout = PLAIN[name]
        vote = 0
        for slot in range(min(64, max(0, _number(fd, layout.proc_num, "<i")))):
            start = layout.procs + slot * layout.slot
            if _number(fd, start, "<i") > 0:
                vote += 1 if _number(fd, start + layout.status, "<i") in (1, 2) else -1
        votes.append(vote)
    return fitting[votes.index(max(votes))]


def _cards(fd: int, layout: PlainLayout) -> list[str] | None:
    count = _number(fd, layout.num, "<Q")
    if not 1 <= count <= 16:
        return None
    cards = []
    for number in range(count):
        match = _UUID.match(os.pread(fd, 96, layout.uuids + 96 * number))
        if match is None:
            return None
        cards.append(match[0][:-1].decode())
    return cards if len(set(cards)) == count else None


def _processes(fd: int, layout: PlainLayout, count: int) -> list[int] | None:
    """Offsets of the living processes' slots; None where one is impossible."""
    living: dict[int, int] = {}
    for slot in range(count):
        start = layout.procs + slot * layout.slot
        pid, host_pid = struct.unpack("<ii", os.pread(fd, 8, start))
        status = _number(fd, start + layout.status, "<i")
        if not (0 <= pid <= 1 << 22 and 0 <= host_pid <= 1 << 22 and status in (0, 1, 2)):
            return None
        if pid > 0 and status > 0:
            if pid in living:
                return None
            living[pid] = start
    return list(living.values())


def _state_is_possible(fd: int, layout: PlainLayout, now: float) -> bool:
    _, switch, recent, priority = struct.unpack("<4i", os.pread(fd, 16, layout.proc_num))
    last = _number(fd, layout.proc_num + 16, "<Q") if layout.has_time else 0
    time_is_possible = last == 0 or 1.5e9 <= last <= now + 5
    return switch in (0, 1) and recent in (-1, 0, 1, 2, 3, 4) and 0 <= priority <= 100 and time_is_possible


def _card(fd: int, layout: PlainLayout, card: int, slots: list[int], framebuffer: float) -> tuple[PlainCard, bool]:
    most = min(framebuffer, 2**43)
    used = [struct.unpack("<5Q", os.pread(fd, 40, slot + layout.used + card * layout.used_step)) for slot in slots]
    monitors = [_number(fd, slot + layout.monitor + card * 8, "<Q") for slot in slots]
    monitors = [0 if monitor == 2**64 - 1 else monitor for monitor in monitors]
    adds_up = all(context + module + data == total for context, module, data, _, total in used)
    is_positive = all(max(context, module, data, total) < 2**63 for context, module, data, _, total in used)
    total = sum(parts[4] for parts in used)
    used_is_fine = adds_up and is_positive and total <= most
    driver = sum(monitors)
    limit = _number(fd, layout.limit + card * 8, "<Q")
    percent = _number(fd, layout.sm_limit + card * 8, "<Q")
    duty, duty_is_fine = _duty(fd, layout, card, slots, used, monitors)
    figures = PlainCard(
        used=total if used_is_fine else None,
        context=sum(parts[0] for parts in used) if used_is_fine else None,
        module=sum(parts[1] for parts in used) if used_is_fine else None,
        data=sum(parts[2] for parts in used) if used_is_fine else None,
        driver=driver if 0 < driver <= most else None,
        limit=limit if 0 < limit <= 2**44 else None,
        compute_limit=None if percent > 100 else percent / 100 if percent else 1.0,
        duty=duty,
    )
    return figures, used_is_fine and driver <= most and limit <= 2**44 and percent <= 100 and duty_is_fine


def _duty(
    fd: int, layout: PlainLayout, card: int, slots: list[int], used: Sequence[Sequence[int]], monitors: list[int]
) -> tuple[float | None, bool]:
    if layout.util is None:
        return None, True
    percents = [_number(fd, slot + layout.util + card * layout.util_step + 16, "<Q") for slot in slots]
    if any(percent > 100 for percent in percents):
        return None, False
    if sum(percents) > 0:
        return min(1.0, sum(percents) / 100), True
    nobody_found, measured, busy = False, False, False
    for slot, parts, monitor in zip(slots, used, monitors, strict=True):
        if parts[4] or monitor:
            busy = True
            measured = measured or monitor > 0
            nobody_found = nobody_found or _number(fd, slot + 4, "<i") == 0
    return (0.0 if not busy or (measured and not nobody_found) else None), True


def _number(fd: int, offset: int, form: str) -> int:
    raw = os.pread(fd, struct.calcsize(form), offset)
    return int(struct.unpack(form, raw)[0])
