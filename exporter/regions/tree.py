"""The directories in which HAMi and Volcano keep one region per container: who is there, and which file is the region.

`<hook path>/vgpu/containers/<pod UID>_<container>/*.cache`: the device plugin makes the directory when the kubelet
allocates, the library makes the file at the first call of CUDA or NVML, so a container that never used its card has a
directory and no file. Root and directories are listed again only when their modification time changed. What stands in a
container's directory is its tenant's to write: every name and number is bounded.

Sources: Project-HAMi/HAMi:pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go (Allocate),
Project-HAMi/HAMi:pkg/monitor/nvidia/cudevshr.go; Project-HAMi/volcano-vgpu-device-plugin:pkg/plugin/server.go.
"""

from __future__ import annotations

import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from exporter.regions.file import open_region
from exporter.regions.followed import FollowedRegion
from fleet.errors import Unavailable
from fleet.region_doubts import RegionDoubt
from fleet.region_layouts import candidates

CONTAINERS_MAX = 4096
"""Directories that are looked at; a node runs some hundred pods."""
FILES_MAX = 256
"""Entries that a container's directory may have; HAMi's and the library's own are two."""
RELIST_SECONDS = 10.0
"""A directory with several regions, or an unreadable one, is listed again this often even if it didn't change."""

LOOKS_BETWEEN = 8
"""A directory whose region is open is looked at once in so many readings; all are when the root changed."""

_UNSETTLED_NS = 2_000_000_000
"""A directory changed this shortly before it was listed may have changed once more without another time stamp."""
_DIRECTORY = re.compile(
    r"(?P<pod_uid>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})_(?P<container>[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)",
    re.ASCII,
)
_REGION_NAME = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.cache", re.ASCII)
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerKey:
    """Which container a directory belongs to.

    Attributes:
        pod_uid: UID of the pod; 8-4-4-4-12 hexadecimal digits, or 32 of a static pod.
        container: name of the container.
    """

    pod_uid: str
    container: str


class ContainerPlace:
    """One container's directory and the region in it; changes in place as the directory does.

    Attributes:
        key: which container.
        region: the open region; None where there is none or it can't be opened. Another file is another object.
        doubt: why there is a file but no region; None otherwise.
        files: files that could be the region.
    """

    __slots__ = ("_checked_at_ns", "_file", "_path", "_stamp", "doubt", "files", "key", "region")

    def __init__(self, key: ContainerKey, path: str) -> None:
        self.key = key
        self.region: FollowedRegion | None = None
        self.doubt: RegionDoubt | None = None
        self.files = 0
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._checked_at_ns = 0
        self._file: tuple[int, int] | None = None

    @property
    def has_file(self) -> bool:
        """Whether there is anything that could be a region."""
        return self.files > 0 or self.doubt is not None

    @property
    def is_settled(self) -> bool:
        """Whether it has its one region, and has had it for a while."""
        return self.region is not None and self.files == 1 and self._stamp is not None

    def look(self, now_ns: int) -> None:
        """Looks whether the directory changed, and for its region if so."""
        try:
            status = os.lstat(self._path)
        except OSError:  # vanished; the root's next listing leaves it out
            self.close()
            self._stamp = None
            return
        stamp = (status.st_ino, status.st_mtime_ns)
        is_settled = (self.files <= 1 and self.doubt is None) or now_ns - self._checked_at_ns < RELIST_SECONDS * 1e9
        if stamp == self._stamp and is_settled:
            return
        self._checked_at_ns = now_ns
        # A stamp is kept only once it is old: a change within the clock's tick leaves none of its own.
        self._stamp = stamp if now_ns - status.st_mtime_ns > _UNSETTLED_NS else None
        self._find_region()

    def close(self) -> None:
        """Closes the region."""
        if self.region is not None:
            os.close(self.region.fd)
        self.region = self._file = self.doubt = None
        self.files = 0

    def _find_region(self) -> None:
        try:
            directory = os.open(self._path, _DIRECTORY_FLAGS)
            try:
                self._choose(directory, _region_files(directory))
            finally:
                os.close(directory)
        except OSError:
            self.close()
            self.doubt = RegionDoubt.UNREADABLE

    def _choose(self, directory: int, found: list[_RegionFile] | None) -> None:
        if found is None:
            self.close()
            self.doubt = RegionDoubt.TOO_MANY_FILES
            return
        chosen = max(found, key=lambda file: file.rank, default=None)
        if chosen is None:
            self.close()
        elif self.region is None or chosen.identity != self._file:
            self.close()
            self._open(directory, chosen)
        self.files = len(found)

    def _open(self, directory: int, chosen: _RegionFile) -> None:
        opened = open_region(chosen.name, directory)
        if isinstance(opened, RegionDoubt):
            self.doubt = opened
        else:
            self.region, self._file = FollowedRegion(opened), chosen.identity


