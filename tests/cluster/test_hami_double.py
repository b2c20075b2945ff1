"""The double behaves as HAMi was seen to: what it writes on pods and nodes, what it denies, when a cordon acts."""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from itertools import count

import pytest

from fleet.grammars.hami import RegisteredDevice
from tests.cluster.api import Api, Manifest
from tests.cluster.hami_double import NAMESPACE_LABEL, HamiDouble, hami_node
from tests.cluster.workloads import deployment, is_ready, pods, until, until_ready
from tests.control_plane import ControlPlane, KubernetesPrograms

pytestmark = pytest.mark.cluster

_numbers = count(1)


@pytest.fixture(scope="module")
def hami(
    control_plane: ControlPlane, programs: KubernetesPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HamiDouble]:
    """Run the double for all tests of this file."""
    api = Api(control_plane.url, control_plane.ca, control_plane.kubeconfig())
    running = HamiDouble(control_plane, programs, api, tmp_path_factory.mktemp("hami"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def team(hami: HamiDouble, api: Api, namespace: str) -> str:
    """Return a namespace whose pods pass the webhook."""
    assert hami is not None
    api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {NAMESPACE_LABEL: "on"}}})
    return namespace


@pytest.fixture
def node(api: Api) -> Iterator[str]:
    """Return a node of two A10 with 24 GiB; it is gone afterwards."""
    name = f"hami-{next(_numbers)}"
    hami_node(api, name, [a10(name, number) for number in range(2)])
    yield name
    api.delete(f"/api/v1/nodes/{name}")


def a10(node: str, number: int) -> RegisteredDevice:
    return RegisteredDevice(
        card=f"GPU-{node}-{number}", slices_max=10, framebuffer_mib=24_576, core_percent=100,
        device_type="NVIDIA-NVIDIA A10", numa=0, is_healthy=True, index=number, mode="hami-core",
    )  # fmt: skip


