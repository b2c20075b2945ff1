"""Gives the enforcer's `verify` what it asks for: the warehouse's history between two moments."""

from __future__ import annotations

from datetime import datetime

from fleet.data_folder import DataFolder
from fleet.settings.settings import Settings
from fleet.usage import History
from gputide.wiring import cluster_name
from gputide.wiring_warehouse import warehouse


class WarehouseMeasurements:
    """`Measurements` over the warehouse.

    Args:
        folder: data folder.
        settings: all settings.
        cluster: whose; None for the one that the settings mean.
    """

    def __init__(self, folder: DataFolder, settings: Settings, *, cluster: str | None = None) -> None:
        self._folder = folder
        self._settings = settings
        self._cluster = cluster

    def history(self, since: datetime, until: datetime) -> History:
        """Usage and grants between two moments; see the port."""
        cluster = self._cluster if self._cluster is not None else cluster_name(self._folder, self._settings)
        return warehouse(self._folder, self._settings).history(
            cluster, since=since, until=until, time_zone=self._settings.cluster.time_zone
        )
