"""On the real API server, with real controllers: no stage leaves fewer pods ready than strategies and budgets allow."""

from __future__ import annotations

from typing import Any

import pytest

from bench.safe_matrix.judge import Sampler
from enforcer.record.journal import StageState
from enforcer.rollout.undo import Undo
from enforcer.safety.guard import Guard, GuardPolicy
from fleet.decisions import Plan
from fleet.errors import Refused
from tests.cluster import test_apply_and_undo as applied
from tests.cluster.api import Api
from tests.cluster.audit import AuditLog
from tests.cluster.workloads import pods, until
from tests.recommender.builders import Service

pytestmark = pytest.mark.cluster

hami = applied.hami
standing = applied.standing
spare_cards = applied.spare_cards

PAIR = (
    Service(name="pair", replicas=2, level=0.1, used_gib=3.0),
    Service(name="single", level=0.1, used_gib=2.0),
)
SINGLES = (
    Service(name="single", level=0.1, used_gib=2.0),
    Service(name="other", level=0.1, used_gib=3.0),
)
FOUR = (
    Service(name="four", replicas=4, level=0.1, used_gib=3.0),
    Service(name="single", level=0.1, used_gib=2.0),
)


@pytest.fixture
def services() -> tuple[Service, ...]:
    """Return the services that stand; a test may have others."""
    return PAIR


def set_strategy(api: Api, namespace: str, name: str, strategy: Any) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
    api.patch(path, {"spec": {"strategy": strategy}})
    found = api.ask("GET", path)["metadata"]["generation"]
    until(lambda: api.ask("GET", path)["status"].get("observedGeneration") == found, f"{name} is observed")


def make_budget(api: Api, namespace: str, name: str, selector: Any, **spec: Any) -> None:
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    api.create(path, {"metadata": {"name": name}, "spec": {"selector": selector, **spec}})
    until(lambda: "observedGeneration" in api.ask("GET", f"{path}/{name}").get("status", {}), "the budget is counted")


def refusal(api: Api, audit: AuditLog, standing: applied.Standing, plan: Plan, name: str) -> str:
    """Why the stage of a Deployment is refused; the API server saw no write of ours to it or its pods."""
    before, began = applied.contents(api, standing.namespace), audit.size()
    with pytest.raises(Refused) as found:
        applied.apply_all(standing, plan)
    assert applied.contents(api, standing.namespace)[name] == before[name]
    ours = [write for write in audit.writes(began) if write.user == applied.WRITER and not write.is_dry]
    assert [write for write in ours if write.name.startswith(name)] == []
    return str(found.value)


DEFAULT = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}


@pytest.mark.parametrize("spare_cards", [0])
@pytest.mark.parametrize(
    "selector",
    [{"matchLabels": {"app": "pair"}}, {"matchExpressions": [{"key": "app", "operator": "In", "values": ["pair"]}]}],
)
def test_budget_of_both_pods_of_a_pair_refuses_the_stage(
    api: Api, audit: AuditLog, standing: applied.Standing, selector: Any
) -> None:
    make_budget(api, standing.namespace, "both", selector, minAvailable=2)
    said = refusal(api, audit, standing, applied.plan_of(standing, gaps_allowed=True), "pair")
    assert f"PodDisruptionBudget {standing.namespace}/both (minAvailable=2) allows 0" in said


@pytest.mark.parametrize("spare_cards", [0])
@pytest.mark.parametrize("services", [SINGLES])
def test_single_replica_of_kubernetes_default_strategy_refuses_the_stage_and_recreate_does_not(
    api: Api, audit: AuditLog, standing: applied.Standing
) -> None:
    # Whichever of the two stays on its card has to make room there first, and no card is free for its successor.
    for service in SINGLES:
        set_strategy(api, standing.namespace, service.name, DEFAULT)
    plan = applied.plan_of(standing, gaps_allowed=True)
    standing.tools.guard = Guard(GuardPolicy(gaps_allowed=True))
    said = refusal(api, audit, standing, plan, "single")
    assert ": 1 of 1 pods would be unavailable at once" in said
    for service in SINGLES:
        set_strategy(api, standing.namespace, service.name, {"type": "Recreate", "rollingUpdate": None})
    assert applied.apply_all(standing, plan) == [(StageState.PROMOTED, None)] * len(plan.rollout_stages)


@pytest.mark.parametrize("spare_cards", [0])
@pytest.mark.parametrize("services", [FOUR])
def test_four_replicas_of_kubernetes_default_strategy_never_fall_below_three_ready(
    api: Api, standing: applied.Standing
) -> None:
    set_strategy(api, standing.namespace, "four", DEFAULT)
    standing.tools.guard = Guard(GuardPolicy(gaps_allowed=True))
    before = {pod["metadata"]["name"] for pod in pods(api, standing.namespace, "four")}
    plan = applied.plan_of(standing, gaps_allowed=True)
    with Sampler(api=api, namespace=standing.namespace, least={"four": 3}) as sampler:
        assert applied.apply_all(standing, plan) == [(StageState.PROMOTED, None)] * len(plan.rollout_stages)
        applied.settled(api, standing)
    assert before.isdisjoint(pod["metadata"]["name"] for pod in pods(api, standing.namespace, "four"))
    assert (sampler.breaches, sampler.blindness) == ([], [])


def test_with_one_free_card_no_service_has_a_pod_less_ready_through_apply_and_undo(
    api: Api, standing: applied.Standing
) -> None:
    make_budget(api, standing.namespace, "both", {"matchLabels": {"app": "pair"}}, minAvailable=2)
    set_strategy(api, standing.namespace, "single", DEFAULT)
    plan, before = applied.plan_of(standing), applied.in_use(standing)
    assert plan.totals.surge_cards == 1
    with Sampler(api=api, namespace=standing.namespace, least={"pair": 2, "single": 1}) as sampler:
        assert applied.apply_all(standing, plan) == [(StageState.PROMOTED, None)] * len(plan.rollout_stages)
        applied.settled(api, standing)
        assert len(before) - len(applied.in_use(standing)) == plan.totals.cards_freed > 0
        assert Undo(standing.tools).undo(plan.plan_id).lowered == ()
        applied.settled(api, standing)
    assert len(applied.in_use(standing)) == len(before)
    assert (sampler.breaches, sampler.blindness) == ([], [])
