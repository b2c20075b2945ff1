"""Where low priority may start: room that lasts, and a reserve that evictions teach."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.colocation import Admission, AdmissionRules

HOUR = 3600
PER_DAY = 24


def admission(**rules: float) -> Admission:
    return Admission(AdmissionRules(**{"reserve_ratio": 0.0, **rules}), step_seconds=HOUR)  # type: ignore[arg-type]


def test_room_that_fell_on_the_days_before_is_not_counted_on() -> None:
    day = np.full(PER_DAY, 0.5)
    day[10] = 0.2
    seen = np.concatenate([day, day, day[:9]])
    # At 8 o'clock, two hours before the need of every day so far.
    assert admission().room(seen[None])[0] == pytest.approx(0.2)
    assert admission(ahead_seconds=HOUR).room(seen[None])[0] == pytest.approx(0.5)


def test_falls_of_several_days_are_averaged() -> None:
    calm, wild = np.full(PER_DAY, 0.5), np.full(PER_DAY, 0.5)
    wild[10] = 0.3
    seen = np.concatenate([calm, wild, calm[:9]])
    assert admission().room(seen[None])[0] == pytest.approx(0.4)


def test_room_counts_only_if_it_was_there_for_a_while() -> None:
    seen = np.array([[0.5, 0.1, 0.6]])
    assert admission(calm_seconds=2 * HOUR).room(seen)[0] == pytest.approx(0.1)
    assert admission().room(seen)[0] == pytest.approx(0.6)


def test_first_hour_of_a_card_has_no_past_to_fear() -> None:
    assert admission(reserve_ratio=0.02).room(np.array([[0.4]]))[0] == pytest.approx(0.38)


def test_evictions_raise_the_reserve_and_quiet_hours_lower_it() -> None:
    found = admission(reserve_ratio=0.02)
    found.learn(evictions=5, workers=20)
    raised = found.reserve_ratio
    assert raised > 0.02
    for _ in range(10):
        found.learn(evictions=0, workers=20)
    assert found.reserve_ratio < raised


def test_reserve_rests_at_the_aimed_rate() -> None:
    found = admission(reserve_ratio=0.02, aim_ratio=1.0, evictions_per_hour_max=0.05)
    found.learn(evictions=1, workers=20)
    assert found.reserve_ratio == pytest.approx(0.02)


@settings(max_examples=50, deadline=None)
@given(taught=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=40))
def test_reserve_keeps_its_limits_whatever_happens(taught: list[tuple[int, int]]) -> None:
    found = admission()
    for evictions, workers in taught:
        found.learn(evictions=evictions, workers=workers)
        assert 0.0 <= found.reserve_ratio <= AdmissionRules().reserve_max


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), steps=st.integers(1, 80))
def test_room_is_never_more_than_what_is_free(seed: int, steps: int) -> None:
    seen = np.random.default_rng(seed).uniform(-0.1, 1, (4, steps))
    assert (admission().room(seen) <= seen[:, -1]).all()
