"""Frees pods that wait in vain for their planned seat: each is evicted, and the one in its place goes where it fits.

The admission looks for room before it pins a pod. But somebody else may take that room before the pod is bound, and a
scheduler weighs more than the admission knows: volumes, pods that keep apart, an extender's own books. A pod that is
there can't be unpinned, and without this it would wait for ever with free cards beside it. No disruption budget stands
over a pod that never ran. Its seat is noted as given for a while, so that no other pod is pinned there either.

Left alone are pods of an owner that a stage holds, whose seats others are about to leave, unless their node takes none
any more; those of a node that some pod is still leaving; those of a Job that would fail by it; and those of training
jobs. Called by `gputide run admission`.

Source: kubernetes:pkg/registry/core/pod/storage/eviction.go (canIgnorePDB), kubernetes:pkg/scheduler/schedule_one.go
(PodScheduled, Unschedulable), kubernetes:pkg/controller/job (a pod that is deleted has failed).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Protocol

from enforcer.admission import SEAT_ANNOTATION, UNPINNED_ANNOTATION, PlannedSeat, why_closed
from enforcer.kinds.kind import Reach, condition
from enforcer.kinds.register import workload_kind
from enforcer.kubernetes.admission_review import AdmissionReader, SeatNotes
from enforcer.kubernetes.departures import Departure, departure_of
from enforcer.kubernetes.planned_pods import planned_pod
from enforcer.manifest import Manifest
from enforcer.ownership import controller_of
from enforcer.rollout.held_mark import HELD_ANNOTATION
from fleet.errors import GputideError, Misconfigured
from fleet.logs import logger
from fleet.units import parse_time

LOOK_SECONDS = 10.0
"""How often is looked for such pods, at most."""
WAIT_SECONDS = 20.0
"""For how long a pod is unschedulable before it is freed."""
UNHELD_WAIT_SECONDS = 300.0
"""The same for pods of kinds that no stage holds: others may still have to leave their seats."""
SEAT_CLOSED_SECONDS = 600.0
"""For how long no pod is pinned to such a seat; then it is tried again."""

_LEAVING_SECONDS = 10.0
"""For how long a pod may still be there after the moment at which it must be gone."""
FREED_MAX = 5
"""Most pods that are freed at one look: reviews of new pods share the requests that may be sent in a second."""
_PAUSE_PER_SECOND = 20.0
"""Seconds between two looks for each that the last one took: a list of very many pods costs the server much."""
_MADE_ANEW_BY = frozenset({"ReplicaSet", "StatefulSet", "RayCluster"})
"""Owners that make a pod anew and count no failure."""
_BACKOFF_LIMIT = 6
"""`spec.backoffLimit` of a Job that says none."""
_FAILURES_LEFT_MIN = 2
"""How many of its pods may still fail before a Job does, where one of them is evicted."""

_log = logger("enforcer.kubernetes.stuck_pods")


class StuckPodsCluster(AdmissionReader, Protocol):
    """A cluster in which pods that wait can be listed and evicted.

    Each call raises `Misconfigured` where a right is missing, and `Unavailable`.
    """

    def pending_pods(self, keep: Callable[[Manifest], bool]) -> Sequence[Manifest]:
        """Those pods of all namespaces in phase Pending that are to be kept."""
        ...

    def evict(self, namespace: str, pod: str) -> bool:
        """See `enforcer.cluster.ClusterWriter`."""
        ...


class StuckPods:
    """Looks for such pods.

    Args:
        notes: by which every replica of the admission knows that a seat is closed.
    """

    def __init__(
        self,
        cluster: StuckPodsCluster,
        notes: SeatNotes,
        departed: Callable[[Departure], None],
        freed: Callable[[float], None],
    ) -> None:
        self._cluster = cluster
        self._notes = notes
        self._departed = departed
        self._freed = freed
        self._over = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look again and again for as long as this lasts."""
        thread = threading.Thread(target=self._look_on, name="stuck pods", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def look(self) -> int:
        """Free the pods that wait in vain now; how many those are.

        Raises:
            Misconfigured: a right is missing.
            Unavailable: the cluster can't be reached.
        """
        now, count = self._cluster.now(), 0
        for pod in self._cluster.pending_pods(lambda pod: _seconds_unschedulable(pod, now) >= WAIT_SECONDS):
            try:
                count += count < FREED_MAX and self._is_freed(pod, now)
            except (GputideError, LookupError, TypeError, AttributeError, ValueError) as exc:
                # What a tenant wrote on one pod is no reason to leave others waiting.
                _log.warning("cannot free a pod that waits for its seat", why=str(exc)[:300])
        return count

    def _look_on(self) -> None:
        pause = LOOK_SECONDS
        while not self._over.wait(pause):
            began = time.monotonic()
            try:
                self._freed(self.look())
            except GputideError as exc:
                _log.warning("cannot look for pods that wait for their seats", why=str(exc)[:300])
            pause = max(LOOK_SECONDS, _PAUSE_PER_SECOND * (time.monotonic() - began))

    def _is_freed(self, pod: Manifest, now: datetime) -> bool:
        metadata = pod["metadata"]
        if not self._is_made_anew(pod):
            return False
        planned = planned_pod(pod, self._cluster)
        seat = planned.seats.get(metadata["annotations"][SEAT_ANNOTATION])
        if planned.owner is None or seat is None:
            return False
        if self._is_open(seat, pod) and _is_awaited(planned.owner, _seconds_unschedulable(pod, now)):
            return False
        if any(_is_leaving(other, now) for other in self._cluster.pods_on(seat.node)):
            return False
        # Who comes second, another replica of the admission, leaves it to the first.
        if not self._notes.take(planned.workload, metadata["annotations"][SEAT_ANNOTATION], SEAT_CLOSED_SECONDS):
            return False
        if not self._cluster.evict(metadata["namespace"], metadata["name"]):
            return False
        said = str(condition(pod, "PodScheduled").get("message", ""))[:200]
        why = f"it could not be scheduled to its seat on node {seat.node} for {WAIT_SECONDS:.0f} s: {said}"
        self._departed(departure_of(planned.owner, why))
        return True

    def _is_open(self, seat: PlannedSeat, pod: Manifest) -> bool:
        """Whether the seat's node takes this pod; whether its cards do, their leaving tenants decide."""
        return why_closed(seat, pod["spec"], self._cluster.get("Node", "", seat.node), seat.cards) is None

    def _is_made_anew(self, pod: Manifest) -> bool:
        """Whether another pod comes in place of one that is evicted. A Job counts that as a failure of its pod."""
        kind, name = controller_of(pod) or ("", "")
        if kind != "Job":
            return kind in _MADE_ANEW_BY
        job = self._cluster.get(kind, pod["metadata"]["namespace"], name)
        if job is None:
            return False
        failures_max = job["spec"].get("backoffLimit", _BACKOFF_LIMIT)
        return bool(failures_max - (job.get("status") or {}).get("failed", 0) >= _FAILURES_LEFT_MIN)


def _seconds_unschedulable(pod: Manifest, now: datetime) -> float:
    """For how long the scheduler has called a pinned pod unschedulable; 0 where it does not, or it is not pinned."""
    metadata: Mapping[str, Any] = pod["metadata"]
    annotations = metadata.get("annotations") or {}
    is_pinned = SEAT_ANNOTATION in annotations and UNPINNED_ANNOTATION not in annotations
    if not is_pinned or pod["spec"].get("nodeName") or "deletionTimestamp" in metadata:
        return 0.0
    said = condition(pod, "PodScheduled")
    if said.get("status") != "False" or said.get("reason") != "Unschedulable":
        return 0.0
    try:
        return (now - parse_time(str(said.get("lastTransitionTime")))).total_seconds()
    except Misconfigured:
        return 0.0


def _is_awaited(owner: Manifest, waited: float) -> bool:
    """Whether a stage may still be about to make room for a pod of this owner."""
    if workload_kind(owner["kind"]).reach is not Reach.ROLLS:
        return waited < UNHELD_WAIT_SECONDS
    return HELD_ANNOTATION in (owner["metadata"].get("annotations") or {})


def _is_leaving(pod: Manifest, now: datetime) -> bool:
    """Whether a pod was asked to go, and its time to do so is not over."""
    at = pod["metadata"].get("deletionTimestamp")
    return at is not None and (now - parse_time(str(at))).total_seconds() < _LEAVING_SECONDS
