"""How often the API server is asked: a bucket of tokens, and a rest when the server asks for one.

A plan of a thousand workloads must not take the API server from those who run on it. Called by the client before every
request, from several threads.

Source: kubernetes/client-go:util/flowcontrol/throttle.go (token bucket: rate and burst).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class RequestRate:
    """A token bucket.

    Args:
        per_second: requests per second in the long run.
        burst: requests that may be made at once after a pause.
    """

    def __init__(
        self,
        *,
        per_second: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._interval = 1.0 / per_second
        self._slack = (burst - 1) * self._interval
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._next_at = clock() - self._slack
        """When the next token is there; one that lies back in time by the slack is the whole burst."""

    def take(self) -> float:
        """Waits for a token; returns the seconds that were waited."""
        with self._lock:
            now = self._clock()
            due = max(self._next_at, now - self._slack)
            self._next_at = due + self._interval
        wait = max(0.0, due - now)
        if wait:
            self._sleep(wait)
        return wait

    def rest(self, seconds: float) -> None:
        """Give no token for a while: the server asked for it."""
        with self._lock:
            self._next_at = max(self._next_at, self._clock() + seconds)
