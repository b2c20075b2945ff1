"""How long an API server is left alone after it failed: ever longer, and for no two who ask equally long.

The exporters of thousands of nodes lose the same server in the same moment; if they waited equally long they would all
come back in one moment too, and again after each failure. Used by `exporter.cluster.watch` and
`exporter.node.objects`.

Source: kubernetes/client-go:tools/cache/reflector.go (back-off that grows, with jitter, and begins anew only after a
time without failures).
"""

from __future__ import annotations

import random

_SHARE_MIN = 0.5
"""A wait is between this share of its longest and all of it."""


class Backoff:
    """Waits of one who asks; not safe for several threads.

    Args:
        seconds_min: longest first wait.
        seconds_max: longest wait at all, unless the server asks for more.
        seed: of the differences between the waits of several who ask; None for other waits in each process.
    """

    def __init__(self, *, seconds_min: float, seconds_max: float, seed: str | None = None) -> None:
        self._seconds_min = seconds_min
        self._seconds_max = seconds_max
        self._random = random.Random(seed)
        self._seconds = seconds_min

    def failed(self, *, retry_after_seconds: float = 0.0) -> float:
        """After a failure: seconds to wait.

        Args:
            retry_after_seconds: what the server asked for; waited for in full, and not by all to the same moment.
        """
        wait = self._seconds * self._random.uniform(_SHARE_MIN, 1.0)
        self._seconds = min(2 * self._seconds, self._seconds_max)
        return retry_after_seconds + wait

    def recovered(self) -> None:
        """The server does what it is asked for: the next failure is a first one."""
        self._seconds = self._seconds_min
