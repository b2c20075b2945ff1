"""The pods of this node that have to do with cards, kept up to date from the API server in the background.

The kubelet knows neither a pod's UID nor its owner, and not the card that HAMi gave; the API server does. Only this
node's pods are asked for, and what they name, so that thousands of exporters cost the server little. What was heard
stays while the server is away. Called by `exporter.node.reader`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from exporter.allocation.records import Key
from exporter.attribution.pods import PodFacts, pod_facts
from exporter.cluster.reader import ClusterReader, Watched
from exporter.cluster.watch import ResourceWatch, WatchState
from exporter.node.objects import NodeLookups, NodeObjects

PAGE_OBJECTS = 50
"""Pods of one page: a page is large while it is read, and a node's exporter is small."""


class NodePods:
    """Watches one node's pods.

    Args:
        reader: reads this node's pods and no others; closed with this.
        lookups: asks for what the pods name; None where nobody is to be asked. Started and stopped with this.
    """

    def __init__(
        self, reader: ClusterReader, *, lookups: NodeLookups | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reader = reader
        self._lookups = lookups
        self._known = threading.Event()
        self._lock = threading.Lock()
        self._facts: dict[Key, PodFacts] = {}
        self._shown: tuple[PodFacts, ...] = ()
        self._watch = ResourceWatch(
            reader,
            Watched.PODS,
            self,
            pages=threading.Semaphore(1),
            clock=clock,
            page_objects=PAGE_OBJECTS,
            record_of=lambda _watched, manifest, shared: pod_facts(manifest, shared),
        )

    def start(self) -> None:
        """Begins to read."""
        self._watch.start()
        if self._lookups is not None:
            self._lookups.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Ends the reading, and closes the reader."""
        self._watch.stop()
        if self._lookups is not None:
            self._lookups.stop()
        self._reader.close()
        self._watch.join(timeout_seconds)
        if self._lookups is not None:
            self._lookups.join(timeout_seconds)

    def wait(self, seconds: float) -> bool:
        """Waits until the pods have been read in full, and what they name asked for; False where time was too short."""
        until = time.monotonic() + seconds
        if not self._known.wait(max(0.0, seconds)):
            return False
        return self._lookups is None or self._lookups.wait(self._shown, until - time.monotonic())

    def facts(self) -> tuple[PodFacts, ...] | None:
        """The pods as last heard of, the same object while nothing changes; None before they were read in full."""
        return self._shown if self._known.is_set() else None

    def objects(self) -> NodeObjects:
        """What the pods name, as far as it is known; the same parts while nothing changes."""
        return NodeObjects() if self._lookups is None else self._lookups.found()

    def state(self) -> WatchState:
        """How the reading of the pods fares."""
        return self._watch.state()

    def put(self, watched: Watched, key: Key, record: PodFacts | None) -> None:
        """Takes a pod that came or changed; None where it is gone or has nothing to do with cards."""
        with self._lock:
            if record is not None:
                self._facts[key] = record
            elif self._facts.pop(key, None) is None:
                return
            self._show()

    def retain(self, watched: Watched, keys: AbstractSet[Key]) -> None:
        """Forgets the pods that a whole list did not name."""
        with self._lock:
            gone = self._facts.keys() - keys
            for key in gone:
                del self._facts[key]
            if gone:
                self._show()
        self._known.set()

    def _show(self) -> None:
        self._shown = tuple(self._facts.values())
        if self._lookups is not None:
            self._lookups.follow(self._shown)
