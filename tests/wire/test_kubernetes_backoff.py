"""A server that fails is left alone ever longer, and not by all for the same time."""

from __future__ import annotations

import pytest

from wire.kubernetes.backoff import Backoff


def test_waits_grow_to_a_bound_and_begin_anew_after_recovery() -> None:
    backoff = Backoff(seconds_min=1.0, seconds_max=8.0, seed="a")
    for longest in (1.0, 2.0, 4.0, 8.0, 8.0):
        assert longest / 2 <= backoff.failed() <= longest
    backoff.recovered()
    assert backoff.failed() <= 1.0


def test_what_the_server_asks_for_is_waited_for_in_full_and_not_by_all_to_the_same_moment() -> None:
    waits = [Backoff(seconds_min=1.0, seconds_max=8.0).failed(retry_after_seconds=5.0) for _ in range(20)]
    assert all(5.5 <= wait <= 6.0 for wait in waits)
    assert len(set(waits)) > 1


@pytest.mark.parametrize(("seed", "are_alike"), [("a", True), (None, False)])
def test_waits_differ_between_processes_unless_a_seed_is_given(seed: str | None, are_alike: bool) -> None:
    waits = [
        tuple(backoff.failed() for _ in range(5))
        for backoff in (Backoff(seconds_min=1.0, seconds_max=8.0, seed=seed) for _ in range(2))
    ]
    assert (waits[0] == waits[1]) is are_alike
