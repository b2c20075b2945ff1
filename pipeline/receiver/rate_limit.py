"""How much of something may come per second: a bucket that fills steadily (token bucket).

The receiver keeps one per sender for requests and one for samples. What a request brings is known only after it was
decoded, so a bucket may be overdrawn once; the next request waits until it has filled again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

BURST_SECONDS = 10.0
"""How much may come at once, as seconds of the steady rate."""


class RateLimit:
    """A bucket.

    Args:
        per_second: what may come per second.
        now_seconds: a clock that never goes back.
    """

    def __init__(self, per_second: int, now_seconds: Callable[[], float]) -> None:
        self._per_second = per_second
        self._now_seconds = now_seconds
        self._level = per_second * BURST_SECONDS
        self._filled_at = now_seconds()
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Take out what has come; the bucket may be overdrawn."""
        with self._lock:
            self._level -= count

    def wait_seconds(self) -> int:
        """Whole seconds until there is something in the bucket again; 0 where there is."""
        with self._lock:
            now = self._now_seconds()
            full = self._per_second * BURST_SECONDS
            self._level = min(full, self._level + (now - self._filled_at) * self._per_second)
            self._filled_at = now
            return 0 if self._level > 0 else max(1, math.ceil(-self._level / self._per_second))
