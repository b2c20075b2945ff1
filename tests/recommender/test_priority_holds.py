"""Low priority is promised to yield where something holds it back, and is packed as an equal everywhere else."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from fleet.capabilities.register import HAMI, MGPU, VOLCANO, Capabilities, CorePolicy
from fleet.decisions import Need, Plan, Recommendation, RecommendationKind
from fleet.inventory import Priority
from fleet.priority_holds import NOBODY, Hold, Holders, hold_of
from fleet.units import GIB
from fleet.usage import History
from recommender.core_limits import CoreLimits, shared_percents
from recommender.demand import demand_of
from recommender.harm.risk import contention_harm
from recommender.latency.inflation import SharingMode, inflation_of_hours
from recommender.past_outcomes import OwnPast
from tests.english import english
from tests.recommender.builders import NOW, Service, cluster, plan_of

AGENTS = Holders(agents=frozenset({"node-0"}))
BY_DAY = Service(name="web", level=0.3, hours=(8, 20))
TRAIN = Service(name="train", kind="Job", level=0.5, priority=Priority.LOW, server="pytorch")


SELDOM = Service(name="web", level=0.05, hours=(8, 12))
LIGHT = replace(TRAIN, level=0.3)


def joined(plan: Plan) -> list[Recommendation]:
    return [item for item in plan.recommendations if item.kind is RecommendationKind.COLOCATE]


def mixed_cards(plan: Plan) -> list[dict[str, tuple[float | None, CorePolicy]]]:
    return [
        {part.workload.rpartition("/")[2]: (part.compute_ratio, part.core_policy) for part in card.slices}
        for card in plan.placement
        if len({part.priority is Priority.LOW for part in card.slices}) == 2
    ]


def planned(*services: Service, capability: Capabilities = HAMI, holders: Holders = NOBODY) -> Plan:
    history: History = cluster(*services)
    return plan_of(history, capability=capability, past=OwnPast(holders=holders))


def test_gate_gets_core_limits_on_every_pod_of_the_card() -> None:
    plan = planned(SELDOM, LIGHT)
    ((card),) = mixed_cards(plan)
    assert {policy for _, policy in card.values()} == {CorePolicy.HARD}
    assert all(ratio is not None and 0.01 <= ratio <= 0.99 for ratio, _ in card.values())
    assert sum(ratio or 0.0 for ratio, _ in card.values()) <= 1.0
    (item,) = joined(plan)
    assert item.why[-1].code == "join_colocate_cores"
    assert {Need.PRIORITY, Need.CORE_LIMIT} <= set(item.needs)


def test_gate_counts_only_hours_in_which_nobody_above_works() -> None:
    (gated,), (by_agent,) = joined(planned(SELDOM, LIGHT)), joined(planned(SELDOM, LIGHT, holders=AGENTS))
    hours = {item.workloads: item.low_priority_gpu_hours_per_week for item in (gated, by_agent)}
    assert dict(gated.why[-1].values)["hours"] == round(gated.low_priority_gpu_hours_per_week, 1)
    assert gated.low_priority_gpu_hours_per_week < by_agent.low_priority_gpu_hours_per_week, hours


def test_limit_for_the_sake_of_low_priority_keeps_requests_fast() -> None:
    """Requests come in bursts: what the mean of a step fits in makes them wait many times as long."""
    demand = demand_of(cluster(SELDOM, LIGHT))
    own = demand.hourly_load([row for row, grant in enumerate(demand.grants) if grant.workload == "web"])
    ((card),) = mixed_cards(planned(SELDOM, LIGHT))
    share = card["web"][0] or 1.0
    ratio = inflation_of_hours(SharingMode.HARD, own_load=own, neighbour_load=own * 0.0, share=share)
    assert ratio is not None
    assert ratio <= 1.5
    busier = planned(BY_DAY, TRAIN)
    assert not mixed_cards(busier), "the limit that it needs leaves low priority too little"
    assert [item.reason for item in busier.refused if item.workload.endswith("train")] == ["gate_leaves_too_little"]


def test_low_priority_that_a_gate_would_starve_stays_and_says_so() -> None:
    plan = planned(replace(BY_DAY, hours=(0, 24)), TRAIN)
    assert not mixed_cards(plan)
    assert [item.reason for item in plan.refused if item.workload.endswith("train")] == ["gate_leaves_too_little"]


def test_low_priority_without_room_beside_anybody_is_not_said_to_be_starved_by_a_gate() -> None:
    plan = planned(replace(SELDOM, used_gib=20.0), replace(LIGHT, used_gib=20.0))
    assert not mixed_cards(plan)
    assert "gate_leaves_too_little" not in [item.reason for item in plan.refused]


def test_limit_that_stays_after_low_priority_is_shown_and_named() -> None:
    history = cluster(SELDOM)
    limited = tuple(replace(one, compute_granted_ratio=0.45) for one in history.inventory.grants)
    plan = plan_of(replace(history, inventory=replace(history.inventory, grants=limited)), capability=HAMI)
    ((part,),) = (card.slices for card in plan.placement)
    assert part.compute_ratio == 0.45
    (said,) = [item for item in plan.refused if item.reason == "limit_stays"]
    assert dict(said.values) == {"percent": 45}
    assert "gputide undo" in english(said)
    free = plan_of(history, capability=HAMI)
    assert "limit_stays" not in [item.reason for item in free.refused]


def limited(*services: Service, mark: str | None = "45", days: int = 7) -> History:
    """Services above low priority with 45 % of cores, as a plan or somebody else left them."""
    history = cluster(*services, days=days)
    changes: dict[str, Any] = {
        "compute_granted_ratio": 0.45,
        "framebuffer_granted_bytes": 8 * GIB,
        "labels": () if mark is None else (("gputide.io/core-limit", mark),),
    }
    grants = tuple(one if one.priority is Priority.LOW else replace(one, **changes) for one in history.inventory.grants)
    return replace(history, inventory=replace(history.inventory, grants=grants))


def lifts(plan: Plan) -> set[str]:
    return {
        name.rpartition("/")[2]
        for item in plan.recommendations
        for name in item.workloads
        if any(why.code == "slice_lift" for why in item.why)
    }


def test_limit_that_a_plan_set_is_lifted_once_low_priority_has_left() -> None:
    plan = plan_of(limited(SELDOM))
    (item,) = plan.recommendations
    assert (item.kind, item.cards_freed) == (RecommendationKind.SLICE, 0)
    assert "45 % of cores" in english(item)
    ((part,),) = (card.slices for card in plan.placement)
    assert (part.compute_ratio, part.core_policy, part.framebuffer_bytes) == (None, CorePolicy.BURST, 8 * GIB)
    assert "limit_stays" not in [one.reason for one in plan.refused]


@pytest.mark.parametrize(
    "history",
    [limited(SELDOM, mark=None), limited(SELDOM, mark="30"), limited(SELDOM, days=3)],
    ids=["share of nobody knows whom", "changed by a person since", "low priority may come every week"],
)
def test_limit_that_is_not_surely_left_over_stays_and_is_named(history: History) -> None:
    plan = plan_of(history)
    assert not lifts(plan)
    assert [one.reason for one in plan.refused if one.workload.endswith("web")] == ["limit_stays"]


@pytest.mark.parametrize(("ended_days", "is_lifted"), [(2, False), (8, True)])
def test_limit_outlasts_low_priority_that_may_come_again(ended_days: int, is_lifted: bool) -> None:
    history = limited(SELDOM)
    (web,) = history.inventory.grants
    low = replace(
        web, pod="train-0", workload_kind="Job", workload="train", priority=Priority.LOW,
        started_at=NOW - timedelta(days=9), ended_at=NOW - timedelta(days=ended_days),
    )  # fmt: skip
    plan = plan_of(replace(history, inventory=replace(history.inventory, grants=(web, low))))
    assert lifts(plan) == ({"web"} if is_lifted else set())


def test_service_that_is_too_large_for_the_moves_left_keeps_no_limit_of_others() -> None:
    busy = replace(SELDOM, name="b", level=0.9)
    history = limited(replace(busy, name="a", replicas=3), busy)
    assert lifts(plan_of(history)) == {"a", "b"}
    assert lifts(plan_of(history, moves_max=2)) == {"b"}


def test_limit_that_a_service_has_already_is_forced_before_low_priority_comes() -> None:
    """An inventory shows the share, not whether it holds while nobody else works there."""
    history = cluster(replace(SELDOM, kind="StatefulSet"), LIGHT)
    limited = {part.pod_id: part for card in plan_of(history).placement for part in card.slices}
    grants = tuple(
        replace(one, framebuffer_granted_bytes=part.framebuffer_bytes, compute_granted_ratio=part.compute_ratio or 0.0)
        if (part := limited[one.pod_id]).priority is Priority.HIGH
        else one
        for one in history.inventory.grants
    )
    plan = plan_of(replace(history, inventory=replace(history.inventory, grants=grants)))
    ((card),) = mixed_cards(plan)
    assert {policy for _, policy in card.values()} == {CorePolicy.HARD}
    assert "team/StatefulSet/web" in {name for item in plan.recommendations for name in item.workloads}


def test_agent_on_every_node_lets_all_burst() -> None:
    plan = planned(replace(BY_DAY, hours=(0, 24)), TRAIN, holders=AGENTS)
    ((card),) = mixed_cards(plan)
    assert {policy for _, policy in card.values()} == {CorePolicy.BURST}
    (item,) = joined(plan)
    assert item.why[-1].code == "join_colocate_agent"
    assert Need.AGENT in item.needs


def test_agents_on_some_nodes_promise_nothing_for_the_others() -> None:
    services = [replace(BY_DAY, name=f"web-{number}") for number in range(5)]
    plan = planned(*services, TRAIN, holders=AGENTS)
    assert Need.AGENT not in {need for item in plan.recommendations for need in item.needs}


@pytest.mark.parametrize("holders", [Holders(), AGENTS])
def test_server_that_replays_graphs_contends_as_an_equal(holders: Holders) -> None:
    vllm = Service(
        name="batch", level=0.4, priority=Priority.LOW, server="vllm", used_gib=6.0, pool_gib=2.0, cache_ratio=0.2
    )
    plan = planned(replace(BY_DAY, hours=(0, 24)), vllm, holders=holders)
    (item,) = joined(plan)
    assert item.why[-1].code == "join_colocate_equals"
    assert Need.PRIORITY not in item.needs
    busier = planned(replace(BY_DAY, hours=(0, 24), level=0.9), vllm, holders=holders)
    assert not mixed_cards(busier), "together they are more than the card, so one would harm the other"


def test_pauses_that_stop_graphs_hold_such_a_server() -> None:
    vllm = Service(
        name="batch", level=0.4, priority=Priority.LOW, server="vllm", used_gib=6.0, pool_gib=2.0, cache_ratio=0.2
    )
    seen = replace(AGENTS, graphs_pause=frozenset({"node-0"}))
    plan = planned(replace(BY_DAY, hours=(0, 24), level=0.9), vllm, holders=seen)
    assert mixed_cards(plan)


def test_what_holds_beside_each_replica_is_said_and_needed_apart() -> None:
    """Where an agent holds one neighbour back and nothing the other, the first card still counts on the agent."""
    web = Service(name="web", replicas=2, level=0.8)
    batch = replace(TRAIN, name="batch", level=0.1, server="vllm", pool_gib=2.0, cache_ratio=0.2, used_gib=6.0)
    plan = planned(web, replace(TRAIN, level=0.9), batch, holders=AGENTS)
    beside = {
        part.pod_id: other.workload.rpartition("/")[2]
        for card in plan.placement
        for part in card.slices
        for other in card.slices
        if other.priority is Priority.LOW and part.workload.endswith("web")
    }
    assert sorted(beside.values()) == ["batch", "train"]
    held = {
        name: [Need.AGENT in item.needs for item in joined(plan) for pod in item.pods if beside.get(pod) == name]
        for name in ("train", "batch")
    }
    assert held == {"train": [True], "batch": [False]}
    assert sum(item.cards_freed for item in plan.recommendations) == plan.totals.cards_freed == 2
    assert len({item.id for item in plan.recommendations}) == len(plan.recommendations)


@pytest.mark.parametrize(
    ("labels", "strict", "is_needed"),
    [
        ((("gputide.io/latency-critical", "true"),), frozenset({"node-0"}), True),
        ((("gputide.io/latency-critical", "true"),), frozenset(), False),
        ((), frozenset({"node-0"}), False),
    ],
)
def test_strict_agent_is_needed_where_requests_are_fast_because_of_it(
    labels: tuple[tuple[str, str], ...], strict: frozenset[str], is_needed: bool
) -> None:
    plan = planned(replace(SELDOM, labels=labels), TRAIN, holders=replace(AGENTS, strict=strict))
    needs = {need for item in joined(plan) for need in item.needs}
    assert (Need.STRICT_AGENT in needs) is is_needed


def test_probe_that_saw_the_gate_fail_ends_the_promise() -> None:
    plan = planned(BY_DAY, TRAIN, holders=Holders(ungated=frozenset({"node-0"})))
    assert all(Need.PRIORITY not in item.needs for item in plan.recommendations)


def test_probed_gate_needs_no_core_limits() -> None:
    plan = planned(BY_DAY, TRAIN, holders=Holders(gated=frozenset({"node-0"})))
    ((card),) = mixed_cards(plan)
    assert {policy for _, policy in card.values()} == {CorePolicy.BURST}
    (item,) = joined(plan)
    assert Need.PROBED_GATE in item.needs


def test_pod_above_that_takes_no_limit_keeps_low_priority_away() -> None:
    """A Job's template can't be changed, so nothing holds it to a limit at every moment."""
    job = replace(BY_DAY, kind="Job")
    assert not mixed_cards(planned(job, TRAIN))
    assert mixed_cards(planned(job, TRAIN, holders=AGENTS))


def test_demand_above_a_limit_is_predicted_as_harm() -> None:
    load = np.array([[0.2, 0.5, 0.51, 0.9], [0.0, 0.0, 0.2, 0.2], [0.0, 0.0, 0.0, 0.0]], np.float32)
    low = np.array([False, False, True])

    def violated(most: list[float]) -> list[float]:
        found = contention_harm(
            np.zeros(3, np.int32), 1, np.arange(3, dtype=np.int32), load, low, np.array(most, np.float32)
        )
        return [float(points) for points in found.violated]

    assert violated([np.inf] * 3) == [2.0], "both contend where they are more than the card"
    assert violated([0.5, np.inf, np.inf]) == [3.0], "one point above the limit, and none is counted twice"
    assert violated([0.5, np.inf, 0.01]) == [3.0], "low priority is not harmed by its own"


def test_backend_that_suspends_low_priority_itself_needs_nothing_else() -> None:
    assert hold_of(MGPU, Holders(), {"node-0"}, "vllm") is Hold.BACKEND
    assert hold_of(VOLCANO, Holders(), {"node-0"}, "pytorch") is Hold.CORES
    assert (
        hold_of(replace(VOLCANO, priority_levels=1, gates_priority_by_cores=False), AGENTS, {"node-0"}, None)
        is Hold.NONE
    )


def limits(percent: list[int], hold: list[str], takes: list[bool] | None = None) -> CoreLimits:
    count = len(percent)
    return CoreLimits(
        workload=np.arange(count),
        hold=np.array(hold, dtype=np.str_),
        is_hard=np.zeros(count, bool),
        takes_limit=np.ones(count, bool) if takes is None else np.array(takes),
        percent=np.array(percent),
    )


def test_limits_leave_room_for_low_priority_or_it_leaves() -> None:
    bin_of = np.zeros(3, np.int32)
    assert limits([50, 49, 10], ["", "", "cores"]).with_gates_that_hold(bin_of).tolist() == [0, 0, 0]
    assert limits([50, 50, 10], ["", "", "cores"]).with_gates_that_hold(bin_of).tolist() == [0, 0, 1]
    assert limits([20, 20, 10], ["", "", "cores"], [True, False, True]).with_gates_that_hold(bin_of).tolist() == [
        0,
        0,
        1,
    ]
    assert limits([50, 50, 10], ["", "", "agent"]).with_gates_that_hold(bin_of).tolist() == [0, 0, 0]


def test_peaks_become_limits_between_one_and_ninety_nine() -> None:
    assert shared_percents(np.array([0.0, 0.001, 0.3, 0.301, 1.0])).tolist() == [1, 1, 30, 31, 99]
