"""Requests on a shared card: exact against theory, and each way of sharing gives what it promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.request_queueing import response_seconds
from recommender.latency.inflation import SharingMode

ONE = np.ones(1)


def poisson(seed: int, load: float, requests: int = 60_000) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return np.cumsum(draw.exponential(1.0, requests)), draw.exponential(load, requests)


def together(*parts: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    number = np.concatenate([np.full(len(arrival), k) for k, (arrival, _) in enumerate(parts)])
    return number, np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_processor_sharing_meets_the_formula(load: float) -> None:
    arrival, work = poisson(1, load)
    taken = response_seconds(np.zeros(len(arrival), int), arrival, work, mode=SharingMode.BURST, share=ONE)
    assert taken.mean() == pytest.approx(load / (1.0 - load), rel=0.05)


def test_a_hard_share_is_a_slower_card() -> None:
    arrival, work = poisson(2, 0.2)
    zeros = np.zeros(len(arrival), int)
    half = response_seconds(zeros, arrival, work, mode=SharingMode.HARD, share=np.array([0.5]))
    slower = response_seconds(zeros, arrival, work * 2.0, mode=SharingMode.BURST, share=ONE)
    np.testing.assert_allclose(half, slower)


def test_who_has_priority_does_not_feel_the_others() -> None:
    own, other = poisson(3, 0.4, 20_000), poisson(4, 0.5, 20_000)
    taken = response_seconds(*together(own, other), mode=SharingMode.PRIORITY, share=np.ones(2))
    alone = response_seconds(np.zeros(20_000, int), *own, mode=SharingMode.BURST, share=ONE)
    np.testing.assert_allclose(taken[:20_000], alone, rtol=1e-6, atol=1e-9)
    assert np.median(taken[20_000:]) > np.median(alone)


def test_low_priority_takes_all_that_is_left() -> None:
    number, arrival, work = together((np.array([1.0]), np.array([2.0])), (np.array([0.0]), np.array([3.0])))
    taken = response_seconds(number, arrival, work, mode=SharingMode.PRIORITY, share=np.ones(2))
    np.testing.assert_allclose(taken, [2.0, 5.0])


def test_two_bursts_share_alike() -> None:
    number, arrival, work = together((np.array([0.0]), np.array([1.0])), (np.array([0.0]), np.array([3.0])))
    taken = response_seconds(number, arrival, work, mode=SharingMode.BURST, share=np.ones(2))
    np.testing.assert_allclose(taken, [2.0, 4.0])


def test_a_service_without_a_share_never_ends() -> None:
    taken = response_seconds(np.zeros(1, int), np.zeros(1), np.ones(1), mode=SharingMode.HARD, share=np.zeros(1))
    assert np.isnan(taken).all()


def test_no_request_takes_no_time() -> None:
    empty = np.zeros(0)
    assert response_seconds(empty.astype(int), empty, empty, mode=SharingMode.BURST, share=ONE).shape == (0,)


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 2), st.floats(0, 50), st.floats(0.01, 5)), min_size=1, max_size=40),
    mode=st.sampled_from(list(SharingMode)),
)
def test_work_is_neither_lost_nor_made(requests: list[tuple[int, float, float]], mode: SharingMode) -> None:
    number, arrival, work = (np.array(column) for column in zip(*requests, strict=True))
    taken = response_seconds(number, arrival, work, mode=mode, share=np.full(3, 0.3))
    assert (taken >= work * (1.0 - 1e-6) - 1e-6).all()
    if mode is not SharingMode.HARD:
        # The card works whenever a request is there: the last one ends when all work could have been done.
        order = np.argsort(arrival, kind="stable")
        done = 0.0
        for k in order:
            done = max(done, arrival[k]) + work[k]
        assert (arrival + taken).max() == pytest.approx(done)
