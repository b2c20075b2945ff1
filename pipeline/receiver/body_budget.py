"""How many bytes of bodies may be held at once, over all requests.

Connections take from it as bytes arrive (not as lengths are declared, so that a liar costs only what it sends) and give
back when the request is answered.
"""

from __future__ import annotations

import threading


class BodyBudget:
    """A bound on bytes that many threads share.

    Args:
        bytes_max: most bytes held at once (`receiver.pending_bytes_max`).
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Bytes that are held now."""
        return self._held

    def take(self, count: int) -> bool:
        """Hold some more bytes; False, and nothing held, where that would pass the bound."""
        with self._lock:
            if self._held + count > self.bytes_max:
                return False
            self._held += count
            return True

    def give_back(self, count: int) -> None:
        """Hold some bytes less."""
        with self._lock:
            self._held -= count
