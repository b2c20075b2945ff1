"""Calls that are made again while the cluster can't take them: for hours, with growing pauses.

An API server that is upgraded, or a way to it that is cut, is no reason to leave a stage half done: the run goes on
when it is back. Until a server that has just started has read all roles it refuses what it allowed before, so a run
asks again for a minute. Called by everything that rollout and undo do in the cluster once a run has begun, which goes
through a `PatientCluster`.

Source: kubernetes/kubernetes:plugin/pkg/auth/authorizer/rbac (roles come from informers, which start with the server).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from enforcer.cluster import ClusterReader, ClusterWriter, FieldChange, Pause
from enforcer.manifest import Manifest
from enforcer.record.ledger import Overtaken
from fleet.errors import GputideError, Unavailable
from fleet.sentences import Sentence, sentence
from wire.kubernetes.backoff import Backoff
from wire.kubernetes.refusals import Forbidden

Answer = TypeVar("Answer")

ABSENCE_SECONDS_MAX = 6 * 3600.0
"""How long a run waits for a cluster that does not answer."""

RIGHTS_SECONDS_MAX = 60.0
"""How long a run asks again for what it was allowed before."""

_PAUSE_SECONDS_MIN = 2.0
_PAUSE_SECONDS_MAX = 60.0


def _unsaid(_: GputideError, _seconds: float) -> None:
    """Nobody reads what is waited for."""


def _unasked() -> None:
    """Nothing is to be looked at before a call is made again."""


class Patience:
    """Makes calls, and makes them again while the cluster can't take them.

    Args:
        say: called before each pause with what went wrong and for how many seconds it has.
        before_again: called before a call is made again; what it raises ends the waiting.
        rights_seconds_max: for how long at most where a right is missing.
    """

    def __init__(
        self,
        pause: Pause,
        *,
        say: Callable[[GputideError, float], None] = _unsaid,
        before_again: Callable[[], None] = _unasked,
        seconds_max: float = ABSENCE_SECONDS_MAX,
        rights_seconds_max: float = 0.0,
    ) -> None:
        self._pause = pause
        self._say = say
        self._before_again = before_again
        self._seconds_max = seconds_max
        self._rights_seconds_max = rights_seconds_max

    def __call__(self, call: Callable[[], Answer], *, seconds_max: float | None = None) -> Answer:
        """The answer to a call.

        Raises:
            Unavailable: the cluster could not take it to the last, or another enforcer went on (`Overtaken`).
            Forbidden: a right is missing.
        """
        backoff = Backoff(seconds_min=_PAUSE_SECONDS_MIN, seconds_max=_PAUSE_SECONDS_MAX)
        longest, waited = self._seconds_max if seconds_max is None else seconds_max, 0.0
        while True:
            try:
                return call()
            except (Unavailable, Forbidden) as exc:
                most = min(longest, self._rights_seconds_max) if isinstance(exc, Forbidden) else longest
                if waited >= most or isinstance(exc, Overtaken):
                    raise
                self._say(exc, waited)
            seconds = min(backoff.failed(), most - waited)
            self._pause(seconds)
            waited += seconds
            self._before_again()


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
