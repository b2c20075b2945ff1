"""What the fields of a container's shared region mean, and the values that HAMi's library writes into them.

The same in every layout; where each field stands is `fleet.regions.layouts`' to say. Standard library only.

Source: Project-HAMi/HAMi-core:src/multiprocess/multiprocess_memory_limit.h and multiprocess_memory_limit.c.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum

MAGIC = 19920718
"""`initialized_flag` of a finished region; written last."""

CARDS_MAX = 16
"""Cards that a region has room for."""

PROCESSES_MAX = 1024
"""Process slots of a region."""

CARD_ID_BYTES = 96
"""Room for one card's id, padded with NUL."""

SEMAPHORE_BYTES = 32

PROCESS_DEAD = 0
PROCESS_RUNNING = 1
PROCESS_SUSPENDED = 2
"""States of a slot. A process whose slot says anything but 1 sleeps before its next allocation or kernel launch."""

BLOCKED = -1
"""`RECENT_KERNEL` of a container that may launch no kernel; 0 = idle, 1 and 2 = launched one a moment ago."""
LAUNCHED = 2
"""`RECENT_KERNEL` as the library writes it at a launch; HAMi's monitor takes 1 off every 5 s, down to 0."""
LAUNCH_SEEN = 4
"""`RECENT_KERNEL` as the node agent writes it over a launch that it has seen: the monitor takes 1 off and still
counts it, and nobody writes 3 or 4 otherwise (Project-HAMi/HAMi:cmd/vGPUmonitor/feedback.go)."""
RECENT_KERNEL_MAX = LAUNCH_SEEN


class RegionField(StrEnum):
    """A field of a region, by the library's own name for it."""

    INITIALIZED_FLAG = "initialized_flag"
    MAJOR_VERSION = "major_version"
    MINOR_VERSION = "minor_version"
    SM_INIT_FLAG = "sm_init_flag"
    OWNER_PID = "owner_pid"
    SEMAPHORE = "sem"
    POSTINIT_SEMAPHORE = "sem_postinit"
    DEVICE_NUM = "device_num"
    UUIDS = "uuids"
    LIMIT = "limit"
    """Framebuffer limit per card, bytes; 0 = none. Read at every allocation."""
    SM_LIMIT = "sm_limit"
    """Compute limit per card, percent; 100 = none."""
    PROC_NUM = "proc_num"
    """Slots [0, proc_num) are in use; what stands behind them is left over."""
    UTILIZATION_SWITCH = "utilization_switch"
    """1 = compute is limited, 0 = it is not."""
    RECENT_KERNEL = "recent_kernel"
    PRIORITY = "priority"
    """0 = high; the library's default is 1."""
    LAST_KERNEL_TIME = "last_kernel_time"
    """Unix seconds of the last kernel launch, or of the last start of a process."""

    PID = "pid"
    """Process id inside the container; 0 = dead."""
    HOSTPID = "hostpid"
    """Process id on the host; 0 = the library did not find it, and then nothing measured is ever written."""
    USED_CONTEXT = "used.context_size"
    USED_MODULE = "used.module_size"
    USED_DATA = "used.data_size"
    USED_OFFSET = "used.offset"
    USED_TOTAL = "used.total"
    """Bytes that the library counted; always context + module + data once an update is complete."""
    MONITORUSED = "monitorused"
    """Bytes that the driver counts for this process; zeroed and filled again some eight times a second."""
    DEC_UTIL = "device_util.dec_util"
    ENC_UTIL = "device_util.enc_util"
    SM_UTIL = "device_util.sm_util"
    """Percent over the last second, as the driver says; zeroed and filled again together with `MONITORUSED`."""
    STATUS = "status"
    SEQLOCK = "seqlock"
    """Odd while the process changes its usage; a killed process may leave it odd."""


class FieldKind(StrEnum):
    """Type of a field; the value is its format for `struct`, little-endian."""

    I32 = "<i"
    U32 = "<I"
    U64 = "<Q"
    CARD_ID = f"{CARD_ID_BYTES}s"
    SEMAPHORE = f"{SEMAPHORE_BYTES}s"

    @property
    def size(self) -> int:
        """Bytes that one value takes."""
        return struct.calcsize(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldPlace:
    """Where a field stands.

    Attributes:
        offset: from the beginning of the region, or of a slot where `in_slot`; bytes.
        count: 1, or `CARDS_MAX` where there is a value per card.
        stride: bytes from one card's value to the next one's.
        in_slot: True where each process has the field.
    """

    offset: int
    kind: FieldKind
    count: int = 1
    stride: int = 0
    in_slot: bool = False
