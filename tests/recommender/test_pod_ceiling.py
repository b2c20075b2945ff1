"""No pod is put where it would be harmed far more than the fleet may be, however calm the rest of it is."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from recommender.harm.pod_ceiling import active_points, bins_to_check, parted_below
from tests.recommender.builders import Service, cluster, plan_of

ACTIVE, FULL = 0.001, 1.005
POINTS = 400


def worst(items: list[int], load: NDArray[np.float32], most: NDArray[np.float32]) -> float:
    """Largest violated share of the active points of one of some items on a card, slowly."""
    total = load[items].sum(axis=0)
    shares = [
        float(((total > FULL) | (load[item] > most[item] + FULL - 1.0))[load[item] > ACTIVE].mean())
        for item in items
        if (load[item] > ACTIVE).any()
    ]
    return max(shares, default=0.0)


def violated(items: list[int], load: NDArray[np.float32], most: NDArray[np.float32]) -> int:
    """Violated points of some items on a card, slowly."""
    total = load[items].sum(axis=0)
    return sum(
        int(((load[item] > ACTIVE) & ((total > FULL) | (load[item] > most[item] + FULL - 1.0))).sum()) for item in items
    )


@pytest.mark.parametrize("seed", range(20))
def test_parted_items_are_all_there_and_below_the_ceiling(seed: int) -> None:
    random = np.random.default_rng(seed)
    load = (random.random((8, POINTS)) ** 6 * random.uniform(0.5, 1.5, (8, 1))).astype(np.float32)
    is_low = random.random(8) < 0.2
    load[is_low] = 0.0
    most = np.where(random.random(8) < 0.3, 0.6, np.inf).astype(np.float32)
    ceiling = float(random.choice([0.0, 0.02, 0.1]))
    found = parted_below(np.arange(8), np.arange(8, dtype=np.int32), load, is_low, most, ceiling)
    assert sorted(item for items, _ in found for item in items) == list(range(8))
    for items, harmed in found:
        counted = [item for item in items if not is_low[item]]
        # A limit of one's own is suffered alone as well.
        alone = max((worst([item], load, most) for item in counted), default=0.0)
        if len(counted) > 1:
            assert worst(counted, load, most) <= max(ceiling, alone)
        assert harmed == violated(counted, load, most)


def test_nobody_is_parted_for_what_an_own_limit_does() -> None:
    load = np.full((2, 100), 0.3, np.float32)
    most = np.array([0.2, np.inf], np.float32)
    (both,) = parted_below(np.arange(2), np.arange(2, dtype=np.int32), load, np.zeros(2, bool), most, 0.0)
    assert both == ([0, 1], 100)


def test_replica_that_is_limited_for_another_of_its_workload_is_parted_from_who_crowds_it() -> None:
    # Neither its limit alone nor the neighbour alone passes the ceiling: together they do.
    load = np.zeros((2, 100), np.float32)
    load[0], load[0, :2], load[1, 2:5] = 0.4, 0.6, 0.7
    most = np.array([0.5, np.inf], np.float32)
    found = parted_below(np.arange(2), np.arange(2, dtype=np.int32), load, np.zeros(2, bool), most, 0.04)
    assert found == [([0], 2), ([1], 0)]


def test_bins_that_can_hold_nobody_above_the_ceiling_are_not_looked_at() -> None:
    load = np.zeros((3, 100), np.float32)
    load[0, :50], load[1, :10], load[2, :50] = 0.8, 0.8, 0.1
    active = active_points(load)
    assert active.tolist() == [50, 10, 50]
    bin_of, is_low = np.array([0, 0, 1], np.int32), np.zeros(3, bool)
    # Ten points are violated, for both: a fifth of the first's active points, all of the second's.
    violated = np.array([20.0, 0.0])
    assert bins_to_check(bin_of, violated, active, is_low, 0.5).tolist() == [0]
    assert bins_to_check(bin_of, np.array([4.0, 0.0]), active, is_low, 0.5).tolist() == []


def cards_of_seldom(**risk: object) -> int:
    """Cards of two services that work for the same hour of a day, among many that fill their cards all day."""
    seldom = [Service(name=f"seldom-{number}", level=0.7, hours=(9, 10)) for number in range(2)]
    history = cluster(*seldom, Service(name="steady", replicas=24, level=0.9), days=5)
    plan = plan_of(history, settings={"risk": risk})
    return len({card.card for card in plan.placement for part in card.slices if part.pod.startswith("seldom")})


@pytest.mark.parametrize("preset", ["low", "medium", "high"])
def test_those_who_always_meet_do_not_share_because_others_are_calm(preset: str) -> None:
    assert cards_of_seldom(preset=preset) == 2


def test_they_share_where_the_whole_fleet_may_be_harmed_as_much() -> None:
    assert cards_of_seldom(violation_ratio_max=1.0) == 1
