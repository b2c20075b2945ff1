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
from contextlib import suppress

from enforcer.kubernetes.lease import Leases
from enforcer.manifest import Manifest
from fleet.errors import Unavailable
from fleet.inventory import WorkloadId
from wire.kubernetes.refusals import Conflict
from wire.kubernetes.write import WritingApi

SEATS_NAMESPACE = "gputide-seats"
"""Where the leases lie: apart from the enforcer's own, to which those who give seats have no right."""

GIVEN_ANNOTATION = "gputide.io/given"
"""On such a lease: hash of workload and seat to the moment until which it counts as given, seconds since 1970,
as JSON."""

LEASES_MAX = 256
"""Most leases that there ever are."""

_NOTES_MAX = 1024
"""Most notes on one lease: an object's annotations have 256 KiB."""
_SECONDS_MAX = 3600.0
"""For how long a note may hold: one that is longer is not ours."""

_ATTEMPTS_MAX = 8


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
        self._leases = Leases(api, namespace, "--seats-namespace")

    def take(self, workload: WorkloadId, seat: str, seconds: float) -> bool:
        """Note for so many seconds that a seat is given; False where somebody's note of it still holds.

        Raises:
            Misconfigured: a right or the namespace is missing.
            Unavailable: the server can't be reached, or others write all the time.
        """
        name, note = lease_of(workload), note_of(workload, seat)
        for _ in range(_ATTEMPTS_MAX):
            found = self._leases.get(name)
            now = self._api.now().timestamp()
            fresh = {held: until for held, until in _given(found).items() if now < until < now + _SECONDS_MAX}
            if note in fresh:
                return False
            # Of more than fit on a lease, those that are over first are forgotten.
            kept = sorted(fresh.items(), key=lambda item: item[1])[-_NOTES_MAX:]
            given = json.dumps({**dict(kept), note: round(now + seconds, 3)}, sort_keys=True)
            # The version that was read goes with it: who writes after somebody else is refused.
            with suppress(Conflict):
                self._leases.put(name, found, {"metadata": {"annotations": {GIVEN_ANNOTATION: given}}})
                return True
        raise Unavailable(f"cannot note a seat of {workload}: others wrote at every attempt of {_ATTEMPTS_MAX}")


def _given(lease: Manifest | None) -> dict[str, float]:
    """Notes on a lease; none where somebody wrote something else there."""
    text = {} if lease is None else (lease["metadata"].get("annotations") or {})
    try:
        found = json.loads(text.get(GIVEN_ANNOTATION, "{}"))
        return {str(seat): float(until) for seat, until in found.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}
