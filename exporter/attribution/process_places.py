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

from collections.abc import Iterable
from dataclasses import dataclass

from exporter.attribution.cgroup import TEXT_LENGTH_MAX, CgroupPlace, enclosing_pods, parse_cgroup
from exporter.process_stat import ProcessStats
from fleet.errors import Unavailable

PROCESSES_MAX = 16384
"""Most processes that are looked at in one go; a card's driver lists far fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlace:
    """Where one process runs.

    Attributes:
        pid: process id on the host.
        name: what it calls itself, printable, at most 15 characters.
        started_seconds: start of the process, seconds since boot; with the id, unique until the node restarts.
        places: pods that its cgroup names, the outermost first; empty for a process of the node itself.
    """

    pid: int
    name: str
    started_seconds: float
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
        data = _beginning(f"{self._proc_root}/self/cgroup")
        return frozenset() if data is None else enclosing_pods(parse_cgroup(data.decode(errors="replace")))

    def _look(self, pid: int) -> ProcessPlace | None:
        stat = self._stats.of(pid)
        if stat is None:
            return None
        known = self._known.get(pid)
        # A process that becomes another program keeps its id and its start.
        if known is not None and (known.name, known.started_seconds) == (stat.name, stat.started_seconds):
            return known
        data = _beginning(f"{self._proc_root}/{int(pid)}/cgroup")
        # The id may have been given to another process between the two files.
        if data is None or (again := self._stats.of(pid)) is None or again.started_seconds != stat.started_seconds:
            return None
        places = parse_cgroup(data.decode(errors="replace"))
        return ProcessPlace(pid=pid, name=stat.name, started_seconds=stat.started_seconds, places=places)


def _beginning(path: str) -> bytes | None:
    """As much of a file of `/proc` as a cgroup may name; None where the process is gone or hidden."""
    try:
        with open(path, "rb") as file:
            return file.read(TEXT_LENGTH_MAX)
    except OSError:
        return None
