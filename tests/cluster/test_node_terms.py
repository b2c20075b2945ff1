"""Among more than a hundred nodes a pinned pod is offered its own at once, by HAMi's scheduler as its chart has it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from enforcer.admission import on_node
from fleet.grammars.hami import RegisteredDevice
from tests.cluster.api import Api
from tests.cluster.hami_double import NAMESPACE_LABEL, HamiDouble, hami_node
from tests.cluster.workloads import deployment, pods, until_ready
from tests.control_plane import ControlPlane, KubernetesPrograms

pytestmark = pytest.mark.cluster

NODES = 150
PINNED = range(3, NODES, 15)


@pytest.fixture(scope="module")
def hami(
    control_plane: ControlPlane, programs: KubernetesPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HamiDouble]:
    """Run the double, whose scheduler looks at some of the nodes in each attempt."""
    api = Api(control_plane.url, control_plane.ca, control_plane.kubeconfig())
    running = HamiDouble(control_plane, programs, api, tmp_path_factory.mktemp("hami"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def nodes(api: Api) -> Iterator[list[str]]:
    """Return many nodes of one card each; they are gone afterwards."""
    names = [f"many-{number:03d}" for number in range(NODES)]
    for name in names:
        device = RegisteredDevice(
            card=f"GPU-{name}", slices_max=10, framebuffer_mib=24_576, core_percent=100,
            device_type="NVIDIA-NVIDIA A10", numa=0, is_healthy=True, index=0, mode="hami-core",
        )  # fmt: skip
        hami_node(api, name, [device])
    yield names
    for name in names:
        api.delete(f"/api/v1/nodes/{name}")


def test_pinned_pods_find_their_nodes_at_the_first_attempt(
    hami: HamiDouble, api: Api, namespace: str, nodes: list[str]
) -> None:
    assert hami is not None
    api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {NAMESPACE_LABEL: "on"}}})
    for number in PINNED:
        deployment(
            api, namespace, f"app-{number}", container="main", limits={"nvidia.com/gpu": "1"},
            annotations={"nvidia.com/use-gpuuuid": f"GPU-{nodes[number]}"},
            pod_spec=on_node({}, nodes[number]),
        )  # fmt: skip
    for number in PINNED:
        until_ready(api, namespace, f"app-{number}", 1)
        (pod,) = pods(api, namespace, f"app-{number}")
        assert pod["spec"]["nodeName"] == nodes[number]
    events = api.ask("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
    failed = [event["message"] for event in events if event["reason"] == "FailedScheduling"]
    assert failed == [], json.dumps(failed[:2])
