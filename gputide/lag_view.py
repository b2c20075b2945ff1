"""Fulfils the pages' `Flow`: how far each step from the receiver to the warehouse is, from the files that it left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from dashboards.queries import FleetView
from dashboards.shown.lag_chain import LagChain
from fleet.data_folder import DataFolder
from fleet.settings.pipeline import BusKind
from fleet.settings.settings import Settings
from gputide.wiring_bus import file_bus
from gputide.wiring_warehouse import warehouse_folder


class StoredFlow:
    """`Flow` over a data folder.

    Args:
        folder: data folder.
        settings: all settings.
        fleet: knows the newest window of each cluster.
        clock: the machine's clock, UTC, by which files are dated; for tests.
    """

    def __init__(
        self,
        folder: DataFolder,
        settings: Settings,
        fleet: FleetView,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._fleet = fleet
        self._clock = clock

    def lags(self, cluster: str) -> LagChain:
        """The chain of one cluster.

        Raises:
            NotEnoughData: nothing is known of it.
        """
        fresh = self._fleet.freshness(cluster)
        is_here = self._settings.bus.kind is BusKind.FILE
        # A folder that nobody wrote to is not made by looking.
        lanes = [lane for lane in self._folder.bus_lanes if self._folder.bus(lane).is_dir()] if is_here else []
        waiting = 0
        written: list[float | None] = []
        for lane in lanes:
            bus = file_bus(self._folder, self._settings, lane)
            try:
                waiting += bus.waiting_bytes
                written.append(bus.written_seconds)
            finally:
                bus.close()
        return LagChain(
            newest_at=fresh.newest_at,
            sample_age_seconds=fresh.age_seconds,
            interval_seconds=fresh.interval_seconds,
            received_age_seconds=self._age(written),
            waiting_bytes=waiting if is_here else None,
            stored_age_seconds=self._age([_written(warehouse_folder(self._folder, self._settings) / "MANIFEST")]),
            is_shared=len(self._fleet.clusters()) > 1,
        )

    def _age(self, moments: Sequence[float | None]) -> float | None:
        known = [moment for moment in moments if moment is not None]
        return max(0.0, self._clock().timestamp() - max(known)) if known else None


def _written(path: Path) -> float | None:
    """When a file was last written, epoch seconds; None where there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None
