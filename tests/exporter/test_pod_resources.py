"""The kubelet's answers are read over a real gRPC socket, within their deadline and bounds, through its restarts."""

import socket
import threading
import time
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.kubelet.client import KubeletPodResources
from exporter.kubelet.pod_resources import ClaimRow, ContainerRow, DeviceRow, PodRow
from exporter.kubelet.wire import decode_allocatable, decode_list
from fleet.errors import Corrupt, Unavailable
from tests.exporter.kubelet import MESSAGES, StandInKubelet, claim, container, device, pod

CARD = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
DEADLINE_SECONDS = 5.0


@pytest.fixture
def kubelet(tmp_path: Path):
    kubelet = StandInKubelet(tmp_path / "kubelet.sock")
    kubelet.start()
    yield kubelet
    kubelet.stop()


@pytest.fixture
def client(kubelet: StandInKubelet):
    client = KubeletPodResources(str(kubelet.path))
    yield client
    client.close()


def test_devices_and_claims_of_every_container_are_read(kubelet: StandInKubelet, client: KubeletPodResources) -> None:
    given_device = {
        "cdi_devices": [{"name": "k8s.gpu.nvidia.com/device=gpu-0"}],
        "driver_name": "gpu.nvidia.com",
        "pool_name": "node-1",
        "device_name": "gpu-0",
        "share_id": "s",
    }
    kubelet.pods = [
        pod("team", "train-0", container("main", device("nvidia.com/gpu", CARD, numa=0)), container("sidecar")),
        pod("team", "claimed", container("main", claims=[claim("half", "team", given_device)])),
    ]
    assert client.list(DEADLINE_SECONDS)[::-1] == (
        PodRow(
            namespace="team",
            pod="train-0",
            containers=(
                ContainerRow(container="main", devices=(DeviceRow(resource="nvidia.com/gpu", ids=(CARD,)),)),
                ContainerRow(container="sidecar"),
            ),
        ),
        PodRow(
            namespace="team",
            pod="claimed",
            containers=(
                ContainerRow(
                    container="main",
                    claims=(
                        ClaimRow(
                            claim="half",
                            namespace="team",
                            driver="gpu.nvidia.com",
                            pool="node-1",
                            device="gpu-0",
                            share_id="s",
                        ),
                    ),
                ),
            ),
        ),
    )


def test_ids_that_only_count_are_skipped_and_those_of_cards_kept(
    kubelet: StandInKubelet, client: KubeletPodResources
) -> None:
    counts = [f"{CARD}-memory-{number}" for number in range(30_000)]
    kubelet.pods = [
        pod(
            "team",
            "vgpu",
            container("main", device("volcano.sh/vgpu-memory", *counts), device("volcano.sh/vgpu-number", f"{CARD}-3")),
        )
    ]
    ((row,),) = [found.containers for found in client.list(DEADLINE_SECONDS)]
    assert row.devices == (DeviceRow(resource="volcano.sh/vgpu-number", ids=(f"{CARD}-3",)),)


def test_an_answer_larger_than_every_window_arrives_whole(kubelet: StandInKubelet, client: KubeletPodResources) -> None:
    kubelet.pods = [pod("n", f"p{number}", container("c" * 2000)) for number in range(2000)]
    rows = client.list(DEADLINE_SECONDS)
    assert len(rows) == 2000
    assert rows[-1].containers[0].container == "c" * 2000
    # And the windows are given back: the next one arrives too.
    assert client.list(DEADLINE_SECONDS) == rows


def test_answers_over_the_bound_are_refused_with_the_setting_and_leave_nothing_behind(kubelet: StandInKubelet) -> None:
    small = KubeletPodResources(str(kubelet.path), message_bytes_max=1000)
    kubelet.pods = [pod("n", "p", container("c" * 2**20))]
    for _ in range(4):
        with pytest.raises(Corrupt, match=r"exporter\.pod_resources_bytes_max=1000"):
            small.list(DEADLINE_SECONDS)
    # What was refused neither fills the connection's window nor is taken for the next answer.
    kubelet.pods = [pod("n", "p", container("c"))]
    assert small.list(DEADLINE_SECONDS)[0].pod == "p"
    small.close()


def test_the_order_in_which_the_kubelet_lists_things_changes_nothing(
    kubelet: StandInKubelet, client: KubeletPodResources
) -> None:
    one, two = device("a/a", "1", "2"), device("b/b", "3")
    kubelet.pods = [pod("n", "p", container("c", one, two)), pod("n", "q", container("c"))]
    rows = client.list(DEADLINE_SECONDS)
    kubelet.pods = [pod("n", "q", container("c")), pod("n", "p", container("c", two, device("a/a", "2", "1")))]
    assert client.list(DEADLINE_SECONDS) is rows


def test_what_may_be_handed_out_is_read(kubelet: StandInKubelet, client: KubeletPodResources) -> None:
    kubelet.devices = [device("nvidia.com/gpu", f"{CARD}::0", f"{CARD}::1"), device("volcano.sh/vgpu-cores", "x")]
    assert client.allocatable(DEADLINE_SECONDS) == (
        DeviceRow(resource="nvidia.com/gpu", ids=(f"{CARD}::0", f"{CARD}::1")),
    )


