"""A cluster in one file, for demo, replay and tests: reader, writer and lease, as the API server would answer.

Owners keep and roll their pods as the real controllers do, the webhook and scheduler of the sharing system that it
plays (`systems`) place them, users act as a trace says (`sync`), and time moves only when it is set. It persists: a
kill at any moment leaves the state before or after a call. Behind it stand the other modules of this room.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from enforcer.cluster import FieldChange, identity
from enforcer.disruption import allows_eviction
from enforcer.kinds.register import WORKLOAD_KINDS, workload_kind
from enforcer.manifest import Manifest, set_field
from enforcer.simulated.controllers import Controllers
from enforcer.simulated.kind_specs import refuse_invalid
from enforcer.simulated.loose_pods import LoosePods
from enforcer.simulated.nodes import node_manifests, patch_node, share_nodes
from enforcer.simulated.owner_status import owner_status
from enforcer.simulated.pod_making import ROLLING_KINDS
from enforcer.simulated.seats import SeatState, SimulatedSeat, read_seats
from enforcer.simulated.store import PodRow, SimulatedStore
from enforcer.simulated.systems import system_of
from enforcer.simulated.trace import TraceFollower
from fleet.capabilities.capability import Capabilities
from fleet.errors import Refused
from fleet.inventory import Inventory, WorkloadId
from fleet.sentences import Sentence, sentence
from fleet.units import epoch_ms, format_time, time_from_epoch_ms

__all__ = ["ReplayMark", "SeatState", "SimulatedCluster", "SimulatedSeat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayMark:
    """Where a replay stood when it last kept something.

    Attributes:
        now: every sample before it was sent, UTC.
        steps: steps of its blocks; 0 where it was over, or the cluster was changed since by somebody else.
    """

    now: datetime
    steps: int


class SimulatedCluster:
    """Reader, writer and lease over one file; see the module.

    Args:
        path: the file; made when it is not there.
        with_admission: whether gputide's admission step runs on new pods.
        backend: the sharing system that it must play; None for the one that it plays, HAMi where it is new.

    Raises:
        Corrupt: the file is no such state.
        Misconfigured: it plays another system, or none can be played for this backend.
        Unavailable: it can't be opened.
    """

    def __init__(self, path: Path, *, with_admission: bool = True, backend: str | None = None) -> None:
        if backend is not None:
            system_of(backend)
        self._store = SimulatedStore(path, backend)
        self._system = system_of(self._store.backend)
        self._with_admission = with_admission
        self._controllers = Controllers(self._store, self._system, with_admission=with_admission)
        self._loose = LoosePods(self._store, self._controllers, self._system)
        self._follower = TraceFollower(self._store, self._controllers, self._system)
        self._seats: tuple[SimulatedSeat, ...] = ()
        self._seats_generation = -1

    @classmethod
    def open(cls, path: Path, backend: str | None = None) -> SimulatedCluster:
        """The cluster that is kept in a file."""
        return cls(path, backend=backend)

    @property
    def capabilities(self) -> Capabilities:
        """What the sharing system that it plays enforces."""
        return self._system.capabilities

    @property
    def changes(self) -> None:
        """Its record lies in the data folder, as it does itself."""
        return None

    def anchor(self, owner: str) -> None:
        """It lies in the data folder, as the ledgers do."""
        del owner

    @property
    def plans(self) -> None:
        """Its plans lie in the data folder, as it does itself."""
        return None

    @property
    def controller(self) -> None:
        """Nobody runs a controller of it: the one who asks acts."""
        return None

    @property
    def requests(self) -> int:
        """Requests made to its API server: it has none."""
        return 0

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    # --- users and time ---

    def sync(self, inventory: Inventory, now: datetime) -> bool:
        """Let users do what a trace says they did up to `now`; True where anything changed.

        New cards and nodes appear; a new pod is placed on the card it has in the trace if that has the room, else
        where the scheduler finds room, else it is pending; ended pods go. A pod that was moved stays where it is.
        """
        changed = self._follower.follow(inventory, epoch_ms(now))
        if not changed and epoch_ms(now) > self._store.number("clock_ms"):
            self.advance(now)
        return changed

    @contextmanager
    def replaying(self) -> Iterator[Callable[[datetime, int], None]]:
        """Let a replay keep many steps at once, together with where it stands.

        Yields:
            Called with where the replay stands and the steps of its blocks (0: it is over), it keeps everything
            since its last call; what comes after the last call is lost, as it is when the process is killed.
        """
        store = self._store
        with store.long_transaction() as commit:

            def keep(now: datetime, steps: int) -> None:
                store.set_number("replay_now_ms", epoch_ms(now))
                store.set_number("replay_steps", steps)
                store.set_number("replay_generation", store.number("generation"))
                commit()

            yield keep

    def replay_mark(self) -> ReplayMark | None:
        """Where a replay stood when it last kept something; None where there was none."""
        store = self._store
        now_ms = store.number("replay_now_ms")
        if not now_ms:
            return None
        is_untouched = store.number("replay_generation") == store.number("generation")
        return ReplayMark(now=time_from_epoch_ms(now_ms), steps=store.number("replay_steps") if is_untouched else 0)

    def advance(self, now: datetime) -> None:
        """Move the clock on; it never goes back."""
        if epoch_ms(now) <= self._store.number("clock_ms"):
            return
        if self._store.rows("SELECT 1 FROM rolling LIMIT 1"):
            with self._store.transaction():
                self._controllers.run_until(epoch_ms(now))
        else:
            # One statement is whole by itself, and time alone moves no seat: what is kept of seats stays valid.
            self._store.set_number("clock_ms", epoch_ms(now))

    def pause(self, seconds: float) -> None:
        """Let `seconds` pass (the port `Pause`)."""
        with self._store.transaction():
            self._controllers.run_until(self._store.number("clock_ms") + round(seconds * 1000))

    def settle(self, now: datetime) -> None:
        """Take back the time that a rollout took: a replay's clock stands still while the cluster is changed."""
        now_ms = epoch_ms(now)
        if self._store.number("clock_ms") <= now_ms:
            return
        with self._store.transaction():
            # A pod that took time to start keeps an instant of it: so it differs from pods that a trace began.
            self._store.write(
                "UPDATE pods SET made_ms=min(made_ms, ? - (ready_ms > made_ms)), ready_ms=min(ready_ms, ?)",
                [(now_ms, now_ms)],
            )
            self._store.set_number("clock_ms", now_ms)

    def start(self, workload: WorkloadId) -> None:
        """A user takes a stopped workload back: the stop mark, suspension or replicas of 0 go."""
        namespace, kind, name = workload.split("/")
        with self._store.transaction():
            found = self._store.object_body(kind, namespace, name)
            if found is None:
                raise Refused(f"cannot start {workload}: it is gone")
            body = found[1]
            what = workload_kind(kind)
            if what.stop_field is not None:
                set_field(body, what.stop_field, "false" if what.stop_field.endswith(".suspend") else None)
            for size in what.sizes(body)[-1:]:
                set_field(body, size.path, str(len(self._store.roster(kind, namespace, name))))
            self._store.put_object(body)
            self._controllers.reconcile(body)

    def seats(self) -> tuple[SimulatedSeat, ...]:
        """Where every pod that its users run really is, one record per container and card, sorted by pod."""
        generation = self._store.number("generation")
        if generation != self._seats_generation:
            self._seats = read_seats(self._store, self._system)
            self._seats_generation = generation
        return self._seats

    def events(self, limit: int = 1000) -> tuple[tuple[datetime, str, str, str, str, str], ...]:
        """The newest events, oldest first: time, kind, namespace, name, reason, message."""
        found = self._store.rows("SELECT * FROM events ORDER BY number DESC LIMIT ?", limit)
        return tuple((time_from_epoch_ms(row[1]), row[2], row[3], row[4], row[5], row[6]) for row in reversed(found))

    # --- reader ---

    def now(self) -> datetime:
        """The cluster's clock, UTC."""
        return time_from_epoch_ms(self._store.number("clock_ms"))

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """One object, or None where there is none."""
        if kind == "Pod":
            pods = self._store.pods("namespace=? AND name=?", namespace, name)
            return _pod_manifest(pods[0], self._store.number("clock_ms")) if pods else None
        if kind == "Node":
            return next(iter(node_manifests(self._store, self._system, {name})), None)
        found = self._store.object_body(kind, namespace, name)
        return None if found is None else self._shown(found[1], found[0])

    def list_objects(self, kind: str, namespace: str | None = None) -> tuple[Manifest, ...]:
        """All objects of a kind, sorted by namespace and name."""
        if kind == "Node":
            return node_manifests(self._store, self._system)
        if kind == "Pod":
            now_ms = self._store.number("clock_ms")
            where = ("TRUE",) if namespace is None else ("namespace=?", namespace)
            return tuple(_pod_manifest(pod, now_ms) for pod in self._store.pods(*where))
        found = self._store.rows("SELECT namespace, version, body FROM objects WHERE kind=? ORDER BY 1, name", kind)
        return tuple(self._shown(json.loads(row[2]), row[1]) for row in found if namespace in (None, row[0]))

    def why_unseated(self, namespaces: Sequence[str]) -> Sentence | None:
        """See `ClusterReader`."""
        del namespaces
        return None if self._with_admission else sentence("admission.absent")

    # --- writer ---

    def patch(self, kind: str, namespace: str, name: str, fields: Sequence[FieldChange], resource_version: str) -> str:
        """Write fields on the condition that the object still has the version that was read."""
        with self._store.transaction():
            if kind == "Node":
                version_of_node = patch_node(self._store, self._system, name, fields, resource_version)
                self._share_nodes()
                return version_of_node
            found = self._store.object_body(kind, namespace, name) if kind != "Pod" else self._pod_body(namespace, name)
            if found is None:
                raise Refused(f"cannot change {kind} {namespace}/{name}: it is gone")
            if str(found[0]) != resource_version:
                raise Refused(
                    f"cannot change {kind} {namespace}/{name}: it was changed since it was read: read "
                    f"resourceVersion={resource_version}, now {found[0]}; make a new plan with `gputide plan make`"
                )
            body = found[1]
            frozen = [change.field for change in fields if change.field.startswith("spec.template.")]
            if kind == "Job" and frozen:
                raise Refused(f"cannot change Job {namespace}/{name}: field is immutable: {frozen[0]}")
            spec_before = json.dumps(body.get("spec"), sort_keys=True)
            for change in fields:
                set_field(body, change.field, change.value)
            if kind == "Pod":
                version = self._put_pod_body(namespace, name, body)
                self._loose.adopt(namespace, name)
                return str(version)
            if json.dumps(body.get("spec"), sort_keys=True) != spec_before:
                refuse_invalid(body)
                body["metadata"]["generation"] = int(body["metadata"].get("generation", 1)) + 1
            version = self._store.put_object(body)
            if (kind, namespace, name) in map(identity, self._system.configs):
                self._share_nodes()
            elif kind in WORKLOAD_KINDS:
                self._controllers.reconcile(body)
            return str(version)

    def evict(self, namespace: str, pod: str) -> bool:
        """Evict one pod; its owner makes it anew, if it still wants as many; False while a budget forbids it."""
        with self._store.transaction():
            for row in self._store.pods("namespace=? AND name=?", namespace, pod):
                if not self._may_be_disrupted(row):
                    return False
                self._store.drop_pod(row)
                self._make_anew(row)
                self._controllers.retry_pending()
        return True

    def _may_be_disrupted(self, pod: PodRow) -> bool:
        """Whether every disruption budget of its namespace that selects a pod leaves room for its eviction."""
        now_ms = self._store.number("clock_ms")
        siblings = self._store.pods("namespace=?", pod.namespace)
        found = self._store.rows(
            "SELECT body FROM objects WHERE kind='PodDisruptionBudget' AND namespace=?", pod.namespace
        )
        return all(
            allows_eviction(
                json.loads(body[0]), _pod_manifest(pod, now_ms), [_pod_manifest(p, now_ms) for p in siblings]
            )
            for body in found
        )

    def record_event(self, kind: str, namespace: str, name: str, reason: str, message: str) -> None:
        """Leave an event on an object."""
        with self._store.transaction():
            self._store.record_event(kind, namespace, name, reason, message)

    # --- lease ---

    def acquire(self, holder: str, seconds: float) -> bool:
        """Take or renew the lease; False while somebody else holds it."""
        now_ms = self._store.number("clock_ms")
        with self._store.transaction():
            found = self._store.object_body("Lease", "gputide", "enforcer")
            spec = found[1]["spec"] if found else {}
            if spec.get("holderIdentity") not in (None, holder) and spec["expiresMs"] > now_ms:
                return False
            self._put_lease(holder, now_ms + round(seconds * 1000))
        return True

    def release(self, holder: str) -> None:
        """Give the lease up."""
        with self._store.transaction():
            found = self._store.object_body("Lease", "gputide", "enforcer")
            if found and found[1]["spec"].get("holderIdentity") == holder:
                self._put_lease(None, 0)

    def _put_lease(self, holder: str | None, expires_ms: int) -> None:
        self._store.put_object(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"namespace": "gputide", "name": "enforcer"},
                "spec": {"holderIdentity": holder, "expiresMs": expires_ms},
            }
        )

    def make(self, manifest: Manifest) -> bool:
        """See `ClusterWriter`."""
        kind, namespace, name = identity(manifest)
        if self.get(kind, namespace, name) is not None:
            return False
        if kind == "Pod":
            with self._store.transaction():
                self._loose.make(copy.deepcopy(manifest))
        else:
            self.create(copy.deepcopy(manifest))
        return True

    # --- inside ---

    def create(self, body: Manifest) -> str:
        """Make an object that users make themselves, such as a ConfigMap; returns its version."""
        with self._store.transaction():
            return str(self._store.put_object(body))

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Take an object away, with its pods, as a user would; the pods of a node are made anew elsewhere."""
        if kind == "Node":
            self._lose_node(name)
            return
        with self._store.transaction():
            self._store.drop_object(kind, namespace, name)
            self._store.drop_revisions(kind, namespace, name)
            for pod in self._store.pods("namespace=? AND owner_kind=? AND owner_name=?", namespace, kind, name):
                self._store.drop_pod(pod)

    def _lose_node(self, name: str) -> None:
        with self._store.transaction():
            lost = self._store.pods("node=?", name)
            for row in lost:
                self._store.drop_pod(row)
            for table, column in (("cards", "node"), ("nodes", "name")):
                self._store.write(f"DELETE FROM {table} WHERE {column}=?", [(name,)])
            self._store.drop_object("Node", "", name)
            self._store.refresh()
            for row in lost:
                self._make_anew(row)
            self._controllers.retry_pending()

    def _make_anew(self, row: PodRow) -> None:
        owner = self._store.object_body(row.owner_kind, row.namespace, row.owner_name)
        if owner is not None:
            self._controllers.remake(owner[1], row)
            if row.owner_kind in WORKLOAD_KINDS:
                self._controllers.reconcile(owner[1])

    def _shown(self, body: Manifest, version: int) -> Manifest:
        """An object as the API server gives it: with its version, and what its controller says of it."""
        body["metadata"]["resourceVersion"] = str(version)
        if body["kind"] in (*ROLLING_KINDS, "RayCluster", "ReplicaSet"):
            body["status"] = owner_status(body, self._controllers, self._store)
        return body

    def _pod_body(self, namespace: str, name: str) -> tuple[int, Manifest] | None:
        found = self._store.rows("SELECT version, body FROM pods WHERE namespace=? AND name=?", namespace, name)
        return (int(found[0][0]), json.loads(found[0][1])) if found else None

    def _put_pod_body(self, namespace: str, name: str, body: Manifest) -> int:
        version = self._store.next_version()
        self._store.write(
            "UPDATE pods SET version=?, body=? WHERE namespace=? AND name=?",
            [(version, json.dumps(body), namespace, name)],
        )
        return version

    def _share_nodes(self) -> None:
        share_nodes(self._store, self._system)
        self._controllers.retry_pending()


def _pod_manifest(pod: PodRow, now_ms: int) -> Manifest:
    is_ready = pod.node is not None and pod.ready_ms is not None and pod.ready_ms <= now_ms
    statuses: list[dict[str, Any]] = []
    if pod.node is not None:
        last = {"terminated": {"reason": "OOMKilled", "exitCode": 137}} if pod.is_oom else {}
        statuses = [
            {"name": entry["name"], "ready": is_ready, "restartCount": pod.restarts, "lastState": last}
            for entry in pod.body["spec"]["containers"]
        ]
    status: dict[str, Any] = {
        "phase": "Pending" if pod.node is None else "Running",
        "startTime": format_time(time_from_epoch_ms(pod.made_ms)),
        "containerStatuses": statuses,
    }
    if pod.reason:
        status["conditions"] = [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": pod.reason}
        ]
    metadata = {**pod.body["metadata"], "resourceVersion": str(pod.version)}
    return {**pod.body, "metadata": metadata, "status": status}
