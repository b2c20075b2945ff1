"""Byte layouts of the regions that HAMi's library shares between the processes of a container, as facts.

The library (`libvgpu.so`) keeps one file per container: limits, and per process what it uses of each card. Its layout
changed from release to release, and one release labels it wrongly, so a layout is told by the exact size of the file,
then by the version fields, then by which fields hold what they can hold. Readers (the node exporter) and writers (the
node agent, which sets limits) find every field here. Little-endian, x86_64 and aarch64 with glibc (a semaphore takes 32
bytes). Standard library only.

Sources: Project-HAMi/HAMi-core:src/multiprocess/multiprocess_memory_limit.h at the commits named per layout, compiled
for sizes and offsets; Project-HAMi/HAMi:pkg/monitor/nvidia/cudevshr.go, v0/spec.go and v1/spec.go for how HAMi's own
reader distinguishes them (it takes `V1_1_ODD` for `V1_1`). A file is one byte longer than its region: the library makes
it by writing one byte behind the end.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from fleet.regions.fields import (
    CARD_ID_BYTES,
    CARDS_MAX,
    PROCESS_RUNNING,
    PROCESS_SUSPENDED,
    PROCESSES_MAX,
    FieldKind,
    FieldPlace,
    RegionField,
)

_CARD_ID = re.compile(rb"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class LayoutName(StrEnum):
    """Which layout; the commits are HAMi-core's."""

    PRE_V0 = "pre-v0"
    """8b7cd78, before 2024-04. The order of its fields follows from its sizes: v0 without utilisation."""
    V0 = "v0"
    """7a9c88b; HAMi up to 2.4.0."""
    V1_1 = "v1.1"
    """ec8979d, 24a0f49; HAMi 2.4.1 to 2.8.0."""
    V1_1_DEV = "v1.1-dev"
    """1988c5d, never released; same size and label as `V1_1`, other slots."""
    V1_1_ODD = "v1.1-odd"
    """e200da2, 94fff56; HAMi 2.8.1. Labelled 1.1, but every field behind the first semaphore stands elsewhere."""
    V1_2 = "v1.2"
    """b69b1ea, b6afdd0, 5091a2f, 8f3a89c; HAMi 2.8.2 and later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One layout.

    Attributes:
        region_bytes: size of the region; the file is one byte longer.
        version: major and minor version that such a file carries; None where it has no such fields.
        slots_offset: where the first process slot begins; all fields before it form the head.
        fields: every field that the layout has.
    """

    name: LayoutName
    region_bytes: int
    version: tuple[int, int] | None
    slots_offset: int
    slot_bytes: int
    fields: Mapping[RegionField, FieldPlace]

    @property
    def file_bytes(self) -> int:
        """Exact size of the file."""
        return self.region_bytes + 1

    @property
    def tail_offset(self) -> int:
        """Where the fields behind the slots begin."""
        return self.slots_offset + PROCESSES_MAX * self.slot_bytes


def locate(layout: Layout, field: RegionField, *, card: int = 0, process: int = 0) -> int:
    """Offset of one value from the beginning of the file, in bytes.

    Args:
        card: which card's value, 0 to 15; for fields without a value per card 0.
        process: which slot's, 0 to 1023; for fields outside the slots 0.

    Raises:
        ValueError: the layout has no such value: a mistake of the caller, who looks into `fields` first.
    """
    place = layout.fields.get(field)
    if place is None:
        raise ValueError(f"cannot locate {field} in layout {layout.name}: it has no such field")
    if not 0 <= card < place.count or not 0 <= process < (PROCESSES_MAX if place.in_slot else 1):
        raise ValueError(f"cannot locate {field} of card {card}, process {process}: out of range")
    slot = layout.slots_offset + process * layout.slot_bytes if place.in_slot else 0
    return slot + place.offset + card * place.stride


def candidates(file_bytes: int) -> tuple[Layout, ...]:
    """The layouts that a file of exactly this size may have, released ones first."""
    return tuple(layout for layout in LAYOUTS if layout.file_bytes == file_bytes)


