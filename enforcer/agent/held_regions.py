"""Regions that the agent keeps open from look to look, so that one look at one of them costs microseconds.

**What limits a look** (measured on one core of 3 GHz, files in the page cache): opening and checking a region and
reading all of its 1,024 slots takes 1 ms, because that is 2 MB twice; the 16 bytes of its tail in an open file 0.3 µs
by `pread`, 0.1 µs mapped. A mapping is not worth the signal that kills us where a tenant cuts his file short
(`fleet.regions.files`). A pause or a waking of an open region with few processes takes some 20 µs. A node of 8 cards
with 10 pods each, one of them above low priority on each card, is looked at in 7 µs, and in some 200 µs where other
programs emptied the caches meanwhile, half of which is the waking: 25 looks a second then take 0.5 % of a core.

Each use first asks whether the open file is still the one that was checked: its size, that it has one name, and that
this name still means it. A file that is gone, moved, cut short or linked elsewhere is dropped, and looked for and
checked anew; at every `KEEPS_BETWEEN`th look so is one beside which another file could be the region. Used by
`sleepers` and `launches`, each with regions of its own.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import islice
from pathlib import Path

from enforcer.agent.node_view import ContainerKey
from enforcer.agent.region_writing import CheckedRegion, check_region, pause, resume, set_recent_kernel
from fleet.errors import Refused
from fleet.regions.doubts import RegionDoubt
from fleet.regions.fields import PROCESSES_MAX, RegionField
from fleet.regions.files import open_region
from fleet.regions.layouts import locate

FILES_MAX = 256
"""Entries that a container's directory may have; HAMi's and the library's own are two."""
ALL_SLOTS_SECONDS = 10.0
"""How often all slots are gone through, not the first ones alone: one behind those in use may still be somebody's."""
MOVED_MAX = 4
"""Files of one container that were its region before, and are kept open."""
KEEPS_BETWEEN = 8
"""In so many calls of `keep` a region that is in doubt is tried once."""

_REGION_NAME = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.cache", re.ASCII)
_TAIL_BYTES = 16
_SPARE_SLOTS = 2


class NoRegion(Refused):
    """A container has no region: it has called nothing of CUDA yet, or is gone."""


def region_of(containers: Path, key: ContainerKey) -> Path:
    """The one region of a container.

    Args:
        containers: root of all regions, `<hook path>/vgpu/containers`.

    Raises:
        NoRegion: there is none.
        Refused: there is more than one, or its folder can't be read.
    """
    folder = key.folder(containers)
    try:
        with os.scandir(folder) as entries:
            found = [entry.name for entry in islice(entries, FILES_MAX) if _REGION_NAME.fullmatch(entry.name)]
            is_flooded = next(entries, None) is not None
    except FileNotFoundError as exc:
        raise NoRegion(f"cannot write the region of {folder.name}: {exc.strerror}") from exc
    except OSError as exc:
        raise Refused(f"cannot write the region of {folder.name}: {exc.strerror}") from exc
    if is_flooded:
        raise Refused(f"cannot write the region of {folder.name}: {RegionDoubt.TOO_MANY_FILES}")
    if len(found) != 1:
        kind = Refused if found else NoRegion
        raise kind(f"cannot write the region of {folder.name}: it has {len(found)} files that could be it")
    return folder / found[0]


