"""Puts containers to sleep and wakes them through their regions, and remembers on disk whom it put to sleep.

A container sleeps until something wakes it, so a list of ours lies on the node before the first
process sleeps: an agent that was killed wakes them when it starts again, and one that stops wakes them before. New
processes join awake and slots move, so sleep is written again at every look. A container with no region, or one that
can't be trusted, is reported and left awake.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Set as AbstractSet
from itertools import islice
from pathlib import Path

from enforcer.agent.node_view import ContainerKey
from enforcer.agent.region_writing import open_for_writing, pause, resume
from fleet.durable import write_durably
from fleet.errors import Refused
from fleet.regions.doubts import RegionDoubt

FILES_MAX = 256
"""Entries that a container's directory may have; HAMi's and the library's own are two."""

_REGION_NAME = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.cache", re.ASCII)


def region_of(containers: Path, key: ContainerKey) -> Path:
    """The one region of a container.

    Args:
        containers: root of all regions, `<hook path>/vgpu/containers`.

    Raises:
        Refused: there is none, or more than one.
    """
    folder = key.folder(containers)
    try:
        with os.scandir(folder) as entries:
            found = [entry.name for entry in islice(entries, FILES_MAX) if _REGION_NAME.fullmatch(entry.name)]
            is_flooded = next(entries, None) is not None
    except OSError as exc:
        raise Refused(f"cannot write the region of {folder.name}: {exc.strerror}") from exc
    if is_flooded:
        raise Refused(f"cannot write the region of {folder.name}: {RegionDoubt.TOO_MANY_FILES}")
    if len(found) != 1:
        raise Refused(f"cannot write the region of {folder.name}: it has {len(found)} files that could be it")
    return folder / found[0]


class Sleepers:
    """Containers that this agent put to sleep, kept in the file `memory`; mutable."""

    def __init__(self, containers: Path, memory: Path) -> None:
        self._containers = containers
        self._memory = memory
        self._asleep = _remembered(memory)
        self.refused: dict[ContainerKey, str] = {}
        """Containers that should sleep and can't be put to sleep, and why; as of the last `follow`."""

    @property
    def asleep(self) -> frozenset[ContainerKey]:
        """Whom it put to sleep and has not woken."""
        return frozenset(self._asleep)

    def follow(self, wanted: AbstractSet[ContainerKey]) -> tuple[tuple[ContainerKey, ...], tuple[ContainerKey, ...]]:
        """Wakes who need not sleep any more, and puts to sleep who should.

        Returns:
            Who fell asleep, and who woke, by UID and name.

        Raises:
            Corrupt: the list can't be kept; nobody fell asleep then.
        """
        woken = [key for key in sorted(self._asleep - wanted, key=_order) if self._wake(key)]
        fallen = sorted(wanted - self._asleep, key=_order)
        if fallen:
            # First the list, then the sleep: who sleeps and stands on no list would sleep for ever.
            self._remember(self._asleep | set(fallen))
        self.refused = {}
        for key in sorted(wanted, key=_order):
            try:
                with open_for_writing(region_of(self._containers, key)) as region:
                    pause(region)
            except Refused as exc:
                self.refused[key] = str(exc)
        if woken and not fallen:
            self._remember(self._asleep)
        return tuple(key for key in fallen if key not in self.refused), tuple(woken)

    def wake_all(self) -> tuple[ContainerKey, ...]:
        """Wakes everybody that it put to sleep; who woke."""
        return self.follow(frozenset())[1]

    def _wake(self, key: ContainerKey) -> bool:
        """True where it is awake now; a container that is gone needs no waking."""
        try:
            with open_for_writing(region_of(self._containers, key)) as region:
                resume(region)
        except Refused:
            if key.folder(self._containers).is_dir():
                # It may be believed again at the next look: a process joined or left in the middle of this one.
                return False
        self._asleep.discard(key)
        return True

    def _remember(self, asleep: AbstractSet[ContainerKey]) -> None:
        content = [[key.pod_uid, key.container] for key in sorted(asleep, key=_order)]
        write_durably(self._memory, json.dumps(content).encode())
        self._asleep = set(asleep)


def _remembered(memory: Path) -> set[ContainerKey]:
    try:
        found = json.loads(memory.read_bytes())
        return {ContainerKey(pod_uid=str(uid), container=str(container)) for uid, container in found}
    except (OSError, ValueError, TypeError):
        return set()


def _order(key: ContainerKey) -> tuple[str, str]:
    return key.pod_uid, key.container
