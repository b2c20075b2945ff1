"""What pages make of an answer is made once per answer: tables, maps and sums of a large fleet are kept with it.

The ports give the same object while nothing changed (`queries.Fleet.profiles`), and each person's cut of it is an
object of its own (`access/scoped`), so what is kept under an object is of that data and of that reach, and of no
other. It is dropped when the object is gone, and the longest unused goes first when there is too much. What is made
must not hold the object itself, else neither is ever let go of. Called by the pages.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")
KEPT_MAX = 96
"""Things that are kept at most, over all answers and readers."""


class _Kept:
    """One thing, made by whoever asks first; others who ask meanwhile wait for it."""

    __slots__ = ("lock", "made", "sources")

    def __init__(self, sources: tuple[object, ...]) -> None:
        self.sources = tuple(weakref.ref(source) for source in sources)
        self.lock = threading.Lock()
        self.made: list[Any] = []

    def is_of(self, sources: tuple[object, ...]) -> bool:
        return all(ref() is source for ref, source in zip(self.sources, sources, strict=True))

    @property
    def is_orphan(self) -> bool:
        return any(ref() is None for ref in self.sources)


class MadeOnce:
    """Keeps what was made of answers.

    Args:
        kept_max: things that are kept at most.
    """

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Hashable, ...], _Kept] = OrderedDict()

    def of(self, sources: tuple[object, ...], name: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, made once for these sources.

        Args:
            sources: the answers that it is made of, each of a class that can be referred to weakly.
            name: what it is, with everything else that it depends on.
            make: makes it; what it raises is raised here, and nothing is kept.
        """
        key = (name, *map(id, sources))
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or not kept.is_of(sources):
                for stale in [place for place, other in self._kept.items() if other.is_orphan]:
                    del self._kept[stale]
                kept = self._kept[key] = _Kept(sources)
            self._kept.move_to_end(key)
            while len(self._kept) > self._kept_max:
                self._kept.popitem(last=False)
        with kept.lock:
            if not kept.made:
                kept.made.append(make())
            made: T = kept.made[0]
            return made


MADE = MadeOnce()
"""What the pages of this process keep."""
