"""What goes wrong, and while what is being done: the words of the bar of faults, on whichever cluster."""

from __future__ import annotations

from enum import StrEnum


class Way(StrEnum):
    """What is being done when the fault comes."""

    APPLY = "apply"
    RESTORE = "restore"
    UNDO = "undo"


class Fault(StrEnum):
    """What goes wrong."""

    KILL = "kill -9"
    CONFLICT = "409"
    BUSY = "429"
    BROKEN = "500"
    TIME_OUT = "time-out"
    WATCH_CUT = "watch cut"
    AWAY = "API away"
    NEVER_READY = "never ready"
    OUT_OF_MEMORY = "OOM"
    DELETED = "deleted"
    EDITED_BESIDE = "edited beside"
    EDITED = "our field edited"
    CLOCK_ON = "clock +2 d"
    CLOCK_BACK = "clock -1 h"
    TWO = "two enforcers"
    STALLED = "stalled, 2nd takes over"
