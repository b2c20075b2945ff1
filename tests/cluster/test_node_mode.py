"""Nodes put into another mode on the real API server: emptied by eviction, switched, given back, and taken back.

NVIDIA's device plugin and mig-manager are played by the double of `test_rollout_backends`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from enforcer.backends.device_plugin import MIG_CONFIGS, PLUGIN_CONFIGS
from enforcer.backends.node_mode import switch_plan
from enforcer.backends.nvidia_sharing import TimeSlicingBackend
from enforcer.backends.running import RunningBackend
from enforcer.kubernetes.cluster import KubernetesCluster
from enforcer.record.journal import StageState
from enforcer.rollout.run_context import RunContext
from enforcer.rollout.stages import Rollout
from enforcer.rollout.undo import Undo
from fleet.capabilities.nvidia_sharing import TIME_SLICING
from fleet.decisions import Plan
from fleet.errors import Refused
from fleet.node_changes import NodeMode, NodeSwitch
from fleet.settings.settings import Settings
from tests.cluster import test_counted_cards as counted
from tests.cluster import test_rollout_backends as rollouts
from tests.cluster.api import Api
from tests.cluster.workloads import deployment, is_ready, pods, until, until_ready
from tests.control_plane import ControlPlane
from tests.enforcer.builders import NOW
from tests.gputide.conftest import Program, Said

pytestmark = pytest.mark.cluster

cluster = rollouts.cluster
nodes = rollouts.nodes
plugins = rollouts.plugins
BACKEND = TimeSlicingBackend(NOW)
APP, REPLICAS = "web", 3
SWITCHES = [
    (NodeMode.TIME_SLICING, 4, (), {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "16"}),
    (NodeMode.MPS, 2, (), {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "8"}),
    (NodeMode.MIG, None, (("3g.20gb", 2),), {"nvidia.com/gpu": "0", "nvidia.com/mig-3g.20gb": "8"}),
]


@pytest.fixture
def fewest_ready(api: Api, namespace: str) -> Iterator[list[int]]:
    """Return how many pods of the service were ready at every look while a test ran."""
    seen: list[int] = []
    end = threading.Event()

    def look() -> None:
        while not end.wait(0.1):
            seen.append(sum(map(is_ready, pods(api, namespace, APP))))

    looking = threading.Thread(target=look, daemon=True)
    serve(api, namespace)
    looking.start()
    yield seen
    end.set()
    looking.join(30)


def serve(api: Api, namespace: str) -> None:
    """One service on whole cards, of which a budget lets one pod be away."""
    budget = {"minAvailable": REPLICAS - 1, "selector": {"matchLabels": {"app": APP}}}
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    api.create(path, {"metadata": {"name": APP}, "spec": budget})
    deployment(
        api, namespace, APP, replicas=REPLICAS, limits={"nvidia.com/gpu": "1"},
        pod_spec={"nodeSelector": {"for": namespace}, "volumes": [{"name": "cache", "emptyDir": {}}]},
        spec={"strategy": {"type": "Recreate"}},
    )  # fmt: skip
    until_ready(api, namespace, APP, REPLICAS)


def a_switch(node: str, mode: NodeMode, slices: int | None, profiles: tuple[tuple[str, int], ...]) -> Plan:
    switch = NodeSwitch(node=node, mode=mode, slices=slices, profiles=profiles)
    return switch_plan(
        switch, TIME_SLICING, cards=4, cluster="c1", version=None, now=datetime.now(UTC), settings=Settings()
    )  # fmt: skip


def a_rollout(tools: RunContext) -> Rollout:
    return Rollout(tools, RunningBackend(BACKEND, version=None, allows_experimental=True, left_out=None))


def standing(api: Api, node: str) -> dict[str, Any]:
    """What users and plugins wrote of a node and of the configurations, without what only programs read."""
    found = api.ask("GET", f"/api/v1/nodes/{node}")
    data = [api.ask("GET", f"/api/v1/namespaces/{key[1]}/configmaps/{key[2]}").get("data") for key in CONFIGS]
    # mig-manager's own label of its state stays, as the last cut left it.
    labels = {key: value for key, value in found["metadata"]["labels"].items() if not key.endswith("config.state")}
    return {
        "annotations": found["metadata"].get("annotations"), "labels": labels, "spec": found["spec"], "configs": data,
    }  # fmt: skip


CONFIGS = (PLUGIN_CONFIGS[0], MIG_CONFIGS[0])


def offered(api: Api, node: str) -> dict[str, str]:
    allocatable: dict[str, str] = api.ask("GET", f"/api/v1/nodes/{node}")["status"]["allocatable"]
    return {name: count for name, count in allocatable.items() if name.startswith("nvidia.com/")}


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(("mode", "slices", "profiles", "offers"), SWITCHES, ids=[one[0].value for one in SWITCHES])
def test_node_is_emptied_within_budgets_switched_and_taken_back(
    mode: NodeMode, slices: int | None, profiles: tuple[tuple[str, int], ...], offers: dict[str, str], api: Api,
    namespace: str, cluster: KubernetesCluster, nodes: list[str], fewest_ready: list[int], tmp_path: Path,
) -> None:  # fmt: skip
    node = pods(api, namespace, APP)[0]["spec"]["nodeName"]
    until(lambda: len(offered(api, node)) > 1, "the plugin says what it offers")
    before, whole = standing(api, node), offered(api, node)
    tools = rollouts.tools_of(cluster, tmp_path, BACKEND)
    plan = a_switch(node, mode, slices, profiles)
    (result,) = a_rollout(tools).apply(plan, by="ann")
    assert result.state is StageState.PROMOTED, result.reason
    assert {name: offered(api, node)[name] for name in offers} == offers
    assert not api.ask("GET", f"/api/v1/nodes/{node}")["spec"].get("unschedulable")
    until_ready(api, namespace, APP, REPLICAS)
    assert {pod["spec"]["nodeName"] for pod in pods(api, namespace, APP)} == {*nodes} - {node}
    Undo(tools).undo(plan.plan_id)
    assert standing(api, node) == before
    assert offered(api, node) == whole
    assert min(fewest_ready) >= REPLICAS - 1


@pytest.mark.usefixtures("plugins")
def test_node_whose_pods_find_no_room_keeps_its_mode(
    api: Api, namespace: str, cluster: KubernetesCluster, nodes: list[str], tmp_path: Path
) -> None:
    deployment(
        api, namespace, APP, replicas=2 * counted.CARDS, limits={"nvidia.com/gpu": "1"},
        pod_spec={"nodeSelector": {"for": namespace}}, spec={"strategy": {"type": "Recreate"}},
    )  # fmt: skip
    until_ready(api, namespace, APP, 2 * counted.CARDS)
    before = standing(api, nodes[0])
    plan = a_switch(nodes[0], NodeMode.TIME_SLICING, 2, ())
    with pytest.raises(Refused, match=f"no other node has room for {counted.CARDS} of its pods"):
        a_rollout(rollouts.tools_of(cluster, tmp_path, BACKEND)).apply(plan, by="ann")
    assert standing(api, nodes[0]) == before


@pytest.mark.usefixtures("plugins", "cluster")
def test_command_line_asks_for_a_yes_switches_and_takes_back(
    api: Api, namespace: str, nodes: list[str], fewest_ready: list[int], control_plane: ControlPlane,
    writer_kubeconfig: Path, caller: Program, tmp_path: Path,
) -> None:  # fmt: skip
    node = pods(api, namespace, APP)[0]["spec"]["nodeName"]
    until(lambda: len(offered(api, node)) > 1, "the plugin says what it offers")
    before, whole = standing(api, node), offered(api, node)

    def call(*verb: str, kubeconfig: Path = writer_kubeconfig) -> Said:
        chosen = {
            "cluster.name": namespace, "enforcer.cluster": "kubernetes", "enforcer.kubeconfig": kubeconfig,
            "enforcer.backend": BACKEND.capabilities.backend, "enforcer.poll_seconds": 0.5,
            "enforcer.watch_seconds": 1, "enforcer.requests_per_second": 500, "enforcer.requests_burst": 500,
        }  # fmt: skip
        flags = [flag for name, value in chosen.items() for flag in ("--set", f"{name}={value}")]
        return caller(tmp_path / "data", *flags, *verb)

    wanted = ("admin", "node", "mode", node, "time-slicing", "--slices", "4")
    shown = call("admin", "node", "mode", node, "--format", "json")
    assert shown.status == 0, shown.err
    assert shown.document["mode"] == "whole"
    dry = call(*wanted, "--format", "json")
    assert dry.status == 0, dry.err
    (other,) = {*nodes} - {node}
    homes = [(pod["finds_room_on"], pod["disruption_budgets"], pod["data_at_stake"]) for pod in dry.document["leaving"]]
    assert set(homes) == {(other, f"{APP} (allows 1)", "cache (emptied)")}
    assert standing(api, node) == before
    unsaid = call(*wanted, "--yes")
    assert unsaid.status == 4, "the writer may not approve"
    named = re.search(r"gputide plan approve --plan ([0-9a-f]+)", " ".join(unsaid.err.split()))
    assert named is not None, unsaid.err
    approved = call("plan", "approve", "--plan", named[1], kubeconfig=control_plane.kubeconfig())
    assert approved.status == 0, approved.err
    done = call(*wanted, "--yes")
    assert done.status == 0, done.err
    assert offered(api, node)["nvidia.com/gpu.shared"] == str(4 * counted.CARDS)
    undone = call("undo", "--yes", "--plan", named[1])
    assert undone.status == 0, undone.err
    assert standing(api, node) == before
    assert offered(api, node) == whole
    assert min(fewest_ready) >= REPLICAS - 1
