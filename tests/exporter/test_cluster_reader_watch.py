"""A watch that fails again and again costs the server little, and goes on as soon as it can."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet

import pytest
from structlog.testing import capture_logs

from exporter.allocation.manifest import Shared
from exporter.allocation.records import Key
from exporter.cluster.reader import Watched
from exporter.cluster.watch import ResourceWatch
from fleet.errors import Misconfigured, Unavailable
from tests.waiting import until
from wire.kubernetes.page import Manifest, Page
from wire.kubernetes.read import EventKind, WatchEvent
from wire.kubernetes.refusals import Expired

POD: Mapping[str, object] = {"metadata": {"namespace": "team", "name": "p", "resourceVersion": "5"}}
Watching = Callable[[int], Iterator[WatchEvent]]


class Told:
    """A reader that always lists one pod, and whose n-th watch is what it is told to be."""

    def __init__(self, watching: Watching) -> None:
        self.lists = self.watches = 0
        self._watching = watching

    def version_of(self, watched: Watched) -> str | None:
        return "v1"

    def page(self, watched: Watched, *, limit: int, token: str | None) -> Page:
        self.lists += 1
        return Page(manifests=[POD], version="5", next_token=None)

    def watch(self, watched: Watched, *, version: str) -> Iterator[WatchEvent]:
        self.watches += 1
        yield from self._watching(self.watches)

    def close(self) -> None:
        """Holds nothing."""


class Kept:
    """Keeps what it is handed."""

    def __init__(self) -> None:
        self.keys: set[Key] = set()

    def put(self, watched: Watched, key: Key, record: Manifest | None) -> None:
        self.keys = self.keys - {key} if record is None else self.keys | {key}

    def retain(self, watched: Watched, keys: AbstractSet[Key]) -> None:
        self.keys &= keys


def as_it_is(_watched: Watched, manifest: Manifest, _shared: Shared) -> Manifest:
    return manifest


@pytest.fixture
def running() -> Iterator[Callable[[Watching], tuple[Told, ResourceWatch[Manifest], Kept]]]:
    """Return a maker of watches that run; they are ended at the end."""
    made: list[ResourceWatch[Manifest]] = []

    def make(watching: Watching) -> tuple[Told, ResourceWatch[Manifest], Kept]:
        told, kept = Told(watching), Kept()
        watch: ResourceWatch[Manifest] = ResourceWatch(
            told, Watched.PODS, kept, record_of=as_it_is, pages=threading.Semaphore(1), clock=time.monotonic
        )
        made.append(watch)
        watch.start()
        return told, watch, kept

    yield make
    for watch in made:
        watch.stop()
        assert watch.join(30)


def refusing(error: Exception) -> Watching:
    def watching(_number: int) -> Iterator[WatchEvent]:
        raise error
        yield

    return watching


@pytest.mark.parametrize(
    ("error", "kind"), [(Misconfigured("watch is forbidden"), "refused"), (Expired("too old"), "expired")]
)
def test_list_that_succeeds_before_each_watch_that_fails_is_asked_for_ever_more_seldom(
    running, error: Exception, kind: str
) -> None:
    began = time.monotonic()
    with capture_logs() as logs:
        _, watch, kept = running(refusing(error))
        until(lambda: dict(watch.state().errors).get(kind, 0) >= 4)
    # The three waits in between take 0.7 s at least; waits that began anew after each list would take 0.6 s at most.
    assert time.monotonic() - began >= 0.7
    assert kept.keys == {("team", "p")}
    assert [one["event"] for one in logs] == ["watch failed"]


def test_watch_that_told_something_begins_its_waits_anew(running) -> None:
    def watching(number: int) -> Iterator[WatchEvent]:
        yield WatchEvent(kind=EventKind.BOOKMARK, manifest={}, version=str(number))
        raise Unavailable("cut")

    told, watch, _ = running(watching)
    # Were the waits to grow, ten failures would take forty seconds at least.
    until(lambda: dict(watch.state().errors).get("unavailable", 0) >= 10, seconds_max=30.0)
    assert told.lists == 1


def test_failure_stays_said_until_a_watch_tells_something(running) -> None:
    go_on = threading.Event()

    def watching(number: int) -> Iterator[WatchEvent]:
        if number == 1:
            raise Misconfigured("watch is forbidden")
        yield WatchEvent(kind=EventKind.BOOKMARK, manifest={}, version="9")
        go_on.wait(30)

    _, watch, _ = running(watching)
    until(lambda: watch.state().events == 1 and watch.state().last_error is None)
    assert watch.state().is_known
    go_on.set()
