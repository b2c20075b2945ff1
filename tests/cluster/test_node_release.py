"""Emptied nodes handed over to the real Karpenter: they leave, or are given back and it is said why."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from enforcer.backends.nvidia_sharing import TimeSlicingBackend
from enforcer.backends.running import RunningBackend
from enforcer.kubernetes.cluster import KubernetesCluster
from enforcer.machines import machine_of
from enforcer.node_plan import PlanPlace
from enforcer.node_release import RELEASED_ANNOTATION, release_plan
from enforcer.record.journal import StageState
from enforcer.rollout.restore import StageResult
from enforcer.rollout.run_context import RunContext
from enforcer.rollout.stages import Rollout
from fleet.decisions import Plan
from fleet.errors import EXIT_FINDINGS, Refused, Unavailable
from fleet.node_changes import NodeRelease
from fleet.settings.settings import Settings
from gputide.operate.engine_process import stop_process
from tests.cluster import karpenter
from tests.cluster import test_rollout_backends as rollouts
from tests.cluster.api import Api
from tests.cluster.conftest import CACHE, cannot_run
from tests.cluster.workloads import deployment, pods, until, until_ready
from tests.control_plane import ControlPlane
from tests.enforcer.builders import NOW
from tests.engines.go_peers import KarpenterPeer, build_karpenter
from tests.gputide.conftest import Program, Said

pytestmark = pytest.mark.cluster

cluster = rollouts.cluster
nodes = rollouts.nodes
BACKEND = TimeSlicingBackend(NOW)
APP = "web"
NODES = 2


@pytest.fixture(scope="module")
def peer() -> KarpenterPeer:
    if CACHE is None:
        cannot_run("Karpenter was not built: `python tests/run_tiers.py cluster` does it")
    try:
        return build_karpenter(Path(CACHE), tell=print)
    except Unavailable as absence:
        cannot_run(str(absence))


@pytest.fixture(scope="module")
def runs(peer: KarpenterPeer, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run Karpenter."""
    running = karpenter.start_karpenter(peer, control_plane, tmp_path_factory.mktemp("karpenter"))
    yield
    stop_process(running, patience_seconds=5.0)


def a_pool(api: Api, namespace: str, **disruption: Any) -> list[str]:
    """Two nodes of Karpenter's, each with one pod of a service; returns their names, the first one emptied."""
    karpenter.node_pool(api, namespace, disruption=disruption)
    serve(api, namespace, NODES)
    names = [pod["spec"]["nodeName"] for pod in pods(api, namespace, APP)]
    until(lambda: len(karpenter.ready_nodes(api, namespace)) == NODES, "Karpenter's nodes are initialised")
    api.patch(f"/apis/apps/v1/namespaces/{namespace}/deployments/{APP}", {"spec": {"replicas": 1}})
    until_ready(api, namespace, APP, 1)
    kept = pods(api, namespace, APP)[0]["spec"]["nodeName"]
    return [name for name in names if name != kept] + [kept]


def serve(
    api: Api, namespace: str, replicas: int, *, cards: int = karpenter.CARDS, selector: dict[str, str] | None = None
) -> None:
    deployment(
        api, namespace, APP, replicas=replicas, limits={"nvidia.com/gpu": str(cards)},
        pod_spec={"nodeSelector": selector or {"pool": namespace}},
    )  # fmt: skip
    until_ready(api, namespace, APP, replicas)


def a_release(node: str) -> Plan:
    place = PlanPlace(cluster="c1", backend=BACKEND.capabilities.backend, version=None, cards=karpenter.CARDS)
    return release_plan(NodeRelease(node=node), place, datetime.now(UTC), Settings())


def tools_of(cluster: KubernetesCluster, folder: Path, *, seconds_max: float = 120.0) -> RunContext:
    tools = rollouts.tools_of(cluster, folder, BACKEND)
    tools.policy = replace(tools.policy, leave_seconds_max=seconds_max)
    return tools


def released(tools: RunContext, plan: Plan) -> StageResult:
    backend = RunningBackend(
        BACKEND, version=None, allows_experimental=True, left_out=None,
        machine=lambda node: machine_of(node, tools.reader),
    )  # fmt: skip
    (result,) = Rollout(tools, backend).apply(plan, by="ann")
    return result


def node(api: Api, name: str) -> Any:
    return api.ask("GET", f"/api/v1/nodes/{name}")