def find_layout(file_bytes: int, head: bytes, process_count: int) -> Layout | None:
    """The layout of a finished region: by exact size, then by version, then by what its fields hold.

    Two layouts of one size and label are distinguished by their processes: an entry with a pid also has a state other
    than 0. Where no process reports, it is the released one; no field outside the slots differs.

    Args:
        head: its first bytes: at least the part before the slots, and as many whole slots as there are at hand.
        process_count: slots in use, as the file says; slots that are not in `head` are not looked at.

    Returns:
        None where no layout fits.
    """
    fitting = [layout for layout in candidates(file_bytes) if _carries_version(layout, head)]
    return max(fitting, key=lambda layout: _processes_that_fit(layout, head, process_count), default=None)


def parse_card_id(raw: bytes) -> str | None:
    """The id in a card's place: `GPU-` or `MIG-` and a UUID, ended by NUL; None where it is anything else."""
    text, nul, _ = raw.partition(b"\0")
    return text.decode("ascii") if nul and _CARD_ID.fullmatch(text) else None


def _carries_version(layout: Layout, head: bytes) -> bool:
    if layout.version is None:
        return True
    versions = (layout.fields[RegionField.MAJOR_VERSION], layout.fields[RegionField.MINOR_VERSION])
    return layout.version == tuple(struct.unpack_from(place.kind, head, place.offset)[0] for place in versions)


def _processes_that_fit(layout: Layout, head: bytes, process_count: int) -> int:
    """Slots whose process has the state that a living process has, less those that have not."""
    pid, status = layout.fields[RegionField.PID], layout.fields[RegionField.STATUS]
    at_hand = (len(head) - layout.slots_offset) // layout.slot_bytes
    fitting = 0
    for slot in range(max(0, min(process_count, PROCESSES_MAX, at_hand))):
        start = layout.slots_offset + slot * layout.slot_bytes
        if struct.unpack_from(pid.kind, head, start + pid.offset)[0] > 0:
            state = struct.unpack_from(status.kind, head, start + status.offset)[0]
            fitting += 1 if state in (PROCESS_RUNNING, PROCESS_SUSPENDED) else -1
    return fitting


def _one(offset: int, kind: FieldKind, *, in_slot: bool = False) -> FieldPlace:
    return FieldPlace(offset=offset, kind=kind, in_slot=in_slot)


def _per_card(offset: int, kind: FieldKind, stride: int, *, in_slot: bool = False) -> FieldPlace:
    return FieldPlace(offset=offset, kind=kind, count=CARDS_MAX, stride=stride, in_slot=in_slot)


def _head(*, versions: bool, semaphore: int, postinit: int | None, device_num: int) -> dict[RegionField, FieldPlace]:
    """Fields before the slots; from the number of cards on, all layouts have the same order."""
    uuids = device_num + 8
    limits = uuids + CARDS_MAX * CARD_ID_BYTES
    fields = {RegionField.INITIALIZED_FLAG: _one(0, FieldKind.I32)}
    if versions:
        fields[RegionField.MAJOR_VERSION] = _one(4, FieldKind.U32)
        fields[RegionField.MINOR_VERSION] = _one(8, FieldKind.U32)
    fields[RegionField.SM_INIT_FLAG] = _one(12 if versions else 4, FieldKind.I32)
    fields[RegionField.OWNER_PID] = _one(semaphore - 8, FieldKind.U64)
    fields[RegionField.SEMAPHORE] = _one(semaphore, FieldKind.SEMAPHORE)
    if postinit is not None:
        fields[RegionField.POSTINIT_SEMAPHORE] = _one(postinit, FieldKind.SEMAPHORE)
    fields[RegionField.DEVICE_NUM] = _one(device_num, FieldKind.U64)
    fields[RegionField.UUIDS] = _per_card(uuids, FieldKind.CARD_ID, CARD_ID_BYTES)
    fields[RegionField.LIMIT] = _per_card(limits, FieldKind.U64, 8)
    fields[RegionField.SM_LIMIT] = _per_card(limits + CARDS_MAX * 8, FieldKind.U64, 8)
    return fields


