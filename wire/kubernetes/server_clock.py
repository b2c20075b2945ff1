"""What time it is at the API server, told by the `Date` of its answers: windows and expiries go by one clock.

The header is cut to whole seconds, so that every answer tells no more than "not before": of the offsets that answers
show, the largest is the nearest. A server whose clock was set, or another one behind the same address, shows by an
offset that no cutting explains.

Source: RFC 9110, section 6.6.1 (Date).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

_CUT_SECONDS = 1.0
_JUMP_SECONDS = 2.0
"""An offset that is this much smaller is of another clock, and not only cut and late."""


class ServerClock:
    """The server's clock between its answers; for several threads.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._offset: float | None = None

    def hear(self, date: str | None) -> None:
        """Take the header of an answer that has just come; one that is absent or no date tells nothing."""
        if date is None:
            return
        try:
            told = parsedate_to_datetime(date)
        except (ValueError, TypeError, IndexError, OverflowError):
            return
        if told.tzinfo is None:
            return
        offset = told.timestamp() - self._clock()
        with self._lock:
            if self._offset is None or offset > self._offset or offset < self._offset - _CUT_SECONDS - _JUMP_SECONDS:
                self._offset = offset

    def now(self) -> datetime | None:
        """UTC, right to a second; None while no answer has told it."""
        with self._lock:
            if self._offset is None:
                return None
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=self._offset + self._clock())
