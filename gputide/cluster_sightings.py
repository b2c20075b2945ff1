"""When each cluster of the warehouse was last heard: from the list of its files, without reading the rows of usage.

Fulfils the pages' `Sightings`; `gputide workloads` and `plan make` say by it that a cluster is silent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from dashboards.queries import ClusterSighting
from fleet.data_folder import DataFolder
from fleet.settings.settings import Settings
from fleet.units import time_from_epoch_ms
from gputide.container.warehouse import warehouse
from pipeline.warehouse.parquet_reads import ParquetReads

_CARDS_WITHIN = timedelta(days=1)
"""Cards send their facts hourly; one that was not seen for a day when its cluster still was is gone."""


class WarehouseSightings:
    """`Sightings` over the warehouse of a data folder.

    Args:
        folder: data folder.
        settings: all settings.
        now: the clock of the data.
    """

    def __init__(self, folder: DataFolder, settings: Settings, now: Callable[[], datetime]) -> None:
        self._folder = folder
        self._settings = settings
        self._now = now
        self._lock = threading.Lock()
        self._cards: dict[str, tuple[datetime, int]] = {}

    def sightings(self) -> tuple[ClusterSighting, ...]:
        """Every cluster with windows, by name.

        Raises:
            Corrupt: a file can't be read.
        """
        source, now = warehouse(self._folder, self._settings), self._now()
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


def silent_since(folder: DataFolder, settings: Settings, cluster: str, now: datetime) -> datetime | None:
    """Since when a cluster sends nothing; None while it sends, or where it never sent usage."""
    newest_at = newest_windows(warehouse(folder, settings), settings).get(cluster)
    if newest_at is None or (now - newest_at).total_seconds() <= settings.cluster.silent_seconds:
        return None
    return newest_at
