"""Sessions: random, idle, ended, bounded."""

from __future__ import annotations

import pytest

import dashboards.access.sessions as module
from dashboards.access.sessions import Identity, Sessions

MEI = Identity(name="mei", groups=frozenset({"gpu"}))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(idle_seconds_max=10.0, seconds_max=25.0, clock=clock)


def test_session_is_found_by_its_secret_alone(sessions: Sessions) -> None:
    secret = sessions.begin(MEI)
    assert len(secret) >= 43
    assert sessions.find(secret) == MEI
    assert sessions.find(secret[:-1]) is None
    assert sessions.find("\udcff") is None
    assert sessions.begin(MEI) != secret


def test_session_ends_when_idle_and_when_old(sessions: Sessions, clock: Clock) -> None:
    idle, used = sessions.begin(MEI), sessions.begin(MEI)
    for moment in (9.0, 18.0, 24.0):
        clock.now = moment
        assert sessions.find(used) == MEI
    assert sessions.find(idle) is None
    clock.now = 25.0
    assert sessions.find(used) is None


def test_signing_out_ends_it(sessions: Sessions) -> None:
    secret = sessions.begin(MEI)
    sessions.end(secret)
    sessions.end(secret)
    assert sessions.find(secret) is None


def test_sessions_are_bounded(sessions: Sessions, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_MAX", 3)
    secrets = []
    for number in range(4):
        clock.now = number / 10
        secrets.append(sessions.begin(MEI))
    assert [sessions.find(secret) is not None for secret in secrets] == [False, True, True, True]


def test_secret_is_not_kept(sessions: Sessions) -> None:
    secret = sessions.begin(MEI)
    assert secret not in repr(vars(sessions))
