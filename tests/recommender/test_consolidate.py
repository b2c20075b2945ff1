"""The frontier and the choice on it: fewest cards within the limit, and care that costs nothing is taken."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fleet.capabilities.register import HAMI
from fleet.settings.settings import Settings
from recommender.consolidate import TIERS, Group, Point, frontier, group_of, judged, packed
from recommender.demand import Demand, demand_of
from recommender.frontier_points import choose, closer
from recommender.naive import HOUR_PROFILE, SUM_OF_MAXIMA, naive_packing
from recommender.outlook import Member, Outlook, outlook_of
from recommender.packing.greedy import GreedyPacker
from tests.recommender.second_fleet import second_fleet


def demand() -> Demand:
    """Forty-odd pods of one card model."""
    return demand_of(second_fleet(4, 90, 5, "mixed", step_seconds=1800))


def outlook(seen: Demand, *, is_flat: bool = False) -> Outlook:
    """What may come on the first card model."""
    model = seen.grants[0].card_model
    members = [
        Member(row=row, workload=int(seen.workload_of[row]), group=-1, is_flat=is_flat)
        for row, grant in enumerate(seen.grants)
        if grant.card_model == model and np.isfinite(seen.compute[row]).any()
    ]
    return outlook_of(
        seen,
        members,
        seed=1,
        capacity_bytes=float(seen.grants[0].framebuffer_bytes),
        inflation_max=1.5,
        capability=HAMI,
    )


def points(seen: Demand, *, violation_ratio_min: float = 0.001) -> tuple[Point, ...]:
    """The frontier of the first card model."""
    may_come = outlook(seen)
    tiers = (
        (group_of(may_come, card_price=tier.grant_price, headroom_ratio=0.1, step_bytes=1, slices_max=10),)
        for tier in TIERS
    )
    return tuple(
        frontier(tiers, violation_ratio_min=violation_ratio_min, resting_active=0.0, packer=GreedyPacker(), seed=1)
    )


SEEN_DEMAND = demand()
POINTS = points(SEEN_DEMAND)


def test_frontier_goes_from_dense_to_careful() -> None:
    assert POINTS[0].choice.bins <= POINTS[-1].choice.bins
    assert POINTS[-1].choice.violation_ratio <= POINTS[0].choice.violation_ratio


def test_more_care_grants_more_framebuffer() -> None:
    granted = [float(point.groups[0].grants.granted_bytes.sum()) for point in POINTS]
    assert granted == sorted(granted)
    assert granted[-1] > granted[0]


@pytest.mark.parametrize("limit", [0.001, 0.005, 0.02, 0.1])
def test_choice_stays_within_its_limit(limit: float) -> None:
    assert choose(POINTS, violation_ratio_max=limit, resting_active=0.0).choice.violation_ratio <= limit


def test_laxer_limit_never_needs_more_cards() -> None:
    bins = [choose(POINTS, violation_ratio_max=limit, resting_active=0.0).choice.bins for limit in (0.1, 0.01, 0.001)]
    assert bins == sorted(bins)


def test_prediction_is_what_the_fresh_scenarios_say() -> None:
    chosen = choose(POINTS, violation_ratio_max=0.005, resting_active=0.0)
    assert judged(chosen.groups, chosen.choice.bin_of, 0.0).violation_ratio == chosen.choice.violation_ratio


def test_care_that_costs_no_card_is_taken() -> None:
    """Two pods that never work fit one card whatever they are granted: they get what the most careful tier grants."""
    quiet = demand_of(second_fleet(9, 2, 4, "night_batch", step_seconds=3600))
    found = points(quiet, violation_ratio_min=1.0)
    assert len(found) > 1
    chosen = choose(found, violation_ratio_max=1.0, resting_active=0.0)
    assert chosen.groups is found[-1].groups


def test_where_a_limit_is_passed_in_one_step_prices_between_are_tried() -> None:
    coarse = (POINTS[0], POINTS[-1])
    dense, careful = (point.choice for point in coarse)
    limit = (dense.violation_ratio + careful.violation_ratio) / 2
    assert careful.bins - dense.bins > 2

    def at(groups: Sequence[Group], price: float) -> Point:
        return next(packed(groups, [price], resting_active=0.0, packer=GreedyPacker(), seed=1))

    found = closer(coarse, [limit], at)
    assert found[0] is coarse[0]
    assert found[-1] is coarse[-1]
    assert all(dense.bins <= point.choice.bins <= careful.bins for point in found[1:-1])
    freed = [choose(some, violation_ratio_max=limit, resting_active=0.0).choice.bins for some in (found, coarse)]
    assert freed[0] < freed[1]
    assert closer(coarse, [1.0, 0.0], at) == coarse


def test_pods_that_share_by_peaks_are_packed_by_the_peaks_that_they_are_judged_by() -> None:
    flat = outlook(SEEN_DEMAND, is_flat=True)
    peak = flat.peak[:, None].astype(np.float32)
    assert all((scenarios[flat.type_of] == peak).all() for scenarios in (flat.load, flat.fresh))


def test_limit_is_the_presets_unless_it_is_set() -> None:
    assert Settings().risk.violation_ratio_limit == 0.005
    assert Settings.model_validate({"risk": {"violation_ratio_max": 0.03}}).risk.violation_ratio_limit == 0.03


@pytest.mark.parametrize("rule", [SUM_OF_MAXIMA, HOUR_PROFILE])
def test_naive_rule_places_everybody_within_the_card(rule: str) -> None:
    model = SEEN_DEMAND.grants[0].card_model
    rows = np.array([row for row, grant in enumerate(SEEN_DEMAND.grants) if grant.card_model == model], np.int64)
    capacity = float(SEEN_DEMAND.grants[0].framebuffer_bytes)
    bin_of, granted = naive_packing(rule, SEEN_DEMAND, rows, capacity)
    assert set(bin_of.tolist()) == set(range(int(bin_of.max()) + 1))
    assert np.bincount(bin_of, weights=granted).max() <= capacity