class HeldRegion:
    """One open region that held together when it was opened; mutable.

    Raises:
        Refused: something is in doubt.
    """

    def __init__(self, path: Path) -> None:
        opened = open_region(str(path), writable=True)
        if isinstance(opened, RegionDoubt):
            raise Refused(f"cannot write the region {path.name}: {opened}")
        try:
            self.region: CheckedRegion = check_region(path, opened)
            self._reach = min(PROCESSES_MAX, self.region.processes + _SPARE_SLOTS)
        except OSError as exc:
            os.close(opened)
            raise Refused(f"cannot write the region {path.name}: {exc.strerror}") from exc
        except Refused:
            os.close(opened)
            raise
        self.path = path
        self._tail_offset = self.region.layout.tail_offset
        self._all_at = -math.inf
        self.peek: Callable[[], bytes] = partial(os.pread, opened, _TAIL_BYTES, self._tail_offset)
        """Reads what `tail_bytes` does, unchecked, in one call; OSError where the file can't be read."""

    @property
    def stands(self) -> bool:
        """Whether it is still the file that was checked."""
        try:
            status, there = os.fstat(self.region.fd), os.stat(self.path, follow_symlinks=False)
        except OSError:
            return False
        is_whole = status.st_size == self.region.layout.file_bytes and status.st_nlink == 1
        return is_whole and (status.st_dev, status.st_ino) == (there.st_dev, there.st_ino)

    @property
    def is_only_moved(self) -> bool:
        """Whether it is whole and linked nowhere else, under whatever name: who had mapped it still goes by it."""
        try:
            status = os.fstat(self.region.fd)
        except OSError:
            return False
        return status.st_size == self.region.layout.file_bytes and status.st_nlink <= 1

    def tail_bytes(self) -> bytes:
        """Slots in use, `utilization_switch`, `recent_kernel` and `priority` as they lie there, side by side.

        Raises:
            Refused: the file was cut short, or can't be read.
        """
        return self._read(self._tail_offset, _TAIL_BYTES)

    def tail(self) -> tuple[int, int, int, int]:
        """The same as numbers; raises likewise."""
        processes, switch, recent, priority = struct.unpack("<4i", self.tail_bytes())
        return processes, switch, recent, priority

    def last_kernel_at(self) -> float | None:
        """Unix seconds of its last launch, or of the last start of a process; None where its layout has no such field.

        Raises:
            Refused: the file was cut short, or can't be read.
        """
        if RegionField.LAST_KERNEL_TIME not in self.region.layout.fields:
            return None
        (last,) = struct.unpack("<Q", self._read(locate(self.region.layout, RegionField.LAST_KERNEL_TIME), 8))
        return float(last)

    def set_recent_kernel(self, value: int) -> None:
        """Writes `recent_kernel`.

        Raises:
            Refused: see `region_writing.set_recent_kernel`.
        """
        try:
            set_recent_kernel(self.region, value)
        except OSError as exc:
            raise Refused(f"cannot write the region: {exc.strerror}") from exc

    def pause(self, now_seconds: float) -> None:
        """Puts every process to sleep.

        Args:
            now_seconds: by any clock that never goes back.

        Raises:
            Refused: see `region_writing.pause`.
        """
        try:
            pause(self.region, self._slots(now_seconds))
        except OSError as exc:
            raise Refused(f"cannot write the region: {exc.strerror}") from exc

    def resume(self) -> int:
        """Wakes every process that sleeps; how many slept.

        Raises:
            Refused: see `region_writing.resume`.
        """
        try:
            return resume(self.region)
        except OSError as exc:
            raise Refused(f"cannot write the region: {exc.strerror}") from exc

    def close(self) -> None:
        """Closes the file; called once."""
        os.close(self.region.fd)

    def _read(self, offset: int, size: int) -> bytes:
        try:
            raw = os.pread(self.region.fd, size, offset)
        except OSError as exc:
            raise Refused(f"cannot read the region: {exc.strerror}") from exc
        if len(raw) < size:
            raise Refused(f"cannot read the region: {RegionDoubt.UNKNOWN_SIZE}: it was cut short while it was open")
        return raw

    def _slots(self, now_seconds: float) -> int:
        """As many slots as were ever seen in use, and all of them now and then."""
        processes = self.tail()[0]
        if not 0 <= processes <= PROCESSES_MAX:
            raise Refused(f"cannot write the region: {RegionDoubt.PROCESS_COUNT_IMPOSSIBLE}")
        self._reach = max(self._reach, min(PROCESSES_MAX, processes + _SPARE_SLOTS))
        if now_seconds - self._all_at < ALL_SLOTS_SECONDS:
            return self._reach
        self._all_at = now_seconds
        return PROCESSES_MAX


class HeldRegions:
    """The open regions of some containers; mutable.

    Args:
        containers: root of all regions.
        keeps_moved: keep open what is no longer the region of its container but was, up to `MOVED_MAX` each: a tenant
            may move, remove or double the file, but his processes have mapped this one.
    """

    def __init__(self, containers: Path, *, keeps_moved: bool = False) -> None:
        self._containers = containers
        self._keeps_moved = keeps_moved
        self._moved: dict[ContainerKey, list[HeldRegion]] = {}
        self._held: dict[ContainerKey, HeldRegion] = {}
        self._patience: dict[ContainerKey, int] = {}
        self._calls = 0
        self.refused: dict[ContainerKey, str] = {}
        """Whose regions `keep` could not open though they are there, and why; as of the last try."""

    def get(self, key: ContainerKey) -> HeldRegion:
        """The region of a container, opened and checked where it is not yet.

        Raises:
            Refused: there is none, or something is in doubt.
        """
        held = self.held(key)
        if held is not None:
            return held
        self.drop(key)
        self._held[key] = held = HeldRegion(region_of(self._containers, key))
        return held

    def held(self, key: ContainerKey) -> HeldRegion | None:
        """The region of a container, if it is open and still the one that was checked."""
        held = self._held.get(key)
        return held if held is not None and held.stands else None

    def moved(self, key: ContainerKey) -> tuple[HeldRegion, ...]:
        """What was the region of a container before, and may still be mapped."""
        return tuple(self._moved.get(key, ()))

    def drop(self, key: ContainerKey) -> None:
        """Closes one, if it is open, or sets it aside where it is to be kept."""
        held = self._held.pop(key, None)
        if held is None:
            return
        aside = self._moved.get(key, [])
        if self._keeps_moved and len(aside) < MOVED_MAX and held.is_only_moved and not self._is_region(key, held):
            self._moved[key] = [*aside, held]
        else:
            held.close()

    def keep(self, keys: AbstractSet[ContainerKey]) -> None:
        """Opens those that can be opened, and closes all others.

        At every `KEEPS_BETWEEN`th call those that are open are asked whether they still are what was checked, and those
        that could not be opened are tried again, so that doubtful files cost little.
        """
        for key in [key for key in self._held if key not in keys]:
            self._held.pop(key).close()
        for key in [key for key in self._moved if key not in keys]:
            for held in self._moved.pop(key):
                held.close()
        self.refused = {key: why for key, why in self.refused.items() if key in keys}
        self._patience = {key: left - 1 for key, left in self._patience.items() if left > 1 and key in keys}
        self._calls += 1
        if self._calls % KEEPS_BETWEEN == 0:
            for key in [key for key, held in self._held.items() if not self._is_region(key, held)]:
                self.drop(key)
        for key in keys:
            if key not in self._held and key not in self._patience:
                try:
                    self.get(key)
                except Refused as exc:
                    self._patience[key] = KEEPS_BETWEEN
                    self.refused.pop(key, None)
                    if not isinstance(exc, NoRegion):
                        self.refused[key] = str(exc)
                else:
                    self.refused.pop(key, None)

    def _is_region(self, key: ContainerKey, held: HeldRegion) -> bool:
        try:
            return held.stands and region_of(self._containers, key) == held.path
        except Refused:
            return False
