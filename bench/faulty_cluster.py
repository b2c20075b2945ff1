"""A simulated cluster whose API and clock misbehave from a moment on, as long as they are told to.

Faults of the pods and of single writes are the simulated cluster's own (`Faults`); here stand those of the way to it:
answers that get lost, reads that are cut, an API server that is away, a clock that jumped back.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from enforcer.cluster import FieldChange
from enforcer.manifest import Manifest
from enforcer.simulated.cluster import Faults, SimulatedCluster
from fleet.errors import Unavailable
from wire.kubernetes.refusals import Forbidden


class FaultyCluster(SimulatedCluster):
    """The cluster behind a bad way.

    Args:
        path: its file.
        faults: faults of pods and writes.

    Attributes:
        lost_answers: how many further writes take effect without their answers' coming back.
        cut_reads: how many further reads fail.
        is_away: nothing is answered.
        is_starting: the server has just started and has read no roles yet.
        skew: what the clock is off by.
    """

    def __init__(self, path: Path, faults: Faults) -> None:
        super().__init__(path, faults=faults)
        self.lost_answers = 0
        self.cut_reads = 0
        self.is_away = False
        self.is_starting = False
        self.skew = timedelta(0)

    def cure(self) -> None:
        """The way is good again; the clock stays as it is."""
        self.lost_answers, self.cut_reads, self.is_away = 0, 0, False

    def now(self) -> datetime:
        """See the port."""
        return super().now() + self.skew

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """See the port."""
        self._read(f"{kind} {namespace}/{name}")
        return super().get(kind, namespace, name)

    def list_objects(self, kind: str, namespace: str | None = None) -> tuple[Manifest, ...]:
        """See the port."""
        self._read(f"all of {kind}")
        return super().list_objects(kind, namespace)

    def patch(self, kind: str, namespace: str, name: str, fields: Sequence[FieldChange], resource_version: str) -> str:
        """See the port."""
        self.reach()
        version = super().patch(kind, namespace, name, fields, resource_version)
        self.answer()
        return version

    def evict(self, namespace: str, pod: str) -> bool:
        """See the port."""
        self.reach()
        is_evicted = super().evict(namespace, pod)
        self.answer()
        return is_evicted

    def record_event(self, kind: str, namespace: str, name: str, reason: str, message: str) -> None:
        """See the port."""
        self.reach()
        super().record_event(kind, namespace, name, reason, message)

    def acquire(self, holder: str, seconds: float) -> bool:
        """See the port."""
        self.reach()
        return super().acquire(holder, seconds)

    def release(self, holder: str) -> None:
        """See the port."""
        self.reach()
        super().release(holder)

    def _read(self, what: str) -> None:
        self.reach()
        if self.cut_reads > 0:
            self.cut_reads -= 1
            raise Unavailable(f"cannot read {what}: the connection was cut")

    def reach(self) -> None:
        """Nothing, as long as the API server answers."""
        if self.is_away:
            raise Unavailable("cannot reach the API server: connection refused")
        if self.is_starting:
            raise Forbidden("cannot get: RBAC lacks verb get")

    def answer(self) -> None:
        """Nothing, unless the answer to a write gets lost."""
        if self.lost_answers > 0:
            self.lost_answers -= 1
            raise Unavailable("cannot tell how a write ended: no answer within 30 s")
