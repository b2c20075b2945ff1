"""The node agent's actions on the real API server, with the rights that its page documents and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from enforcer.agent.hami_node_actions import HamiNodeActions
from enforcer.agent.live_limits import WantedLimit
from enforcer.agent.node_view import ContainerKey, SliceView
from enforcer.agent.watermark import Shortage
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from fleet.errors import Misconfigured
from fleet.inventory import Priority
from fleet.units import MIB
from tests.cluster.api import Api
from tests.control_plane import ControlPlane
from tests.waiting import until

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "agent.yaml"
NODE = "node-agent"
CARD = "GPU-00000000-0000-0000-0000-000000000001"
ALLOCATED = "hami.io/vgpu-devices-allocated"


@pytest.fixture
def kubeconfig(control_plane: ControlPlane, api: Api) -> Path:
    """Return a kubeconfig of the documented agent."""
    for manifest in yaml.safe_load_all(PAGE.read_text(encoding="utf-8")):
        if manifest["kind"] != "DaemonSet":
            api.apply(manifest)
    return control_plane.kubeconfig_of_token("agent", api.token("gputide", "gputide-agent"))


@pytest.fixture
def cluster(kubeconfig: Path) -> Iterator[KubernetesCluster]:
    opened = KubernetesCluster(ClusterPlace(kubeconfig=kubeconfig))
    yield opened
    opened.close()


@pytest.fixture
def pod(api: Api, namespace: str) -> str:
    """Return a pod that runs on the agent's node, with HAMi's record of its grant."""
    api.node(NODE)
    manifest = {
        "metadata": {"name": "low", "annotations": {ALLOCATED: f"{CARD},NVIDIA,8000,30:;"}},
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "none"}]},
    }
    api.create(f"/api/v1/namespaces/{namespace}/pods", manifest)
    return "low"


def test_card_is_closed_and_opened_again(cluster: KubernetesCluster, api: Api, pod: str) -> None:
    assert pod
    actions = HamiNodeActions(cluster, cluster, NODE)
    actions.close_card(CARD, 1_790_000_000.0)
    annotations = api.ask("GET", f"/api/v1/nodes/{NODE}")["metadata"]["annotations"]
    assert annotations["hami.io/device-cordon"] == CARD
    assert actions.open_cards(1_790_000_001.0) == (CARD,)
    left = api.ask("GET", f"/api/v1/nodes/{NODE}")["metadata"]["annotations"]
    assert not {"hami.io/device-cordon", "gputide.io/closed-cards"} & left.keys()


@pytest.mark.parametrize(
    ("short_of", "reason"),
    [(Shortage.FRAMEBUFFER, "GputideFramebuffer"), (Shortage.HOST_MEMORY, "GputideHostMemory")],
)
def test_books_and_eviction(
    cluster: KubernetesCluster, api: Api, namespace: str, pod: str, short_of: Shortage, reason: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
    uid = api.ask("GET", path)["metadata"]["uid"]
    seat = SliceView(
        namespace=namespace, pod=pod, pod_uid=uid, container="main", card=CARD, priority=Priority.LOW,
        framebuffer_used_bytes=0, framebuffer_granted_bytes=8000 * MIB, framebuffer_limit_bytes=None,
        duty_cycle_ratio=None,
    )  # fmt: skip
    key = ContainerKey(pod_uid=uid, container="main")
    actions = HamiNodeActions(cluster, cluster, NODE)
    actions.account(seat, WantedLimit(container=key, card=CARD, framebuffer_bytes=6000 * MIB))
    assert api.ask("GET", path)["metadata"]["annotations"][ALLOCATED] == f"{CARD},NVIDIA,6000,30:;"
    actions.evict(namespace, pod, short_of)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    until(lambda: all("deletionTimestamp" in found["metadata"] for found in api.ask("GET", pods)["items"]))
    events = api.ask("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
    assert [entry["reason"] for entry in events if entry["involvedObject"]["name"] == pod].count(reason) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/namespaces/{}/secrets"),
        ("GET", "/api/v1/namespaces/gputide/configmaps/other"),
        ("GET", "/api/v1/namespaces/{}/configmaps/gputide-orders"),
        ("PATCH", "/api/v1/namespaces/gputide/configmaps/gputide-orders"),
        ("DELETE", "/api/v1/namespaces/{}/pods/low"),
        ("POST", "/api/v1/namespaces/{}/pods"),
        ("POST", "/api/v1/namespaces/{}/pods/low/exec"),
        ("PATCH", "/apis/apps/v1/namespaces/{}/deployments/a"),
        ("PATCH", f"/api/v1/nodes/{NODE}/status"),
        ("DELETE", f"/api/v1/nodes/{NODE}"),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/gputide/leases/enforcer"),
        ("POST", "/api/v1/namespaces/gputide/serviceaccounts/gputide-agent/token"),
    ],
)
def test_agent_may_do_no_more_than_it_needs(
    control_plane: ControlPlane, kubeconfig: Path, namespace: str, method: str, path: str
) -> None:
    assert Api(control_plane.url, control_plane.ca, kubeconfig).status(method, path.format(namespace)) == 403


def test_orders_are_read_and_nobody_elses(cluster: KubernetesCluster, api: Api) -> None:
    path = "/api/v1/namespaces/gputide/configmaps"
    api.create(path, {"metadata": {"name": "gputide-orders"}})
    api.patch(f"{path}/gputide-orders", {"data": {NODE: "{}"}})
    found = cluster.get("ConfigMap", "gputide", "gputide-orders")
    assert found is not None
    assert found["data"][NODE] == "{}"
    with pytest.raises(Misconfigured, match="configmaps"):
        cluster.get("ConfigMap", "kube-system", "hami-device-plugin")
    api.delete(f"{path}/gputide-orders")
