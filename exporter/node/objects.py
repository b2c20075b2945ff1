"""Objects that this node's pods name, fetched by their names: who owns their owners, and what their claims were given.

To watch all ReplicaSets or claims of a cluster on each of its nodes would cost the API server more than it is worth: a
node has some dozens of pods with cards, so each object is asked for by its name, owners once and of them the metadata
only. One thread asks one question at a time, with a bound on how many a second. What may not be read is asked for again
from time to time, and what is known without it stays. Called by `exporter.node.pods`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from exporter.allocation.pods import owned_record
from exporter.allocation.records import OwnerLinkRecord
from exporter.attribution.pods import PodFacts
from exporter.cluster.reader import ObjectReader, Watched
from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.grammars.claims import ClaimAllocation, PublishedDevice, parse_claim, parse_published
from fleet.logs import logger
from fleet.workload_kinds import OWNER_LINKS_MAX
from wire.http_answer import Busy
from wire.kubernetes.backoff import Backoff
from wire.kubernetes.page import pages_of

QUESTIONS_PER_SECOND = 10.0
QUESTIONS_AT_ONCE = 50.0
"""So many questions may be asked without a pause, after a time without any."""
REFUSED_SECONDS = 300.0
"""How often it is asked again for a kind that the server does not let this node read."""
PUBLISHED_SECONDS = 600.0
"""Age at which the devices that drivers publish are read anew."""
DEVICES_MAX = 10_000
"""Most devices that drivers may publish on one node."""

_OWNER_KINDS: Mapping[str, Watched] = {
    "ReplicaSet": Watched.REPLICA_SETS,
    "StatefulSet": Watched.STATEFUL_SETS,
    "Job": Watched.JOBS,
}
_PAGE_OBJECTS = 100
_BACKOFF_SECONDS_MIN = 1.0
_BACKOFF_SECONDS_MAX = 60.0

ClaimName = tuple[str, str]
"""Namespace and name of a claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObjects:
    """What was found; the same parts while nothing changes.

    Attributes:
        owners: controller of each object that owns a pod, by the object's UID; without those that nobody owns.
        claims: allocated claims that the pods name.
        published: devices that drivers publish on this node; none while no pod has a claim.
        refused: kinds that the server does not let this node read.
        failures: questions without an answer so far.
        is_settled: every question that the pods raise has been asked.
    """

    owners: Mapping[str, OwnerLinkRecord] = field(default_factory=dict)
    claims: tuple[ClaimAllocation, ...] = ()
    published: tuple[PublishedDevice, ...] = ()
    refused: frozenset[Watched] = frozenset()
    failures: int = 0
    is_settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """One object that is wanted; of published devices there is one question for all, without a name."""

    watched: Watched
    namespace: str = ""
    name: str = ""
    uid: str = ""


class _Round(Exception):
    """The server can't be asked: the round is over, and the next waits."""

    def __init__(self, wait_seconds: float) -> None:
        super().__init__()
        self.wait_seconds = wait_seconds


