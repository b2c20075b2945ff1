"""Events of pods that go wherever a card fits though a plan has seats for them."""

from __future__ import annotations

from enforcer.kubernetes.departures import AGAIN_SECONDS, REASON, Departure, DepartureEvents
from fleet.errors import Unavailable

LOST = Departure(kind="Deployment", namespace="team", name="web", plan_id="p1", why="node n1 is gone")


class Events:
    """Keeps events, or can't."""

    def __init__(self) -> None:
        self.written: list[tuple[str, ...]] = []
        self.is_away = False

    def record_event(self, kind: str, namespace: str, name: str, reason: str, message: str) -> None:
        if self.is_away:
            raise Unavailable("cannot reach the API server")
        self.written.append((kind, namespace, name, reason, message))


def test_event_names_the_plan_and_the_reason_on_the_owner() -> None:
    written = Events()
    events = DepartureEvents(written)
    with events.writing():
        events.note(LOST)
    message = "plan p1 is departed from: a pod goes wherever a card fits, for node n1 is gone"
    assert written.written == [("Deployment", "team", "web", REASON, message)]


def test_same_event_is_written_once_in_ten_minutes() -> None:
    written, now = Events(), [0.0]
    events = DepartureEvents(written, clock=lambda: now[0])
    with events.writing():
        events.note(LOST)
        events.note(LOST)
        now[0] = AGAIN_SECONDS
        events.note(LOST)
    assert len(written.written) == 2


def test_api_server_that_is_away_keeps_nobody_waiting() -> None:
    written = Events()
    written.is_away = True
    events = DepartureEvents(written)
    with events.writing():
        for number in range(1000):
            events.note(Departure(kind="Job", namespace="team", name=f"j-{number}", plan_id=None, why="x"))
    assert written.written == []
