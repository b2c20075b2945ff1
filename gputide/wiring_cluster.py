"""Opens the cluster that the enforcer changes: the simulated one of the data folder, or a real one by its API server.

Called by `gputide.wiring` and by whatever shows what would be changed. The real one's adapter is imported only where
the settings choose it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from enforcer.cluster import ClusterReader, ClusterWriter, FieldChange, Lease
from enforcer.record.journal import ObjectIntent
from enforcer.simulated.cluster import SimulatedCluster
from fleet.data_folder import DataFolder
from fleet.errors import Refused
from fleet.settings.settings import ClusterChoice, Settings
from gputide.own_cluster import check_uid

if TYPE_CHECKING:
    from enforcer.kubernetes.cluster import KubernetesCluster


NO_CLUSTER = (
    "there is no cluster here that could be changed: this data folder holds history alone, scanned or received; name "
    "yours with --set enforcer.cluster=kubernetes where its API server can be reached"
)


class LiveCluster(ClusterReader, ClusterWriter, Lease, Protocol):
    """A cluster behind all of the enforcer's ports."""

    def pause(self, seconds: float) -> None:
        """Let time pass (the port `Pause`)."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


def is_known(folder: DataFolder, settings: Settings) -> bool:
    """Whether there is a cluster to look at: a simulated one is there once something was replayed."""
    return settings.enforcer.cluster is not ClusterChoice.SIMULATED or folder.cluster.exists()


@contextmanager
def open_cluster(folder: DataFolder, settings: Settings) -> Iterator[LiveCluster]:
    """The cluster that the settings choose, as it stands.

    Raises:
        Refused: the settings choose the simulated one, and nothing was replayed into this folder.
        Misconfigured: there is no way into it.
        Unavailable: it can't be reached or opened.
        Corrupt: the simulated one's file is no such state.
    """
    if not is_known(folder, settings):
        raise Refused(NO_CLUSTER)
    cluster = _opened(folder, settings)
    try:
        yield cluster
    finally:
        cluster.close()


@contextmanager
def open_kubernetes(settings: Settings) -> Iterator[KubernetesCluster]:
    """The real cluster of the settings, whichever the enforcer changes.

    Raises:
        Misconfigured: there is no way into it.
    """
    cluster = _kubernetes(settings)
    try:
        yield cluster
    finally:
        cluster.close()


@contextmanager
def open_cluster_to_change(folder: DataFolder, settings: Settings, now: datetime) -> Iterator[LiveCluster]:
    """The same, to be changed.

    A replay's clock stands still while a plan is applied: what the simulated rollout took is taken back at the end. A
    real cluster's clock is nobody's to set.

    Args:
        folder: data folder.
        settings: all settings.
        now: the clock of the data.

    Raises:
        Refused: it is not the cluster of `enforcer.cluster_uid`.
    """
    with open_cluster(folder, settings) as cluster:
        if not isinstance(cluster, SimulatedCluster):
            check_uid(cluster, settings)
            yield cluster
            return
        cluster.settle(now)
        cluster.advance(now)
        yield cluster
        cluster.settle(now)


def moment_of_change(cluster: LiveCluster, now: datetime) -> datetime:
    """When a change is made: a real cluster's own time, a simulated one's that of the data."""
    return now if isinstance(cluster, SimulatedCluster) else cluster.now()


def rehearsal(cluster: LiveCluster) -> Callable[[ObjectIntent], None] | None:
    """What asks a cluster whether it would take a change, by a dry run; None for a simulated one, which has none."""
    if isinstance(cluster, SimulatedCluster):
        return None
    from enforcer.kubernetes.cluster import KubernetesCluster

    if not isinstance(cluster, KubernetesCluster):
        return None

    def rehearse(intent: ObjectIntent) -> None:
        fields = [FieldChange(field=part.field, value=part.new) for part in intent.fields]
        cluster.dry_run(*intent.key, fields, intent.resource_version)

    return rehearse


def _opened(folder: DataFolder, settings: Settings) -> LiveCluster:
    if settings.enforcer.cluster is ClusterChoice.SIMULATED:
        return SimulatedCluster.open(folder.cluster)
    return _kubernetes(settings)


def _kubernetes(settings: Settings) -> KubernetesCluster:
    from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster

    enforcer = settings.enforcer
    return KubernetesCluster(
        ClusterPlace(
            kubeconfig=enforcer.kubeconfig,
            context=enforcer.kubeconfig_context,
            namespace=enforcer.namespace,
            requests_per_second=enforcer.requests_per_second,
            requests_burst=enforcer.requests_burst,
            parallel_requests_max=enforcer.parallel_requests_max,
        )
    )