def _affinity(node: str) -> Manifest:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [{"matchFields": [field]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def run(api: Api, team: str, name: str, node: str, replicas: int = 1, **limits: str) -> None:
    named = {f"nvidia.com/{resource}": value for resource, value in limits.items()}
    deployment(api, team, name, replicas=replicas, limits=named, pod_spec={"affinity": _affinity(node)})


def only_pod(api: Api, team: str, app: str) -> Manifest:
    (found,) = pods(api, team, app)
    return found


def test_pod_is_admitted_placed_and_bound_and_the_lock_is_gone(api: Api, team: str, node: str) -> None:
    run(api, team, "a", node, gpu="1", gpumem="4000", gpucores="30")
    until_ready(api, team, "a", 1)
    until(lambda: phase(api, team) == "success", "the plugin has finished the binding")
    pod = only_pod(api, team, "a")
    annotations = pod["metadata"]["annotations"]
    card, word, mib, cores = annotations["hami.io/vgpu-devices-allocated"].removesuffix(":;").split(",")
    assert card.startswith(f"GPU-{node}-")
    assert (word, mib, cores) == ("NVIDIA", "4000", "30")
    assert annotations["hami.io/vgpu-devices-to-allocate"] == ";;"
    assert annotations["hami.io/vgpu-node"] == pod["metadata"]["labels"]["hami.io/vgpu-node"] == node
    assert pod["spec"]["nodeName"] == node
    assert pod["spec"]["schedulerName"] == "hami-scheduler"
    until(lambda: "hami.io/mutex.lock" not in node_annotations(api, node), "the node is free again")


def phase(api: Api, team: str) -> object:
    return only_pod(api, team, "a")["metadata"]["annotations"].get("hami.io/bind-phase")


def node_annotations(api: Api, node: str) -> dict[str, str]:
    found: dict[str, str] = api.ask("GET", f"/api/v1/nodes/{node}")["metadata"]["annotations"]
    return found


def test_count_and_priority_are_filled_in(api: Api, team: str, node: str) -> None:
    run(api, team, "a", node, gpumem="4000", priority="0")
    until_ready(api, team, "a", 1)
    container = only_pod(api, team, "a")["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert {"name": "CUDA_TASK_PRIORITY", "value": "0"} in container["env"]


def test_percentage_out_of_range_is_denied_in_hamis_words(api: Api, team: str) -> None:
    limits = {"nvidia.com/gpumem-percentage": "150"}
    container = {"name": "c", "image": "registry/none:1", "resources": {"limits": limits}}
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [container]}}
    with pytest.raises(urllib.error.HTTPError) as denied:
        api.create(f"/api/v1/namespaces/{team}/pods", pod)
    said = denied.value.read().decode()
    assert "invalid nvidia.com/gpumem-percentage value 150 in container c: must be an integer between 0 and 100" in said


def test_pod_that_fits_no_card_waits_with_hamis_reason_and_runs_when_there_is_room(
    api: Api, team: str, node: str
) -> None:
    run(api, team, "a", node, replicas=2, gpu="1")
    until_ready(api, team, "a", 2)
    run(api, team, "b", node, gpu="1", gpumem="20000")
    until(lambda: "Card" in unscheduled(api, team, "b") or "Exclusive" in unscheduled(api, team, "b"), "b is refused")
    api.patch(f"/apis/apps/v1/namespaces/{team}/deployments/a", {"spec": {"replicas": 1}})
    until_ready(api, team, "b", 1)
    first, second = only_pod(api, team, "a"), only_pod(api, team, "b")
    assert cards(first).isdisjoint(cards(second))


def unscheduled(api: Api, team: str, app: str) -> str:
    told = [entry for pod in pods(api, team, app) for entry in pod["status"].get("conditions", [])]
    return " ".join(entry.get("message", "") for entry in told if entry["type"] == "PodScheduled")


def cards(pod: Manifest) -> set[str]:
    text = pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"]
    return {part.partition(",")[0] for part in text.removesuffix(";").removesuffix(":").split(":")}


def test_small_slices_share_a_node_and_never_exceed_a_card(api: Api, team: str, node: str) -> None:
    run(api, team, "a", node, replicas=5, gpu="1", gpumem="10000")
    until(lambda: sum(map(is_ready, pods(api, team, "a"))) == 4, "four of five fit")
    held: dict[str, int] = {}
    for pod in pods(api, team, "a"):
        for card in cards(pod) if is_ready(pod) else ():
            held[card] = held.get(card, 0) + 10_000
    assert held == {f"GPU-{node}-0": 20_000, f"GPU-{node}-1": 20_000}


def test_node_that_is_deleted_while_a_pod_is_bound_keeps_no_other_node_locked(
    api: Api, team: str, node: str, hami: HamiDouble
) -> None:
    hami.finish_binding(team, "gone", "gone")
    run(api, team, "a", node, replicas=3, gpu="1", gpumem="1000")
    until_ready(api, team, "a", 3, seconds=20.0)


def test_cordon_acts_once_the_handshake_is_set_and_not_before(api: Api, team: str, node: str, hami: HamiDouble) -> None:
    run(api, team, "first", node, gpu="1", gpumem="1000")
    until_ready(api, team, "first", 1)
    both = f"GPU-{node}-0,GPU-{node}-1"
    path = f"/api/v1/nodes/{node}"
    api.patch(path, {"metadata": {"annotations": {"hami.io/device-cordon": both}}})
    hami.look_again()
    run(api, team, "second", node, gpu="1", gpumem="1000")
    until_ready(api, team, "second", 1)
    handshake = {"hami.io/node-handshake": "Reported_2026-01-01 00:00:00"}
    api.patch(path, {"metadata": {"annotations": handshake}})
    hami.look_again()
    run(api, team, "third", node, gpu="1", gpumem="1000")
    until(lambda: "CardCordoned" in unscheduled(api, team, "third"), "third is refused")
    api.patch(path, {"metadata": {"annotations": {"hami.io/device-cordon": None, **handshake}}})
    hami.look_again()
    until_ready(api, team, "third", 1)
