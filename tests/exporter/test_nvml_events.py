"""Every XID event counts, also the second of its kind."""

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from exporter.nvml.events import CODES_MAX, OTHER_CODES, XidWatch
from exporter.nvml.library import NvmlLibrary
from fleet.inventory import CardId
from tests.exporter.nvml.standin import T4, StandInWorld, uuid

FIRST, SECOND = CardId(uuid(0)), CardId(uuid(1))
NOT_SUPPORTED = 3


@pytest.fixture
def world(world: StandInWorld) -> StandInWorld:
    return world.card(**T4).card(**T4)


@pytest.fixture
def watch(library: NvmlLibrary) -> Iterator[XidWatch]:
    watch = XidWatch(library)
    yield watch
    assert watch.stop(5.0)


def follow(watch: XidWatch, library: NvmlLibrary) -> None:
    handles = {card: library.call("nvmlDeviceGetHandleByUUID", card) for card in (FIRST, SECOND)}
    assert watch.follow(handles)


def eventually(claim: Callable[[], bool]) -> None:
    until = time.monotonic() + 5.0
    while not claim():
        assert time.monotonic() < until
        time.sleep(0.01)


def has_counted(watch: XidWatch, events: int) -> bool:
    return sum((watch.counts(FIRST) or {}).values()) == events


def test_repeats_of_one_code_are_all_counted(world: StandInWorld, library: NvmlLibrary, watch: XidWatch) -> None:
    for code in (79, 79, 31, 79):
        world.line("xid", dev=0, code=code)
    world.line("xid", dev=1, code=48).write()
    follow(watch, library)
    eventually(lambda: watch.counts(FIRST) == {79: 3, 31: 1} and watch.counts(SECOND) == {48: 1})


def test_last_event_is_told_by_its_own_code(world: StandInWorld, library: NvmlLibrary, watch: XidWatch) -> None:
    world.line("xid", dev=0, code=79).line("xid", dev=0, code=31).write()
    follow(watch, library)
    eventually(lambda: has_counted(watch, 2))
    assert watch.last(FIRST) == 31
    assert watch.last(SECOND) is None


def test_event_is_told_to_everybody_who_watches_the_card(
    world: StandInWorld, library: NvmlLibrary, watch: XidWatch
) -> None:
    other = XidWatch(library)
    follow(watch, library)
    follow(other, library)
    eventually(lambda: has_counted(watch, 0) and has_counted(other, 0) and other.counts(SECOND) is not None)
    world.line("xid", dev=0, code=79).write()
    eventually(lambda: watch.counts(FIRST) == other.counts(FIRST) == {79: 1})
    assert other.stop(5.0)


def test_card_without_events_counts_none_and_an_unwatched_one_is_unknown(library: NvmlLibrary, watch: XidWatch) -> None:
    follow(watch, library)
    eventually(lambda: watch.counts(FIRST) == {})
    assert watch.counts(CardId("GPU-other")) is None


def test_card_that_tells_no_events_is_unknown_and_the_others_count(
    world: StandInWorld, library: NvmlLibrary, watch: XidWatch
) -> None:
    world.line("err", dev=0, fn="nvmlDeviceRegisterEvents", ret=NOT_SUPPORTED).line("xid", dev=1, code=13).write()
    follow(watch, library)
    eventually(lambda: watch.counts(SECOND) == {13: 1})
    assert watch.counts(FIRST) is None


def test_counts_go_on_when_the_driver_was_restarted(world: StandInWorld, library: NvmlLibrary, watch: XidWatch) -> None:
    world.line("xid", dev=0, code=79).write()
    follow(watch, library)
    eventually(lambda: watch.counts(FIRST) == {79: 1})
    world.without("xid").system(generation=1).write()
    assert watch.stop(5.0)
    assert library.start_anew(1.0)
    follow(watch, library)
    world.line("xid", dev=0, code=79).write()
    eventually(lambda: watch.counts(FIRST) == {79: 2})


def test_endless_new_codes_take_no_endless_memory(world: StandInWorld, library: NvmlLibrary, watch: XidWatch) -> None:
    follow(watch, library)
    told = 0
    for start in range(0, CODES_MAX + 100, 100):
        world.without("xid")
        for code in range(start, start + 100):
            world.line("xid", dev=0, code=code)
        world.write()
        told += 100
        eventually(partial(has_counted, watch, told))
    counts = watch.counts(FIRST)
    assert counts is not None
    assert len(counts) == CODES_MAX + 1
    assert counts[OTHER_CODES] == told - CODES_MAX
    assert watch.last(FIRST) == told - 1
