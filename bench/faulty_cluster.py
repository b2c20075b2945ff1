"""A simulated cluster whose pods, API and clock misbehave from a moment on, as long as they are told to.

`MisbehavingCluster` has faults of the pods and of single writes; `FaultyCluster` has those of the way to it as well:
answers that get lost, reads that are cut, an API server that is away, a clock that jumped back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from enforcer.cluster import FieldChange, identity
from enforcer.manifest import Manifest
from enforcer.simulated.cluster import SimulatedCluster
from fleet.errors import Unavailable
from wire.kubernetes.refusals import Forbidden


@dataclass(slots=True, kw_only=True)
class Faults:
    """How the simulated cluster misbehaves, for tests of those who use it; mutable: it counts writes.

    Attributes:
        conflict_on_writes: numbers of the writes (from 1) before which somebody else changes the object.
        fail_on_writes: number of a write to the HTTP status it fails with, such as 429 or 500.
        delete_on_writes: numbers of the writes before which somebody deletes the object.
        never_ready: pods (`namespace/pod` of the trace) that never become ready once made anew.
        out_of_memory: the same for pods whose container is killed for want of memory.
        writes: writes seen so far.
    """

    conflict_on_writes: frozenset[int] = frozenset()
    fail_on_writes: Mapping[int, int] | None = None
    delete_on_writes: frozenset[int] = frozenset()
    never_ready: frozenset[str] = frozenset()
    out_of_memory: frozenset[str] = frozenset()
    writes: int = 0


class MisbehavingCluster(SimulatedCluster):
    """The cluster with faults of its pods and of single writes."""

    def __init__(self, path: Path, faults: Faults) -> None:
        super().__init__(path)
        self._faults = faults

    def advance(self, now: datetime) -> None:
        """See the cluster."""
        self._show_faults()
        super().advance(now)

    def pause(self, seconds: float) -> None:
        """See the port."""
        self._show_faults()
        super().pause(seconds)

    def patch(self, kind: str, namespace: str, name: str, fields: Sequence[FieldChange], resource_version: str) -> str:
        """See the port."""
        self._misbehave(kind, namespace, name)
        return super().patch(kind, namespace, name, fields, resource_version)

    def evict(self, namespace: str, pod: str) -> bool:
        """See the port."""
        self._misbehave("Pod", namespace, pod)
        return super().evict(namespace, pod)

    def make(self, manifest: Manifest) -> bool:
        """See the port."""
        self._misbehave(*identity(manifest))
        return super().make(manifest)

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """See the cluster."""
        self._show_faults()
        super().delete(kind, namespace, name)

    def _show_faults(self) -> None:
        self._controllers.never_ready = self._faults.never_ready
        self._controllers.out_of_memory = self._faults.out_of_memory

    def _misbehave(self, kind: str, namespace: str, name: str) -> None:
        self._show_faults()
        faults = self._faults
        faults.writes += 1
        if faults.fail_on_writes and faults.writes in faults.fail_on_writes:
            status = faults.fail_on_writes[faults.writes]
            raise Unavailable(f"cannot change {kind} {namespace}/{name}: the API server answered {status}")
        if faults.writes in faults.delete_on_writes:
            self.delete(kind, namespace, name)
        if faults.writes in faults.conflict_on_writes:
            with self._store.transaction():
                found = self._store.object_body(kind, namespace, name)
                if found is not None:
                    body = found[1]
                    body.setdefault("spec", {})["revisionHistoryLimit"] = faults.writes
                    body["metadata"]["generation"] = int(body["metadata"].get("generation", 1)) + 1
                    self._store.put_object(body)


class FaultyCluster(MisbehavingCluster):
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
        super().__init__(path, faults)
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
