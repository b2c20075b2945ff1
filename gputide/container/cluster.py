"""Opens the cluster that the enforcer changes: the simulated one of the data folder, or a real one by its API server.

Also says which cluster that is and which GPU-sharing backend renders its changes. One warehouse may hold many
clusters, and plans are kept for each of them; a plan that reached the enforcer of another cluster would find objects of
the same names there. The real cluster's adapter is imported only where the settings choose it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

import structlog

from enforcer.agent.presence import nodes_with_agents
from enforcer.backend import Backend, NodeOwner
from enforcer.backends.effectivegpu import EffectiveGpuBackend, words_of_models
from enforcer.backends.hami import HamiBackend
from enforcer.backends.hami_dialect import HAMI_WORDS, HamiDialect
from enforcer.backends.register import BACKENDS
from enforcer.backends.running import PART_KINDS, LeftOut, RunningBackend, parts_of, running_tag
from enforcer.backends.volcano import VolcanoBackend
from enforcer.cluster import ClusterReader, ClusterWriter, FieldChange, Lease
from enforcer.dialect import ObjectKey
from enforcer.machines import Machine, machine_of
from enforcer.manifest import Manifest
from enforcer.probe.stored_results import kept_results, read_key
from enforcer.record.anchor import Anchor
from enforcer.record.journal import ObjectIntent
from enforcer.record.shared_ledger import ChangeStore
from enforcer.record.shared_plans import ClusterPlans
from enforcer.safety.guard import check_cluster_name
from enforcer.simulated.cluster import SimulatedCluster
from fleet.capabilities.capability import Capabilities
from fleet.capabilities.register import EFFECTIVE_GPU, HAMI, records_of
from fleet.data_folder import DataFolder
from fleet.decisions import Plan
from fleet.errors import GputideError, Misconfigured, Refused, Unavailable
from fleet.priority_holds import NOBODY, Holders, holders_of
from fleet.probe_results import ProbeResult, as_measured
from fleet.settings.agent import GiveWayManner
from fleet.settings.settings import ClusterChoice, ClusterSettings, Settings
from gputide.container.warehouse import warehouse
from gputide.replay.clock import read_replay_clock

if TYPE_CHECKING:
    from enforcer.kubernetes.cluster import KubernetesCluster

_log = structlog.get_logger()
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


NO_CLUSTER = (
    "there is no cluster here that could be changed: this data folder holds history alone, scanned or received; name "
    "yours with --set enforcer.cluster=kubernetes where its API server can be reached"
)


class ControllerLease(Lease, Protocol):
    """The right to be the one controller of a cluster."""

    def holder(self) -> str | None:
        """Who is it now; None where nobody is.

        Raises:
            Unavailable: the cluster can't be reached.
        """
        ...


class LiveCluster(ClusterReader, ClusterWriter, Lease, Protocol):
    """A cluster behind all of the enforcer's ports."""

    @property
    def changes(self) -> ChangeStore | None:
        """Keeps the record of what was changed; None where the data folder alone does."""
        ...

    @property
    def plans(self) -> ClusterPlans | None:
        """Keeps plans and who approved them; None where the data folder alone does."""
        ...

    def anchor(self, owner: str) -> Anchor | None:
        """Keeps the heads of a data folder's ledgers; None where it lies in that folder itself."""
        ...

    @property
    def controller(self) -> ControllerLease | None:
        """The lease of the one controller that acts; None where none can run."""
        ...

    @property
    def requests(self) -> int:
        """Requests made to its API server so far."""
        ...

    def pause(self, seconds: float) -> None:
        """Let time pass (the port `Pause`)."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


def is_known(folder: DataFolder, settings: Settings) -> bool:
    """Whether there is a cluster to look at: a simulated one is there once something was replayed."""
    return settings.enforcer.cluster is not ClusterChoice.SIMULATED or folder.cluster.exists()


def is_of_backend(folder: DataFolder, settings: Settings) -> bool:
    """Whether there is a cluster that the settings' backend can change: a simulated one plays one backend only."""
    if settings.enforcer.cluster is not ClusterChoice.SIMULATED or not folder.cluster.exists():
        return is_known(folder, settings)
    with closing(SimulatedCluster.open(folder.cluster)) as cluster:
        return cluster.capabilities.backend == settings.enforcer.backend


