"""Which policy decides: the documented rule, against an oracle written from it, and what a tenant may not do."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from fleet.gpu_policy import POLICIES_MAX, GpuPolicy, deciders, decisions, gpu_policy, own_labels, with_policies
from fleet.inventory import BY_POLICY_LABEL

WEB = {"app": "web"}
SELECTS_WEB = {"selector": {"matchLabels": WEB}}
_numbers = itertools.count(1)


def policy(spec: Any, namespace: str = "team", name: str | None = None) -> GpuPolicy:
    return gpu_policy({"metadata": {"namespace": namespace, "name": name or f"p{next(_numbers):04}"}, "spec": spec})


def asked(*specs: Any, namespace: str = "team", labels: dict[str, str] | None = None) -> dict[str, str]:
    chosen = WEB if labels is None else labels
    return own_wishes(with_policies(chosen, [policy(spec) for spec in specs], namespace))


def own_wishes(labels: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key.startswith("gputide.io/") and key != BY_POLICY_LABEL}


def test_each_field_asks_for_what_its_label_asks_for() -> None:
    assert asked({"optOut": True, "latencyCritical": True, "minReplicasWarm": 3, "isolation": "hard"}) == {
        "gputide.io/opt-out": "true",
        "gputide.io/latency-critical": "true",
        "gputide.io/min-replicas-warm": "3",
        "gputide.io/isolation": "hard",
    }


def test_field_that_asks_for_nothing_sets_no_label() -> None:
    assert asked({"optOut": False, "latencyCritical": False, "minReplicasWarm": 0, "isolation": "soft"}) == {}


def test_pods_of_another_namespace_and_pods_that_are_not_selected_are_not_spoken_of() -> None:
    spec = {"optOut": True, **SELECTS_WEB}
    assert asked(spec) == {"gputide.io/opt-out": "true"}
    assert asked(spec, namespace="other") == {}
    assert asked(spec, labels={"app": "batch"}) == {}


def test_more_policies_than_are_read_leave_the_namespace_alone() -> None:
    many = [{"minReplicasWarm": 1, "selector": {"matchLabels": {"app": "other"}}}] * POLICIES_MAX
    assert asked(*many) == {}
    assert asked(*many, {"minReplicasWarm": 1}) == {"gputide.io/opt-out": "true"}
    assert asked(*many, {"minReplicasWarm": 1}, namespace="other") == {}


def test_more_cluster_policies_than_are_read_leave_everybody_alone() -> None:
    many = [policy({"optOut": False}, namespace="") for _ in range(POLICIES_MAX + 1)]
    assert own_wishes(with_policies(WEB, many, "team")) == {"gputide.io/opt-out": "true"}


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
        {"selector": {"matchLabels": "app"}, "isolation": "soft"},
        {"selector": {"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}, "isolation": "soft"},
    ],
)
@pytest.mark.parametrize("namespace", ["team", ""])
def test_policy_that_cannot_be_read_says_why_and_leaves_its_pods_alone(spec: Any, namespace: str) -> None:
    read = policy(spec, namespace)
    assert read.fault.startswith("spec")
    assert own_wishes(with_policies(WEB, [read], "team")) == {"gputide.io/opt-out": "true"}


@pytest.mark.parametrize("own", [{}, {"gputide.io/opt-out": "false"}, {"gputide.io/isolation": "soft"}])
def test_nothing_of_a_namespace_loosens_what_the_cluster_asks_for(own: dict[str, str]) -> None:
    base = policy({"optOut": True, "isolation": "hard"}, namespace="", name="base")
    loose = [
        policy({"optOut": False, "isolation": "soft"}),
        policy({"optOut": False, "isolation": "soft", **SELECTS_WEB}),
    ]
    found = decisions([base, *loose], "team", WEB, own)
    assert {label: (said.value, said.by) for label, said in found.items()} == {
        "gputide.io/opt-out": ("true", "ClusterGpuPolicy base"),
        "gputide.io/isolation": ("hard", "ClusterGpuPolicy base"),
    }


def test_what_policies_decided_is_noted_forgotten_and_decided_anew() -> None:
    own = {**WEB, "gputide.io/isolation": "soft"}
    base = policy({"isolation": "hard"}, namespace="", name="base")
    web = policy({"latencyCritical": True, **SELECTS_WEB}, name="web")
    once = with_policies(own, [base, web], "team")
    assert deciders(once) == {
        "gputide.io/isolation": "ClusterGpuPolicy base",
        "gputide.io/latency-critical": "GpuPolicy team/web",
    }
    assert own_labels(once) == own
    assert with_policies(once, [web], "team") == with_policies(own, [web], "team")
    assert with_policies(once, [], "team") == own


@pytest.mark.parametrize(
    "note",
    ["", "[", "null", "[]", '{"a": ["x"]}', '{"gputide.io/opt-out": "x"}', '{"gputide.io/opt-out": [1]}', "[" * 500],
)
def test_note_that_is_none_of_ours_counts_for_nothing(note: str) -> None:
    assert with_policies({**WEB, BY_POLICY_LABEL: note}, [], "team") == WEB
    assert deciders({BY_POLICY_LABEL: note}) == {}


# The oracle: one function, word by word after docs/policies.md, on plain numbers.

FIELDS: dict[str, list[Any]] = {
    "optOut": [False, True],
    "latencyCritical": [False, True],
    "minReplicasWarm": [0, 1, 2, 5],
    "isolation": ["soft", "hard"],
}
LABEL = {
    "optOut": "gputide.io/opt-out",
    "latencyCritical": "gputide.io/latency-critical",
    "minReplicasWarm": "gputide.io/min-replicas-warm",
    "isolation": "gputide.io/isolation",
}


def oracle(cluster: list[Any], namespace: list[Any], workload: list[Any], own: dict[str, Any]) -> dict[str, Any]:
    """What holds of each field, of specs of the policies that speak of a pod at each level, and what the pod says."""
    holds = {}
    for field, steps in FIELDS.items():

        def most(specs: list[Any], field: str = field, steps: list[Any] = steps) -> int | None:
            return max((steps.index(spec[field]) for spec in specs if field in spec), default=None)

        tenant = steps.index(own[field]) if field in own else most(workload)
        if tenant is None:
            tenant = most(namespace)
        said = [step for step in (tenant, most(cluster)) if step is not None]
        if said:
            holds[field] = steps[max(said)]
    return holds


def drawn(draw: random.Random, likely: float) -> dict[str, Any]:
    return {field: draw.choice(steps) for field, steps in FIELDS.items() if draw.random() < likely}


@pytest.mark.parametrize("seed", range(200))
def test_random_policies_decide_as_the_documented_rule_says(seed: int) -> None:
    draw = random.Random(seed)
    levels: dict[str, list[Any]] = {
        level: [spec for _ in range(draw.randrange(4)) if (spec := drawn(draw, 0.5))]
        for level in ("cluster", "namespace", "workload")
    }
    own = drawn(draw, 0.2)
    others = [policy(drawn(draw, 0.8), namespace="other"),
              policy({**drawn(draw, 0.8), "selector": {"matchLabels": {"app": "batch"}}})]  # fmt: skip
    policies = [
        *(policy(spec, namespace="") for spec in levels["cluster"]),
        *(policy({**spec, "selector": {}} if draw.random() < 0.5 else spec) for spec in levels["namespace"]),
        *(policy({**spec, **SELECTS_WEB}) for spec in levels["workload"]),
        *others,
    ]
    draw.shuffle(policies)
    own_said = {LABEL[field]: str(value).lower() for field, value in own.items()}
    found = decisions(policies, "team", WEB, own_said)
    expected = oracle(levels["cluster"], levels["namespace"], levels["workload"], own)
    assert {label: said.value for label, said in found.items()} == {
        LABEL[field]: str(value).lower() for field, value in expected.items()
    }
    titles = {one.title: dict(one.wishes) for one in policies}
    for label, said in found.items():
        assert not said.by or titles[said.by][label] == said.value, "who is named said so"
        assert said.by or label in own_said
