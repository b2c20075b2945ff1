"""From process ids, as the driver lists them, to pods and containers.

Reads two small files per process and remembers what it read for as long as the process is asked for. A process that
ends while it is looked at is simply not there; a process id that is used anew is known by its start time. Called by
whatever joins the driver's processes with `exporter.attribution.attributor`.

The driver lists process ids of the host: this process must see the host's processes (`hostPID`, or the host's `/proc`
mounted and named as `proc_root`), and must run with the host's cgroup namespace, or paths of its own pod are hidden. In
a namespace of its own the same id is another process, which would be blamed or let a tenant look idle; and the driver
may list nobody at all.

Source: man7.org/linux/man-pages/man5/proc_pid_stat.5.html (field 22), man7/cgroups.7.html.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from exporter.attribution.cgroup import TEXT_LENGTH_MAX, CgroupPlace, enclosing_pods, parse_cgroup
from exporter.process_stat import ProcessStats, printable
from fleet.errors import Unavailable

PROCESSES_MAX = 16384
"""Most processes that are looked at in one go; a card's driver lists far fewer."""

_STAT_BYTES_MAX = 4096
_START_TIME_FIELD = 22 - 3
"""Counted from the state, the first field after the command's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlace:
    """Where one process runs.

    Attributes:
        pid: process id on the host.
        name: what it calls itself, printable, at most 15 characters.
        started_ticks: start of the process, clock ticks since boot; with the id, unique until the node restarts.
        places: pods that its cgroup names, the outermost first; empty for a process of the node itself.
    """

    pid: int
    name: str
    started_ticks: int
    places: tuple[CgroupPlace, ...]


class ProcessPlaces:
    """Looks processes up, and remembers those of the round before. For one thread."""

    def __init__(self, proc_root: str = "/proc") -> None:
        self._proc_root = proc_root
        self._stats = ProcessStats(proc_root)
        self._known: dict[int, ProcessPlace] = {}

    def look(self, pids: Iterable[int]) -> tuple[ProcessPlace, ...]:
        """Where each process runs; those that are gone, or may not be looked at, are left out.

        Args:
            pids: process ids on the host; what comes after the first `PROCESSES_MAX` is left out.

        Raises:
            Unavailable: the host's processes can't be seen, so that nobody can be placed, and nobody be missed.
        """
        if not self._stats.sees_host():
            raise Unavailable(
                f"cannot look at processes on the cards: the host's are not those under "
                f"exporter.proc_folder={self._proc_root} (hostPID is missing), or are hidden from this user"
            )
        wanted = list(dict.fromkeys(pids))[:PROCESSES_MAX]
        found = [place for pid in wanted if (place := self._look(pid)) is not None]
        # Only what names a pod is remembered: the kubelet may still be about to move a process.
        self._known = {place.pid: place for place in found if place.places}
        return tuple(found)

    def enclosing(self) -> frozenset[str]:
        """UIDs of the pods that this very node runs in; as a rule there is none.

        A tenant may make cgroups within its own that look like another's; what it can't do is to run this process in
        them.
        """
        # The kernel knows which of a mounted /proc's processes asks, whatever id it has in its own namespace.
        data = _read(f"{self._proc_root}/self/cgroup", TEXT_LENGTH_MAX)
        return frozenset() if data is None else enclosing_pods(parse_cgroup(data.decode(errors="replace")))

    def _look(self, pid: int) -> ProcessPlace | None:
        folder = f"{self._proc_root}/{int(pid)}"
        line = _line(folder)
        if line is None:
            return None
        name, started = line
        known = self._known.get(pid)
        # A process that becomes another program keeps its id and its start.
        if known is not None and (known.name, known.started_ticks) == line:
            return known
        data = _read(f"{folder}/cgroup", TEXT_LENGTH_MAX)
        # The id may have been given to another process between the two files.
        if data is None or (again := _line(folder)) is None or again[1] != started:
            return None
        return ProcessPlace(
            pid=pid, name=name, started_ticks=started, places=parse_cgroup(data.decode(errors="replace"))
        )


def _line(folder: str) -> tuple[str, int] | None:
    """Name and start of a process; None where it is gone or hidden."""
    data = _read(f"{folder}/stat", _STAT_BYTES_MAX, is_one_piece=True)
    if data is None:
        return None
    # The command's name may hold anything, blanks and brackets included; what follows its last bracket may not.
    begin, end = data.find(b"("), data.rfind(b")")
    fields = data[end + 1 :].split(None, _START_TIME_FIELD + 1)
    if not 0 <= begin < end or len(fields) <= _START_TIME_FIELD or not fields[_START_TIME_FIELD].isdigit():
        return None
    return printable(data[begin + 1 : end]), int(fields[_START_TIME_FIELD])


def _read(path: str, length_max: int, *, is_one_piece: bool = False) -> bytes | None:
    """The beginning of a file of `/proc`; None where the process is gone or hidden.

    Args:
        length_max: most bytes that are read.
        is_one_piece: the kernel gives the file whole in one read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(handle, length_max)
        while not is_one_piece and len(data) < length_max and (part := os.read(handle, length_max - len(data))):
            data += part
    except OSError:
        return None
    finally:
        os.close(handle)
    return data
