"""What the kernel says of a process in one line: its name, its CPU time, its memory, when it began.

A name is whatever the process calls itself, and so a tenant's word: what can't be printed is replaced. Called by
`exporter.process_series` and `exporter.attribution.process_places`.

Source: man7.org/linux/man-pages/man5/proc_pid_stat.5.html.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

_STAT_BYTES_MAX = 4096
_KERNEL_THREAD = 2
"""The first of the kernel's own threads has this id, in the host's namespace alone."""
# Counted from the state, the third field and the first after the name.
_USER_TICKS, _SYSTEM_TICKS, _STARTED, _RESIDENT_PAGES = 14 - 3, 15 - 3, 22 - 3, 24 - 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """One process as the kernel reports it.

    Attributes:
        name: what it calls itself, printable, at most 15 characters by the kernel's rule.
        started_seconds: start, seconds since the node began.
    """

    name: str
    cpu_seconds: float
    started_seconds: float
    resident_bytes: float


class ProcessStats:
    """Reads the lines of processes."""

    def __init__(self, proc_root: str = "/proc") -> None:
        self._proc_root = proc_root
        self._ticks = float(os.sysconf("SC_CLK_TCK"))
        self._page_bytes = float(os.sysconf("SC_PAGE_SIZE"))

    def sees_host(self) -> bool:
        """Whether these are the host's processes: elsewhere the driver's process ids mean other processes."""
        data = self._read(f"{_KERNEL_THREAD}/stat")
        return data is not None and data.startswith(b"%d (kthreadd) " % _KERNEL_THREAD)

    def of(self, pid: int) -> ProcessStat | None:
        """One process; None where it is gone, hidden, or its line is none."""
        data = self._read(f"{int(pid)}/stat")
        return None if data is None else self._parsed(data)

    def began_at(self) -> float | None:
        """When the node began, epoch seconds; None where it is unknown."""
        data = self._read("stat", whole=True) or b""
        _, _, after = data.partition(b"\nbtime ")
        text = after.split(b"\n", 1)[0]
        return float(text) if text.isdigit() else None

    def _parsed(self, data: bytes) -> ProcessStat | None:
        # A name may hold brackets and blanks; what follows its last bracket may not.
        begin, end = data.find(b"("), data.rfind(b")")
        fields = data[end + 1 :].split()
        if begin < 0 or end < begin or len(fields) <= _RESIDENT_PAGES:
            return None
        wanted = [fields[place] for place in (_USER_TICKS, _SYSTEM_TICKS, _STARTED, _RESIDENT_PAGES)]
        if not all(field.isdigit() for field in wanted):
            return None
        user, system, started, pages = map(float, wanted)
        return ProcessStat(
            name=printable(data[begin + 1 : end]),
            cpu_seconds=(user + system) / self._ticks,
            started_seconds=started / self._ticks,
            resident_bytes=pages * self._page_bytes,
        )

    def _read(self, name: str, *, whole: bool = False) -> bytes | None:
        try:
            with open(f"{self._proc_root}/{name}", "rb", buffering=0) as file:
                # The line of a process comes in one piece; the node's own file has one line per interrupt.
                return file.readall() if whole else file.read(_STAT_BYTES_MAX)
        except OSError:
            return None


def printable(name: bytes) -> str:
    """A name that a terminal, a browser and a label can show: what is no printable character becomes `?`."""
    return "".join(one if one.isprintable() and one != "\N{REPLACEMENT CHARACTER}" else "?" for one in _text(name))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
