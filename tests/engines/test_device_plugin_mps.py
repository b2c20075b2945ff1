"""What a client of MPS may have, as NVIDIA's daemon tells the driver's, is what the exporter says it was granted."""

from __future__ import annotations

import pytest

from tests.engines.device_manager import RefusedByPluginError
from tests.engines.nvidia_node import NvidiaNode
from tests.engines.test_device_plugin import amounts, held_cards, sharing, visible
from tests.exporter.nvml.standin import A100, GIB, uuid

pytestmark = pytest.mark.engines

MIB = 2**20
PINNED = "set_default_device_pinned_mem_limit"
THREADS = "set_default_active_thread_percentage"


@pytest.mark.parametrize("clients", [2, 3, 8, 48])
def test_limits_of_mps_are_the_amounts_that_were_granted(node: NvidiaNode, clients: int) -> None:
    node.card()
    node.card(**A100, cc="8.0")
    config = sharing("mps", {"nvidia.com/gpu": clients})
    node.start_mps_daemon(config=config)
    node.start_plugin("--mps-root=/run/nvidia/mps", config=config)
    assert node.devices.resources() == {"nvidia.com/gpu": 2 * clients}
    for number in range(2):
        node.hand_out(f"pod-{number}", "nvidia.com/gpu")
    limits = {
        card: int(mib.removesuffix("M"))
        for word, card, mib in (said.split() for said in node.said_to_mps() if said.startswith(PINNED))
    }
    (percent,) = (int(said.split()[1]) for said in node.said_to_mps() if said.startswith(THREADS))
    granted, cards = amounts(node), held_cards(node)
    assert {cards[pod][0] for pod in granted} == {uuid(0), uuid(1)}
    assert {cards[pod][0][-1]: framebuffer // MIB for pod, (framebuffer, _) in granted.items()} == limits
    assert {int(100 * ratio) for _, ratio in granted.values()} == {percent}


def test_client_of_mps_sees_its_card_and_the_pipe_of_its_resource(node: NvidiaNode) -> None:
    node.card()
    config = sharing("mps", {"nvidia.com/gpu": 4}, renameByDefault="true")
    node.start_mps_daemon(config=config)
    node.start_plugin("--mps-root=/run/nvidia/mps", config=config)
    handed = node.hand_out("client", "nvidia.com/gpu.shared")
    assert visible(handed) == [uuid(0)]
    pipe = "/mps/nvidia.com/gpu.shared/pipe"
    assert handed.environ["CUDA_MPS_PIPE_DIRECTORY"] == pipe
    assert handed.mounts[pipe] == "/run/nvidia/mps/nvidia.com/gpu.shared/pipe"
    assert amounts(node) == {"client": (20 * GIB, 0.25)}
    with pytest.raises(RefusedByPluginError, match="maximum request size for shared resources is 1"):
        node.hand_out("greedy", "nvidia.com/gpu.shared", 2)


def test_mps_counts_where_time_slicing_is_asked_for_too(node: NvidiaNode) -> None:
    node.card()
    both = (
        sharing("mps", {"nvidia.com/gpu": 4})
        + sharing("timeSlicing", {"nvidia.com/gpu": 10}).partition("sharing:\n")[2]
    )
    node.start_mps_daemon(config=both)
    node.start_plugin("--mps-root=/run/nvidia/mps", config=both)
    assert node.devices.resources() == {"nvidia.com/gpu": 4}


def test_daemon_gives_cards_back_as_they_were(node: NvidiaNode) -> None:
    node.card()
    node.start_mps_daemon(config=sharing("mps", {"nvidia.com/gpu": 4}))
    assert node.said_to_mps()[0] == f"nvidia-smi -i {uuid(0)} -c EXCLUSIVE_PROCESS"
    node.stop_mps_daemon()
    assert node.said_to_mps()[-2:] == ["quit", f"nvidia-smi -i {uuid(0)} -c DEFAULT"]
