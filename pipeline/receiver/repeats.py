"""What bodies were answered, so that one that comes again is answered as before; shared by all intakes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

BODIES_MAX = 100_000
"""Bodies that are remembered at most: a sender that was not answered comes again within seconds."""

_Answer = TypeVar("_Answer")


class Repeats(Generic[_Answer]):
    """Answers by the names of bodies; mutable: threads may ask and add at once.

    Args:
        seconds: how long a body is remembered (`rollup.repeat_memory_seconds`).
    """

    def __init__(self, seconds: float, now_seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._now_seconds = now_seconds
        self._lock = threading.Lock()
        self._bodies: OrderedDict[bytes, tuple[float, _Answer]] = OrderedDict()

    def recall(self, name: bytes) -> _Answer | None:
        """What a body was answered; None for one that is not remembered."""
        with self._lock:
            horizon = self._now_seconds() - self._seconds
            while self._bodies and next(iter(self._bodies.values()))[0] < horizon:
                self._bodies.popitem(last=False)
            known = self._bodies.get(name)
            return None if known is None else known[1]

    def remember(self, name: bytes, answer: _Answer) -> None:
        """Remembers what a body was answered."""
        with self._lock:
            self._bodies[name] = (self._now_seconds(), answer)
            if len(self._bodies) > BODIES_MAX:
                self._bodies.popitem(last=False)
