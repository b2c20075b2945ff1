"""mGPU's own rules: the policy of a node, online beside offline, cards that only a number tells."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from enforcer.backends.mgpu import MGPU_DIALECT, MgpuBackend
from enforcer.backends.running import RunningBackend
from enforcer.manifest import Manifest, set_field, template_of
from enforcer.snapshot import take_snapshot
from fleet.capabilities.register import CorePolicy
from fleet.decisions import Need, Plan, RecommendationKind
from fleet.errors import Corrupt, Refused
from fleet.inventory import Priority
from tests.enforcer.builders import NOW, a_plan, a_recommendation, a_slice
from tests.enforcer.kin_cluster import CARD_MIB, MGPU, a_kin_cluster
from tests.enforcer.plugin_cluster import StandingCluster
from tests.enforcer.test_backend_kin import PAIR, a_share, colocate, slice_

CORE = "vke.volcengine.com/mgpu-core"
OFFLINE_CORE = "vke.volcengine.com/reclaimed-mgpu-core"
MEMORY = "vke.volcengine.com/mgpu-memory"
POLICY = "vke.volcengine.com/mgpu-compute-policy"
LOW = Priority.LOW


def on_card_0(*slices: Any, kind: RecommendationKind = RecommendationKind.COLOCATE) -> Plan:
    pods = [part.pod for part in slices]
    owners = sorted({f"Deployment/{pod.rsplit('-', 1)[0]}" for pod in pods})
    return a_plan({0: slices}, [[a_recommendation("x", kind, pods, owners, len(pods) - 1)]])


def refused(plan: Plan, cluster: StandingCluster) -> str:
    with pytest.raises(Refused) as found:
        MgpuBackend(NOW).render(plan, 1, take_snapshot(cluster, MGPU_DIALECT))
    return str(found.value)


def one_of_each() -> StandingCluster:
    """Every service has one pod only."""
    return StandingCluster(
        manifest
        for kind in ("Node", "Deployment", "Notebook", "Job", "Pod")
        for manifest in a_kin_cluster(MGPU).list_objects(kind)
        if kind != "Pod" or manifest["metadata"]["name"].endswith("-0")
    )


def labelled(policy: str) -> StandingCluster:
    cluster = one_of_each()
    for name in ("node-0", "node-1"):
        _node(cluster, name)["metadata"]["labels"][POLICY] = policy
    return cluster


def _node(cluster: StandingCluster, name: str) -> Manifest:
    node = cluster.get("Node", "", name)
    assert node is not None
    return node


def test_two_deployments_share_a_card_online_before_offline() -> None:
    """The pair of a co-location: the online one keeps its cores, the offline one is lent what those leave idle."""
    cluster = a_kin_cluster(MGPU)
    plan = colocate()
    for change in MgpuBackend(NOW).render(plan, 1, take_snapshot(cluster, MGPU_DIALECT)).changes:
        found = cluster.get(change.kind, change.namespace, change.name)
        assert found is not None
        set_field(found, change.field, change.new)
    templates = {}
    for name in "ab":
        owner = cluster.get("Deployment", "team", name)
        assert owner is not None
        template = template_of(owner)
        annotations = {
            key: value for key, value in template["metadata"]["annotations"].items() if not key.startswith("gputide")
        }
        templates[name] = annotations, template["spec"]["containers"][0]["resources"]["limits"]
    assert templates == {
        "a": ({POLICY: "fixed-share"}, {CORE: "40", MEMORY: "12288"}),
        "b": (
            {POLICY: "fixed-share", "katalyst.kubewharf.io/qos_level": "reclaimed_cores"},
            {OFFLINE_CORE: "40", MEMORY: "12288"},
        ),
    }


def test_online_and_offline_deployments_are_as_reviewed() -> None:
    """Both owners whole, as they stand once a co-location is applied."""
    cluster = a_kin_cluster(MGPU)
    plan = colocate()
    for change in MgpuBackend(NOW).render(plan, 1, take_snapshot(cluster, MGPU_DIALECT)).changes:
        found = cluster.get(change.kind, change.namespace, change.name)
        assert found is not None
        set_field(found, change.field, change.new)
    owners = [cluster.get("Deployment", "team", name) for name in "ab"]
    text = yaml.safe_dump_all(owners, sort_keys=True, width=120).replace(plan.plan_id, "PLAN")
    path = Path(__file__).parent / "golden" / "mgpu" / "online_offline.yaml"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_whole_cards_ask_for_no_framebuffer() -> None:
    """The webhook refuses framebuffer beside a multiple of 100 cores."""
    plan = on_card_0(a_slice("a-0", framebuffer_bytes=CARD_MIB * 2**20), kind=RecommendationKind.REHOME)
    stage = MgpuBackend(NOW).render(plan, 1, take_snapshot(a_kin_cluster(MGPU), MGPU_DIALECT))
    assert stage.moves == ()


def test_share_of_all_cores_is_refused() -> None:
    """A multiple of 100 means whole cards, beside which its webhook takes no framebuffer."""
    plan = on_card_0(a_share("a-0", compute_ratio=1.0, framebuffer_bytes=2**32), kind=RecommendationKind.SLICE)
    with pytest.raises(Refused, match="more than 99 % is the card whole"):
        MgpuBackend(NOW).render(plan, 1, take_snapshot(one_of_each(), MGPU_DIALECT))


@pytest.mark.parametrize(
    ("plan", "policy", "fact"),
    [
        (on_card_0(a_slice("a-0"), a_share("b-0", priority=LOW)), "fixed-share", "its policy is fixed-share; label"),
        (
            on_card_0(a_share("a-0"), a_share("b-0")),
            "guaranteed-burst-share",
            "its policy is guaranteed-burst-share, and a pod's must be the same",
        ),
        (
            on_card_0(a_slice("a-0"), a_slice("b-0", priority=LOW)),
            "native-burst-share",
            "works only with fixed-share or guaranteed-burst-share",
        ),
        (on_card_0(a_share("a-0", framebuffer_bytes=2**27), a_share("b-0")), "fixed-share", "is at least 256"),
        (
            on_card_0(a_share("a-0", framebuffer_bytes=2**34), a_share("b-0", framebuffer_bytes=2**34)),
            "fixed-share",
            "framebuffer of offline work is not pre-empted",
        ),
    ],
)
def test_what_its_rules_forbid_is_refused(plan: Plan, policy: str, fact: str) -> None:
    assert fact in refused(plan, labelled(policy))


def test_bursting_online_and_offline_work_share_a_guaranteed_node() -> None:
    plan = on_card_0(a_slice("a-0"), a_slice("b-0", priority=LOW))
    stage = MgpuBackend(NOW).render(plan, 1, take_snapshot(labelled("guaranteed-burst-share"), MGPU_DIALECT))
    assert {move.pod: (move.new[0].resource, move.new[0].core_percent) for move in stage.moves} == {
        "a-0": (CORE, 50),
        "b-0": (OFFLINE_CORE, 50),
    }


def test_node_of_nvidias_plugin_is_not_shared() -> None:
    cluster = a_kin_cluster(MGPU)
    _node(cluster, "node-0")["metadata"]["labels"]["vke.node.gpu.schedule"] = "nvidia"
    assert "is 'nvidia', not 'mgpu'" in refused(slice_(), cluster)


def test_seventeenth_container_of_a_card_is_refused() -> None:
    """Sixteen containers are the most that the driver runs on one card."""
    parts = [
        replace(a_share(f"a-{number}", compute_ratio=0.05, framebuffer_bytes=2**30, core_policy=CorePolicy.BURST))
        for number in range(17)
    ]
    plan = on_card_0(*parts, kind=RecommendationKind.SLICE)
    cluster = labelled("guaranteed-burst-share")
    pod = cluster.get("Pod", "team", "a-0")
    assert pod is not None
    for number in range(1, 17):
        cluster.put({**pod, "metadata": {**pod["metadata"], "name": f"a-{number}"}})
    assert "maxContainersPerCard is 16" in refused(plan, cluster)


def test_pod_of_several_cards_is_not_co_located() -> None:
    parts = {0: [a_share("a-0"), a_share("b-0")], 1: [a_share("a-0")]}
    plan = a_plan(parts, [[a_recommendation("x", RecommendationKind.COLOCATE, ["a-0", "b-0"], PAIR, 1)]])
    assert "a pod of several cards is not co-located" in refused(plan, a_kin_cluster(MGPU))


def test_replicas_with_different_shares_are_refused() -> None:
    parts = [a_share("a-0"), a_share("a-1", framebuffer_bytes=2**32)]
    assert "cannot give replicas of a different shares" in refused(on_card_0(*parts), a_kin_cluster(MGPU))


def test_job_keeps_its_share() -> None:
    plan = a_plan(
        {0: [a_share("a-0"), a_share("train-0", kind="Job", priority=LOW)]},
        [[a_recommendation("x", RecommendationKind.COLOCATE, ["a-0", "train-0"], ["Deployment/a", "Job/train"], 1)]],
    )
    assert "cannot give Job train another share" in refused(plan, one_of_each())


def a_pod(limits: dict[str, str], annotations: dict[str, str] | None = None) -> Manifest:
    pod = a_kin_cluster(MGPU).get("Pod", "team", "a-0")
    assert pod is not None
    pod["spec"]["containers"][0]["resources"]["limits"] = limits
    pod["metadata"]["annotations"] = annotations or {}
    return pod


@pytest.mark.parametrize(
    ("limits", "annotations", "shares"),
    [
        ({CORE: "100"}, {}, [(0, 100)]),
        ({CORE: "200"}, {}, [(0, 100)] * 2),
        ({CORE: "30", MEMORY: "4096"}, {}, [(4096, 30)]),
        ({CORE: "60", MEMORY: "4096"}, {"vke.volcengine.com/container-multiple-gpu": "2,1"}, [(2048, 30)] * 2),
        ({OFFLINE_CORE: "30", MEMORY: "4k"}, {}, [(4000, 30)]),
        ({MEMORY: "4096"}, {}, []),
    ],
)
def test_shares_are_read_from_what_containers_ask_for(
    limits: dict[str, str], annotations: dict[str, str], shares: list[tuple[int, int]]
) -> None:
    found = MGPU_DIALECT.slices_of_pod(a_pod(limits, annotations))
    assert [(part.framebuffer_mib, part.core_percent) for part in found] == shares


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        ({CORE: "lots"}, {}),
        ({CORE: "-100"}, {}),
        ({CORE: "99999999999"}, {}),
        ({CORE: "30", MEMORY: "0.5"}, {}),
        ({CORE: "30"}, {"vke.volcengine.com/container-multiple-gpu": "2,-1"}),
        ({CORE: "30"}, {"vke.volcengine.com/container-multiple-gpu": "," * 9000}),
    ],
)
def test_nonsense_is_corrupt(limits: dict[str, str], annotations: dict[str, str]) -> None:
    with pytest.raises(Corrupt):
        MGPU_DIALECT.slices_of_pod(a_pod(limits, annotations))


def test_cards_of_a_node_are_counted_from_what_it_offers() -> None:
    cards = MGPU_DIALECT.cards_of_node(_node(a_kin_cluster(MGPU), "node-0"))
    assert [(card.card, card.framebuffer_mib) for card in cards] == [
        (f"node-0/{CORE}/{number}", CARD_MIB) for number in range(4)
    ]


def test_service_joins_low_priority_only_where_that_says_that_it_is() -> None:
    service, low = a_share("a-0"), a_share("c-0", priority=LOW)
    first = a_recommendation("small", RecommendationKind.SLICE, ["c-0"], ["Deployment/c"], 0)
    join = a_recommendation("join", RecommendationKind.COLOCATE, ["a-0"], ["Deployment/a"], 1)
    plan = a_plan({0: [service, low]}, [[first], [replace(join, needs=(Need.PRIORITY,))]])
    cluster = one_of_each()
    backend = RunningBackend(MgpuBackend(NOW), version=None, allows_experimental=True, left_out=None)
    with pytest.raises(Refused, match=r"team/c-0, which sits there, does not say .* until stage 1 is applied"):
        backend.render(plan, 2, take_snapshot(cluster, MGPU_DIALECT))
    for kind, name in (("Pod", "c-0"), ("Deployment", "c")):
        manifest = cluster.get(kind, "team", name)
        assert manifest is not None
        annotations = template_of(manifest)["metadata"] if kind == "Deployment" else manifest["metadata"]
        annotations.setdefault("annotations", {})["katalyst.kubewharf.io/qos_level"] = "reclaimed_cores"
    assert backend.render(plan, 2, take_snapshot(cluster, MGPU_DIALECT)).changes
