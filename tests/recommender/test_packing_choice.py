"""Greedy or exact: a plan for few pods is looked at more closely, and never frees fewer cards for it."""

import pytest

from analyzer.profile import profile_fleet
from fleet.capabilities.register import HAMI
from fleet.decisions import Plan
from fleet.documents import plan_to_json
from fleet.settings.settings import Settings
from fleet.usage import History
from recommender.planner import make_plan
from tests.recommender.second_fleet import second_fleet


@pytest.fixture(scope="module")
def fleet() -> History:
    """Forty-eight pods of two card models."""
    return second_fleet(1, 48, 7, "mixed", step_seconds=1800)


def packed(fleet: History, packing: str, pods_max: int = 120) -> Plan:
    settings = Settings.model_validate(
        {
            "risk": {"preset": "low"},
            "plan": {"spare_card_ratio": 0.0},
            "guard": {"gaps_allowed": True},
            "recommender": {"packing": packing, "packing_exact_pods_max": pods_max},
        }
    )
    now = fleet.inventory.as_of
    profiles = profile_fleet(fleet, settings=settings.analyzer, now=now)
    return make_plan(fleet, profiles, settings=settings, capability=HAMI, now=now)


def test_looking_closer_frees_more_of_a_small_fleet_and_the_same_each_time(fleet: History) -> None:
    greedy, auto = packed(fleet, "greedy"), packed(fleet, "auto")
    assert auto.totals.cards_freed > greedy.totals.cards_freed
    assert auto.totals.predicted_violation_ratio <= 0.001
    assert plan_to_json(packed(fleet, "auto")) == plan_to_json(auto)


def test_above_the_limit_only_who_asks_for_it_gets_the_exact_packing(fleet: History) -> None:
    greedy, auto, exact = packed(fleet, "greedy"), packed(fleet, "auto", 2), packed(fleet, "exact", 2)
    assert auto.placement == greedy.placement
    assert exact.totals.cards_freed > greedy.totals.cards_freed
