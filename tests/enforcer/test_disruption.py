"""Amounts of pods and disruption budgets mean what they mean to Kubernetes."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.disruption import disruptions_allowed, least_healthy, scaled, selects
from enforcer.kinds.register import WORKLOAD_KINDS
from enforcer.rollout.holding import strategy_limit
from fleet.errors import Refused

TOTALS = st.integers(0, 5000)


@given(percent=st.integers(0, 200), total=TOTALS)
def test_percentage_is_rounded_as_asked(percent: int, total: int) -> None:
    exact = Fraction(percent * total, 100)
    assert scaled(f"{percent}%", total, up=True) == math.ceil(exact)
    assert scaled(f"{percent}%", total, up=False) == math.floor(exact)


@given(number=st.integers(0, 5000), total=TOTALS, up=st.booleans())
def test_number_is_itself_whatever_the_total(number: int, total: int, up: bool) -> None:
    assert scaled(number, total, up=up) == scaled(str(number), total, up=up) == number


@pytest.mark.parametrize("text", ["half", "", "%", "1.5", "-1", "²", "5 %"])
def test_text_that_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="neither a number nor a percentage"):
        scaled(text, 4, up=True)


def owner(kind: str, **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"namespace": "team", "name": "w"}, "spec": spec}


def rolling(kind: str, **bounds: Any) -> dict[str, Any]:
    field = "strategy" if kind == "Deployment" else "updateStrategy"
    return owner(kind, **{field: {"rollingUpdate": bounds}})


@pytest.mark.parametrize(
    ("manifest", "pods", "allowed"),
    [
        # Kubernetes' default, 25 % of each: new pods first where there are few.
        *((owner("Deployment"), pods, pods // 4) for pods in (1, 2, 3, 4, 7, 8)),
        (rolling("Deployment", maxSurge=0, maxUnavailable="25%"), 3, 1),
        (rolling("Deployment", maxSurge="0%", maxUnavailable="0%"), 3, 1),
        (rolling("Deployment", maxSurge=1, maxUnavailable=0), 3, 0),
        (rolling("Deployment", maxSurge=0, maxUnavailable=5), 3, 3),
        (owner("Deployment", strategy={"type": "Recreate"}), 3, 3),
        (owner("StatefulSet"), 5, 1),
        (rolling("StatefulSet", maxUnavailable="50%"), 5, 2),
        (rolling("StatefulSet", maxUnavailable="1%"), 5, 1),
        (owner("StatefulSet", updateStrategy={"type": "OnDelete"}), 5, 5),
        (owner("DaemonSet"), 5, 1),
        (rolling("DaemonSet", maxUnavailable="50%"), 5, 3),
        (rolling("DaemonSet", maxUnavailable=0, maxSurge=1), 5, 0),
        (owner("Rollout", strategy={"canary": {}}), 4, 1),
        (owner("Rollout", strategy={"canary": {"maxUnavailable": 0, "maxSurge": 1}}), 4, 0),
        (owner("LeaderWorkerSet", replicas=3), 12, 4),
        (
            owner("LeaderWorkerSet", replicas=3, rolloutStrategy={
                "rollingUpdateConfiguration": {"maxUnavailable": 0, "maxSurge": 1}}),
            12, 0,
        ),
    ],
)  # fmt: skip
def test_own_strategy_allows_what_its_controller_does(manifest: dict[str, Any], pods: int, allowed: int) -> None:
    limit = strategy_limit(manifest, pods)
    assert limit is not None
    assert limit.pods == allowed


def test_raw_inference_service_allows_what_its_deployment_does_and_a_serverless_one_says_nothing() -> None:
    service = owner("InferenceService", predictor={"deploymentStrategy": {"rollingUpdate": {"maxUnavailable": 2}}})
    assert strategy_limit(service, 4) is None
    service["metadata"]["annotations"] = {"serving.kserve.io/deploymentMode": "Standard"}
    limit = strategy_limit(service, 4)
    assert limit is not None
    assert (limit.field, limit.pods) == ("spec.predictor.deploymentStrategy.rollingUpdate.maxUnavailable", 2)


@given(kind=st.sampled_from(sorted(WORKLOAD_KINDS)), pods=st.integers(0, 40))
def test_no_strategy_allows_more_pods_than_there_are(kind: str, pods: int) -> None:
    limit = strategy_limit(owner(kind), pods)
    assert limit is None or 0 <= limit.pods <= pods


def budget(selector: Any = None, status: Any = None, **spec: Any) -> dict[str, Any]:
    held = spec if selector is None else {**spec, "selector": selector}
    metadata = {"namespace": "team", "name": "b", "generation": 2}
    return {"metadata": metadata, "spec": held, "status": status or {}}


def pod(*, is_ready: bool = True, **labels: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if is_ready else "False"}]
    return {"metadata": {"namespace": "team", "labels": labels}, "status": {"conditions": conditions}}


@given(least=st.integers(0, 100), pods=st.integers(1, 100))
def test_percentages_of_budgets_are_rounded_up(least: int, pods: int) -> None:
    assert least_healthy(budget(minAvailable=f"{least}%"), pods) == math.ceil(Fraction(least * pods, 100))
    assert least_healthy(budget(maxUnavailable=f"{least}%"), pods) == pods - math.ceil(Fraction(least * pods, 100))


@pytest.mark.parametrize(
    ("selector", "is_selected"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "a"}}, True),
        ({"matchLabels": {"app": "b"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["b"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["a"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True),
        ({"matchLabels": {"app": "a"}, "matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_budget_selects_as_label_selectors_do(selector: Any, is_selected: bool) -> None:
    assert selects(budget(selector), pod(app="a")) is is_selected


def test_budget_of_another_namespace_selects_nothing() -> None:
    other = pod(app="a")
    other["metadata"]["namespace"] = "other"
    assert not selects(budget({}), other)


def test_budget_allows_never_more_than_its_controller_counted() -> None:
    pods = [pod(app="a") for _ in range(3)]
    counted = {"observedGeneration": 2, "disruptionsAllowed": 0}
    assert disruptions_allowed(budget({}, minAvailable=1), pods) == 2
    assert disruptions_allowed(budget({}, counted, minAvailable=1), pods) == 0
    assert disruptions_allowed(budget({}, {**counted, "observedGeneration": 1}, minAvailable=1), pods) == 2
    assert disruptions_allowed(budget({}, {**counted, "disruptionsAllowed": 9}, minAvailable=1), pods) == 2


def test_pods_that_are_not_ready_or_on_their_way_out_count_as_gone() -> None:
    going = pod(app="a")
    going["metadata"]["deletionTimestamp"] = "2026-01-12T00:00:00Z"
    assert disruptions_allowed(budget({}, minAvailable=1), [pod(), pod(is_ready=False), going]) == 0
    assert disruptions_allowed(budget({}, minAvailable=1), [pod(), pod(), going]) == 1
