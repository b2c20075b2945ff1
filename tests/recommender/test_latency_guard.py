"""Latency-critical services share a card only where their slowest requests hardly notice."""

from dataclasses import replace

import pytest

from fleet.capabilities.register import HAMI
from fleet.decisions import Plan, RecommendationKind
from fleet.inventory import LATENCY_CRITICAL_LABEL, Priority
from fleet.priority_holds import Hold, Holders
from fleet.settings.settings import Settings
from recommender.demand import demand_of
from recommender.latency.guard import LatencyGuard
from recommender.past_outcomes import OwnPast
from tests.english import english
from tests.recommender.builders import Service, cluster, plan_of

CRITICAL = ((LATENCY_CRITICAL_LABEL, "true"),)
FAST = Service(name="fast", level=0.3, labels=CRITICAL)


def shared(plan: Plan) -> list[set[str]]:
    return [{part.pod for part in card.slices} for card in plan.placement if len(card.slices) > 1]


def test_a_quiet_neighbour_is_no_harm_and_the_figure_is_told() -> None:
    plan = plan_of(cluster(FAST, Service(name="quiet", level=0.03)))
    assert shared(plan) == [{"fast-0", "quiet-0"}]
    numbers = [
        dict(item.evidence.numbers) for item in plan.recommendations if item.workloads == ("team/Deployment/fast",)
    ]
    assert all(1.0 < each["latency_p99_inflation_ratio"] < 1.5 for each in numbers)


def test_a_busy_neighbour_is_refused_with_the_setting() -> None:
    plan = plan_of(cluster(FAST, Service(name="busy", level=0.45)))
    assert shared(plan) == []
    (refusal,) = [item for item in plan.refused if item.reason == "latency"]
    assert "risk.latency_inflation_max" in english(refusal)
    other = plan_of(cluster(replace(FAST, labels=()), Service(name="busy", level=0.45)))
    assert shared(other) == [{"fast-0", "busy-0"}]


def test_who_does_not_hurry_still_shares_without_it() -> None:
    plan = plan_of(cluster(FAST, Service(name="busy", level=0.25), Service(name="other", level=0.25)))
    assert shared(plan) == [{"busy-0", "other-0"}]


def test_low_priority_that_is_held_back_yields_and_so_slows_nobody() -> None:
    demand = demand_of(cluster(FAST, Service(name="train", kind="Job", level=0.9, priority=Priority.LOW)))
    guard = LatencyGuard(demand=demand, critical=frozenset({0}), inflation_max=1.5, holds={1: Hold.AGENT})
    assert guard.inflations([0, 1]) == {0: 1.0}
    free = replace(guard, holds={1: Hold.NONE})
    assert (free.inflations([0, 1])[0] or 99.0) > 1.0, "what nothing holds back contends"


def test_agent_that_waits_for_a_full_card_keeps_no_request_from_waiting() -> None:
    history = cluster(FAST, Service(name="train", kind="Job", level=0.45, priority=Priority.LOW))
    here = frozenset({"node-0"})
    waits = plan_of(history, capability=HAMI, past=OwnPast(holders=Holders(agents=here)))
    assert shared(waits) == []
    assert "latency" in [item.reason for item in waits.refused]
    first = plan_of(history, capability=HAMI, past=OwnPast(holders=Holders(agents=here, strict=here)))
    assert shared(first) == [{"fast-0", "train-0"}]


def test_alone_nobody_is_slowed() -> None:
    demand = demand_of(cluster(FAST))
    guard = LatencyGuard(demand=demand, critical=frozenset({0}), inflation_max=1.0, holds={})
    assert not guard.is_too_slow([0])


def test_a_card_without_room_is_too_slow_whatever_the_limit() -> None:
    demand = demand_of(cluster(replace(FAST, level=0.9), Service(name="busy", level=0.9)))
    guard = LatencyGuard(demand=demand, critical=frozenset({0}), inflation_max=100.0, holds={})
    assert guard.inflations([0, 1]) == {0: None}
    assert guard.is_too_slow([0, 1])


@pytest.mark.parametrize("value", [0.9, 101.0])
def test_a_limit_that_cannot_be_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="latency_inflation_max"):
        Settings.model_validate({"risk": {"latency_inflation_max": value}})


def test_the_kind_refused_is_sharing() -> None:
    plan = plan_of(cluster(FAST, Service(name="busy", level=0.45)))
    assert {item.kind for item in plan.refused if item.reason == "latency"} == {RecommendationKind.SLICE}
