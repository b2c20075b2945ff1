"""Keeps a local state of one kind of objects: lists them page by page, then watches, and lists anew where it must.

One thread per kind. A server that refuses or is gone is asked again, ever more seldom; what was read stays until
something newer is known, with its age. Called by `exporter.allocation.collector`.

Source: kubernetes/website:content/en/docs/reference/using-api/api-concepts.md (efficient detection of changes,
bookmarks, 410 Gone).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from exporter.allocation.manifest import Shared
from exporter.allocation.objects import key_of, version_of
from exporter.allocation.records import Key
from exporter.cluster.reader import ClusterReader, Watched
from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.logs import logger
from wire.http_answer import Busy
from wire.kubernetes.backoff import Backoff
from wire.kubernetes.page import Manifest, pages_of
from wire.kubernetes.read import EventKind
from wire.kubernetes.refusals import Expired

PAGE_OBJECTS = 500
"""Objects of one page, unless they are so large that fewer must be asked for."""

REFUSED = "refused"
"""Kind of failure: the server does not let this reader have it."""

_BACKOFF_SECONDS_MIN = 0.2
_BACKOFF_SECONDS_MAX = 30.0
_HASTY_SECONDS = 1.0
"""A watch that ends sooner, without a word, is not begun anew at once: something before the server cuts it."""
_UNSERVED_SECONDS = 60.0
"""How often it is asked whether an optional kind is served by now."""


Kept = TypeVar("Kept")
"""What is kept of an object."""
Taken_contra = TypeVar("Taken_contra", contravariant=True)
"""What a sink takes."""


class Sink(Protocol[Taken_contra]):
    """Takes in what is read; called from the threads of all watches."""

    def put(self, watched: Watched, key: Key, record: Taken_contra | None) -> None:
        """An object came or changed; None where it is gone or does not matter."""
        ...

    def retain(self, watched: Watched, keys: AbstractSet[Key]) -> None:
        """A whole list was read: whatever is not among the keys is gone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """How the reading of one kind fares.

    Attributes:
        is_served: whether the API serves it; None until it was asked.
        is_known: whether a whole list has been read since the start.
        age_seconds: since the server last said anything of it; None where it never did.
        restarts: watches that ended before their time, or could not go on where they stood.
        errors: failures by kind (`expired`, `unavailable`, `refused`, `corrupt`, `bug`), sorted.
        last_error: what the last failure said; None while all goes well.
    """

    watched: Watched
    is_served: bool | None
    is_known: bool
    age_seconds: float | None
    lists: int
    restarts: int
    events: int
    errors: tuple[tuple[str, int], ...]
    last_error: str | None