@pytest.mark.usefixtures("runs")
def test_emptied_node_leaves_with_its_machine_and_the_one_that_serves_stays(
    api: Api, namespace: str, cluster: KubernetesCluster, tmp_path: Path
) -> None:
    empty, serving = a_pool(api, namespace)
    tools = tools_of(cluster, tmp_path)
    with pytest.raises(Refused, match=f"node {serving} is not released: pod {namespace}/{APP}"):
        released(tools, a_release(serving))
    result = released(tools, a_release(empty))
    assert result.state is StageState.PROMOTED, result.reason
    assert [one["metadata"]["name"] for one in karpenter.nodes_of(api, namespace)] == [serving]
    claims = [
        one for one in api.ask("GET", karpenter.CLAIMS)["items"] if one["metadata"]["labels"]["pool"] == namespace
    ]
    assert len(claims) == 1, "the machine went with its node"
    assert len(pods(api, namespace, APP)) == 1
    assert "unschedulable" not in node(api, serving)["spec"]


@contextmanager
def short_pods(api: Api, namespace: str) -> Iterator[None]:
    """Pods of the pool that come every two seconds, are not started again, and are gone after four."""
    end, path = threading.Event(), f"/api/v1/namespaces/{namespace}/pods"
    spec = {
        "containers": [{"name": "main", "image": "registry/none:1"}], "nodeSelector": {"pool": namespace},
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
    }  # fmt: skip

    def play() -> None:
        for number in count():
            api.create(path, {"metadata": {"name": f"short-{number}", "labels": {"app": "short"}}, "spec": spec})
            if number >= 2:
                api.delete(f"{path}/short-{number - 2}")
            if end.wait(2.0):
                return

    playing = threading.Thread(target=play, daemon=True)
    playing.start()
    try:
        yield
    finally:
        end.set()
        playing.join(30)


@pytest.mark.usefixtures("runs")
def test_node_to_which_short_pods_keep_coming_is_closed_to_them_and_leaves(
    api: Api, namespace: str, cluster: KubernetesCluster, tmp_path: Path
) -> None:
    empty, serving = a_pool(api, namespace, consolidateAfter="60s")
    with short_pods(api, namespace):
        until(
            lambda: any(pod["spec"].get("nodeName") == empty for pod in pods(api, namespace, "short")),
            "a short pod runs on the emptied node",
        )
        result = released(tools_of(cluster, tmp_path), a_release(empty))
    assert result.state is StageState.PROMOTED, result.reason
    assert [one["metadata"]["name"] for one in karpenter.nodes_of(api, namespace)] == [serving]


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("mark", ["node", "pod", "budget"])
def test_node_that_may_not_leave_is_said_with_the_reason_and_stays_as_it_was(
    mark: str, api: Api, namespace: str, cluster: KubernetesCluster, tmp_path: Path
) -> None:
    empty, _ = a_pool(api, namespace, consolidateAfter="1h")
    why = held_by(api, namespace, empty, mark)
    before = node(api, empty)
    tools = tools_of(cluster, tmp_path)
    assert why in why_not(tools, a_release(empty))
    after = node(api, empty)
    assert (after["spec"], after["metadata"].get("annotations")) == (before["spec"], before["metadata"]["annotations"])


def why_not(tools: RunContext, plan: Plan) -> str:
    """Why a node is not released: it is refused, or given back."""
    try:
        result = released(tools, plan)
    except Refused as exc:
        return str(exc)
    return "" if result.state is StageState.PROMOTED else str(result.reason)


def held_by(api: Api, namespace: str, name: str, mark: str) -> str:
    """Let something keep a node; returns the reason that is to be said."""
    if mark == "node":
        api.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}})
        return "it is marked karpenter.sh/do-not-disrupt"
    annotations = {"karpenter.sh/do-not-disrupt": "true"} if mark == "pod" else {}
    template = {
        "metadata": {"labels": {"app": "log"}, "annotations": annotations},
        "spec": {"nodeSelector": {"pool": namespace}, "containers": [{"name": "log", "image": "registry/none:1"}]},
    }
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
    api.create(
        path, {"metadata": {"name": "log"}, "spec": {"selector": {"matchLabels": {"app": "log"}}, "template": template}}
    )
    if mark == "budget":
        budget = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "log"}}}
        api.create(
            f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets",
            {"metadata": {"name": "log"}, "spec": budget},
        )
    until(lambda: any(one["spec"].get("nodeName") == name for one in pods(api, namespace, "log")), "its pod runs there")
    return "is marked karpenter.sh/do-not-disrupt" if mark == "pod" else "disruption budget log lets pod"


