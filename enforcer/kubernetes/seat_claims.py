"""Seats that were given a moment ago, known to every replica of the admission: on a fixed number of Leases.

Two reviews of one workload may be answered by two replicas before either pod is there. So who gives a seat writes it
down first, on the condition that nobody has written meanwhile; by the server's clock, which is the same for all. A note
counts until its pod is seen or its time is over; notes that are over are dropped with the next one.

Workloads share leases, by a hash: every run of a CronJob is a workload of its own, and tenants may make up as many as
they like, so a lease for each would fill the server's store. Notes are hashes too, so that no name can fill a lease.

Source: kubernetes/api:coordination/v1 (LeaseSpec), kubernetes:staging/src/k8s.io/apimachinery (optimistic concurrency).
"""

from __future__ import annotations

import hashlib
import json

from enforcer.kubernetes.kinds import kind_named
from enforcer.manifest import Manifest
from fleet.errors import Misconfigured, Unavailable
from fleet.inventory import WorkloadId
from wire.kubernetes.refusals import Conflict, Deed
from wire.kubernetes.write import FIELD_MANAGER, Call, WritingApi

SEATS_NAMESPACE = "gputide-seats"
"""Where the leases lie: apart from the enforcer's own, which whoever gives seats has no right to."""

GIVEN_ANNOTATION = "gputide.io/given"
"""On such a lease: hash of workload and seat to the moment until which it counts as given, seconds since 1970,
as JSON."""

LEASES_MAX = 256
"""Most leases that there ever are."""

_NOTES_MAX = 1024
"""Most notes on one lease: an object's annotations have 256 KiB."""
_SECONDS_MAX = 3600.0
"""For how long a note may hold: one that is longer is not ours."""

_RESOURCE = "leases.coordination.k8s.io"
_ATTEMPTS_MAX = 8
_AS_MANAGER = {"fieldManager": FIELD_MANAGER}


def lease_of(workload: WorkloadId) -> str:
    """Name of the lease on which the seats of a workload are noted; one of `LEASES_MAX`."""
    return f"seats-{int.from_bytes(hashlib.sha256(workload.encode()).digest()[:4]) % LEASES_MAX:02x}"


def note_of(workload: WorkloadId, seat: str) -> str:
    """How a seat is noted there."""
    return hashlib.sha256(f"{workload}\n{seat}".encode()).hexdigest()[:32]


class SeatClaims:
    """Notes of seats, in one namespace (the port `SeatNotes` of the admission)."""

    def __init__(self, api: WritingApi, namespace: str = SEATS_NAMESPACE) -> None:
        self._api = api
        self._namespace = namespace

    def take(self, workload: WorkloadId, seat: str, seconds: float) -> bool:
        """Note for so many seconds that a seat is given; False where somebody's note of it still holds.

        Raises:
            Misconfigured: a right or the namespace is missing.
            Unavailable: the server can't be reached, or others write all the time.
        """
        name, note = lease_of(workload), note_of(workload, seat)
        for _ in range(_ATTEMPTS_MAX):
            found = self._api.get(
                Deed(verb="get", resource=_RESOURCE, namespace=self._namespace, name=name),
                kind_named("Lease").path("v1", self._namespace, name),
            )
            now = self._api.now().timestamp()
            fresh = {held: until for held, until in _given(found).items() if now < until < now + _SECONDS_MAX}
            if note in fresh:
                return False
            # Of more than fit on a lease, those that are over first are forgotten.
            kept = sorted(fresh.items(), key=lambda item: item[1])[-_NOTES_MAX:]
            if self._noted(found, name, {**dict(kept), note: round(now + seconds, 3)}):
                return True
        raise Unavailable(f"cannot note a seat of {workload}: others wrote at every attempt of {_ATTEMPTS_MAX}")

    def _noted(self, found: Manifest | None, name: str, given: dict[str, float]) -> bool:
        annotations = {GIVEN_ANNOTATION: json.dumps(given, sort_keys=True)}
        kind = kind_named("Lease")
        if found is None:
            deed = Deed(verb="create", resource=_RESOURCE, namespace=self._namespace)
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name, "namespace": self._namespace, "annotations": annotations},
            }
            call = Call(
                deed=deed, path=kind.path("v1", self._namespace), method="POST", query=_AS_MANAGER, body=lease
            )  # fmt: skip
        else:
            deed = Deed(verb="update", resource=_RESOURCE, namespace=self._namespace, name=name)
            # The version that was read goes with it: who writes after somebody else is refused.
            lease = {**found, "metadata": {**found["metadata"], "annotations": annotations}}
            path = kind.path("v1", self._namespace, name)
            call = Call(deed=deed, path=path, method="PUT", query=_AS_MANAGER, body=lease)
        try:
            made = self._api.send(call)
        except Conflict:
            return False
        if made is None:
            raise Misconfigured(
                f"cannot {deed}: there is no namespace {self._namespace!r}; make it, or name another by "
                "--seats-namespace"
            )
        return True


def _given(lease: Manifest | None) -> dict[str, float]:
    """Notes on a lease; none where somebody wrote something else there."""
    text = {} if lease is None else (lease["metadata"].get("annotations") or {})
    try:
        found = json.loads(text.get(GIVEN_ANNOTATION, "{}"))
        return {str(seat): float(until) for seat, until in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}