@pytest.mark.parametrize(
    ("status", "text"),
    [(grpc.StatusCode.UNIMPLEMENTED, "unknown method"), (grpc.StatusCode.UNKNOWN, "the method is disabled")],
)  # fmt: skip
def test_a_method_that_the_kubelet_does_not_offer_is_no_failure(
    kubelet: StandInKubelet, client: KubeletPodResources, status: grpc.StatusCode, text: str
) -> None:
    kubelet.refusals = {"GetAllocatableResources": (status, text)}
    assert client.allocatable(DEADLINE_SECONDS) is None


def test_a_refusal_is_unavailable_with_what_the_kubelet_said(
    kubelet: StandInKubelet, client: KubeletPodResources
) -> None:
    kubelet.refusals = {"List": (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit: 100 %")}
    with pytest.raises(Unavailable, match="rejected by rate limit: 100 %"):
        client.list(DEADLINE_SECONDS)


def test_a_silent_kubelet_costs_the_deadline_and_no_more(kubelet: StandInKubelet, client: KubeletPodResources) -> None:
    kubelet.is_silent = True
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"no answer in 0\.3 s"):
        client.list(0.3)
    assert time.monotonic() - began < 2.0
    kubelet.is_silent = False
    kubelet.resumed.set()
    assert client.list(DEADLINE_SECONDS) == ()


def test_a_deadline_that_the_kubelet_notices_first_is_no_answer_in_time(
    kubelet: StandInKubelet, client: KubeletPodResources
) -> None:
    kubelet.refusals["List"] = (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    with pytest.raises(Unavailable, match=r"no answer in 30 s"):
        client.list(30.0)


def test_a_kubelet_that_restarts_is_asked_again_without_a_failure(
    kubelet: StandInKubelet, client: KubeletPodResources
) -> None:
    kubelet.pods = [pod("n", "before", container("c"))]
    assert client.list(DEADLINE_SECONDS)[0].pod == "before"
    kubelet.stop()
    with pytest.raises(Unavailable):
        client.list(DEADLINE_SECONDS)
    kubelet.pods = [pod("n", "after", container("c"))]
    kubelet.start()
    assert client.list(DEADLINE_SECONDS)[0].pod == "after"
    # Gone and back between two calls: the dead connection is not the caller's business.
    kubelet.stop()
    kubelet.start()
    assert client.list(DEADLINE_SECONDS)[0].pod == "after"


def test_a_socket_that_is_not_there_is_unavailable_with_path_and_setting(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.sock"
    with pytest.raises(Unavailable) as caught:
        KubeletPodResources(str(missing)).list(1.0)
    assert str(missing) in str(caught.value)
    assert "exporter.pod_resources_socket" in str(caught.value)


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 100, b""])
def test_something_else_behind_the_socket_is_unavailable(tmp_path: Path, greeting: bytes) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=_greet, args=(listener, greeting), daemon=True).start()
        with pytest.raises(Unavailable):
            KubeletPodResources(str(path)).list(1.0)


def _greet(listener: socket.socket, greeting: bytes) -> None:
    channel, _ = listener.accept()
    with channel:
        channel.recv(1 << 16)
        channel.sendall(greeting)


NAMES = st.text(max_size=12)
PODS = st.lists(
    st.builds(
        pod,
        NAMES,
        NAMES,
        st.builds(
            container,
            NAMES,
            st.builds(device, NAMES, NAMES),
            claims=st.lists(st.builds(claim, NAMES, NAMES), max_size=1),
        ),
    ),
    max_size=3,
)


@given(PODS)
def test_every_answer_that_protobuf_writes_is_read_as_protobuf_meant_it(pods) -> None:
    data = MESSAGES["ListPodResourcesResponse"](pod_resources=pods).SerializeToString()
    rows = decode_list(data)
    pods = sorted(pods, key=lambda found: (found["namespace"], found["name"]))
    assert [(row.namespace, row.pod) for row in rows] == [(found["namespace"], found["name"]) for found in pods]
    assert [row.containers[0].devices for row in rows] == [
        tuple(
            DeviceRow(resource=part["resource_name"], ids=tuple(part["device_ids"]))
            for part in found["containers"][0]["devices"]
        )
        for found in pods
    ]


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_corrupt(data: bytes) -> None:
    for decode in (decode_list, decode_allocatable):
        try:
            decode(data)
        except Corrupt as error:
            assert len(str(error)) < 200  # noqa: PT017 - a message that hostile bytes can't blow up


@given(PODS, st.data())
def test_an_answer_that_is_cut_is_never_read_as_something_else(pods, data) -> None:
    whole = MESSAGES["ListPodResourcesResponse"](pod_resources=pods).SerializeToString()
    cut = whole[: data.draw(st.integers(0, max(0, len(whole) - 1)))]
    try:
        rows = decode_list(cut)
    except Corrupt:
        return
    assert len(rows) < max(1, len(pods))
    assert set(rows) <= set(decode_list(whole))
