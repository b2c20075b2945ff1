"""When each cluster last sent data, and how far each step from the receiver to the warehouse is.

Read from the list of the warehouse's files and from the files of the bus, without reading the rows of usage.
`gputide workloads` and `plan make` warn with it that a cluster is silent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dashboards.queries import Fleet
from dashboards.view_models.cluster_sighting import ClusterSighting
from dashboards.view_models.health import LagChain
from fleet.data_folder import DataFolder
from fleet.settings.pipeline import BusKind
from fleet.settings.settings import Settings
from fleet.units import time_from_epoch_ms
from pipeline.bus.bus_file import FileBus
from pipeline.warehouse.parquet_reads import ParquetReads

_CARDS_WITHIN = timedelta(days=1)
"""Cards send their facts hourly; one that was not seen for a day when its cluster still was is gone."""


class WarehouseSightings:
    """`Sightings` over a warehouse."""

    def __init__(self, source: Callable[[], ParquetReads], settings: Settings, now: Callable[[], datetime]) -> None:
        self._source = source
        self._settings = settings
        self._now = now
        self._lock = threading.Lock()
        self._cards: dict[str, tuple[datetime, int]] = {}

    def sightings(self) -> tuple[ClusterSighting, ...]:
        """Every cluster with windows, by name.

        Raises:
            Corrupt: a file can't be read.
        """
        source, now = self._source(), self._now()
        found = []
        for cluster, newest_at in newest_windows(source, self._settings).items():
            found.append(
                ClusterSighting(
                    cluster=cluster,
                    newest_at=newest_at,
                    cards=self._cards_of(source, cluster, newest_at),
                    silent_after_seconds=float(self._settings.cluster.silent_seconds),
                    now=now,
                )
            )
        return tuple(found)

    def _cards_of(self, source: ParquetReads, cluster: str, newest_at: datetime) -> int:
        """Counted anew only when the cluster was heard again."""
        with self._lock:
            kept = self._cards.get(cluster)
        if kept is not None and kept[0] == newest_at:
            return kept[1]
        lives = source.card_lives(cluster)
        cards = sum(last_seen >= newest_at - _CARDS_WITHIN for _, last_seen in lives.values())
        with self._lock:
            self._cards[cluster] = (newest_at, cards)
        return cards


def newest_windows(source: ParquetReads, settings: Settings) -> dict[str, datetime]:
    """End of the newest window of each cluster that has any, UTC, by name."""
    length_ms = settings.rollup.window_seconds * 1000
    return {
        cluster: time_from_epoch_ms(start_ms + length_ms)
        for cluster, start_ms in sorted(source.files.newest_windows().items())
    }


def silent_since(source: ParquetReads, settings: Settings, cluster: str, now: datetime) -> datetime | None:
    """Since when a cluster sends nothing; None while it sends, or where it never sent usage."""
    newest_at = newest_windows(source, settings).get(cluster)
    if newest_at is None or (now - newest_at).total_seconds() <= settings.cluster.silent_seconds:
        return None
    return newest_at


class StoredFlow:
    """`Flow` over a data folder.

    Args:
        fleet: knows the newest window of each cluster.
        bus: opens one lane of the bus in files.
        manifest: the warehouse's list of files.
        clock: the machine's clock, UTC, by which files are dated; a test sets it.
    """

    def __init__(
        self,
        folder: DataFolder,
        settings: Settings,
        fleet: Fleet,
        *,
        bus: Callable[[int], FileBus],
        manifest: Path,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._fleet = fleet
        self._bus = bus
        self._manifest = manifest
        self._clock = clock

    def lags(self, cluster: str) -> LagChain:
        """The chain of one cluster.

        Raises:
            NotEnoughData: nothing is known of it.
        """
        fresh = self._fleet.freshness(cluster)
        is_here = self._settings.bus.kind is BusKind.FILE
        # Opening the bus would make its folder.
        lanes = [lane for lane in self._folder.bus_lanes if self._folder.bus(lane).is_dir()] if is_here else []
        waiting = 0
        written: list[float | None] = []
        for lane in lanes:
            bus = self._bus(lane)
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
            stored_age_seconds=self._age([_written(self._manifest)]),
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
