"""Which cluster's history is meant, and that history between two moments: `verify` and the harm budgets ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from fleet.data_folder import DataFolder
from fleet.errors import Misconfigured, NotEnoughData
from fleet.settings.settings import Settings
from fleet.usage import History
from gputide.wiring_warehouse import warehouse

_CLUSTERS_NAMED_MAX = 10


def cluster_name(folder: DataFolder, settings: Settings, asked: str | None = None) -> str:
    """The cluster that is meant: the one that is asked for, else the only one with data, else that of the settings.

    Raises:
        NotEnoughData: nothing is known of any cluster.
        Misconfigured: nothing is known of the one that is asked for; or there are several, and neither a word nor the
            settings name one of them.
    """
    known = warehouse(folder, settings).clusters()
    if not known:
        raise NotEnoughData(
            "nothing was recorded yet; feed the folder with `gputide admin replay DIR` or `gputide run receive`"
        )
    if asked is not None:
        if asked not in known:
            raise Misconfigured(f"cannot use --cluster {asked[:253]!r}: data came of {_listed(known)}")
        return asked
    if settings.cluster.name in known:
        return settings.cluster.name
    if len(known) > 1:
        raise Misconfigured(
            f"cannot choose a cluster: cluster.name={settings.cluster.name!r} is not among {_listed(known)}; say "
            "--cluster NAME, or --set cluster.name=NAME"
        )
    return known[0]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_CLUSTERS_NAMED_MAX])
    return shown if len(names) <= _CLUSTERS_NAMED_MAX else f"{shown} and {len(names) - _CLUSTERS_NAMED_MAX} more"


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