@contextmanager
def open_cluster(folder: DataFolder, settings: Settings) -> Iterator[LiveCluster]:
    """The cluster that the settings choose, as it stands.

    Raises:
        Refused: the settings choose the simulated one, and nothing was replayed into this folder.
        Misconfigured: there is no way into it, or the simulated one plays another backend.
        Unavailable: it can't be reached or opened.
        Corrupt: the simulated one's file is no such state.
    """
    if not is_known(folder, settings):
        raise Refused(NO_CLUSTER)
    is_simulated = settings.enforcer.cluster is ClusterChoice.SIMULATED
    opened: LiveCluster = (
        SimulatedCluster.open(folder.cluster, settings.enforcer.backend) if is_simulated else _kubernetes(settings)
    )
    with closing(opened) as cluster:
        yield cluster


@contextmanager
def open_kubernetes(settings: Settings) -> Iterator[KubernetesCluster]:
    """The real cluster of the settings, whichever the enforcer changes.

    Raises:
        Misconfigured: there is no way into it.
    """
    with closing(_kubernetes(settings)) as cluster:
        yield cluster


@contextmanager
def open_cluster_to_change(folder: DataFolder, settings: Settings, now: datetime) -> Iterator[LiveCluster]:
    """The same, to be changed.

    A replay's clock stands still while a plan is applied: what the simulated rollout took is taken back at the end. A
    real cluster's clock is nobody's to set.

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


def backend(
    settings: Settings, now: datetime, cluster: LiveCluster | None = None, folder: DataFolder | None = None
) -> Backend:
    """The backend that renders changes, checked against what runs in the cluster.

    Args:
        settings: all settings; `enforcer.backend` names it, `backends` says how it is installed.
        cluster: whose admission webhooks and agents are looked at; None where nothing is rendered.
        folder: where results of probes are kept; None where nothing is rendered.

    Raises:
        Misconfigured: the settings name one that renders nothing.
    """
    return RunningBackend(
        _installed(settings, now, folder),
        version=settings.enforcer.backend_version,
        allows_experimental=settings.enforcer.experimental,
        left_out=_left_out(cluster),
        holders=lambda: priority_holders(folder, settings, cluster, now),
        measured=lambda record: _measured(record, probe_results(folder, settings), settings, now),
        machine=lambda node: Machine(owner=NodeOwner.NOBODY) if cluster is None else machine_of(node, cluster),
    )


def probe_results(folder: DataFolder | None, settings: Settings) -> Sequence[ProbeResult]:
    """Results of probes that count; none without a folder or a key.

    Raises:
        Corrupt: one can't be read.
        Refused: one was changed.
    """
    if folder is None or settings.probe.key_file is None:
        return ()
    return kept_results(folder, read_key(settings))


def _measured(record: Capabilities, results: Sequence[ProbeResult], settings: Settings, now: datetime) -> Capabilities:
    return as_measured(record, results, spills_since=now - timedelta(seconds=settings.probe.result_seconds))


def _results_so_far(folder: DataFolder | None, settings: Settings) -> Sequence[ProbeResult]:
    """Results of probes, none where they can't be read: what renders a stage says so, what takes it back needs none."""
    try:
        return probe_results(folder, settings)
    except GputideError as unread:
        _log.warning("results of probes do not count", reason=str(unread))
        return ()


def priority_holders(
    folder: DataFolder | None, settings: Settings, cluster: ClusterReader | None, now: datetime
) -> Holders:
    """What holds low priority back beyond the backend: agents of a cluster, and what probes of the folder saw.

    Raises:
        Unavailable: the cluster can't be reached.
        Corrupt: a result of a probe can't be read.
        Refused: one was changed.
    """
    pods: Sequence[Manifest] = ()
    if cluster is not None and settings.agent.give_way is not GiveWayManner.OFF:
        pods = list(cluster.list_objects("Pod", settings.enforcer.namespace))
    since = now - timedelta(seconds=settings.probe.result_seconds)
    strict = nodes_with_agents(pods, strict_only=True)
    return holders_of(
        records_of(settings.enforcer.backend)[-1],
        probe_results(folder, settings),
        nodes_with_agents(pods),
        strict=strict,
        since=since,
    )