class RegionTree:
    """All containers' directories of a node.

    Args:
        containers_dir: `<hook path>/vgpu/containers`; may not be there yet.
    """

    def __init__(self, containers_dir: Path) -> None:
        self._root = str(containers_dir)
        self._stamp: tuple[int, int] | None = None
        self._places: dict[str, ContainerPlace] = {}
        self._in_order: tuple[ContainerPlace, ...] = ()
        self._turn = 0
        self.foreign_directories = 0
        """Entries of the root that are no container's directory, or more than `CONTAINERS_MAX`."""

    def look(self) -> tuple[ContainerPlace, ...]:
        """Looks at the root and at every directory.

        Returns:
            All containers, by their directories' names; the same tuple as before where none came or went.

        Raises:
            Unavailable: the root is there and can't be read.
        """
        now_ns = time.time_ns()
        has_changed = self._look_at_root(now_ns)
        self._turn = (self._turn + 1) % LOOKS_BETWEEN
        for number, place in enumerate(self._in_order):
            if has_changed or (number + self._turn) % LOOKS_BETWEEN == 0 or not place.is_settled:
                place.look(now_ns)
        return self._in_order

    def close(self) -> None:
        """Closes all regions."""
        for place in self._in_order:
            place.close()
        self._places, self._in_order, self._stamp = {}, (), None

    def _look_at_root(self, now_ns: int) -> bool:
        """Lists the root if it changed, and says whether it did."""
        try:
            status = os.stat(self._root)
            stamp = (status.st_ino, status.st_mtime_ns)
            if stamp == self._stamp:
                return False
            names = self._names()
        except FileNotFoundError:
            self.close()
            self.foreign_directories = 0
            return True
        except OSError as exc:
            raise Unavailable(f"cannot list the containers' regions in {self._root}: {exc.strerror}") from exc
        self._stamp = stamp if now_ns - status.st_mtime_ns > _UNSETTLED_NS else None
        for name in self._places.keys() - names.keys():
            self._places.pop(name).close()
        for name in names.keys() - self._places.keys():
            self._places[name] = ContainerPlace(names[name], f"{self._root}/{name}")
        if len(self._in_order) != len(self._places) or any(
            self._places.get(_name(place)) is not place for place in self._in_order
        ):
            self._in_order = tuple(self._places[name] for name in sorted(self._places))
        return True

    def _names(self) -> dict[str, ContainerKey]:
        """The directories' names, with the containers they belong to."""
        names: dict[str, ContainerKey] = {}
        foreign = 0
        with os.scandir(self._root) as entries:
            for entry in entries:
                match = _DIRECTORY.fullmatch(entry.name)
                if match is None or len(names) >= CONTAINERS_MAX or not entry.is_dir(follow_symlinks=False):
                    foreign += 1
                else:
                    names[entry.name] = ContainerKey(pod_uid=match["pod_uid"], container=match["container"])
        self.foreign_directories = foreign
        return names


@dataclass(frozen=True, slots=True, kw_only=True)
class _RegionFile:
    """A file that could be the region; the right one has the greatest rank.

    The library names it `<uuid>.cache`, gives it a layout's size, and writes to it whenever a process starts.
    """

    name: str
    identity: tuple[int, int]
    rank: tuple[bool, bool, bool, int, str]


def _region_files(directory: int) -> list[_RegionFile] | None:
    """The entries `*.cache` of a directory, whatever they are; None where it has more than `FILES_MAX` entries."""
    found = []
    with os.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if number >= FILES_MAX:
                return None
            if not entry.name.endswith(".cache"):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:  # vanished since it was listed
                continue
            rank = (
                stat.S_ISREG(status.st_mode),
                bool(candidates(status.st_size)),
                _REGION_NAME.fullmatch(entry.name) is not None,
                status.st_mtime_ns,
                entry.name,
            )
            found.append(_RegionFile(name=entry.name, identity=(status.st_dev, status.st_ino), rank=rank))
    return found


def _name(place: ContainerPlace) -> str:
    return f"{place.key.pod_uid}_{place.key.container}"
