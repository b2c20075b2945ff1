"""Whole rollouts on the real API server by replicas, instances and claims: carried out, watched, and taken back.

NVIDIA's device plugin and mig-manager are played by what they show of themselves in the API: a node that is labelled
with a configuration offers, after a moment, what that configuration says.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from enforcer.backend import Backend
from enforcer.backends.device_plugin import MIG_CONFIGS, PLUGIN_CONFIGS
from enforcer.backends.dra import DraMigBackend
from enforcer.backends.mig import CONFIG_LABEL as MIG_LABEL
from enforcer.backends.mig import STATE_LABEL, MigBackend, instance_resource
from enforcer.backends.nvidia_sharing import CONFIG_LABEL, MpsBackend, TimeSlicingBackend
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.record.journal import Journal, StageState
from enforcer.record.ledger import Ledger
from enforcer.rollout.pod_mover import MovePolicy
from enforcer.rollout.run_context import RolloutPolicy, RunContext
from enforcer.rollout.stages import Rollout
from enforcer.rollout.undo import Undo
from enforcer.rollout.watch import ClusterSignals
from enforcer.safety.guard import GuardPolicy
from enforcer.snapshot import take_snapshot
from fleet.decisions import Plan, RecommendationKind
from fleet.documents import seal_plan
from tests.cluster import test_counted_cards as counted
from tests.cluster import test_dra_claims as claims
from tests.cluster.api import Api
from tests.cluster.served_admission import ServedAdmission
from tests.cluster.workloads import deployment, pods, until, until_ready
from tests.enforcer.builders import NOW, OpenGuard

pytestmark = pytest.mark.cluster

nodes = counted.nodes
gone_afterwards = claims.gone_afterwards


@pytest.fixture
def cluster(api: Api, admission: ServedAdmission, writer_kubeconfig: Path) -> Iterator[KubernetesCluster]:
    """Return the cluster with the documented writer's rights, and the ConfigMaps of NVIDIA's programs."""
    assert admission is not None
    counted.make_configs(api)
    found = KubernetesCluster(ClusterPlace(kubeconfig=writer_kubeconfig, requests_per_second=500.0, requests_burst=500))
    yield found
    found.close()


class PluginDouble:
    """Offers what nodes are configured to offer.

    Args:
        api: an administrator's hand.
        nodes: names.
    """

    def __init__(self, api: Api, nodes: list[str]) -> None:
        self._api = api
        self._nodes = nodes
        self._told: dict[str, Mapping[str, str]] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(30)

    def _play(self) -> None:
        while not self._end.wait(0.3):
            for node in self._nodes:
                labels = self._api.ask("GET", f"/api/v1/nodes/{node}")["metadata"]["labels"]
                try:
                    offered = self._offered(labels)
                except KeyError:
                    # Its configuration was taken away since its label was read.
                    continue
                if self._told.get(node) != offered:
                    counted.offer(self._api, node, {**counted.MACHINE, **offered})
                    if MIG_LABEL in labels:
                        state = {"metadata": {"labels": {STATE_LABEL: "success"}}}
                        self._api.patch(f"/api/v1/nodes/{node}", state)
                    self._told[node] = offered

    def _offered(self, labels: Mapping[str, str]) -> dict[str, str]:
        if labels.get(CONFIG_LABEL) is not None:
            text = self._data(PLUGIN_CONFIGS[0])[labels[CONFIG_LABEL]]
            sharing = yaml.safe_load(text).get("sharing")
            if sharing is None:
                return {"nvidia.com/gpu": str(counted.CARDS), "nvidia.com/gpu.shared": "0"}
            (section,) = sharing.values()
            replicas = section["resources"][0]["replicas"]
            return {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": str(counted.CARDS * replicas)}
        found = {"nvidia.com/gpu": str(counted.CARDS), "nvidia.com/gpu.shared": "0", "nvidia.com/mig-3g.20gb": "0"}
        if labels.get(MIG_LABEL) is not None:
            layouts = yaml.safe_load(self._data(MIG_CONFIGS[0])["config.yaml"])["mig-configs"][labels[MIG_LABEL]]
            found["nvidia.com/gpu"] = str(sum(len(one["devices"]) for one in layouts if not one["mig-enabled"]))
            for one in layouts:
                for profile, count in one.get("mig-devices", {}).items():
                    found[instance_resource(profile)] = str(count * len(one["devices"]))
        return found

    def _data(self, key: tuple[str, str, str]) -> dict[str, str]:
        data: dict[str, str] = self._api.ask("GET", f"/api/v1/namespaces/{key[1]}/configmaps/{key[2]}")["data"]
        return data


@pytest.fixture
def plugins(api: Api, nodes: list[str]) -> Iterator[PluginDouble]:
    """Play the device plugin and mig-manager of the two nodes."""
    playing = PluginDouble(api, nodes)
    playing.start()
    yield playing
    playing.stop()


def tools_of(cluster: KubernetesCluster, folder: Path, backend: Backend) -> RunContext:
    return RunContext(
        reader=cluster, writer=cluster, lease=cluster, pause=cluster.pause,
        journal=Journal(Ledger(folder / "ledger.jsonl")),
        guard=OpenGuard(GuardPolicy(gaps_allowed=True)),
        signals=ClusterSignals(cluster), dialect=backend.dialect,
        policy=RolloutPolicy(watch_seconds=0.5, moving=MovePolicy(poll_seconds=0.5, placement_seconds_max=60.0)),
    )  # fmt: skip


def sealed(plan: Plan) -> Plan:
    now = datetime.now(UTC)
    history = replace(plan.history, since=now - timedelta(days=7), until=now)
    return seal_plan(replace(plan, plan_id="", created_at=now, expires_at=now + timedelta(days=1), history=history))


def templates(api: Api, namespace: str) -> dict[str, Any]:
    return {
        app: api.ask("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/{app}")["spec"]["template"]["spec"]
        for app in counted.APPS
    }


def written(api: Api, namespace: str, nodes: list[str]) -> list[Any]:
    """Templates, what stands on nodes, and the configurations of the plugin."""
    found = [api.ask("GET", f"/api/v1/nodes/{node}") for node in nodes]
    shown = [
        (one["metadata"]["labels"], one["metadata"].get("annotations"), one["spec"].get("unschedulable"))
        for one in found
    ]
    _, place, name = PLUGIN_CONFIGS[0]
    configs = api.ask("GET", f"/api/v1/namespaces/{place}/configmaps/{name}").get("data")
    return [templates(api, namespace), shown, configs]


def places(api: Api, namespace: str) -> list[str]:
    return sorted(pod["spec"]["nodeName"] for app in counted.APPS for pod in pods(api, namespace, app))


@pytest.mark.parametrize(
    ("backend", "how", "kind"),
    [
        (TimeSlicingBackend(NOW), counted.SLICE, RecommendationKind.SLICE),
        (MigBackend(NOW), counted.INSTANCE, RecommendationKind.MIG),
    ],
)
def test_node_is_emptied_changed_and_filled_and_undo_takes_it_all_back(
    backend: Backend, how: Mapping[str, Any], kind: RecommendationKind, api: Api, namespace: str,
    cluster: KubernetesCluster, nodes: list[str], plugins: PluginDouble, tmp_path: Path,
) -> None:  # fmt: skip
    counted.spread_whole(api, namespace)
    before = templates(api, namespace)
    plan = sealed(counted.on_first_node(cluster, backend, namespace, nodes[0], how, kind))
    tools = tools_of(cluster, tmp_path, backend)
    (result,) = Rollout(tools, backend).apply(plan, by="ann")
    assert result.state is StageState.PROMOTED, result.reason
    assert places(api, namespace) == [nodes[0]] * 4
    for node in nodes:
        assert not api.ask("GET", f"/api/v1/nodes/{node}")["spec"].get("unschedulable")
    held = take_snapshot(cluster, backend.dialect).seats.values()
    assert [seat.pod for seat in held if seat.node == nodes[1]] == [], "four cards are free"
    assert Undo(tools).undo(plan.plan_id).kept == ()
    for app in counted.APPS:
        until_ready(api, namespace, app, 2)
    assert templates(api, namespace) == before
    assert places(api, namespace) == sorted([*nodes, *nodes])


@pytest.mark.parametrize(
    ("backend", "killed_before"),
    [
        (TimeSlicingBackend(NOW), None),
        (MpsBackend(NOW), None),
        (TimeSlicingBackend(NOW), "restore /Node/"),
        (TimeSlicingBackend(NOW), "open "),
    ],
)
def test_pods_of_a_shared_node_leave_it_before_it_hands_out_whole_cards_and_come_back_to_these(
    backend: Backend, killed_before: str | None, api: Api, namespace: str, cluster: KubernetesCluster,
    nodes: list[str], plugins: PluginDouble, tmp_path: Path,
) -> None:  # fmt: skip
    """No card is free: a has no place until its node changes back, b has one on the other node."""
    for app, node, other in zip(counted.APPS, nodes, reversed(nodes), strict=True):
        api.patch(f"/api/v1/nodes/{other}", {"spec": {"unschedulable": True}})
        deployment(
            api, namespace, app, replicas=counted.CARDS, limits={"nvidia.com/gpu": "1"},
            pod_spec={"nodeSelector": {"for": namespace}},
            spec={"strategy": {"rollingUpdate": {"maxUnavailable": "100%"}}},
        )  # fmt: skip
        until_ready(api, namespace, app, counted.CARDS)
        assert {pod["spec"]["nodeName"] for pod in pods(api, namespace, app)} == {node}
        api.patch(f"/api/v1/nodes/{other}", {"spec": {"unschedulable": None}})
    before = written(api, namespace, nodes)
    plan = sealed(counted.on_first_node(cluster, backend, namespace, nodes[0], counted.SLICE, RecommendationKind.SLICE))
    tools = tools_of(cluster, tmp_path, backend)
    tools.policy = replace(tools.policy, canary_workloads=0)
    (result,) = Rollout(tools, backend).apply(plan, by="ann")
    assert result.state is StageState.PROMOTED, result.reason
    assert places(api, namespace) == [nodes[0]] * 2 * counted.CARDS
    undo = Undo(tools)
    if killed_before is not None:

        def stop(what: str) -> None:
            if what.startswith(str(killed_before)):
                raise KeyboardInterrupt(what)

        tools.step = stop
        with pytest.raises(KeyboardInterrupt):
            undo.undo(plan.plan_id)
        undo = Undo(tools_of(cluster, tmp_path, backend))
    found = undo.resume(plan.plan_id) or undo.undo(plan.plan_id)
    assert found.kept == ()
    for app, node in zip(counted.APPS, nodes, strict=True):
        until_ready(api, namespace, app, counted.CARDS)
        assert {pod["spec"]["nodeName"] for pod in pods(api, namespace, app)} == {node}
    assert written(api, namespace, nodes) == before


def test_claims_are_made_and_carried_out_and_undo_gives_whole_cards_back(
    api: Api, namespace: str, cluster: KubernetesCluster, gone_afterwards: None, tmp_path: Path
) -> None:
    backend = DraMigBackend(NOW)
    names = claims.published(api, namespace, 2, is_cut=True)
    claims.whole_cards(api, namespace, {"a": 2, "b": 2})
    before = templates(api, namespace)
    snapshot, _ = claims.seats(cluster, backend, namespace)
    a, b = (claims.slices_of(snapshot, namespace, name, mig_profile="3g.20gb") for name in "ab")
    last = claims.CARDS - 1
    plan = sealed(
        claims.planned(namespace, names, {(0, last): [a[0], b[0]], (1, last): [a[1], b[1]]}, RecommendationKind.MIG, 4)
    )
    tools = tools_of(cluster, tmp_path, backend)
    (result,) = Rollout(tools, backend).apply(plan, by="ann")
    assert result.state is StageState.PROMOTED, result.reason
    wanted = {(name, f"gpu-{last}-mig-{index}") for name in names for index in range(2)}
    until(lambda: claims.held_cards(api, namespace) == wanted, f"claims hold {wanted} alone")
    Undo(tools).undo(plan.plan_id)
    for app in counted.APPS:
        until_ready(api, namespace, app, 2)
    assert templates(api, namespace) == before
    until(lambda: not claims.held_cards(api, namespace) & wanted, "instances are free again")
