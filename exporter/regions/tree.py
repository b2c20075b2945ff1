"""The directories in which HAMi and Volcano keep one region per container: who is there, and which file is the region.

`<hook path>/vgpu/containers/<pod UID>_<container>/*.cache`: the device plugin makes the directory when the kubelet
allocates, the library makes the file at the first call of CUDA or NVML, so a container that never used its card has a
directory and no file. HAMi's driver for dynamic resource allocation makes `<hook path>/vgpu/claims/<claim UID>`
instead, one for all containers that use the claim: its region is a container's only where no other one uses the claim.
Root and directories are listed again only when their modification time changed. What stands in a container's directory
is its tenant's to write: every name and number is bounded.

Sources: Project-HAMi/HAMi:pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go (Allocate),
Project-HAMi/HAMi:pkg/monitor/nvidia/cudevshr.go; Project-HAMi/volcano-vgpu-device-plugin:pkg/plugin/server.go;
Project-HAMi/k8s-dra-driver:cmd/hami-kubelet-plugin/hami_core.go (GetCDIContainerEdits).
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from operator import is_not
from pathlib import Path

from exporter.regions.followed import FollowedRegion
from fleet.errors import Unavailable
from fleet.regions.doubts import RegionDoubt
from fleet.regions.files import open_region
from fleet.regions.layouts import candidates

FILES_MAX = 256
"""Entries that a container's directory may have; HAMi's and the library's own are two."""
RELIST_SECONDS = 10.0
"""A directory with several regions, or an unreadable one, is listed again this often even if it didn't change."""

LOOKS_BETWEEN = 8
"""A directory whose region is open is looked at once in so many readings; all are when the root changed."""

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OF_CONTAINER = re.compile(
    rf"(?P<pod_uid>{_UUID}|[0-9a-f]{{32}})_(?P<container>[a-z0-9](?:[-a-z0-9]{{0,61}}[a-z0-9])?)", re.ASCII
)
_OF_CLAIM = re.compile(_UUID, re.ASCII)
_REGION_NAME = re.compile(rf"{_UUID}\.cache", re.ASCII)
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerKey:
    """Which container a directory belongs to.

    Attributes:
        pod_uid: UID of the pod; 8-4-4-4-12 hexadecimal digits, or 32 of a static pod.
    """

    pod_uid: str
    container: str


class ContainerPlace:
    """One container's directory and the region in it; changes in place as the directory does.

    Attributes:
        region: the open region; None where there is none or it can't be opened. Another file is another object.
        doubt: why there is a file but no region; None otherwise.
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
        self._stamp = stamp if now_ns - status.st_mtime_ns > UNSETTLED_NS else None
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


ClaimUsers = Mapping[str, ContainerKey]
"""By the UID of a claim of HAMi's driver the one container that uses it."""

NO_CLAIMS: ClaimUsers = {}