def _slot(
    *, used: int, used_stride: int, util_stride: int | None, status: int, seqlock: int | None
) -> dict[RegionField, FieldPlace]:
    """Fields of a slot: usage per card, the driver's view behind it, utilisation behind that where there is any."""
    fields = {
        RegionField.PID: _one(0, FieldKind.I32, in_slot=True),
        RegionField.HOSTPID: _one(4, FieldKind.I32, in_slot=True),
    }
    parts = (
        RegionField.USED_CONTEXT,
        RegionField.USED_MODULE,
        RegionField.USED_DATA,
        RegionField.USED_OFFSET,
        RegionField.USED_TOTAL,
    )
    for number, part in enumerate(parts):
        fields[part] = _per_card(used + number * 8, FieldKind.U64, used_stride, in_slot=True)
    monitorused = used + CARDS_MAX * used_stride
    fields[RegionField.MONITORUSED] = _per_card(monitorused, FieldKind.U64, 8, in_slot=True)
    if util_stride is not None:
        for number, part in enumerate((RegionField.DEC_UTIL, RegionField.ENC_UTIL, RegionField.SM_UTIL)):
            offset = monitorused + CARDS_MAX * 8 + number * 8
            fields[part] = _per_card(offset, FieldKind.U64, util_stride, in_slot=True)
    fields[RegionField.STATUS] = _one(status, FieldKind.I32, in_slot=True)
    if seqlock is not None:
        fields[RegionField.SEQLOCK] = _one(seqlock, FieldKind.U64, in_slot=True)
    return fields


def _tail(offset: int, *, last_kernel_time: bool) -> dict[RegionField, FieldPlace]:
    names = (RegionField.PROC_NUM, RegionField.UTILIZATION_SWITCH, RegionField.RECENT_KERNEL, RegionField.PRIORITY)
    fields = {name: _one(offset + number * 4, FieldKind.I32) for number, name in enumerate(names)}
    if last_kernel_time:
        fields[RegionField.LAST_KERNEL_TIME] = _one(offset + 16, FieldKind.U64)
    return fields


_HEAD_V0 = _head(versions=False, semaphore=16, postinit=None, device_num=48)
_HEAD_V1 = _head(versions=True, semaphore=24, postinit=None, device_num=56)
_HEAD_ODD = _head(versions=True, semaphore=24, postinit=56, device_num=88)
_SLOT_V1_1 = _slot(used=8, used_stride=64, util_stride=48, status=1928, seqlock=None)
_SLOT_V1_2 = _slot(used=8, used_stride=64, util_stride=48, status=1928, seqlock=1936)
_SLOT_DEV = _slot(used=16, used_stride=64, util_stride=48, status=1936, seqlock=8)

LAYOUTS: tuple[Layout, ...] = (
    Layout(
        name=LayoutName.V1_2,
        region_bytes=2_008_952,
        version=(1, 2),
        slots_offset=1856,
        slot_bytes=1960,
        fields=MappingProxyType(
            _HEAD_V1
            | _SLOT_V1_2
            | _tail(2_008_896, last_kernel_time=True)
            | {RegionField.POSTINIT_SEMAPHORE: _one(2_008_920, FieldKind.SEMAPHORE)}
        ),
    ),
    Layout(
        name=LayoutName.V1_1,
        region_bytes=2_008_952,
        version=(1, 1),
        slots_offset=1856,
        slot_bytes=1960,
        fields=MappingProxyType(_HEAD_V1 | _SLOT_V1_1 | _tail(2_008_896, last_kernel_time=True)),
    ),
    Layout(
        name=LayoutName.V1_1_ODD,
        region_bytes=2_008_984,
        version=(1, 1),
        slots_offset=1888,
        slot_bytes=1960,
        fields=MappingProxyType(_HEAD_ODD | _SLOT_DEV | _tail(2_008_928, last_kernel_time=True)),
    ),
    Layout(
        name=LayoutName.V0,
        region_bytes=1_197_896,
        version=None,
        slots_offset=1848,
        slot_bytes=1168,
        fields=MappingProxyType(
            _HEAD_V0
            | _slot(used=8, used_stride=40, util_stride=24, status=1160, seqlock=None)
            | _tail(1_197_880, last_kernel_time=False)
        ),
    ),
    Layout(
        name=LayoutName.PRE_V0,
        region_bytes=804_680,
        version=None,
        slots_offset=1848,
        slot_bytes=784,
        fields=MappingProxyType(
            _HEAD_V0
            | _slot(used=8, used_stride=40, util_stride=None, status=776, seqlock=None)
            | _tail(804_664, last_kernel_time=False)
        ),
    ),
    Layout(
        name=LayoutName.V1_1_DEV,
        region_bytes=2_008_952,
        version=(1, 1),
        slots_offset=1856,
        slot_bytes=1960,
        fields=MappingProxyType(_HEAD_V1 | _SLOT_DEV | _tail(2_008_896, last_kernel_time=True)),
    ),
)
"""Every layout, the newest released one first; the one that was never released last."""