class NodeLookups:
    """Asks for what pods name, in a thread of its own.

    Args:
        reader: reads this node's published devices and no others; not closed with this.
    """

    def __init__(self, reader: ObjectReader, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock = clock
        self._pods: tuple[PodFacts, ...] = ()
        self._found = NodeObjects()
        # By the whole question: a tenant may write another's UID on his own pod, with a name that is not there.
        self._owners: dict[_Question, OwnerLinkRecord | None] = {}
        self._claims: dict[ClaimName, ClaimAllocation | None] = {}
        self._published: tuple[PublishedDevice, ...] = ()
        # When a question may be asked again, and how long it waits after that.
        self._again_at: dict[_Question, float] = {}
        self._waits: dict[_Question, float] = {}
        self._refused_until: dict[Watched, float] = {}
        self._served: set[Watched] = set()
        self._failures = 0
        self._backoff = Backoff(seconds_min=_BACKOFF_SECONDS_MIN, seconds_max=_BACKOFF_SECONDS_MAX)
        self._allowance, self._allowed_at = QUESTIONS_AT_ONCE, clock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._settled = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="node-objects", daemon=True)
        self._log = logger("exporter.node.objects")

    def start(self) -> None:
        """Begins to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Asks the thread to end; it does so with the next answer, or when the reader is closed."""
        self._stop.set()
        self._wake.set()

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the thread's end; False where it still runs."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def follow(self, pods: tuple[PodFacts, ...]) -> None:
        """These are the node's pods from now on; returns at once."""
        with self._settled:
            self._pods = pods
            self._found = replace(self._found, is_settled=False)
        self._wake.set()

    def found(self) -> NodeObjects:
        """What was found so far."""
        return self._found

    def wait(self, pods: tuple[PodFacts, ...], seconds: float) -> bool:
        """Waits until all that these pods raise has been asked; False where the time was not enough."""
        with self._settled:
            return self._settled.wait_for(lambda: self._found.is_settled and self._pods is pods, max(0.0, seconds))

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            with self._settled:
                pods = self._pods
            try:
                wait_seconds = self._ask_all(pods)
            except _Round as over:
                wait_seconds = over.wait_seconds
            self._show(pods)
            # The thread that stops this may have woken it before it went to sleep.
            if not self._stop.is_set():
                self._wake.wait(wait_seconds)

    def _ask_all(self, pods: tuple[PodFacts, ...]) -> float:
        """Asks whatever is due; returns the seconds until more is."""
        wanted: dict[_Question, None] = {}
        for question in self._questions(pods):
            wanted[question] = None
            at = self._due_at(question)
            if at is not None and at <= self._clock():
                self._ask(question)
        self._forget(wanted.keys())
        now = self._clock()
        due = [self._due_at(question) for question in wanted]
        return max(0.1, min((at for at in due if at is not None), default=now + PUBLISHED_SECONDS) - now)

    def _questions(self, pods: tuple[PodFacts, ...]) -> Iterator[_Question]:
        """What pods raise; owners of owners, and devices of claims, once the first are known."""
        for facts in pods:
            record = facts.record
            link, links = record.owner, 0
            while link is not None and link.kind in _OWNER_KINDS and links < OWNER_LINKS_MAX:
                question = _Question(
                    watched=_OWNER_KINDS[link.kind], namespace=record.namespace, name=link.name, uid=link.uid
                )
                yield question
                link, links = self._owners.get(question), links + 1
        has_claims = False
        for facts in pods:
            record = facts.record
            for _, claim in record.claims if not record.is_over else ():
                yield _Question(watched=Watched.RESOURCE_CLAIMS, namespace=record.namespace, name=claim, uid=record.uid)
                has_claims = has_claims or self._claims.get((record.namespace, claim)) is not None
        if has_claims:
            yield _Question(watched=Watched.RESOURCE_SLICES)

    def _due_at(self, question: _Question) -> float | None:
        """When a question is to be asked; None for one that is answered for good."""
        refused_until = self._refused_until.get(question.watched)
        if refused_until is not None:
            return refused_until
        if question.watched is Watched.RESOURCE_SLICES:
            known = {(device.driver, device.pool, device.device) for device in self._published}
            needed = {
                (device.driver, device.pool, device.device)
                for claim in self._claims.values()
                for device in (claim.devices if claim is not None else ())
            }
            again_at = self._again_at.get(question, 0.0)
            # A device that is not published yet is asked for soon, the others as they may have changed.
            return again_at if needed - known else again_at + PUBLISHED_SECONDS
        if question.watched is Watched.RESOURCE_CLAIMS:
            claim = self._claims.get((question.namespace, question.name))
            if claim is not None and question.uid in claim.reserved_for:
                return None
            return self._again_at.get(question, 0.0)
        return None if question in self._owners else self._again_at.get(question, 0.0)

    def _ask(self, question: _Question) -> None:
        self._pace()
        if self._stop.is_set():
            raise _Round(0.0)
        try:
            match question.watched:
                case Watched.RESOURCE_SLICES:
                    self._ask_published()
                case Watched.RESOURCE_CLAIMS:
                    self._ask_claim(question)
                case _:
                    self._ask_owner(question)
        except Misconfigured as exc:
            self._failures += 1
            if question.watched not in self._refused_until:
                self._log.warning("objects refused", resource=question.watched.value, error=str(exc))
            self._refused_until[question.watched] = self._clock() + REFUSED_SECONDS
            return
        except Unavailable as exc:
            self._failures += 1
            self._served.discard(question.watched)
            retry_after_seconds = exc.retry_after_seconds if isinstance(exc, Busy) else 0.0
            raise _Round(self._backoff.failed(retry_after_seconds=retry_after_seconds)) from exc
        except Corrupt as exc:
            self._failures += 1
            self._log.warning("object dropped", resource=question.watched.value, name=question.name, error=str(exc))
            self._again_at[question] = self._clock() + PUBLISHED_SECONDS
            return
        self._refused_until.pop(question.watched, None)
        self._backoff.recovered()
        wait_seconds = self._waits.get(question, _BACKOFF_SECONDS_MIN)
        self._again_at[question] = self._clock() + wait_seconds
        self._waits[question] = min(2 * wait_seconds, _BACKOFF_SECONDS_MAX)

    def _ask_owner(self, question: _Question) -> None:
        manifest = self._reader.one(question.watched, namespace=question.namespace, name=question.name)
        record = None if manifest is None else owned_record(manifest)
        # Another object of this name is not the owner: the first may be gone, or the tenant wrote what he liked.
        self._owners[question] = record.owner if record is not None and record.uid == question.uid else None

    def _ask_claim(self, question: _Question) -> None:
        manifest = None
        if self._is_served(question.watched):
            manifest = self._reader.one(question.watched, namespace=question.namespace, name=question.name)
        if manifest is None:
            # Not there yet; or not in this version any more, since the server was upgraded.
            self._served.discard(question.watched)
        self._claims[question.namespace, question.name] = None if manifest is None else parse_claim(manifest)

    def _ask_published(self) -> None:
        if not self._is_served(Watched.RESOURCE_SLICES):
            return
        devices: list[PublishedDevice] = []
        pages = pages_of(
            lambda limit, token: self._reader.page(Watched.RESOURCE_SLICES, limit=limit, token=token),
            objects_max=_PAGE_OBJECTS,
        )
        for page in pages:
            for manifest in page.manifests:
                try:
                    devices += parse_published(manifest)
                except Corrupt as exc:
                    # One driver's bad slice must not hide another's devices.
                    self._failures += 1
                    self._log.warning("object dropped", resource=Watched.RESOURCE_SLICES.value, error=str(exc))
            if len(devices) > DEVICES_MAX:
                raise Corrupt(f"cannot read what drivers publish on this node: more than {DEVICES_MAX} devices")
        self._published = tuple(devices)

    def _is_served(self, watched: Watched) -> bool:
        if watched not in self._served and self._reader.version_of(watched) is not None:
            self._served.add(watched)
        return watched in self._served

    def _pace(self) -> None:
        now = self._clock()
        self._allowance += (now - self._allowed_at) * QUESTIONS_PER_SECOND
        self._allowance, self._allowed_at = min(self._allowance, QUESTIONS_AT_ONCE), now
        if self._allowance < 1.0:
            self._stop.wait((1.0 - self._allowance) / QUESTIONS_PER_SECOND)
        self._allowance -= 1.0

    def _forget(self, wanted: AbstractSet[_Question]) -> None:
        """Keeps no more than what pods of this moment raise."""
        claims = {(question.namespace, question.name) for question in wanted}
        self._owners = {question: owner for question, owner in self._owners.items() if question in wanted}
        self._claims = {name: claim for name, claim in self._claims.items() if name in claims}
        self._again_at = {question: at for question, at in self._again_at.items() if question in wanted}
        self._waits = {question: seconds for question, seconds in self._waits.items() if question in wanted}
        if not self._claims:
            self._published = ()

    def _show(self, pods: tuple[PodFacts, ...]) -> None:
        before = self._found
        owners = {question.uid: owner for question, owner in self._owners.items() if owner is not None}
        claims = tuple(claim for claim in self._claims.values() if claim is not None)
        with self._settled:
            self._found = NodeObjects(
                owners=before.owners if owners == before.owners else owners,
                claims=before.claims if claims == before.claims else claims,
                published=self._published,
                refused=frozenset(self._refused_until),
                failures=self._failures,
                is_settled=pods is self._pods
                and all(
                    self._due_at(question) is None
                    or question in self._again_at
                    or question.watched in self._refused_until
                    for question in self._questions(pods)
                ),
            )
            self._settled.notify_all()
