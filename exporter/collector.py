"""Reads a `DeviceReader` in the background and keeps the latest reading as an immutable snapshot.

Nobody who asks for figures ever waits for a device: a scrape takes the snapshot that is there, with its age. Called by
the command line's `run export node`; `exporter.server` asks it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from exporter.families import Family
from exporter.reader import DeviceReader, InventoryChange, Reading
from fleet.errors import Unavailable
from fleet.inventory import Card, CardId, Grant, Node
from fleet.logs import logger


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The latest reading, and all that stands there.

    Attributes:
        number: counts the readings, 1 first.
        taken_at_seconds: when it was taken, by the collector's clock.
        families: what goes beyond the stored measures: the reading's own families, then what was derived from it.
    """

    number: int
    reading: Reading
    cards: tuple[Card, ...]
    nodes: tuple[Node, ...]
    grants: tuple[Grant, ...]
    taken_at_seconds: float
    families: tuple[Family, ...] = ()


Derivation = Callable[[Snapshot], tuple[Family, ...]]
"""Makes figures out of a reading, such as its cross-checks; called once per reading, in order, by one thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorState:
    """How the collector fares.

    Attributes:
        snapshot: the latest one; None before the first reading.
        age_seconds: age of the snapshot, or time since the collector was made where there is none.
    """

    snapshot: Snapshot | None
    age_seconds: float
    readings: int
    failures: int


class Collector:
    """Samples a reader every so often, in a thread of its own.

    Args:
        reader: what is read; used by one thread only.
        derivations: what is derived from every reading, in the order in which it is shown.
    """

    def __init__(
        self,
        reader: DeviceReader,
        *,
        interval_seconds: float,
        deadline_seconds: float,
        derivations: Sequence[Derivation] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._interval_seconds = interval_seconds
        self._deadline_seconds = deadline_seconds
        self._derivations = tuple(derivations)
        self._clock = clock
        self._made_at_seconds = clock()
        self._inventory = _Inventory()
        # One reference is swapped at a time, so readers need no lock.
        self._snapshot: Snapshot | None = None
        self._failures = 0
        self._crash: Exception | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._log = logger("exporter.collector")

    def state(self) -> CollectorState:
        """How it fares now; answers at once even while a reading hangs."""
        snapshot = self._snapshot
        since = snapshot.taken_at_seconds if snapshot is not None else self._made_at_seconds
        return CollectorState(
            snapshot=snapshot,
            age_seconds=max(0.0, self._clock() - since),
            readings=snapshot.number if snapshot is not None else 0,
            failures=self._failures,
        )

    def collect(self) -> bool:
        """Reads once, in the caller's thread; False where the source has come to its end."""
        try:
            reading = self._reader.read(self._deadline_seconds)
        except Unavailable as exc:
            # The first of a row of failures is logged; the rest are counted.
            if self._failures == 0:
                self._log.warning("reading failed", error=str(exc))
            self._failures += 1
            return True
        if reading is None:
            return False
        self._inventory.apply(reading.change)
        self._snapshot = self._snapshot_of(reading)
        return True

    def start(self, on_crash: Callable[[], None] = lambda: None) -> None:
        """Starts sampling in the background; a reader that hangs keeps no process from ending.

        Args:
            on_crash: called in the background where sampling ended by a bug; what serves the figures then ends, for
                they would only grow old.
        """
        self._thread = threading.Thread(target=self._run, args=(on_crash,), name="collector", daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Stops sampling and closes the reader, unless a reading still hangs after the time-out.

        Raises:
            Exception: the bug by which sampling ended, if it did.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)
            if self._thread.is_alive():
                return
        self._reader.close()
        if self._crash is not None:
            raise self._crash

    def _snapshot_of(self, reading: Reading) -> Snapshot:
        snapshot = Snapshot(
            number=self._snapshot.number + 1 if self._snapshot is not None else 1,
            reading=reading,
            cards=self._inventory.cards,
            nodes=self._inventory.nodes,
            grants=self._inventory.grants,
            taken_at_seconds=self._clock(),
            families=reading.families,
        )
        derived = chain.from_iterable(derivation(snapshot) for derivation in self._derivations)
        return replace(snapshot, families=(*reading.families, *derived))

    def _run(self, on_crash: Callable[[], None]) -> None:
        try:
            while not self._stop.is_set() and self.collect():
                self._stop.wait(self._interval_seconds)
        except Exception as exc:  # noqa: BLE001 - raised again by `stop`, in the thread that can end the process
            self._crash = exc
            on_crash()


class _Inventory:
    """What stands there, kept up to date from the changes that readings name.

    The tuples are the same objects until something changes, so that code that shows them need not compare.
    """

    def __init__(self) -> None:
        self.cards: tuple[Card, ...] = ()
        self.nodes: tuple[Node, ...] = ()
        self.grants: tuple[Grant, ...] = ()
        self._cards: dict[CardId, Card] = {}
        self._nodes: dict[str, Node] = {}
        self._grants: dict[tuple[str, str, CardId], Grant] = {}

    def apply(self, change: InventoryChange) -> None:
        self._cards.update((card.card, card) for card in change.cards)
        self._nodes.update((node.node, node) for node in change.nodes)
        # An end may belong to an earlier period of the same slice, so it counts only for the grant that it names.
        self._grants.update((_key(grant), grant) for grant in change.grants_started)
        for grant in change.grants_ended:
            living = self._grants.get(_key(grant))
            if living is not None and living.started_at <= grant.started_at:
                del self._grants[_key(grant)]
        if change.cards:
            self.cards = tuple(self._cards.values())
        if change.nodes:
            self.nodes = tuple(self._nodes.values())
        if change.grants_started or change.grants_ended:
            self.grants = tuple(self._grants.values())


def _key(grant: Grant) -> tuple[str, str, CardId]:
    return grant.pod_id, grant.container, grant.card
