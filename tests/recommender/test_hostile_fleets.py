"""The planner on fleets that nobody would call healthy: impossible values, doubles, orphans, grants above the card."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.profile import profile_fleet
from fleet.capabilities.register import HAMI
from fleet.decisions import Plan, RecommendationKind
from fleet.documents import plan_from_json, plan_to_json, seal_plan
from fleet.inventory import CardModelName, Grant
from fleet.schema import Measure
from fleet.settings.settings import Settings
from fleet.units import GIB
from fleet.usage import History
from recommender.backtest import backtest
from recommender.demand import demand_of
from recommender.planner import make_plan
from tests.english import english
from tests.recommender.builders import Service, cluster, plan_of
from tests.recommender.hostile_histories import HOSTILE
from tests.recommender.second_fleet import KINDS, second_fleet

pytestmark = pytest.mark.long

WILD = (np.nan, np.inf, -np.inf, -1.0, 0.0, 1.0, 7.5, 1e30)
"""Values that no healthy counter shows."""
HURTS = ("values", "framebuffer", "double pod", "pod on two cards", "no model", "grant above", "orphan", "no usage")


def hurt(history: History, how: str, which: int, value: float) -> History:
    """The history with one kind of damage, done to one of its pods."""
    grants, grid = list(history.inventory.grants), history.slices
    row = which % len(grants)
    grant = grants[row]
    changed: dict[str, Grant] = {
        "pod on two cards": replace(grant, card=grants[(row + 1) % len(grants)].card),
        "no model": replace(grant, card_model=CardModelName("")),
        "grant above": replace(grant, framebuffer_granted_bytes=200 * GIB, compute_granted_ratio=4.0),
        "orphan": replace(grant, workload="", workload_kind=""),
    }
    if how in ("values", "framebuffer"):
        measure = Measure.SM_ACTIVE if how == "values" else Measure.FRAMEBUFFER_USED
        values = grid.mean[measure].copy()
        values[row % len(values), :: 1 + which] = value
        measured = {**grid.mean, measure: values}
        return replace(history, slices=replace(grid, mean=measured, peak=measured))
    if how == "no usage":
        measured = {measure: np.full_like(values, np.nan) for measure, values in grid.mean.items()}
        return replace(history, slices=replace(grid, mean=measured, peak=measured))
    if how == "double pod":
        grants.append(grant)
    elif how == "pod on two cards":
        grants.append(changed[how])
    else:
        grants[row] = changed[how]
    ordered = tuple(sorted(grants, key=lambda item: (item.pod_id, item.card)))
    return replace(history, inventory=replace(history.inventory, grants=ordered))


def check(plan: Plan, history: History) -> None:
    """Nobody lost, nothing over capacity on the plan's own numbers, no saving that the placement doesn't show."""
    live = {(grant.namespace, grant.pod, grant.container) for grant in history.inventory.live_grants()}
    placed = Counter((part.namespace, part.pod, part.container) for card in plan.placement for part in card.slices)
    gone = {pod for item in plan.recommendations if item.kind is RecommendationKind.RECLAIM for pod in item.pods}
    assert {name for name in live if f"{name[0]}/{name[1]}" not in gone} <= set(placed)
    assert set(placed) <= live
    assert len({card.card for card in plan.placement}) == len(plan.placement) == plan.totals.cards_after
    for card in plan.placement:
        fits = sum(part.framebuffer_bytes for part in card.slices) <= card.framebuffer_bytes
        assert fits or all(part.oversubscribed for part in card.slices)
    held = {grant.card for grant in history.inventory.live_grants()}
    totals = plan.totals
    assert totals.cards_before == len(held)
    assert totals.cards_before - totals.cards_after == totals.cards_freed + totals.spare_cards
    assert 0 <= totals.predicted_violation_ratio <= 1


@settings(max_examples=12, deadline=None)
@given(
    services=st.lists(
        st.tuples(st.floats(0, 1), st.floats(0.5, 23), st.integers(1, 3), st.integers(0, 23)), min_size=1, max_size=5
    ),
    hurts=st.lists(
        st.tuples(st.sampled_from(HURTS), st.integers(0, 20), st.sampled_from(WILD)), min_size=1, max_size=3
    ),
)
def test_hurt_fleet_gets_a_plan_that_keeps_its_own_numbers(
    services: list[tuple[float, float, int, int]], hurts: list[tuple[str, int, float]]
) -> None:
    history = cluster(
        *(
            Service(name=f"s{n}", level=level, used_gib=used, replicas=replicas, hours=(start, start + 4))
            for n, (level, used, replicas, start) in enumerate(services)
        ),
        days=2,
    )
    for how, which, value in hurts:
        history = hurt(history, how, which, value)
    check(plan_of(history), history)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", HOSTILE)
def test_history_with_one_thing_wrong_gets_a_plan_that_keeps_its_own_numbers(name: str) -> None:
    history = HOSTILE[name]()
    check(plan_of(history), history)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", HOSTILE)
def test_back_test_of_a_history_with_one_thing_wrong_stays_in_its_range(name: str) -> None:
    report = backtest(HOSTILE[name](), train_days=2, test_days=1, settings=Settings(), capability=HAMI)
    for score in report.scores:
        assert score.violation_ratio is None or 0 <= score.violation_ratio <= 1
        assert 0 <= score.lost_work_ratio <= 1
        assert score.cards_after <= score.cards_before


def test_cards_of_which_nothing_is_known_are_shared_by_nobody() -> None:
    history = HOSTILE["cards without framebuffer"]()
    assert all(len(card.slices) == 1 for card in plan_of(history).placement)
    report = backtest(history, train_days=2, test_days=1, settings=Settings(), capability=HAMI)
    assert {score.saved_ratio for score in report.scores} == {0.0}


def test_cards_of_one_name_and_two_sizes_are_not_taken_for_alike() -> None:
    history = HOSTILE["cards of one name and two sizes"]()
    for card in plan_of(history).placement:
        assert sum(part.framebuffer_bytes for part in card.slices) <= card.framebuffer_bytes
        assert not any(part.oversubscribed for part in card.slices)
    report = backtest(history, train_days=2, test_days=1, settings=Settings(), capability=HAMI)
    # Six pods of 14 GiB on cards of 24 stay apart, and only those two on cards of 80 may share.
    assert {score.framebuffer_ratio for score in report.scores} == {0.0}
    assert all(score.cards_after >= 7 for score in report.scores)


def test_replicas_on_cards_of_one_name_and_two_sizes_keep_their_cards() -> None:
    history = HOSTILE["cards of one name and two sizes"]()
    grants = tuple(replace(grant, workload="one") for grant in history.inventory.grants)
    plan = plan_of(replace(history, inventory=replace(history.inventory, grants=grants)))
    assert {item.reason for item in plan.refused if item.kind is RecommendationKind.SLICE} == {"several_card_models"}
    assert all(len(card.slices) == 1 for card in plan.placement)


def test_negative_demand_makes_no_room_on_a_card() -> None:
    demand = demand_of(HOSTILE["sm_active_ratio of -1"]())
    assert np.nanmin(demand.compute) >= 0
    assert np.isnan(demand.compute[0, ::3]).all()
    assert np.isfinite(demand.compute[0, 1::3]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_second_fleet_gets_the_same_consistent_plan_twice(kind: str) -> None:
    history = second_fleet(5, 24, 4, kind)
    first, second = (_plan(history) for _ in "ab")
    check(first, history)
    assert plan_to_json(seal_plan(first)) == plan_to_json(seal_plan(second))
    assert plan_from_json(plan_to_json(seal_plan(first))).totals.cards_after == first.totals.cards_after


def test_fleet_of_noise_gets_no_off_peak_advice() -> None:
    plan = _plan(second_fleet(3, 24, 21, "noise", step_seconds=1800))
    assert not [item for item in plan.recommendations if item.kind is RecommendationKind.OFFPEAK_PAIR]


def test_half_a_day_of_history_is_not_enough_data_for_anybody() -> None:
    history = cluster(*(Service(name=f"s{n}", level=0.05, age_days=0.4) for n in range(4)), days=1)
    plan = plan_of(history)
    assert not plan.recommendations
    assert {item.reason for item in plan.refused} >= {"history_too_short"}
    assert plan.totals.cards_after == 4


def test_fleet_in_which_even_peaks_break_the_preset_is_told_so() -> None:
    plan = plan_of(_restless(), risk="low")
    told = [item for item in plan.withheld if item.reason == "peaks_break_preset"]
    assert told
    assert "0.10 %" in english(told[0])
    assert plan.totals.predicted_violation_ratio <= 0.001


def _restless() -> History:
    """Services of which every day one half doubles what it ever did."""
    history = cluster(*(Service(name=f"s{n:02d}", level=0.02, used_gib=2) for n in range(24)), days=6)
    grid = history.slices
    day = np.arange(grid.steps) * grid.step_seconds // 86400
    row = np.arange(len(grid.keys))[:, None]
    grown = np.power(2.0, (day[None, :] + row % 2) // 2).astype(np.float32)
    compute = np.minimum(1.0, grid.mean[Measure.SM_ACTIVE] * 2 * grown)
    measured = {**grid.mean, Measure.SM_ACTIVE: compute, Measure.DUTY_CYCLE: compute}
    return replace(history, slices=replace(grid, mean=measured, peak=measured))


def _plan(history: History) -> Plan:
    chosen = Settings()
    now = history.inventory.as_of
    profiles = profile_fleet(history, settings=chosen.analyzer, now=now)
    return make_plan(history, profiles, settings=chosen, capability=HAMI, now=now)
