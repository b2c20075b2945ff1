"""Replicas and instances on the real scheduler: pods come to the planned nodes alone, and freed nodes stay free."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from enforcer.backend import Backend, RenderedStage
from enforcer.backends.device_plugin import MIG_CONFIGS, PLUGIN_CONFIGS
from enforcer.backends.mig import MigBackend
from enforcer.backends.nvidia_sharing import MpsBackend, TimeSlicingBackend
from enforcer.backends.whole_cards import WholeCardsBackend
from enforcer.cluster import FieldChange
from enforcer.kubernetes.admission_review import UNSEEN_SECONDS_MAX
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.snapshot import take_snapshot
from fleet.decisions import CardPlacement, PlacedSlice, Plan, RecommendationKind
from fleet.inventory import CardId, CardModelName, WorkloadId
from fleet.units import GIB
from tests.cluster.api import Api
from tests.cluster.workloads import deployment, pods, until, until_ready
from tests.control_plane import ControlPlane
from tests.enforcer.builders import NOW, a_plan, a_recommendation, a_slice

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("admission")]

CARDS = 4
APPS = ("a", "b")
LABELS = {
    "nvidia.com/gpu.count": str(CARDS),
    "nvidia.com/gpu.memory": "40960",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
    "nvidia.com/mig.strategy": "mixed",
}
MACHINE = {"cpu": "64", "memory": "512Gi", "pods": "110"}
INSTANCE: Mapping[str, Any] = {"mig_profile": "3g.20gb"}
SLICE: Mapping[str, Any] = {"framebuffer_bytes": 19 * GIB, "compute_ratio": 0.5}


@pytest.fixture
def cluster(control_plane: ControlPlane, api: Api) -> Iterator[KubernetesCluster]:
    """Return the cluster with an administrator's rights, and the ConfigMaps of NVIDIA's programs."""
    make_configs(api)
    place = ClusterPlace(kubeconfig=control_plane.kubeconfig(), requests_per_second=500.0, requests_burst=500)
    found = KubernetesCluster(place)
    yield found
    found.close()


def make_configs(api: Api) -> None:
    """Makes the ConfigMaps of NVIDIA's programs, where they are not there yet."""
    for _, namespace, name in (PLUGIN_CONFIGS[0], MIG_CONFIGS[0]):
        api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        data = {} if name == PLUGIN_CONFIGS[0][2] else {"config.yaml": "version: v1\nmig-configs: {}\n"}
        api.create(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": name}, "data": data})


@pytest.fixture
def nodes(api: Api, namespace: str) -> Iterator[list[str]]:
    """Return two nodes of four cards each, which take nobody else's pods."""
    names = [f"{namespace}-{number}" for number in range(2)]
    for name in names:
        api.node(name, cards=CARDS, labels={**LABELS, "for": namespace, "kubernetes.io/hostname": name})
    yield names
    for name in names:
        api.delete(f"/api/v1/nodes/{name}")


def offer(api: Api, node: str, resources: Mapping[str, str]) -> None:
    """Plays the device plugin: what a node has to give from now on."""
    api.patch(f"/api/v1/nodes/{node}/status", {"status": {"capacity": resources, "allocatable": resources}})


def spread_whole(api: Api, namespace: str) -> None:
    """Two Deployments with a whole card per pod, on both nodes."""
    for app in APPS:
        spread = {
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": app}},
        }  # fmt: skip
        deployment(
            api, namespace, app, replicas=2, limits={"nvidia.com/gpu": "1"},
            pod_spec={"nodeSelector": {"for": namespace}, "topologySpreadConstraints": [spread]},
            spec={"strategy": {"type": "Recreate"}},
        )  # fmt: skip
        until_ready(api, namespace, app, 2)


def on_first_node(cluster: KubernetesCluster, backend: Backend, namespace: str, node: str, how: Mapping[str, Any],
                  kind: RecommendationKind) -> Plan:  # fmt: skip
    """All pods of a and b on cards of one node, one of each on each card."""
    snapshot = take_snapshot(cluster, backend.dialect)
    parts: dict[str, list[PlacedSlice]] = {}
    for app in APPS:
        workload = WorkloadId(f"{namespace}/Deployment/{app}")
        parts[app] = [
            replace(a_slice("x-0"), namespace=namespace, pod=seat.pod, workload=workload, **how)
            for seat in snapshot.pods[workload]
        ]
    named = tuple(part.pod_id for group in parts.values() for part in group)
    freed = len(parts["b"])
    stage = replace(a_recommendation("x", kind, [], [], freed), pods=named)
    pairs = dict(enumerate(map(list, zip(parts["a"], parts["b"], strict=True))))
    plan = a_plan(pairs, [[stage]], cards_before=2 * freed)
    cards: list[CardPlacement] = [
        replace(card, node=node, card_model=CardModelName("NVIDIA A100-SXM4-40GB"), framebuffer_bytes=40 * GIB)
        for card in plan.placement
    ]
    return replace(plan, placement=tuple(cards))


def write(cluster: KubernetesCluster, stage: RenderedStage) -> None:
    """Writes a stage's changes, object by object."""
    for key in dict.fromkeys((change.kind, change.namespace, change.name) for change in stage.changes):
        current = cluster.get(*key)
        assert current is not None
        own = [entry for entry in stage.changes if (entry.kind, entry.namespace, entry.name) == key]
        fields = [FieldChange(field=entry.field, value=entry.new) for entry in own]
        cluster.patch(*key, fields, current["metadata"]["resourceVersion"])


def places(api: Api, namespace: str) -> list[str | None]:
    """Return the node of each pod, None while it waits for one."""
    return [pod["spec"].get("nodeName") for app in APPS for pod in pods(api, namespace, app)]


@pytest.mark.parametrize(
    ("backend", "how", "kind"),
    [
        (TimeSlicingBackend(NOW), SLICE, RecommendationKind.SLICE),
        (MpsBackend(NOW), SLICE, RecommendationKind.SLICE),
        (MigBackend(NOW), INSTANCE, RecommendationKind.MIG),
    ],
)
def test_pods_come_to_the_planned_node_and_the_other_is_free(
    backend: Backend, how: Mapping[str, Any], kind: RecommendationKind, api: Api, namespace: str,
    cluster: KubernetesCluster, nodes: list[str],
) -> None:  # fmt: skip
    spread_whole(api, namespace)
    plan = on_first_node(cluster, backend, namespace, nodes[0], how, kind)
    # The pods of the other node are moved, those of this one restarted: nobody else is on it.
    stage = backend.render(plan, 1, take_snapshot(cluster, backend.dialect))
    (step,) = stage.node_steps
    assert step.node == nodes[0]
    assert len(step.leaving) == 2
    write(cluster, stage)
    promised = {field.partition("[")[2].rstrip("]"): value for field, value in step.advertised}
    if step.done_field is not None and step.done_field.startswith("status.allocatable["):
        promised |= {step.done_field.partition("[")[2].rstrip("]"): step.done_value or "", "nvidia.com/gpu": "0"}
    offer(api, nodes[0], {**MACHINE, **promised})
    until(lambda: places(api, namespace) == [nodes[0]] * 4, "all four sit on the planned node")
    for app in APPS:
        until_ready(api, namespace, app, 2)
    asked = {
        resource
        for app in APPS
        for pod in pods(api, namespace, app)
        for resource in pod["spec"]["containers"][0]["resources"]["limits"]
    }
    assert len(asked) == 1
    assert int(promised[asked.pop()]) >= 4
    held = [seat.pod for seat in take_snapshot(cluster, backend.dialect).seats.values() if seat.node == nodes[1]]
    assert held == [], "the other node's four cards are free"


def test_whole_cards_come_to_the_planned_node_and_the_other_is_free(
    api: Api, namespace: str, cluster: KubernetesCluster, nodes: list[str]
) -> None:
    backend = WholeCardsBackend(NOW)
    spread_whole(api, namespace)
    whole: Mapping[str, Any] = {"framebuffer_bytes": 40 * GIB, "compute_ratio": 1.0}
    shared = on_first_node(cluster, backend, namespace, nodes[0], whole, RecommendationKind.REHOME)
    parts = [part for card in shared.placement for part in card.slices]
    plan = replace(
        shared,
        placement=tuple(
            replace(shared.placement[0], card=CardId(f"{nodes[0]}/{number}"), slices=(part,))
            for number, part in enumerate(parts)
        ),
    )
    write(cluster, backend.render(plan, 1, take_snapshot(cluster, backend.dialect)))
    until(lambda: places(api, namespace) == [nodes[0]] * 4, "all four sit on the planned node")
    for app in APPS:
        until_ready(api, namespace, app, 2)
    asked = [pod["spec"]["containers"][0]["resources"]["limits"] for app in APPS for pod in pods(api, namespace, app)]
    assert asked == [{"nvidia.com/gpu": "1"}] * 4


def test_freed_node_stays_free_when_replicas_are_made_anew(
    api: Api, namespace: str, cluster: KubernetesCluster, nodes: list[str]
) -> None:
    backend = TimeSlicingBackend(NOW)
    spread_whole(api, namespace)
    plan = on_first_node(cluster, backend, namespace, nodes[0], SLICE, RecommendationKind.SLICE)
    stage = backend.render(plan, 1, take_snapshot(cluster, backend.dialect))
    write(cluster, stage)
    # Both nodes could give replicas; what admission writes on the pods keeps them off the other.
    for node in nodes:
        offer(
            api,
            node,
            {"nvidia.com/gpu.shared": "8", "nvidia.com/gpu": "4", "cpu": "64", "memory": "512Gi", "pods": "110"},
        )
    for app in APPS:
        until_ready(api, namespace, app, 2)
    victim = pods(api, namespace, "a")[0]["metadata"]["name"]
    time.sleep(UNSEEN_SECONDS_MAX)  # so long a seat that was given counts as taken
    cluster.evict(namespace, victim)
    until(lambda: victim not in {pod["metadata"]["name"] for pod in pods(api, namespace, "a")}, "the pod is gone")
    until(lambda: places(api, namespace) == [nodes[0]] * 4, "its successor sits on the planned node too")
    until_ready(api, namespace, "a", 2)
