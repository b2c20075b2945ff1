"""Which cluster this enforcer changes, and no other: what plans, runs and the API server are held against.

One warehouse may hold many clusters, and plans are kept for each of them; a plan that reached the enforcer of another
cluster would find objects of the same names there. Called by whatever opens a cluster to change or to preview.
"""

from __future__ import annotations

from enforcer.cluster import ClusterReader
from enforcer.safety.guard import check_cluster_name
from fleet.data_folder import DataFolder
from fleet.decisions import Plan
from fleet.errors import Refused
from fleet.settings.settings import ClusterChoice, ClusterSettings, Settings
from gputide.clock import read_replay_clock
from gputide.wiring_warehouse import warehouse

_UID_NAMESPACE = "kube-system"
"""Every cluster has it from its first start to its end, so its UID serves as the cluster's (OpenTelemetry semantic
conventions, resource attribute k8s.cluster.uid)."""

_UNNAMED = ClusterSettings().name


def own_cluster(folder: DataFolder, settings: Settings) -> str | None:
    """Name of the cluster that the enforcer changes.

    Of the simulated cluster it is that of the trace it follows, None before there was one. Of a real one it is
    `cluster.name`; where nobody has set that and the warehouse knows one cluster only, it is that one.
    """
    if settings.enforcer.cluster is ClusterChoice.SIMULATED:
        clock = read_replay_clock(folder)
        return None if clock is None else clock.cluster
    if settings.cluster.name != _UNNAMED:
        # Another cluster may be the only one that has sent yet.
        return settings.cluster.name
    known = warehouse(folder, settings).clusters()
    return known[0] if len(known) == 1 else settings.cluster.name


def check_own(plan: Plan, folder: DataFolder, settings: Settings) -> None:
    """Refuse a plan that was made for another cluster than the enforcer's.

    Raises:
        Refused: it was, with both names.
    """
    check_cluster_name(plan, own_cluster(folder, settings))


def check_uid(reader: ClusterReader, settings: Settings) -> None:
    """Refuse a cluster that is not the one that the settings name by its UID; without one any will do.

    Raises:
        Refused: it is another.
        Unavailable: it can't be reached.
    """
    wanted = settings.enforcer.cluster_uid
    if wanted is None or settings.enforcer.cluster is ClusterChoice.SIMULATED:
        return
    found = reader.get("Namespace", "", _UID_NAMESPACE)
    uid = None if found is None else found["metadata"].get("uid")
    if uid != wanted:
        raise Refused(
            f"cannot change this cluster: namespace {_UID_NAMESPACE} has UID {uid or 'none'}, and "
            f"enforcer.cluster_uid={wanted}; check enforcer.kubeconfig and enforcer.kubeconfig_context"
        )
