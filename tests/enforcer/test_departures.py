"""Events of pods that go wherever a card fits though a plan has seats for them."""

from __future__ import annotations

import threading
import time

from structlog.testing import capture_logs

from enforcer.kubernetes.departures import AGAIN_SECONDS, REASON, Departure, DepartureEvents
from fleet.errors import Unavailable

WAITING_MAX = 256
"""Events that wait to be written; beyond them one is dropped."""
LOST = Departure(kind="Deployment", namespace="team", name="web", plan_id="p1", why="node n1 is gone")


class Events:
    """Keeps events; waits for as long as no answer is there, and then fails where the server is away."""

    def __init__(self) -> None:
        self.written: list[tuple[str, ...]] = []
        self.asked = 0
        self.is_asked, self.is_answered = threading.Event(), threading.Event()
        self.is_answered.set()
        self.is_away = False

    def record_event(self, kind: str, namespace: str, name: str, reason: str, message: str) -> None:
        self.asked += 1
        self.is_asked.set()
        self.is_answered.wait()
        if self.is_away:
            raise Unavailable("cannot reach the API server")
        self.written.append((kind, namespace, name, reason, message))


def test_event_names_the_plan_and_the_reason_on_the_owner() -> None:
    written = Events()
    events = DepartureEvents(written.record_event)
    with events.writing():
        events.note(LOST)
    message = "plan p1 is departed from: a pod goes wherever a card fits, for node n1 is gone"
    assert written.written == [("Deployment", "team", "web", REASON, message)]


def test_same_event_is_written_once_in_ten_minutes() -> None:
    written, now = Events(), [0.0]
    events = DepartureEvents(written.record_event, clock=lambda: now[0])
    with events.writing():
        events.note(LOST)
        events.note(LOST)
        now[0] = AGAIN_SECONDS
        events.note(LOST)
    assert len(written.written) == 2


def test_api_server_that_does_not_answer_keeps_nobody_waiting_and_what_it_can_not_take_is_dropped() -> None:
    written = Events()
    written.is_answered.clear()
    events = DepartureEvents(written.record_event)
    try:
        with events.writing(), capture_logs() as logs:
            events.note(LOST)
            assert written.is_asked.wait(10.0)
            began = time.monotonic()
            for number in range(1000):
                events.note(Departure(kind="Job", namespace="team", name=f"j-{number}", plan_id=None, why="x"))
            seconds = time.monotonic() - began
            assert written.written == []
            written.is_answered.set()
    finally:
        written.is_answered.set()
    assert seconds < 5.0
    assert len(written.written) == 1 + WAITING_MAX
    assert sum(line["event"] == "an event of a departure was dropped" for line in logs) == 1000 - WAITING_MAX


def test_event_that_the_api_server_does_not_take_ends_no_later_one() -> None:
    written = Events()
    written.is_away = True
    events = DepartureEvents(written.record_event)
    with capture_logs() as logs, events.writing():
        events.note(LOST)
        events.note(Departure(kind="Job", namespace="team", name="j", plan_id=None, why="x"))
    assert (written.written, written.asked) == ([], 2)
    assert [line["event"] for line in logs] == ["cannot write the event of a departure"] * 2
