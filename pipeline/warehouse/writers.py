"""Who may write into a warehouse's folder: a numbered place for each process, and one of them at a time for upkeep.

    writer-0.lock, writer-1.lock, …    a process that appends holds one; its files begin with `w0-`, `w1-`, …
    upkeep.lock                        held while partitions are merged and dropped; those files have no such beginning

The files that a killed process has left are those of a place that nobody holds and that the manifest does not know:
the next process that takes a place removes them, and so does each round of upkeep. Called by `warehouse.files`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fleet.durable import FolderLock, Held

WRITERS_MAX = 64
"""Processes that write into one folder at once."""
_BEGINNING = re.compile(r"\.?w(\d+)-")


class Writers:
    """The places of one folder, and the one that this process holds; mutable.

    Args:
        is_shared: whether several processes may append at once.
        sweep: removes those files that the manifest does not know and whose names the given function picks.
    """

    def __init__(self, folder: Path, *, is_shared: bool, sweep: Callable[[Callable[[str], bool]], None]) -> None:
        self._folder = folder
        self._places = WRITERS_MAX if is_shared else 1
        self._sweep = sweep
        self._lock: FolderLock | None = None
        self._place = 0

    @property
    def is_held(self) -> bool:
        """Whether this process may append."""
        return self._lock is not None

    @property
    def beginning(self) -> str:
        """What the names of this process's files begin with."""
        return f"w{self._place}-"

    def take(self) -> None:
        """Takes the first free place, and clears away what the dead have left.

        Raises:
            Unavailable: none is free.
            Corrupt: the folder can't be written.
        """
        for place in range(self._places):
            try:
                self._lock = FolderLock(self._folder, f"writer-{place}")
            except Held:
                if place == self._places - 1:
                    raise
                continue
            self._place = place
            break
        self._clear({self._place})
        with suppress(Held), self.upkeep():
            pass

    @contextmanager
    def upkeep(self) -> Iterator[None]:
        """The right to replace files; begins by removing what was left.

        Raises:
            Held: another process has it.
        """
        with FolderLock(self._folder, "upkeep"):
            self._sweep(lambda name: _BEGINNING.match(name) is None)
            self._clear(set())
            yield

    def release(self) -> None:
        """Lets another process have the place."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _clear(self, places: set[int]) -> None:
        """Removes what is left of some places, and of those that nobody holds."""
        locks: dict[int, FolderLock] = {}
        try:
            for place in range(self._places):
                # Held meanwhile, so that nobody takes it and writes.
                if place != self._place and (self._folder / f"writer-{place}.lock").exists():
                    with suppress(Held):
                        locks[place] = FolderLock(self._folder, f"writer-{place}")
            free = places | locks.keys()
            if free:
                self._sweep(lambda name: (found := _BEGINNING.match(name)) is not None and int(found[1]) in free)
        finally:
            for lock in locks.values():
                lock.release()