class RegionTree:
    """All containers' directories of a node.

    Args:
        claims_dir: `<hook path>/vgpu/claims`; may not be there. None not to look.
    """

    def __init__(self, containers_dir: Path, claims_dir: Path | None = None) -> None:
        self._containers = RegionRoot(containers_dir, _OF_CONTAINER)
        self._claims = None if claims_dir is None else RegionRoot(claims_dir, _OF_CLAIM)
        self._users = NO_CLAIMS
        self._places: dict[str, ContainerPlace] = {}
        self._in_order: tuple[ContainerPlace, ...] = ()
        self._shown: tuple[ContainerPlace, ...] = ()
        self._has_rivals = False
        self._turn = 0
        self.foreign_directories = 0
        """Entries of the roots that are no container's directory, or more than `CONTAINERS_MAX`."""

    def look(self, users: ClaimUsers = NO_CLAIMS) -> tuple[ContainerPlace, ...]:
        """Looks at the roots and at every directory.

        Args:
            users: who uses which claim, as far as it is known.

        Returns:
            All containers, by their UIDs and names; the same tuple as before where none came or went.

        Raises:
            Unavailable: a root is there and can't be read.
        """
        now_ns = time.time_ns()
        has_changed = self._containers.has_changed(now_ns)
        if self._claims is not None:
            has_changed = self._claims.has_changed(now_ns) or users != self._users or has_changed
        if has_changed:
            self._users = users
            self._follow()
        self._turn = (self._turn + 1) % LOOKS_BETWEEN
        for number, place in enumerate(self._in_order):
            if has_changed or (number + self._turn) % LOOKS_BETWEEN == 0 or not place.is_settled:
                place.look(now_ns)
        self._shown = _one_each(self._in_order, self._shown) if self._has_rivals else self._in_order
        return self._shown

    def close(self) -> None:
        """Closes all regions."""
        for place in self._in_order:
            place.close()
        for root in (self._containers, self._claims):
            if root is not None:
                root.forget()
        self._places, self._in_order, self._shown = {}, (), ()

    def _follow(self) -> None:
        """Follows the directories that are there now, and no others."""
        keys, self.foreign_directories = self._keys()
        for path, place in list(self._places.items()):
            if keys.get(path) != place.key:
                self._places.pop(path).close()
        for path, key in keys.items():
            if path not in self._places:
                self._places[path] = ContainerPlace(key, path)
        in_order = tuple(place for _, place in sorted(self._places.items(), key=_order))
        if len(in_order) != len(self._in_order) or any(map(is_not, in_order, self._in_order)):
            self._in_order = in_order
            self._has_rivals = len({place.key for place in in_order}) < len(in_order)

    def _keys(self) -> tuple[dict[str, ContainerKey], int]:
        """The directories with the containers they belong to, and how many belong to none."""
        keys = {
            f"{self._containers.path}/{name}": ContainerKey(pod_uid=match["pod_uid"], container=match["container"])
            for name, match in self._containers.names.items()
        }
        foreign = self._containers.foreign
        if self._claims is not None:
            used = [claim for claim in self._claims.names if claim in self._users]
            keys |= {f"{self._claims.path}/{claim}": self._users[claim] for claim in used}
            foreign += self._claims.foreign + len(self._claims.names) - len(used)
        return keys, foreign


def _one_each(places: tuple[ContainerPlace, ...], before: tuple[ContainerPlace, ...]) -> tuple[ContainerPlace, ...]:
    """One directory per container, of several the first that has a region, which is that of its last claim."""
    chosen: dict[ContainerKey, ContainerPlace] = {}
    for place in places:
        if place.key not in chosen or (place.has_file and not chosen[place.key].has_file):
            chosen[place.key] = place
    found = tuple(chosen.values())
    is_same = len(found) == len(before) and not any(map(is_not, found, before))
    return before if is_same else found


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


def _order(item: tuple[str, ContainerPlace]) -> tuple[str, str]:
    path, place = item
    return f"{place.key.pod_uid}_{place.key.container}", path


CONTAINERS_MAX = 4096
"""Directories that are looked at; a node runs some hundred pods."""
UNSETTLED_NS = 2_000_000_000
"""A directory changed this shortly before it was listed may have changed once more without another time stamp."""


class RegionRoot:
    """The directories below one root.

    Args:
        path: the root; may not be there yet.
        pattern: what the names of the directories look like.

    Attributes:
        names: the directories' names, with what the pattern finds in them.
        foreign: entries that are no such directory, or more than `CONTAINERS_MAX`.
    """

    def __init__(self, path: Path, pattern: re.Pattern[str]) -> None:
        self.path = str(path)
        self.names: dict[str, re.Match[str]] = {}
        self.foreign = 0
        self._pattern = pattern
        self._stamp: tuple[int, int] | None = None

    def has_changed(self, now_ns: int) -> bool:
        """Lists the root if it changed, and says whether it did."""
        try:
            status = os.stat(self.path)
            stamp = (status.st_ino, status.st_mtime_ns)
            if stamp == self._stamp:
                return False
            self._list()
        except FileNotFoundError:
            had_any = bool(self.names) or self.foreign > 0
            self.forget()
            return had_any
        except OSError as exc:
            raise Unavailable(f"cannot list the containers' regions in {self.path}: {exc.strerror}") from exc
        # A stamp is kept only once it is old: a change within the clock's tick leaves none of its own.
        self._stamp = stamp if now_ns - status.st_mtime_ns > UNSETTLED_NS else None
        return True

    def forget(self) -> None:
        """Knows of no directory until it is listed again."""
        self.names, self.foreign, self._stamp = {}, 0, None

    def _list(self) -> None:
        names: dict[str, re.Match[str]] = {}
        foreign = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                match = self._pattern.fullmatch(entry.name)
                if match is None or len(names) >= CONTAINERS_MAX or not entry.is_dir(follow_symlinks=False):
                    foreign += 1
                else:
                    names[entry.name] = match
        self.names, self.foreign = names, foreign
