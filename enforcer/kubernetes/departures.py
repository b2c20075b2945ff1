"""Writes an event on the owner of a pod that goes wherever a card fits: the plan is departed from there.

The API server waits for the admission's answer, so events are written beside it by a thread of their own; of more than
it can write the rest is dropped, and the same one is written once in ten minutes. Called by `gputide run admission`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from enforcer.admission import PLAN_ANNOTATION
from enforcer.manifest import Manifest
from fleet.errors import GputideError
from fleet.logs import logger

REASON = "GputideDeparted"
AGAIN_SECONDS = 600.0
"""For how long the same event is not written again."""

_WAITING_MAX = 256
_KNOWN_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """A pod that is not pinned to its planned seat; kind and name are those of the owner that carries the seats."""

    kind: str
    namespace: str
    name: str
    plan_id: str | None
    why: str


def departure_of(owner: Manifest, why: str) -> Departure:
    """That a pod is not pinned to a seat that stands on an owner."""
    metadata = owner["metadata"]
    return Departure(
        kind=str(owner["kind"]),
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata["name"]),
        plan_id=(metadata.get("annotations") or {}).get(PLAN_ANNOTATION),
        why=why,
    )


class DepartureEvents:
    """Events of departures; for several threads.

    Args:
        write: writes one event, as `ClusterWriter.record_event`.
        clock: monotonic seconds.
    """

    def __init__(
        self, write: Callable[[str, str, str, str, str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._waiting: queue.Queue[Departure | None] = queue.Queue(_WAITING_MAX)
        self._written: dict[Departure, float] = {}
        self._lock = threading.Lock()
        self._log = logger("enforcer.kubernetes.departures")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write for as long as this lasts; what waits in the end is still written."""
        thread = threading.Thread(target=self._write_all, name="departures", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._waiting.put(None)
            thread.join()

    def note(self, departure: Departure) -> None:
        """Write an event soon, unless it was written lately; never waits."""
        now = self._clock()
        with self._lock:
            if now - self._written.get(departure, -AGAIN_SECONDS) < AGAIN_SECONDS:
                return
            if len(self._written) >= _KNOWN_MAX:
                self._written.clear()
            self._written[departure] = now
        try:
            self._waiting.put_nowait(departure)
        except queue.Full:
            self._log.warning("an event of a departure was dropped", owner=departure.name, why=departure.why)

    def _write_all(self) -> None:
        while (one := self._waiting.get()) is not None:
            plan = "its plan" if one.plan_id is None else f"plan {one.plan_id}"
            message = f"{plan} is departed from: a pod goes wherever a card fits, for {one.why}"
            try:
                self._write(one.kind, one.namespace, one.name, REASON, message)
            except GputideError as exc:
                self._log.warning("cannot write the event of a departure", reason=str(exc)[:300])
