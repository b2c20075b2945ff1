"""The cluster as a run uses it: calls are made again while the cluster can't take them, writes are announced.

Called by the carrier, the node steps and the writer of intents, which share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from enforcer.cluster import ClusterReader, ClusterWriter, FieldChange, Pause
from enforcer.manifest import Manifest
from enforcer.rollout.patience import Patience
from fleet.sentences import Sentence, sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientCluster:
    """Reads and writes with patience; each call raises `Unavailable` once that is over.

    Attributes:
        patiently: makes calls again while the cluster can't take them.
        step: called before every write with what it is, for tests that stop there.
    """

    reader: ClusterReader
    writer: ClusterWriter
    pause: Pause
    patiently: Patience
    step: Callable[[str], None]

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """See `ClusterReader`."""
        return self.patiently(lambda: self.reader.get(kind, namespace, name))

    def list_objects(self, kind: str, namespace: str | None = None) -> Sequence[Manifest]:
        """See `ClusterReader`."""
        return self.patiently(lambda: self.reader.list_objects(kind, namespace))

    def patch(
        self, what: str, key: tuple[str, str, str], fields: Iterable[tuple[str, str | None]], resource_version: str
    ) -> None:
        """Write fields of one object, on the condition that it still has the version that was read.

        Raises:
            Refused: as `ClusterWriter.patch`.
        """
        changes = [FieldChange(field=field, value=value) for field, value in fields]
        self.step(what)
        self.patiently(lambda: self.writer.patch(*key, changes, resource_version))

    def evict(self, pod_id: str, what: str, *, poll_seconds: float, seconds_max: float) -> Sentence | None:
        """Evict a pod (`namespace/pod`) as soon as its disruption budgets let it; else says why it could not be."""
        namespace, _, name = pod_id.partition("/")
        waited = 0.0
        while True:
            self.step(what)
            if self.patiently(lambda: self.writer.evict(namespace, name)):
                return None
            if waited >= seconds_max:
                return sentence("rollout.not_evicted", pod=pod_id, seconds=waited)
            self.pause(poll_seconds)
            waited += poll_seconds