class ResourceWatch(Generic[Kept]):
    """Lists and watches one kind in a thread of its own.

    Args:
        record_of: makes of an object what is kept of it, None for nothing; raises Corrupt where it can't be read.
        pages: how many lists may be read at the same time, all kinds together: a page is large while it is read.
    """

    def __init__(
        self,
        reader: ClusterReader,
        watched: Watched,
        sink: Sink[Kept],
        *,
        record_of: Callable[[Watched, Manifest, Shared], Kept | None],
        pages: threading.Semaphore,
        clock: Callable[[], float],
        page_objects: int = PAGE_OBJECTS,
    ) -> None:
        self._reader = reader
        self._watched = watched
        self._sink = sink
        self._record_of = record_of
        self._pages = pages
        self._clock = clock
        self._page_objects = page_objects
        self._backoff = Backoff(seconds_min=_BACKOFF_SECONDS_MIN, seconds_max=_BACKOFF_SECONDS_MAX)
        self._shared = Shared()
        self._version: str | None = None
        # Version of each object that is kept: one that comes again in a list as it was needs no reading.
        self._read: dict[Key, str] = {}
        self._is_served: bool | None = None
        self._is_known = False
        self._heard_at: float | None = None
        self._lists = self._restarts = self._events = 0
        self._errors: Counter[str] = Counter()
        self._last_error: str | None = None
        self._is_failing = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch-{watched.value}", daemon=True)
        self._log = logger("exporter.cluster.watch")

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Asks the thread to end; it does with the next word of the server, or when the reader is closed."""
        self._stop.set()

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the thread's end; False where it still runs."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def state(self) -> WatchState:
        """How it fares now."""
        return WatchState(
            watched=self._watched,
            is_served=self._is_served,
            is_known=self._is_known,
            age_seconds=None if self._heard_at is None else max(0.0, self._clock() - self._heard_at),
            lists=self._lists,
            restarts=self._restarts,
            events=self._events,
            errors=tuple(sorted(self._errors.items())),
            last_error=self._last_error,
        )

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._stop.wait(self._round())
        except BaseException as exc:
            # A bug of ours ends this thread; the state must show that nothing is read any more.
            self._failed("bug", repr(exc))
            raise

    def _round(self) -> float:
        """Lists where it must, then watches until the stream ends; returns how long to wait before the next round."""
        try:
            if self._version is None and self._reader.version_of(self._watched) is None:
                self._unserved()
                return _UNSERVED_SECONDS
            self._is_served = True
            if self._version is None:
                self._version = self._list()
            return 0.0 if self._follow() else max(_HASTY_SECONDS, self._backoff.failed())
        except Expired as exc:
            # What has been missed is not known: the list is read anew, and what is held stays until then.
            self._version = None
            self._failed("expired", str(exc))
        except Busy as exc:
            self._failed("unavailable", str(exc))
            return self._backoff.failed(retry_after_seconds=exc.retry_after_seconds)
        except Unavailable as exc:
            self._failed("unavailable", str(exc))
        except Misconfigured as exc:
            self._version = None
            self._failed(REFUSED, str(exc))
        except Corrupt as exc:
            self._version = None
            self._failed("corrupt", str(exc))
        return self._backoff.failed()

    def _unserved(self) -> None:
        if self._is_served is not False:
            self._sink.retain(self._watched, frozenset())
            self._read.clear()
        self._is_served = False
        self._heard()
        self._recovered()

    def _list(self) -> str:
        there: set[Key] = set()
        listed_at = ""
        pages = pages_of(
            lambda limit, token: self._reader.page(self._watched, limit=limit, token=token),
            objects_max=self._page_objects,
            turn=self._pages,
        )
        with closing(pages):
            for page in pages:
                for manifest in page.manifests:
                    key = key_of(manifest)
                    version = version_of(manifest)
                    if version is None or self._read.get(key) != version:
                        self._take(key, manifest)
                    if key in self._read:
                        there.add(key)
                listed_at = page.version
                # `pages_of` gives its memory back.
                del page
                self._heard()
                if self._stop.is_set():
                    return listed_at
        self._sink.retain(self._watched, there)
        for key in self._read.keys() - there:
            del self._read[key]
        self._lists += 1
        self._is_known = True
        return listed_at

    def _follow(self) -> bool:
        """Watches until the stream ends; False where it ended at once, so that asking again must not be hasty."""
        if self._version is None:
            return False
        began_at, events = self._clock(), self._events
        try:
            for event in self._reader.watch(self._watched, version=self._version):
                if event.kind is EventKind.DELETED:
                    key = key_of(event.manifest)
                    self._read.pop(key, None)
                    self._sink.put(self._watched, key, None)
                elif event.kind is not EventKind.BOOKMARK:
                    self._take(key_of(event.manifest), event.manifest)
                self._version = event.version
                self._events += 1
                self._heard()
                self._recovered()
                if self._stop.is_set():
                    return True
        finally:
            # A watch without an event stood for a while nevertheless.
            if self._clock() - began_at >= _BACKOFF_SECONDS_MAX:
                self._recovered()
        self._heard()
        is_hasty = self._events == events and self._clock() - began_at < _HASTY_SECONDS
        if not is_hasty:
            self._recovered()
        return not is_hasty

    def _take(self, key: Key, manifest: Manifest) -> None:
        try:
            record = self._record_of(self._watched, manifest, self._shared)
        except Corrupt as exc:
            # One bad object must not keep the others from being read; it counts as not there.
            self._errors["corrupt"] += 1
            if self._errors["corrupt"] == 1:
                self._log.warning("object dropped", resource=self._watched.value, name="/".join(key), error=str(exc))
            record = None
        version = version_of(manifest)
        if record is None or version is None:
            self._read.pop(key, None)
        else:
            self._read[key] = version
        self._sink.put(self._watched, key, record)

    def _heard(self) -> None:
        self._heard_at = self._clock()
        self._last_error = None

    def _recovered(self) -> None:
        # Not after a list: where every watch fails, each would be followed by another whole list at once.
        self._backoff.recovered()
        self._is_failing = False

    def _failed(self, kind: str, said: str) -> None:
        if self._stop.is_set():
            # The reader was closed under it, as it should be.
            return
        if not self._is_failing:
            # The first of a row of failures is logged; the rest are counted.
            self._log.warning("watch failed", resource=self._watched.value, kind=kind, error=said)
        self._errors[kind] += 1
        self._restarts += 1
        self._last_error = said
        self._is_failing = True
