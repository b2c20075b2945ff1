"""The pods of this node that have to do with cards, kept up to date from the API server in the background.

The kubelet knows neither a pod's UID nor its owner, and not the card that HAMi gave; the API server does. Only this
node's pods are asked for, so that thousands of exporters cost the server little. What was heard stays while the server
is away. Called by `exporter.reader_node`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from exporter.allocation.records import Key
from exporter.attribution.pods import PodFacts, pod_facts
from exporter.cluster_reader import ClusterReader, Watched
from exporter.cluster_reader_watch import ResourceWatch, WatchState


class NodePods:
    """Watches one node's pods.

    Args:
        reader: reads this node's pods and no others; closed with this.
        clock: seconds that never go back; for tests.
    """

    def __init__(self, reader: ClusterReader, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._facts: dict[Key, PodFacts] = {}
        self._shown: tuple[PodFacts, ...] = ()
        self._watch = ResourceWatch(
            reader,
            Watched.PODS,
            self,
            pages=threading.Semaphore(1),
            clock=clock,
            record_of=lambda _watched, manifest, shared: pod_facts(manifest, shared),
        )

    def start(self) -> None:
        """Begins to read."""
        self._watch.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Ends the reading, and closes the reader."""
        self._watch.stop()
        self._reader.close()
        self._watch.join(timeout_seconds)

    def facts(self) -> tuple[PodFacts, ...] | None:
        """The pods as last heard of, the same object while nothing changes; None before they were read in full."""
        return self._shown if self._watch.state().is_known else None

    def state(self) -> WatchState:
        """How the reading fares."""
        return self._watch.state()

    def put(self, watched: Watched, key: Key, record: PodFacts | None) -> None:
        """Takes a pod that came or changed; None where it is gone or has nothing to do with cards."""
        with self._lock:
            if record is not None:
                self._facts[key] = record
            elif self._facts.pop(key, None) is None:
                return
            self._shown = tuple(self._facts.values())

    def retain(self, watched: Watched, keys: AbstractSet[Key]) -> None:
        """Forgets the pods that a whole list did not name."""
        with self._lock:
            gone = self._facts.keys() - keys
            for key in gone:
                del self._facts[key]
            if gone:
                self._shown = tuple(self._facts.values())