def seen_holders(folder: DataFolder, settings: Settings, planned: str, now: datetime) -> Holders:
    """The same for a plan; of a cluster that can't be asked no agent is known.

    Args:
        planned: the cluster that is planned for. Of another than the enforcer's nothing was seen: it may have nodes of
            the same names.

    Raises:
        Corrupt: a result of a probe can't be read.
        Refused: one was changed.
    """
    if own_cluster(folder, settings) != planned:
        return NOBODY
    found = holders_now(folder, settings, planned, now)
    return priority_holders(folder, settings, None, now) if found is None else found


def holders_now(folder: DataFolder, settings: Settings, planned: str, now: datetime) -> Holders | None:
    """The same; None of a cluster that is not the enforcer's, or can't be asked."""
    if own_cluster(folder, settings) != planned:
        return None
    if settings.enforcer.cluster is not ClusterChoice.KUBERNETES:
        return priority_holders(folder, settings, None, now)
    with suppress(Misconfigured, Unavailable), open_kubernetes(settings) as cluster:
        return priority_holders(folder, settings, cluster, now)
    return None


def _left_out(cluster: LiveCluster | None) -> LeftOut | None:
    if cluster is None or isinstance(cluster, SimulatedCluster):
        return None
    from enforcer.kubernetes.cluster import KubernetesCluster

    return cluster.left_out if isinstance(cluster, KubernetesCluster) else None


def backend_version(settings: Settings) -> str | None:
    """The version of the backend that runs in the settings' cluster, as it is tagged; None where it is not seen.

    Raises:
        Misconfigured: there is no way into the cluster.
        Unavailable: it can't be reached.
    """
    images = records_of(settings.enforcer.backend)[-1].images
    if settings.enforcer.backend_version is not None or not images:
        return settings.enforcer.backend_version
    if settings.enforcer.cluster is not ClusterChoice.KUBERNETES:
        return None
    with open_kubernetes(settings) as cluster:
        return running_tag(parts_of(images, (one for kind in PART_KINDS for one in cluster.list_objects(kind))))


def _installed(settings: Settings, now: datetime, folder: DataFolder | None) -> Backend:
    installed, results = settings.backends, _results_so_far(folder, settings)
    match settings.enforcer.backend:
        case "hami":
            dialect = HamiDialect(
                device_config=_key("ConfigMap", installed.hami_device_config),
                node_config=_key("ConfigMap", installed.hami_node_config),
                plugin=_key("DaemonSet", installed.hami_device_plugin),
            )
            return HamiBackend(
                now,
                dialect,
                _measured(HAMI, results, settings, now),
                cordons_emptied_nodes=installed.hami_cordons_emptied_nodes,
            )
        case "effectivegpu":
            dialect = HamiDialect(
                words_of_models(HAMI_WORDS, installed.effectivegpu_model_resources),
                device_config=_key("ConfigMap", installed.effectivegpu_device_config),
                node_config=_key("ConfigMap", installed.effectivegpu_node_config),
                plugin=_key("DaemonSet", installed.effectivegpu_device_plugin),
            )
            # What of it spills is published nowhere; a probe may have seen it.
            return EffectiveGpuBackend(now, dialect, _measured(EFFECTIVE_GPU, results, settings, now))
        case "volcano":
            return VolcanoBackend(now, low_priority_queue=installed.volcano_low_priority_queue)
        case name:
            chosen = dict(BACKENDS).get(name)
            if chosen is None:
                known = ", ".join(known for known, _ in BACKENDS)
                raise Misconfigured(f"cannot render for enforcer.backend={name!r}: expected one of {known}")
            return chosen(now)


def _key(kind: str, place: str) -> ObjectKey:
    namespace, _, name = place.partition("/")
    return kind, namespace, name
