"""A real cluster behind all of the enforcer's ports, over one connection and one budget of requests.

Called by the command line, which hands it to rollout, undo, preview and verify as it does a simulated one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from enforcer.kubernetes.admission_probe import AdmissionProbe
from enforcer.kubernetes.change_store import GpuChanges
from enforcer.kubernetes.freezer import ClusterFreezer
from enforcer.kubernetes.kind_versions import KindVersions, kind_versions, migrate
from enforcer.kubernetes.lease import CONTROLLER_LEASE_NAME, PLANNER_LEASE_NAME, KubernetesLease
from enforcer.kubernetes.ledger_anchor import LeaseAnchor
from enforcer.kubernetes.plan_objects import GpuPlans
from enforcer.kubernetes.policy_objects import PolicyObjects
from enforcer.kubernetes.reader import KubernetesReader
from enforcer.kubernetes.seat_claims import SeatClaims
from enforcer.kubernetes.writer import KubernetesWriter
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
        requests_burst: requests that may be made at once after a pause.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str = "gputide"
    requests_per_second: float = 20.0
    requests_burst: int = 40
    parallel_requests_max: int = 4


class KubernetesCluster:
    """Reader, writer, lease and pause of a real cluster; each port is one of its parts.

    Raises:
        Misconfigured: no configuration, one that can't be read, or that needs what is not understood.

    Attributes:
        plans: the plans that lie in the cluster, who approved them, and what is wanted of them.
        policies: its policies, and their statuses.
        planner: the lease of the one process that makes plans when policies change.
    """

    def __init__(self, place: ClusterPlace) -> None:
        access = find_access(place.kubeconfig, place.context, setting=KUBECONFIG_SETTING)
        rate = RequestRate(per_second=place.requests_per_second, burst=place.requests_burst)
        api = WritingApi(
            access, "gputide-enforcer", rules_file=RULES_FILE, rate=rate, parallel_max=place.parallel_requests_max
        )
        reader = KubernetesReader(api)
        writer = KubernetesWriter(api, reader)
        lease = KubernetesLease(api, place.namespace)
        admission = AdmissionProbe(api, place.namespace)
        self._api, self._namespace = api, place.namespace
        self.changes = GpuChanges(api)
        self.plans = GpuPlans(api)
        self.policies = PolicyObjects(api, reader.list_objects)
        self.controller = KubernetesLease(api, place.namespace, name=CONTROLLER_LEASE_NAME)
        self.planner = KubernetesLease(api, place.namespace, name=PLANNER_LEASE_NAME)
        self.get, self.list_objects, self.now = reader.get, reader.list_objects, reader.now
        self.following, self.renew = reader.following, reader.renew
        self.pods_on, self.pending_pods = reader.pods_on, reader.pending_pods
        self.why_unseated, self.left_out = admission.why_unseated, admission.left_out
        self.patch, self.dry_run = writer.patch, writer.dry_run
        self.evict, self.make, self.record_event = writer.evict, writer.make, writer.record_event
        self.owners, self.disown = writer.owners, writer.disown
        self.acquire, self.release = lease.acquire, lease.release
        self.close = api.close

    def anchor(self, owner: str) -> LeaseAnchor:
        """Keeps the heads of a data folder's ledgers in the cluster."""
        return LeaseAnchor(self._api, self._namespace, owner)

    def freezer(self) -> ClusterFreezer:
        """Stops every change in the cluster by a ConfigMap."""
        return ClusterFreezer(self._api)

    def kind_versions(self) -> tuple[KindVersions, ...]:
        """By which versions the cluster has our kinds."""
        return kind_versions(self._api)

    def migrate(self, resource: str, tick: Callable[[int, int], None]) -> int:
        """Store all objects of one of our kinds in its new version; see `enforcer.kubernetes.kind_versions`."""
        return migrate(self._api, resource, tick)

    @property
    def requests(self) -> int:
        """Requests made so far."""
        return self._api.asked

    @property
    def requests_under_way_max(self) -> int:
        """Most requests that were under way at once, watches apart."""
        return self._api.under_way_max

    def seat_claims(self, namespace: str) -> SeatClaims:
        """Notes of seats that the replicas of an admission share, in leases of a namespace."""
        return SeatClaims(self._api, namespace)

    def pause(self, seconds: float) -> None:
        """See `Pause`: the cluster's time is everybody's."""
        time.sleep(seconds)
