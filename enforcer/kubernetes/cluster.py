"""A real cluster behind all of the enforcer's ports, over one connection and one budget of requests.

Called by the command line, which hands it to rollout, undo, preview and verify as it does a simulated one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from enforcer.cluster import FieldChange, Owners
from enforcer.kubernetes.admission_probe import AdmissionProbe
from enforcer.kubernetes.change_store import GpuChanges
from enforcer.kubernetes.lease import CONTROLLER_LEASE_NAME, KubernetesLease
from enforcer.kubernetes.plan_objects import GpuPlans
from enforcer.kubernetes.reader import KubernetesReader
from enforcer.kubernetes.seat_claims import SeatClaims
from enforcer.kubernetes.writer import KubernetesWriter
from enforcer.manifest import Manifest
from fleet.sentences import Sentence
from wire.kubernetes.access import find_access
from wire.kubernetes.request_rate import RequestRate
from wire.kubernetes.write import WritingApi

RULES_FILE = "docs/rbac-writer.yaml"

KUBECONFIG_SETTING = "enforcer.kubeconfig"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlace:
    """Which cluster, and how gently it is treated.

    Attributes:
        kubeconfig: path; None for the pod's own service account, else `$KUBECONFIG` or `~/.kube/config`.
        context: name of a context of it; None for the current one.
        namespace: where the lease lies.
        requests_per_second: most requests per second in the long run.
        requests_burst: requests that may be made at once after a pause.
        parallel_requests_max: most requests at once.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str = "gputide"
    requests_per_second: float = 20.0
    requests_burst: int = 40
    parallel_requests_max: int = 4


class KubernetesCluster:
    """Reader, writer, lease and pause of a real cluster.

    Raises:
        Misconfigured: no configuration, one that can't be read, or that needs what is not understood.
    """

    def __init__(self, place: ClusterPlace) -> None:
        access = find_access(place.kubeconfig, place.context, setting=KUBECONFIG_SETTING)
        rate = RequestRate(per_second=place.requests_per_second, burst=place.requests_burst)
        self._api = WritingApi(
            access, "gputide-enforcer", rules_file=RULES_FILE, rate=rate, parallel_max=place.parallel_requests_max
        )
        self._reader = KubernetesReader(self._api)
        self._writer = KubernetesWriter(self._api, self._reader)
        self._lease = KubernetesLease(self._api, place.namespace)
        self._controller = KubernetesLease(self._api, place.namespace, name=CONTROLLER_LEASE_NAME)
        self._admission = AdmissionProbe(self._api, place.namespace)
        self._changes = GpuChanges(self._api)
        self._plans = GpuPlans(self._api)

    @property
    def requests(self) -> int:
        """Requests made so far."""
        return self._api.asked

    @property
    def requests_under_way_max(self) -> int:
        """Most requests that were under way at once, watches apart."""
        return self._api.under_way_max

    def following(self) -> AbstractContextManager[None]:
        """See `FollowingReader`."""
        return self._reader.following()

    def renew(self) -> None:
        """See `FollowingReader`."""
        self._reader.renew()

    def seat_claims(self, namespace: str) -> SeatClaims:
        """Notes of seats that the replicas of an admission share, in leases of a namespace."""
        return SeatClaims(self._api, namespace)

    @property
    def changes(self) -> GpuChanges:
        """The record of what was changed that lies in the cluster."""
        return self._changes

    @property
    def plans(self) -> GpuPlans:
        """The plans that lie in the cluster, who approved them, and what is wanted of them."""
        return self._plans

    @property
    def controller(self) -> KubernetesLease:
        """The lease of the one controller that acts."""
        return self._controller

    def close(self) -> None:
        """Close all connections."""
        self._api.close()

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """See `ClusterReader`."""
        return self._reader.get(kind, namespace, name)

    def list_objects(self, kind: str, namespace: str | None = None) -> Sequence[Manifest]:
        """See `ClusterReader`."""
        return self._reader.list_objects(kind, namespace)

    def pods_on(self, node: str) -> Sequence[Manifest]:
        """Pods of all namespaces that are bound to a node; see `KubernetesReader.pods_on`."""
        return self._reader.pods_on(node)

    def pending_pods(self, keep: Callable[[Manifest], bool]) -> Sequence[Manifest]:
        """Some pods of all namespaces in phase Pending; see `KubernetesReader.pending_pods`."""
        return self._reader.pending_pods(keep)

    def now(self) -> datetime:
        """See `ClusterReader`."""
        return self._reader.now()

    def why_unseated(self, namespaces: Sequence[str]) -> Sentence | None:
        """See `ClusterReader`."""
        return self._admission.why_unseated(namespaces)

    def left_out(self, webhook: str, pods: Sequence[tuple[str, Mapping[str, str]]]) -> Sentence | None:
        """Why another program's webhook is not asked about new pods; see `AdmissionProbe`."""
        return self._admission.left_out(webhook, pods)

    def patch(self, kind: str, namespace: str, name: str, fields: Sequence[FieldChange], resource_version: str) -> str:
        """See `ClusterWriter`."""
        return self._writer.patch(kind, namespace, name, fields, resource_version)

    def dry_run(
        self, kind: str, namespace: str, name: str, fields: Sequence[FieldChange], resource_version: str
    ) -> Manifest:
        """What `patch` would make of the object, asked of the server; see `KubernetesWriter.dry_run`."""
        return self._writer.dry_run(kind, namespace, name, fields, resource_version)

    def evict(self, namespace: str, pod: str) -> bool:
        """See `ClusterWriter`."""
        return self._writer.evict(namespace, pod)

    def make(self, manifest: Manifest) -> bool:
        """See `ClusterWriter`."""
        return self._writer.make(manifest)

    def owners(self, kind: str, namespace: str, fields: Mapping[str, Sequence[str]]) -> Mapping[str, Owners]:
        """See `DisowningWriter`."""
        return self._writer.owners(kind, namespace, fields)

    def disown(self, kind: str, namespace: str, name: str, fields: Sequence[str], former: Owners) -> None:
        """See `DisowningWriter`."""
        self._writer.disown(kind, namespace, name, fields, former)

    def record_event(self, kind: str, namespace: str, name: str, reason: str, message: str) -> None:
        """See `ClusterWriter`."""
        self._writer.record_event(kind, namespace, name, reason, message)

    def acquire(self, holder: str, seconds: float) -> bool:
        """See `Lease`."""
        return self._lease.acquire(holder, seconds)

    def release(self, holder: str) -> None:
        """See `Lease`."""
        self._lease.release(holder)

    def pause(self, seconds: float) -> None:
        """See `Pause`: the cluster's time is everybody's."""
        time.sleep(seconds)
