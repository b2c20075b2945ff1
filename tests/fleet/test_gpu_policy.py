"""A GpuPolicy speaks of the pods that it selects in its own namespace; of several the most careful wish counts."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.gpu_policy import POLICIES_MAX, gpu_policy, policy_wishes

WEB = {"app": "web"}


def asked(*specs: Any, namespace: str = "team", labels: dict[str, str] | None = None) -> dict[str, str]:
    policies = [gpu_policy({"metadata": {"namespace": "team"}, "spec": spec}) for spec in specs]
    return policy_wishes(policies, namespace, WEB if labels is None else labels)


def test_each_field_asks_for_what_its_label_asks_for() -> None:
    assert asked({"optOut": True, "latencyCritical": True, "minReplicasWarm": 3, "isolation": "hard"}) == {
        "gputide.io/opt-out": "true",
        "gputide.io/latency-critical": "true",
        "gputide.io/min-replicas-warm": "3",
        "gputide.io/isolation": "hard",
    }


def test_field_that_asks_for_nothing_sets_no_label() -> None:
    assert asked({"optOut": False, "latencyCritical": False, "minReplicasWarm": 0}) == {}


def test_pods_of_another_namespace_and_pods_that_are_not_selected_are_not_spoken_of() -> None:
    policy = {"optOut": True, "selector": {"matchLabels": WEB}}
    assert asked(policy) == {"gputide.io/opt-out": "true"}
    assert asked(policy, namespace="other") == {}
    assert asked(policy, labels={"app": "batch"}) == {}


def test_of_several_policies_the_most_careful_wish_counts_in_any_order() -> None:
    policies = [{"minReplicasWarm": 2, "isolation": "hard"}, {"minReplicasWarm": 10, "isolation": "soft"}]
    wanted = {"gputide.io/min-replicas-warm": "10", "gputide.io/isolation": "hard"}
    assert asked(*policies) == asked(*reversed(policies)) == wanted


def test_more_policies_than_are_read_leave_the_namespace_alone() -> None:
    many = [{"minReplicasWarm": 1, "selector": {"matchLabels": {"app": "other"}}}] * POLICIES_MAX
    assert asked(*many) == {}
    assert asked(*many, {}) == {"gputide.io/opt-out": "true"}
    assert asked(*many, {}, namespace="other") == {}


@pytest.mark.parametrize(
    "spec",
    [
        None,
        "optOut",
        {"optOut": "false"},
        {"latencyCritical": 0},
        {"minReplicasWarm": -1},
        {"minReplicasWarm": True},
        {"minReplicasWarm": 10**9},
        {"isolation": "harder"},
        {"selector": ["app"], "isolation": "soft"},
    ],
)
def test_policy_that_cannot_be_read_leaves_its_pods_alone(spec: Any) -> None:
    assert asked(spec) == {"gputide.io/opt-out": "true"}
