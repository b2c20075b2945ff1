"""Keeps the scheduler layer's state in the background, and hands out the latest families without any waiting.

One thread per watched kind reads; one more works out what changed, a fifth of a second after it came at the latest,
and swaps in an immutable snapshot. `ClusterLayerReader` shows the snapshot as a `DeviceReader`, so that a cluster is
collected and served like a node. Called by `gputide run export cluster`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np

from exporter.allocation.objects import record_of
from exporter.allocation.records import Key, Record
from exporter.allocation.state import AUTOSCALER_KINDS, OWNER_KINDS, Allocation
from exporter.cluster.reader import ClusterReader, Watched
from exporter.cluster.watch import PAGE_OBJECTS, REFUSED, ResourceWatch, WatchState
from exporter.families import CataloguedFamily, Family, counter, gauge
from exporter.reader import Reading
from fleet.errors import Unavailable

SETTLE_SECONDS = 0.2
"""How long changes are gathered before they are worked out."""

_PODS_PER_TURN = 500
_LISTS_AT_ONCE = 2
_NEEDED = OWNER_KINDS | AUTOSCALER_KINDS | {Watched.NODES, Watched.PODS}


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSnapshot:
    """The scheduler layer as it was last worked out.

    Attributes:
        is_ready: nodes, pods and their owners have been read, so that what is granted, and to whom, is known.
        age_seconds: since all that was known had been worked out; None before the first time.
    """

    families: tuple[Family, ...]
    watches: tuple[WatchState, ...]
    is_ready: bool
    age_seconds: float | None


class AllocationCollector:
    """Reads a cluster and keeps what it says of cards.

    Args:
        reader: what the cluster is read by; closed at the end.
        device_resources: names of resources that count GPU devices, beyond those that are known.
        settle_seconds: how long changes are gathered before they are worked out.
    """

    def __init__(
        self,
        reader: ClusterReader,
        *,
        cluster: str,
        device_resources: AbstractSet[str] = frozenset(),
        page_objects: int = PAGE_OBJECTS,
        settle_seconds: float = SETTLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._cluster = cluster
        self._settle_seconds = settle_seconds
        self._clock = clock
        self._state = _LockedAllocation(cluster)
        pages = threading.Semaphore(_LISTS_AT_ONCE)
        of_object = partial(record_of, device_resources=device_resources)
        self._watches = tuple(
            ResourceWatch(
                reader, kind, self._state, record_of=of_object, pages=pages, clock=clock, page_objects=page_objects
            )
            for kind in Watched
        )
        # One reference is swapped at a time, so readers need no lock.
        self._shown: tuple[tuple[Family, ...], float, bool] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="allocation", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        for watch in self._watches:
            watch.start()
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> bool:
        """Ends all threads and closes the reader.

        Returns:
            False where a thread did not end in time; none of them keeps the process from ending.
        """
        self._stop.set()
        for watch in self._watches:
            watch.stop()
        self._reader.close()
        deadline = self._clock() + timeout_seconds
        ended = [watch.join(max(0.0, deadline - self._clock())) for watch in self._watches]
        self._thread.join(max(0.0, deadline - self._clock()))
        return all(ended) and not self._thread.is_alive()

    def snapshot(self) -> AllocationSnapshot:
        """The latest state; answers at once, whatever the API server does."""
        states = tuple(watch.state() for watch in self._watches)
        shown = self._shown
        health = health_families(self._cluster, states, self._state.held())
        return AllocationSnapshot(
            families=(*(() if shown is None else shown[0]), *health),
            watches=states,
            is_ready=shown is not None and shown[2],
            age_seconds=None if shown is None else max(0.0, self._clock() - shown[1]),
        )

    def _run(self) -> None:
        is_begun = False
        while not self._stop.wait(self._settle_seconds):
            # Asked before, so that a list which ends meanwhile is not called known before its last page is worked out.
            states = {state.watched: state for state in (watch.state() for watch in self._watches)}
            # Worked out while the first lists still come in, most pods would be worked out twice.
            is_begun = is_begun or all(_has_answer(state) for state in states.values())
            if not is_begun:
                continue
            known = _known(states)
            at = self._clock()
            families = self._state.settled(known, is_over=self._stop.is_set)
            if families is not None:
                self._shown = (families, at, known >= _NEEDED)


def _has_answer(state: WatchState) -> bool:
    """Whether the first list of a kind was read, or can't be for now."""
    return state.is_known or state.is_served is False or bool(state.errors)


def _known(states: Mapping[Watched, WatchState]) -> frozenset[Watched]:
    """Kinds that have been read in full, and those that never will be: not watched, refused, or not served."""
    known = {watched for watched, state in states.items() if state.is_known}
    for watched in OWNER_KINDS:
        if watched not in states or dict(states[watched].errors).get(REFUSED):
            known.add(watched)
    for watched in AUTOSCALER_KINDS:
        state = states.get(watched)
        if state is None or state.is_served is False or dict(state.errors).get(REFUSED):
            known.add(watched)
    return frozenset(known)


