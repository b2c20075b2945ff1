"""Low priority gets what others leave, and every eviction costs what was not saved."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.harvest_hindsight import harvest_bounds
from fleet.colocation import AdmissionRules
from fleet.inventory import Priority
from fleet.units import GIB
from recommender.simulate.harvest import CardPast, Harvest, HarvestRules, Leftover, harvest
from recommender.simulate.play import play
from recommender.simulate.stage import cut_history, whole_cards
from tests.recommender.builders import NOW, Service, cluster

HOUR = 3600


def got(
    left: list[float], free: list[float] | None = None, idle: list[int] | None = None, wanted: list[int] | None = None
) -> Harvest:
    """One card, steps of an hour, a checkpoint every two."""
    steps = len(left)
    return harvest(
        Leftover(
            compute=np.array([left], np.float32),
            free_ratio=np.array([free or [1.0] * steps], np.float32),
            is_shared=np.ones((1, steps), bool),
            idle_cards=np.array(idle or [0] * steps, np.int64),
        ),
        None if wanted is None else np.array(wanted, np.int64),
        step_seconds=HOUR,
        rules=HarvestRules(checkpoint_seconds=2 * HOUR, rest_seconds=HOUR),
    )


def test_worker_gets_what_is_left() -> None:
    assert got([0.5, 0.25, 1.0, 0.25]).gpu_hours == 2.0


def test_online_work_that_fills_the_card_leaves_it_nothing() -> None:
    assert got([0.0, 0.0]).gpu_hours == 0.0


def test_eviction_loses_what_was_done_since_the_checkpoint() -> None:
    done = got([1.0] * 6, free=[1.0, 1.0, 1.0, 0.1, 1.0, 1.0])
    # Two hours are saved, the third is lost, one is rested, and the last counts.
    assert (done.evictions, done.lost_gpu_hours) == (1, 1.0)
    assert done.gpu_hours == 4.0


def test_worker_does_not_start_where_framebuffer_is_short() -> None:
    assert got([1.0] * 3, free=[0.25] * 3).worker_hours == 0.0


def test_empty_queue_leaves_cards_alone() -> None:
    assert got([1.0] * 4, wanted=[0, 1, 1, 0]).gpu_hours == 2.0


def test_empty_cards_that_are_paid_for_work_whole() -> None:
    done = got([0.0] * 3, idle=[2, 2, 0])
    assert done.evictions == 2
    assert done.gpu_hours + done.lost_gpu_hours == 4.0


def several(
    left: np.ndarray, free: np.ndarray, *, seen: Callable[[int], np.ndarray] | None = None, **rules: Any
) -> Harvest:
    """Cards in steps of an hour; no reserve unless it is asked for."""
    admission = AdmissionRules(**{"reserve_ratio": 0.0, **rules.pop("admission", {})})
    return harvest(
        Leftover(
            compute=left.astype(np.float32), free_ratio=free.astype(np.float32), is_shared=np.ones(left.shape, bool),
            idle_cards=np.zeros(left.shape[1], np.int64),
        ), None, step_seconds=HOUR, seen=seen,
        rules=HarvestRules(**{"admission": admission, "rest_seconds": HOUR, "checkpoint_seconds": HOUR, **rules}),
    )  # fmt: skip


def test_largest_worker_that_fits_is_let_in() -> None:
    left, free = np.ones((2, 4)), np.array([[0.5] * 4, [0.2] * 4])
    assert several(left, free, sizes_ratio=(0.4,)).worker_hours == 4.0
    both = several(left, free, sizes_ratio=(0.1, 0.4))
    assert both.worker_hours == 8.0
    assert both.evictions == 0


def test_smaller_worker_takes_the_place_of_one_that_had_to_go() -> None:
    left, free = np.ones((1, 4)), np.array([[0.6, 0.2, 0.2, 0.6]])
    assert several(left, free, sizes_ratio=(0.4,)).gpu_hours == 2.0
    assert several(left, free, sizes_ratio=(0.4, 0.1)).gpu_hours == 4.0


def test_worker_does_not_start_before_the_need_of_every_day() -> None:
    day = np.full(24, 0.6)
    day[3] = 0.1
    past = np.tile(day, 3)[None]
    left, free = np.ones((1, 24)), day[None]

    def seen(step: int) -> np.ndarray:
        return np.concatenate([past, free[:, : step + 1]], axis=1)

    blind, knowing = several(left, free), several(left, free, seen=seen)
    assert (blind.evictions, knowing.evictions) == (1, 0)
    assert 0 < knowing.worker_hours < blind.worker_hours


def test_evictions_make_the_whole_fleet_more_careful() -> None:
    random = np.random.default_rng(3)
    wild = 0.24 + 0.1 * random.random((20, 200))
    free = np.concatenate([wild, np.full((20, 200), 0.6)])
    left = np.ones(free.shape)
    limit = 0.02
    taught = several(left, free, admission={"learning_ratio": 0.5, "evictions_per_hour_max": limit})
    untaught = several(left, free, admission={"learning_ratio": 0.0, "evictions_per_hour_max": limit})
    assert 0 < taught.evictions_per_worker_hour <= limit < untaught.evictions_per_worker_hour
    assert taught.gpu_hours >= 20 * 200


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), limit=st.floats(0.01, 0.5), idle=st.booleans())
def test_nobody_within_the_limit_does_more_than_hindsight(seed: int, limit: float, idle: bool) -> None:
    """Every choice of stretches of four small cards is tried."""
    random = np.random.default_rng(seed)
    left = random.random((3, 9)).astype(np.float32)
    free = random.uniform(0.1, 0.5, (3, 9)).astype(np.float32)
    spare = random.integers(0, 2, 9) if idle else np.zeros(9, np.int64)
    bounds = harvest_bounds(
        left, free, np.ones((3, 9), bool), spare, size_ratio=0.2, watermark_ratio=0.05, evictions_per_hour_max=limit,
        step_seconds=HOUR,
    )  # fmt: skip
    stretches = []
    for card, fits in enumerate([*(free - np.float32(0.2) >= 0.05), spare > 0]):
        work = [*left, np.ones(9)][card]
        edges = np.flatnonzero(np.diff(np.concatenate([[0], fits.astype(int), [0]])))
        stretches += [(float(work[b:e].sum()), e - b, e < 9) for b, e in edges.reshape(-1, 2).tolist()]
    best = 0.0
    for chosen in itertools.product((False, True), repeat=len(stretches)):
        taken = list(itertools.compress(stretches, chosen))
        if sum(gone for _, _, gone in taken) <= limit * sum(hours for _, hours, _ in taken) + 1e-9:
            best = max(best, sum(gain for gain, _, _ in taken))
    assert best <= bounds.limited * (1 + 1e-6) + 1e-9
    assert bounds.limited <= bounds.unlimited + 1e-9
    assert bounds.static <= bounds.unlimited + 1e-9
    assert best >= bounds.limited - max((gain for gain, _, _ in stretches), default=0.0) - 1e-9


def test_past_of_a_card_is_that_of_its_pods() -> None:
    history = cluster(Service(name="a", used_gib=6), Service(name="b", used_gib=12), days=2)
    stage = cut_history(history, cut=NOW - timedelta(days=1), until=NOW)
    played = play(stage, replace(whole_cards(stage), card=np.array([0, 0], np.int64)))
    past = CardPast(stage, played)
    np.testing.assert_allclose(past(0)[0], 0.25, atol=1e-6)
    assert past(0).shape == (len(played.capacity_bytes), stage.past + 1)
    # The second pod moves to a card of its own, and takes what it needed before along.
    seat = played.seat.copy()
    seat[1, 5:] = 1
    capacity = np.full(2, 24.0 * GIB)
    moved = CardPast(stage, replace(played, seat=seat, capacity_bytes=capacity))
    np.testing.assert_allclose(moved(4)[:, 0], [0.25, 1.0], atol=1e-6)
    np.testing.assert_allclose(moved(5)[:, 0], [0.75, 0.5], atol=1e-6)


def test_pod_that_ended_leaves_its_past_behind_and_a_gap_does_not() -> None:
    history = cluster(Service(name="a", used_gib=12), days=2)
    stage = cut_history(history, cut=NOW - timedelta(days=1), until=NOW)
    need = stage.demand.need_bytes.copy()
    need[0, stage.past + 10 :] = np.nan
    ended = replace(stage, demand=replace(stage.demand, need_bytes=need))
    past = CardPast(ended, play(ended, whole_cards(ended)))
    per_hour = 3600 // stage.step_seconds
    np.testing.assert_allclose(past(10 + per_hour - 2)[0, -1], 0.5, atol=1e-6)
    np.testing.assert_allclose(past(10 + per_hour)[0], 1.0, atol=1e-6)


def test_pods_of_low_priority_use_what_others_leave_before_any_worker() -> None:
    services = (Service(name="a", level=0.0), Service(name="b", level=0.0, priority=Priority.LOW))
    history = cluster(*services, days=2)
    stage = cut_history(history, cut=NOW - timedelta(days=1), until=NOW)
    compute = stage.demand.compute.copy()
    compute[:, stage.past :] = np.array([[0.3], [0.5]], np.float32)
    busy = replace(stage, demand=replace(stage.demand, compute=compute))
    played = play(busy, replace(whole_cards(busy), card=np.array([0, 0], np.int64)))
    np.testing.assert_allclose(played.left[0], 0.2, atol=1e-6)
