"""One directory of a node in which a backend keeps a directory per tenant; listed again only when it has changed.

Called by `exporter.regions.tree`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from fleet.errors import Unavailable

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
        path: the root.
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
        """Lists the root if it changed, and says whether it did.

        Args:
            now_ns: Unix nanoseconds.

        Raises:
            Unavailable: the root is there and can't be read.
        """
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
