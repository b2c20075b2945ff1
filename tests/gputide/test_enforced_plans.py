"""The judge of `backends-enforced` condemns plans that count on what is not there, and finds none among ours."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.enforced_judge import World, faults_of, mixed_cards
from bench.enforced_plans import outcome_of

HERE = frozenset({"n"})


def a_slice(name: str, priority: str, kind: str = "Deployment") -> dict[str, Any]:
    return {
        "namespace": "team", "pod": f"{name}-0", "container": "main", "workload": f"team/{kind}/{name}",
        "compute_ratio": 0.5, "core_policy": "hard", "priority": priority,
    }  # fmt: skip


def an_owner(percent: str | None, priority: str, policy: str | None) -> dict[str, Any]:
    limits = {"nvidia.com/priority": priority} | ({} if percent is None else {"nvidia.com/gpucores": percent})
    env = [] if policy is None else [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": policy}]
    container = {"name": "main", "resources": {"limits": limits}, "env": env}
    return {"metadata": {}, "spec": {"template": {"spec": {"containers": [container]}}}}


PLAN: dict[str, Any] = {
    "recommendations": [
        {"id": "x", "kind": "colocate", "pods": ["team/web-0"], "needs": ["priority"], "violation_ratio": 0.0,
         "reason": "it yields", "evidence": {"numbers": {}}, "why": [{"values": {"worst_ratio": 1.0}}]},
    ],
    "placement": [{"card": "GPU-0", "node": "n", "slices": [a_slice("web", "high"), a_slice("train", "low")]}],
}  # fmt: skip
OWNERS = {"team/Deployment/web": an_owner("50", "0", "force"), "team/Deployment/train": an_owner("50", "1", None)}
WORLD = World(
    backend="hami", version=(2, 10, 0), policies={}, agents=frozenset(), strict=frozenset(), gated=frozenset(),
    ungated=frozenset(), graphs_pause=frozenset(), servers={"team/web-0": "triton", "team/train-0": "pytorch"},
    use={"team/web-0": np.full(4, 0.3, np.float32), "team/train-0": np.full(4, 0.9, np.float32)},
)  # fmt: skip


def changed(workload: str, *made: Any) -> dict[str, Any]:
    return {**OWNERS, f"team/Deployment/{workload}": an_owner(*made)}


def test_promise_that_is_kept_is_no_fault() -> None:
    assert mixed_cards(PLAN) == 1
    assert faults_of(PLAN, OWNERS, WORLD) == []


@pytest.mark.parametrize(
    "owners",
    [
        changed("web", "0", "0", "force"),
        changed("web", None, "0", "force"),
        changed("web", "100", "0", "force"),
        changed("web", "50", "0", None),
        changed("web", "50", "0", "disable"),
        changed("web", "50", "1", "force"),
        changed("train", "0", "1", None),
    ],
)
def test_gate_that_does_not_hold_is_a_fault(owners: dict[str, Any]) -> None:
    assert any("promises that low priority yields" in fault for fault in faults_of(PLAN, owners, WORLD))


@pytest.mark.parametrize(
    ("world", "is_held"),
    [
        (replace(WORLD, version=(2, 8, 0)), False),
        (replace(WORLD, servers={"team/train-0": "vllm"}), False),
        (replace(WORLD, servers={"team/train-0": "vllm"}, agents=HERE), False),
        (replace(WORLD, servers={"team/train-0": "vllm"}, agents=HERE, graphs_pause=HERE), True),
        (replace(WORLD, ungated=HERE), False),
        (replace(WORLD, ungated=HERE, agents=HERE), True),
        (replace(WORLD, backend="effectivegpu", version=()), True),
        (replace(WORLD, backend="vgpu_manager", agents=HERE), False),
        (replace(WORLD, backend="kai", agents=HERE), False),
    ],
)
def test_world_decides_whether_a_promise_is_kept(world: World, is_held: bool) -> None:
    owners = None if world.backend in ("vgpu_manager", "kai") else OWNERS
    assert any("promises" in fault for fault in faults_of(PLAN, owners, world)) is not is_held


def test_equals_that_contend_must_be_predicted() -> None:
    said = copy.deepcopy(PLAN)
    said["recommendations"][0] |= {"needs": [], "reason": "all pods of a card contend as equals"}
    world = replace(WORLD, servers={"team/train-0": "vllm"})
    assert faults_of(said, OWNERS, world) == ["x: predicts 0.0000, and its pods are harmed in 1.0000"]
    said["recommendations"][0]["violation_ratio"] = 0.9
    assert faults_of(said, OWNERS, world) == []


def test_demand_above_a_limit_must_be_predicted() -> None:
    busier = replace(WORLD, use={**WORLD.use, "team/web-0": np.full(4, 0.7, np.float32)})
    assert faults_of(PLAN, OWNERS, busier) == ["x: predicts 0.0000, and its pods are harmed in 1.0000"]


def in_two_places() -> dict[str, Any]:
    """A replica of web beside low priority on a second node, m; all that is asked for is what the first one has."""
    two = copy.deepcopy(PLAN)
    second = [a_slice("web", "high") | {"pod": "web-1"}, a_slice("batch", "low")]
    two["placement"].append({"card": "GPU-1", "node": "m", "slices": second})
    two["recommendations"][0] |= {"pods": ["team/web-0", "team/web-1"], "violation_ratio": 0.0}
    return two


IN_TWO_PLACES = replace(
    WORLD,
    use={**WORLD.use, "team/web-1": np.full(4, 0.3, np.float32), "team/batch-0": np.full(4, 0.9, np.float32)},
    version=(2, 8, 1),
    agents=HERE,
    ungated=frozenset({"m"}),
)


def test_what_advice_does_not_ask_for_is_not_counted_on() -> None:
    """Low priority is held back on one card of two: who says that it contends must predict that of both cards."""
    two = in_two_places()
    two["recommendations"][0] |= {"needs": [], "reason": "all pods of a card contend as equals"}
    assert faults_of(two, None, IN_TWO_PLACES) == ["x: predicts 0.0000, and its pods are harmed in 1.0000"]
    two["recommendations"][0]["violation_ratio"] = 0.9
    assert faults_of(two, None, IN_TWO_PLACES) == []


def test_harm_is_that_of_an_average_pod_and_of_the_worst_card() -> None:
    (item,) = (two := in_two_places())["recommendations"]
    item["violation_ratio"] = 0.5
    (promise,) = faults_of(two, None, IN_TWO_PLACES)
    assert "promises" in promise
    item |= {"violation_ratio": 0.2, "why": [{"values": {"worst_ratio": 0.4}}]}
    assert faults_of(two, None, IN_TWO_PLACES)[1:] == [
        "x: predicts 0.2000, and its pods are harmed in 0.5000",
        "x: predicts 0.4000, and its pods are harmed in 1.0000",
    ]


@pytest.mark.parametrize(
    ("backend", "workload", "value", "is_held"),
    [
        ("hami", "web", "true", False),
        ("hami", "train", "1", False),
        ("hami", "web", "false", True),
        ("volcano", "web", "false", False),
    ],
)
def test_pod_without_the_library_is_not_held_back(backend: str, workload: str, value: str, is_held: bool) -> None:
    owners = copy.deepcopy(OWNERS)
    for owner in owners.values():
        owner["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": "CUDA_TASK_PRIORITY", "value": "0"})
    owners[f"team/Deployment/{workload}"]["spec"]["template"]["spec"]["containers"][0]["env"].append(
        {"name": "CUDA_DISABLE_CONTROL", "value": value}
    )
    world = replace(WORLD, backend=backend, version=(), agents=HERE)
    assert any("promises" in fault for fault in faults_of(PLAN, owners, world)) is not is_held


def test_requests_are_not_fast_where_the_agent_waits_for_a_full_card() -> None:
    said = copy.deepcopy(PLAN)
    said["recommendations"][0]["evidence"]["numbers"] = {"latency_p99_inflation_ratio": 1.0}
    by_agent = replace(WORLD, agents=HERE, ungated=HERE)
    assert any("are not slowed" in fault for fault in faults_of(said, OWNERS, by_agent))
    assert faults_of(said, OWNERS, replace(by_agent, strict=HERE)) == []


def test_share_that_is_not_granted_is_a_fault() -> None:
    owners = changed("web", "0", "0", "force")
    assert any("0.5 of a card is planned, 0 % granted" in fault for fault in faults_of(PLAN, owners, WORLD))


@pytest.mark.long
def test_plans_of_generated_fleets_count_on_nothing_that_is_not_enforced() -> None:
    outcomes = [outcome_of(number) for number in range(0, 2000, 40)]
    assert [fault for outcome in outcomes for fault in outcome.faults] == []
    assert sum(outcome.promises for outcome in outcomes) > 0
    assert sum(outcome.colocations for outcome in outcomes) > 0
