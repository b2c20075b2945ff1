"""What a neighbour costs a service is measured where its speed is known, and only there."""

import math
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from analyzer.neighbours import DAYS_MIN, SPEED_FACTOR_MAX
from fleet.profiles import NeighbourEffect
from fleet.schema import Measure
from tests.analyzer.build import MONDAY, Slice, by_hour, history, profile, profiles, work

DAYS = 12
STEPS = DAYS * 144
RATE = by_hour(DAYS, [2.0 + 8.0 * (8 <= hour < 20) for hour in range(24)], spread=0.3)


def bursts(seed: int, days: int = DAYS) -> np.ndarray:
    """A neighbour that works for two hours and rests for two, beginning anew every day at a moment of its own."""
    starts = np.random.default_rng(seed).integers(0, 24, days)
    steps = np.arange(144)
    return np.concatenate([0.6 * (((steps + start) // 12) % 2) for start in starts]).astype(np.float32)


def served(works: np.ndarray, ratio: float, *, seed: int = 1, measure: Measure = Measure.LATENCY_P99) -> dict:
    """Usage of a service whose speed is `ratio` while the neighbour works; it drifts by day and falls with load."""
    random = np.random.default_rng(seed)
    drift = np.repeat(random.normal(0, 0.08, DAYS), 144)
    load = RATE[:STEPS]
    speed = np.exp(drift + random.normal(0, 0.1, STEPS)) * np.where(works > 0, ratio, 1.0) / (1.0 + load / 20.0)
    usage = {**work(0.3), Measure.REQUEST_RATE: load}
    if measure is Measure.LATENCY_P99:
        return {**usage, measure: 0.2 / speed}
    return {**usage, Measure.REQUESTS_RUNNING: load, measure: 30.0 * load * speed}


def beside(*others: Slice, usage: dict, days: int = DAYS, **kept) -> tuple[NeighbourEffect, ...]:
    fleet = [Slice(card="GPU-0", granted=20 * 2**30, usage=usage, **kept), *others]
    return profile(history(fleet, days=days)).beside


def neighbour(works: np.ndarray, name: str = "train", card: str = "GPU-0") -> Slice:
    return Slice(workload=name, card=card, granted=20 * 2**30, usage=work(works))


@pytest.mark.parametrize("measure", [Measure.GENERATED_TOKEN_RATE, Measure.LATENCY_P99])
def test_a_neighbour_that_slows_is_found_with_its_interval(measure: Measure) -> None:
    works = bursts(3)
    (found,) = beside(neighbour(works), usage=served(works, 0.7, measure=measure))
    assert found.neighbour == "team/Deployment/train"
    assert found.measured_by == measure.value
    assert found.speed_ratio_min <= 0.7 <= found.speed_ratio_max
    assert found.speed_ratio_max - found.speed_ratio_min < 0.1
    assert found.days > DAYS_MIN


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    held = 0
    for seed in range(40):
        works = bursts(seed)
        (found,) = beside(neighbour(works), usage=served(works, 0.85, seed=seed))
        held += found.speed_ratio_min <= 0.85 <= found.speed_ratio_max
    # 95 %: of 40 tries fewer than 33 come once in 5,000 times.
    assert held >= 33


def test_replicas_and_days_that_share_their_hours_alone_make_no_interval_narrower() -> None:
    held = 0
    for seed in range(30):
        # It works on every other day, so every hour alone is of another day.
        works = np.repeat((np.arange(DAYS) + seed) % 2, 144).astype(np.float32) * 0.6
        usage = served(works, 1.0, seed=seed)
        pairs = [(neighbour(works, card=card), Slice(card=card, usage=usage)) for card in "abcd"]
        (found,) = profile(history([one for pair in pairs for one in pair], days=DAYS), "svc").beside
        assert found.days == DAYS // 2
        held += found.speed_ratio_min <= 1.0 <= found.speed_ratio_max
    # 95 %: of 30 tries fewer than 24 come once in 2,000 times.
    assert held >= 24


def test_one_day_stays_one_day_however_many_replicas_saw_it() -> None:
    works = bursts(3) * (np.arange(STEPS) // 144 == 5)
    slices = [
        one
        for number in range(DAYS_MIN + 1)
        for one in (
            neighbour(works, card=f"GPU-{number}"),
            Slice(card=f"GPU-{number}", usage=served(works, 0.5, seed=number)),
        )
    ]
    assert profile(history(slices, days=DAYS), "svc").beside == ()


def test_what_a_server_claims_of_itself_has_bounds() -> None:
    works = bursts(3)
    wild = np.where(works > 0, np.where(np.arange(STEPS) // 144 % 2, 1e30, np.inf), np.float32(1e-38))
    wild[::7], wild[1::7] = np.nan, -1.0
    usage = {**work(0.3), Measure.REQUEST_RATE: np.full(STEPS, 1e38), Measure.LATENCY_P99: wild}
    (found,) = beside(neighbour(works), usage=usage)
    assert 0.0 < found.speed_ratio == pytest.approx(1 / SPEED_FACTOR_MAX)
    assert math.isfinite(found.speed_ratio_max)


def test_each_neighbour_is_named_once_by_what_was_seen_on_most_days() -> None:
    works, late = bursts(3), np.arange(STEPS) < 7 * 144
    tokens = served(works, 0.5, measure=Measure.GENERATED_TOKEN_RATE)
    before = {name: np.where(late, value, np.nan) for name, value in served(works, 0.7).items()}
    after = {name: np.where(late, np.nan, value) for name, value in tokens.items()}
    moved = MONDAY + timedelta(days=7)
    first = Slice(card="a", usage=before, ended_at=moved)
    (found,) = profile(
        history(
            [first, Slice(card="b", usage=after, started_at=moved), *(neighbour(works, card=card) for card in "ab")],
            days=DAYS,
        ),
        "svc",
    ).beside
    assert (found.measured_by, found.days) == (Measure.LATENCY_P99.value, 7)


def test_instances_of_one_card_are_no_neighbours() -> None:
    works = bursts(3)
    fleet = history([Slice(card="GPU-0", usage=served(works, 0.7)), neighbour(works)], days=DAYS)
    grants = tuple(replace(grant, mig_profile="1g.10gb") for grant in fleet.inventory.grants)
    assert profile(replace(fleet, inventory=replace(fleet.inventory, grants=grants)), "svc").beside == ()


def test_a_neighbour_that_works_when_there_is_much_to_do_is_not_blamed_for_the_load() -> None:
    # By day the service is slower for its own load, and the neighbour works mostly then.
    random = np.random.default_rng(5)
    by_day = by_hour(DAYS, [0.9 * (8 <= hour < 20) + 0.1 for hour in range(24)], spread=0.0)
    works = np.repeat(random.random(STEPS // 6) < by_day[::6], 6).astype(np.float32) * 0.6
    (found,) = beside(neighbour(works), usage=served(works, 1.0))
    assert found.speed_ratio == pytest.approx(1.0, abs=0.03)


def test_hours_beside_two_say_nothing_of_either() -> None:
    first, second = bursts(3), bursts(4)
    usage = served(np.maximum(first * 0, second), 0.5)
    found = {
        one.neighbour.rpartition("/")[2]: one
        for one in beside(neighbour(first, "calm"), neighbour(second, "harsh"), usage=usage)
    }
    assert found["calm"].speed_ratio == pytest.approx(1.0, abs=0.05)
    assert found["harsh"].speed_ratio == pytest.approx(0.5, abs=0.05)


def test_a_neighbour_is_not_blamed_for_a_replica_that_works_when_it_does() -> None:
    works = bursts(3)
    busy = np.repeat(np.random.default_rng(7).random(STEPS // 6), 6) < np.where(works > 0, 0.7, 0.3)
    replica = Slice(card="GPU-0", granted=20 * 2**30, usage=work(np.where(busy, 0.6, 0.0)))
    (found,) = beside(replica, neighbour(works), usage=served(busy, 0.5))
    assert found.speed_ratio == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("works", "usage", "card"),
    [
        (np.full(STEPS, 0.6), None, "GPU-0"),  # It never rests: nothing shows how fast the service is alone.
        (bursts(3), work(0.3), "GPU-0"),  # No request is counted.
        (bursts(3), None, "GPU-1"),  # It sits elsewhere.
    ],
)
def test_what_was_not_seen_is_not_said(works: np.ndarray, usage: dict | None, card: str) -> None:
    assert beside(neighbour(works, card=card), usage=usage or served(works, 0.5)) == ()


def test_too_few_days_are_no_answer() -> None:
    works = bursts(3)
    some = {
        name: np.asarray(value)[: 3 * 144] if np.ndim(value) else value for name, value in served(works, 0.5).items()
    }
    short = {**work(works[: 3 * 144])}
    assert beside(Slice(workload="train", card="GPU-0", usage=short), usage=some, days=3) == ()


def test_a_step_in_which_a_neighbour_is_unknown_does_not_count_as_alone() -> None:
    works = bursts(3)
    hidden = np.where(np.arange(STEPS) % 144 < 72, np.nan, works)
    usage = served(works, 0.7)
    (found,) = beside(neighbour(hidden), usage=usage)
    assert found.speed_ratio == pytest.approx(0.7, abs=0.05)


def test_the_worst_neighbour_comes_first_and_a_rested_one_is_neutral() -> None:
    works = bursts(3)
    given = history([Slice(card="GPU-0", usage=served(works, 0.7)), neighbour(works)], days=DAYS)
    by_name = {one.workload.rpartition("/")[2]: one for one in profiles(given).workloads}
    assert [one.neighbour for one in by_name["svc"].beside] == ["team/Deployment/train"]
    assert by_name["train"].beside == ()
    assert not math.isnan(by_name["svc"].beside[0].speed_ratio)