class _LockedAllocation:
    """The state behind one lock, which nobody holds for long."""

    def __init__(self, cluster: str) -> None:
        self._allocation = Allocation(cluster)
        self._lock = threading.Lock()

    def put(self, watched: Watched, key: Key, record: Record | None) -> None:
        with self._lock:
            self._allocation.put(watched, key, record)

    def retain(self, watched: Watched, keys: AbstractSet[Key]) -> None:
        with self._lock:
            self._allocation.retain(watched, keys)

    def held(self) -> dict[Watched, int]:
        # Lengths of dictionaries: each is read in one step.
        return {watched: self._allocation.held(watched) for watched in Watched}

    def settled(self, known: frozenset[Watched], *, is_over: Callable[[], bool]) -> tuple[Family, ...] | None:
        """Works out all changes, in turns; None where it was stopped."""
        while not is_over():
            with self._lock:
                if self._allocation.settle(_PODS_PER_TURN):
                    return self._allocation.families(known)
        return None


AGE_SECONDS_MAX = 300.0
"""Age of the scheduler layer beyond which it is not shown any more: who knows what was granted since."""


class ClusterLayerReader:
    """Reads the scheduler layer.

    Args:
        allocation: the scheduler layer; started and stopped by this.
    """

    def __init__(
        self, allocation: AllocationCollector, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._allocation = allocation
        self._now = now
        self._last_at: datetime | None = None
        self._is_closed = False
        allocation.start()

    def read(self, deadline_seconds: float) -> Reading:
        """Reads once; see `DeviceReader`. The first reading waits for the cluster as long as it may."""
        until = time.monotonic() + deadline_seconds
        snapshot = self._allocation.snapshot()
        while not snapshot.is_ready and time.monotonic() < until:
            time.sleep(min(0.1, deadline_seconds / 10))
            snapshot = self._allocation.snapshot()
        if not snapshot.is_ready:
            said = next((state.last_error for state in snapshot.watches if state.last_error is not None), None)
            raise Unavailable(f"cannot show the cluster yet: {said or 'nodes and pods are still being read'}")
        if snapshot.age_seconds is None or snapshot.age_seconds > AGE_SECONDS_MAX:
            raise Unavailable(f"cannot show the cluster: what is known of it is older than {AGE_SECONDS_MAX:.0f} s")
        moment = self._now()
        if self._last_at is not None and moment <= self._last_at:
            # The clock was set back; readings stay in order.
            moment = self._last_at + timedelta(milliseconds=1)
        self._last_at = moment
        return Reading(at=moment, families=snapshot.families)

    def close(self) -> None:
        """Ends the reading of the cluster; more than once does no harm."""
        if not self._is_closed:
            self._is_closed = True
            self._allocation.stop()


_LABELS = ("cluster", "resource")

WATCH_OBJECTS = gauge(
    "gputide_watch_objects",
    "Objects of a kind that are kept, those that have nothing to do with cards left out.",
    _LABELS,
)
WATCH_IS_KNOWN = gauge(
    "gputide_watch_known",
    "1 where all objects of a kind have been read, else 0; kinds that the API does not serve have no series.",
    _LABELS,
)
WATCH_AGE = gauge(
    "gputide_watch_age_seconds",
    "Time since the API server last said anything of a kind, seconds; some four minutes where nothing happens.",
    _LABELS,
)
WATCH_LISTS = counter("gputide_watch_lists_total", "Whole lists of a kind that were read.", _LABELS)
WATCH_EVENTS = counter("gputide_watch_events_total", "Events of a kind that were taken in.", _LABELS)
WATCH_RESTARTS = counter("gputide_watch_restarts_total", "Watches of a kind that failed and were begun anew.", _LABELS)
WATCH_ERRORS = counter(
    "gputide_watch_errors_total",
    "Failures to read a kind: expired, unavailable, refused, corrupt or bug.",
    (*_LABELS, "kind"),
)

HEALTH_FAMILIES: tuple[CataloguedFamily, ...] = (
    WATCH_OBJECTS, WATCH_IS_KNOWN, WATCH_AGE, WATCH_LISTS, WATCH_EVENTS, WATCH_RESTARTS, WATCH_ERRORS,
)  # fmt: skip
"""How the reading of a cluster fares, in the order in which the families are handed out."""


def health_families(cluster: str, states: Sequence[WatchState], held: Mapping[Watched, int]) -> tuple[Family, ...]:
    """How each watch fares, and how many objects of each kind are kept."""
    served = [state for state in states if state.is_served]
    labels = tuple((cluster, state.watched.value) for state in served)
    errors = [(state, kind, count) for state in states for kind, count in state.errors]
    columns = (
        (WATCH_OBJECTS, [held[state.watched] for state in served]),
        (WATCH_IS_KNOWN, [state.is_known for state in served]),
        (WATCH_AGE, [np.nan if state.age_seconds is None else state.age_seconds for state in served]),
        (WATCH_LISTS, [state.lists for state in served]),
        (WATCH_EVENTS, [state.events for state in served]),
        (WATCH_RESTARTS, [state.restarts for state in served]),
    )
    return (
        *(catalogued.of(labels, np.array(values, dtype=np.float64)) for catalogued, values in columns),
        WATCH_ERRORS.of(
            tuple((cluster, state.watched.value, kind) for state, kind, _ in errors),
            np.array([count for _, _, count in errors], dtype=np.float64),
        ),
    )
