"""Containers beside a pod's first: cards of init containers are in no plan, and several may share one card."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from enforcer.backend import Backend, RenderedStage
from enforcer.backends.dra import DraSharedBackend
from enforcer.backends.kai import KaiBackend
from enforcer.backends.whole_cards import WholeCardsBackend
from enforcer.snapshot import take_snapshot
from fleet.capabilities.register import CorePolicy
from fleet.decisions import CardPlacement, PlacedSlice, Plan, RecommendationKind
from fleet.errors import Refused
from tests.enforcer.builders import CARD_BYTES, HALF, NOW, a_plan, a_recommendation, a_slice
from tests.enforcer.kin_cluster import EFFECTIVE_GPU, HAMI, KINS, VGPU_MANAGER, VOLCANO, Kin, a_kin_cluster
from tests.enforcer.plugin_cluster import StandingCluster, a_node, a_pod, an_owner

HARD = CorePolicy.HARD


def a_plan_of(*slices: PlacedSlice, kind: RecommendationKind = RecommendationKind.SLICE) -> Plan:
    pods = list(dict.fromkeys(part.pod for part in slices))
    return a_plan({0: list(slices)}, [[a_recommendation("x", kind, pods, ["Deployment/a"], 0)]])


def rendered(backend: Backend, cluster: StandingCluster, plan: Plan) -> RenderedStage:
    plan = replace(plan, backend=backend.capabilities.backend)
    return backend.render(plan, 1, take_snapshot(cluster, backend.dialect))


@pytest.mark.parametrize("restart_policy", [None, "Always"])
@pytest.mark.parametrize("kin", KINS, ids=lambda kin: str(kin.name))
def test_init_container_that_asks_for_cards_is_no_part_of_a_plan(kin: Kin, restart_policy: str | None) -> None:
    cluster = a_kin_cluster(kin)
    owner = cluster.get("Deployment", "team", "a")
    assert owner is not None
    warm: dict[str, Any] = {"name": "warm", "resources": {"limits": dict(kin.limits)}, "restartPolicy": restart_policy}
    owner["spec"]["template"]["spec"]["initContainers"] = [{"name": "fetch"}, warm]
    shares = [a_slice(pod, core_policy=HARD, compute_ratio=0.4) for pod in ("a-0", "a-1")]
    with pytest.raises(Refused, match="Deployment team/a: its init container warm asks for cards"):
        rendered(kin.backend, cluster, a_plan_of(*shares))
    del warm["resources"]
    assert rendered(kin.backend, cluster, a_plan_of(*shares)).changes


@pytest.mark.parametrize(
    ("kin", "value", "is_refused"),
    [
        (HAMI, "true", True),
        (HAMI, "1", True),
        (HAMI, "false", False),
        (EFFECTIVE_GPU, "True", True),
        (VOLCANO, "false", True),
        (VGPU_MANAGER, "true", False),
    ],
)
def test_container_that_switches_its_limits_off_gets_no_share(kin: Kin, value: str, is_refused: bool) -> None:
    cluster = a_kin_cluster(kin)
    owner = cluster.get("Deployment", "team", "a")
    assert owner is not None
    server = next(entry for entry in owner["spec"]["template"]["spec"]["containers"] if entry["name"] == "server")
    server["env"] = [{"name": "CUDA_DISABLE_CONTROL", "value": value}]
    plan = a_plan_of(*(a_slice(pod, core_policy=HARD, compute_ratio=0.4) for pod in ("a-0", "a-1")))
    if is_refused:
        with pytest.raises(Refused, match="container server sets CUDA_DISABLE_CONTROL, with which no limit holds"):
            rendered(kin.backend, cluster, plan)
    else:
        assert rendered(kin.backend, cluster, plan).changes


@pytest.mark.parametrize("kin", [HAMI, VOLCANO], ids=lambda kin: kin.name)
@pytest.mark.parametrize(
    ("entry", "is_refused"),
    [
        ({"value": "disable"}, True),
        ({"value": "DISABLE"}, True),
        ({"valueFrom": {"configMapKeyRef": {"name": "mine", "key": "policy"}}}, True),
        ({"value": "force"}, False),
        ({"value": "default"}, False),
    ],
)
def test_job_that_lifts_its_own_limit_gets_no_share(kin: Kin, entry: dict[str, Any], is_refused: bool) -> None:
    cluster = a_kin_cluster(kin)
    owner = cluster.get("Job", "team", "train")
    assert owner is not None
    server = next(one for one in owner["spec"]["template"]["spec"]["containers"] if one["name"] == "server")
    server["env"] = [*server.get("env", ()), {"name": "GPU_CORE_UTILIZATION_POLICY", **entry}]
    plan = a_plan_of(a_slice("train-0", kind="Job", core_policy=HARD, compute_ratio=0.4))
    if is_refused:
        with pytest.raises(Refused, match="sets GPU_CORE_UTILIZATION_POLICY, with which no limit holds"):
            rendered(kin.backend, cluster, plan)
    else:
        assert rendered(kin.backend, cluster, plan).moves


@pytest.mark.parametrize("backend", [KaiBackend(NOW), DraSharedBackend(NOW)], ids=["kai", "dra_shared"])
def test_init_container_that_asks_the_device_plugin_would_keep_a_card_of_its_own(backend: Backend) -> None:
    warm = {"name": "warm", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"schedulerName": "kai-scheduler", "initContainers": [warm]}
    owner = an_owner("a", template={"labels": {"kai.scheduler/queue": "team"}}, spec=spec)
    cluster = StandingCluster([a_node("node-0"), owner, *(a_pod("a", number, "node-0") for number in range(2))])
    with pytest.raises(Refused, match="Deployment team/a: its init container warm asks for cards"):
        rendered(backend, cluster, a_plan_of(*(a_slice(pod, framebuffer_bytes=HALF // 2) for pod in ("a-0", "a-1"))))


def test_init_container_hinders_no_move_that_leaves_what_its_pod_asks_for() -> None:
    warm = {"name": "warm", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    cluster = StandingCluster(
        [a_node("node-0"), a_node("node-1"), an_owner("a", spec={"initContainers": [warm]}), a_pod("a", 0, "node-1")]
    )
    plan = a_plan_of(a_slice("a-0", framebuffer_bytes=CARD_BYTES), kind=RecommendationKind.REHOME)
    assert rendered(WholeCardsBackend(NOW), cluster, plan).moves


@pytest.mark.parametrize("kin", [HAMI, EFFECTIVE_GPU, VOLCANO, VGPU_MANAGER], ids=lambda kin: str(kin.name))
def test_containers_of_one_pod_can_not_hold_more_cores_than_their_card_has(kin: Kin) -> None:
    plan = a_plan_of(a_slice("a-0", framebuffer_bytes=HALF // 2, core_policy=HARD, compute_ratio=0.6))
    placement = tuple(_with_second_container(card) for card in plan.placement)
    with pytest.raises(Refused, match="120 % of cores"):
        rendered(kin.backend, a_kin_cluster(kin), replace(plan, placement=placement))


def _with_second_container(card: CardPlacement) -> CardPlacement:
    return replace(card, slices=(*card.slices, *(replace(part, container="second") for part in card.slices)))
