"""The scheduler layer as a `DeviceReader`, so that it is collected and served like a node: its readings are families.

What a cluster grants is worked out in the background; a reading takes what is there. Chosen by the front door's
`run export cluster`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from exporter.allocation.collector import AllocationCollector
from exporter.reader import Reading
from fleet.errors import Unavailable

AGE_SECONDS_MAX = 300.0
"""Age of the scheduler layer beyond which it is not shown any more: who knows what was granted since."""


class ClusterLayerReader:
    """Reads the scheduler layer.

    Args:
        allocation: the scheduler layer; started and stopped by this.
        now: the time, UTC; for tests.
    """

    def __init__(
        self, allocation: AllocationCollector, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._allocation = allocation
        self._now = now
        self._last_at: datetime | None = None
        self._is_closed = False
        allocation.start()

    def read(self, deadline_seconds: float) -> Reading:
        """Reads once; see `DeviceReader`. The first reading waits for the cluster as long as it may."""
        until = time.monotonic() + deadline_seconds
        snapshot = self._allocation.snapshot()
        while not snapshot.is_ready and time.monotonic() < until:
            time.sleep(min(0.1, deadline_seconds / 10))
            snapshot = self._allocation.snapshot()
        if not snapshot.is_ready:
            said = next((state.last_error for state in snapshot.watches if state.last_error is not None), None)
            raise Unavailable(f"cannot show the cluster yet: {said or 'nodes and pods are still being read'}")
        if snapshot.age_seconds is None or snapshot.age_seconds > AGE_SECONDS_MAX:
            raise Unavailable(f"cannot show the cluster: what is known of it is older than {AGE_SECONDS_MAX:.0f} s")
        moment = self._now()
        if self._last_at is not None and moment <= self._last_at:
            # The clock was set back; readings stay in order.
            moment = self._last_at + timedelta(milliseconds=1)
        self._last_at = moment
        return Reading(at=moment, families=snapshot.families)

    def close(self) -> None:
        """Ends the reading of the cluster; more than once does no harm."""
        if not self._is_closed:
            self._is_closed = True
            self._allocation.stop()
