"""A bus that is not there when its receiver starts is waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import pytest

from fleet.errors import Misconfigured, Unavailable
from pipeline.bus.bus_awaited import AwaitedBus

RECORD = {0: b"record"}


class Lane:
    """A bus that keeps what it is given."""

    lanes = 3

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.is_closed = False

    def append_all(self, payloads: Mapping[int, bytes]) -> None:
        self.records += payloads.values()

    def close(self) -> None:
        self.is_closed = True


def opened_after(faults: Iterator[Exception], lane: Lane, opened: threading.Event) -> Lane:
    for fault in faults:
        raise fault
    opened.set()
    return lane


def test_records_are_refused_until_the_bus_can_be_opened_and_taken_from_then_on() -> None:
    lane, opened, may_open = Lane(), threading.Event(), threading.Event()

    def open_bus() -> Lane:
        if not may_open.is_set():
            raise Unavailable("brokers can't be reached")
        opened.set()
        return lane

    bus = AwaitedBus(open_bus, retry_seconds=0.01)
    assert not bus.is_open
    with pytest.raises(Unavailable, match="brokers can't be reached"):
        bus.append_all(RECORD)
    with pytest.raises(Unavailable):
        _ = bus.lanes
    may_open.set()
    assert opened.wait(10)
    while not bus.is_open:
        pass
    bus.append_all(RECORD)
    assert (bus.lanes, lane.records) == (3, [b"record"])
    bus.close()
    assert lane.is_closed


def test_wrong_settings_end_a_start_at_once_and_are_said_to_senders_when_they_show_later() -> None:
    with pytest.raises(Misconfigured):
        AwaitedBus(lambda: opened_after(iter([Misconfigured("no such topic")]), Lane(), threading.Event()))
    faults = iter([Unavailable("brokers can't be reached"), Misconfigured("no such topic")])
    lane, opened = Lane(), threading.Event()
    bus = AwaitedBus(lambda: opened_after(faults, lane, opened), retry_seconds=0.01)
    assert opened.wait(10)
    bus.close()
    assert lane.is_closed


def test_a_bus_that_never_comes_is_asked_for_no_more_once_it_is_closed() -> None:
    asked = 0

    def open_bus() -> Lane:
        nonlocal asked
        asked += 1
        raise Unavailable("brokers can't be reached")

    bus = AwaitedBus(open_bus, retry_seconds=60)
    bus.close()
    assert asked == 1


def test_a_fault_that_nobody_foresaw_does_not_end_the_waiting() -> None:
    lane, opened = Lane(), threading.Event()
    faults = iter([Unavailable("away"), OSError("no route"), ZeroDivisionError("a bug")])
    bus = AwaitedBus(lambda: opened_after(faults, lane, opened), retry_seconds=0.01)
    assert opened.wait(10)
    bus.close()
    assert lane.is_closed