@pytest.mark.usefixtures("runs")
def test_dearer_machine_in_its_place_gives_the_node_back(
    api: Api, namespace: str, cluster: KubernetesCluster, tmp_path: Path
) -> None:
    empty, _ = a_pool(api, namespace, consolidateAfter="1h")
    tools = tools_of(cluster, tmp_path)
    result = released_while_more_is_wanted(api, namespace, empty, tools)
    assert result.state is StageState.RESTORED
    assert "came in its place, and is not known to be cheaper" in str(result.reason)
    found = node(api, empty)
    assert "unschedulable" not in found["spec"]
    assert RELEASED_ANNOTATION not in found["metadata"]["annotations"]


def released_while_more_is_wanted(api: Api, namespace: str, empty: str, tools: RunContext) -> StageResult:
    """Release a node, and scale the service out as soon as the node is cordoned."""

    def scale() -> None:
        until(lambda: bool(node(api, empty)["spec"].get("unschedulable")), "the node is cordoned")
        api.patch(f"/apis/apps/v1/namespaces/{namespace}/deployments/{APP}", {"spec": {"replicas": NODES}})

    scaling = threading.Thread(target=scale, daemon=True)
    scaling.start()
    result = released(tools, a_release(empty))
    scaling.join(30)
    return result


@pytest.mark.usefixtures("runs")
def test_node_that_nobody_takes_is_given_back_and_undo_does_so_before(
    api: Api, namespace: str, cluster: KubernetesCluster, tmp_path: Path
) -> None:
    empty, _ = a_pool(api, namespace, consolidateAfter="1h")
    before = node(api, empty)
    result = released(tools_of(cluster, tmp_path, seconds_max=3.0), a_release(empty))
    assert result.state is StageState.RESTORED
    assert "Karpenter did not take it" in str(result.reason)
    after = node(api, empty)
    assert (after["spec"], after["metadata"]["annotations"]) == (before["spec"], before["metadata"]["annotations"])


@pytest.mark.usefixtures("cluster")
def test_command_line_closes_own_machines_that_nobody_needs_and_says_of_the_others_why_not(
    api: Api, namespace: str, nodes: list[str], control_plane: ControlPlane, caller: Program, tmp_path: Path
) -> None:
    serve(api, namespace, 1, cards=1, selector={"for": namespace})
    serving = pods(api, namespace, APP)[0]["spec"]["nodeName"]
    (empty,) = {*nodes} - {serving}
    spec = {
        "containers": [{"name": "main", "image": "registry/none:1"}], "nodeName": empty, "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
    }  # fmt: skip
    short = f"/api/v1/namespaces/{namespace}/pods"
    api.create(short, {"metadata": {"name": "short"}, "spec": spec})

    def call(*verb: str) -> Said:
        chosen = {
            "cluster.name": namespace, "enforcer.cluster": "kubernetes",
            "enforcer.kubeconfig": control_plane.kubeconfig(), "enforcer.backend": BACKEND.capabilities.backend,
            "enforcer.poll_seconds": 0.5, "enforcer.watch_seconds": 1, "enforcer.requests_per_second": 500,
            "enforcer.requests_burst": 500,
        }  # fmt: skip
        flags = [flag for name, value in chosen.items() for flag in ("--set", f"{name}={value}")]
        return caller(tmp_path / "data", *flags, *verb, "--format", "json")

    shown = call("admin", "node", "release", serving, empty)
    assert shown.status == 0, shown.err
    said = {one["node"]: one["would_be_released"] for one in shown.document["releases"]}
    assert said[empty] == "yes"
    assert f"pod {namespace}/{APP}" in said[serving]
    assert not node(api, empty)["spec"].get("unschedulable")

    def end() -> None:
        until(lambda: bool(node(api, empty)["spec"].get("unschedulable")), "the node is cordoned")
        api.delete(f"{short}/short")

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    done = call("admin", "node", "release", serving, empty, "--yes")
    ending.join(30)
    assert (done.document["released"], done.document["asked"], done.status) == (1, 2, EXIT_FINDINGS), done.out
    assert node(api, empty)["spec"]["unschedulable"]
    assert not node(api, serving)["spec"].get("unschedulable")
    (undo,) = [one["undo"] for one in done.document["releases"] if one["undo"]]
    undone = call(*undo.split()[1:], "--yes")
    assert undone.status == 0, undone.err
    assert not node(api, empty)["spec"].get("unschedulable")
