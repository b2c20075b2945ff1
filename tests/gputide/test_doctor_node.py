"""The doctor on a node: the stand-in for NVIDIA's library, a kubelet's socket, a host's processes, HAMi's regions."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.settings.settings import Settings
from gputide.doctor.checks import run_checks
from gputide.doctor.finding import Diagnosis, State
from gputide.doctor.node import node_checks
from tests.exporter.host_processes import HostProcesses
from tests.exporter.kubelet import StandInKubelet, container, device, pod
from tests.exporter.nvml.standin import A100, DATA_VARIABLE, GPM, H100, StandInWorld, library_file, uuid
from tests.regions.plain_regions import PLAIN
from tests.waiting import until

CONTAINER = "0fc3eda5-e98b-a25b-5b0d-cf5c855d1448_main"


class Node:
    """A sound node with one card of Hopper, and everything that is looked at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = StandInWorld(folder / "world.txt").system(driver="580.65.06").card(**H100, gpm=GPM, util=60)
        self.world.line("proc", dev=0, pid=7, mem=1 << 30, sm=10)
        self.processes = HostProcesses(folder / "proc")
        self.processes.put(1, name=b"systemd", cgroup="/init.scope")
        self.kubelet = StandInKubelet(folder / "kubelet.sock")
        self.kubelet.pods = [pod("team", "web-0", container("main", device("nvidia.com/gpu", uuid(0))))]
        self.kubelet.start()
        self.regions = folder / "containers"
        (self.regions / CONTAINER).mkdir(parents=True)
        self.changes: dict[str, object] = {}

    def look(self) -> list[Diagnosis]:
        self.world.write()
        exporter = {
            "nvml_library": library_file(), "pod_resources_socket": self.kubelet.path,
            "containers_folder": self.regions, "claims_folder": None, "proc_folder": self.folder / "proc",
        }  # fmt: skip
        return list(run_checks(node_checks(Settings.model_validate({"exporter": {**exporter, **self.changes}}))))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "world.txt"))
    made = Node(tmp_path)
    yield made
    made.kubelet.stop()


def codes(found: list[Diagnosis]) -> set[str]:
    return {one.kind.code for one in found if one.kind is not None}


def with_mig(values: dict[str, object], *, has_instance: bool) -> Callable[[Node], None]:
    def change(node: Node) -> None:
        node.world.card(0, **values, mig=1)
        if has_instance:
            node.world.line("mig", dev=0, uuid="MIG-1", gi=1, ci=0, total=10 << 30, used=1 << 30, sm=16)

    return change


def without_library(node: Node) -> None:
    node.changes["nvml_library"] = node.folder / "none.so"


def without_gpm(node: Node) -> None:
    node.world.without_card(0).card(**A100, util=60)


def without_socket(node: Node) -> None:
    node.changes["pod_resources_socket"] = node.folder / "none.sock"


def with_dead_socket(node: Node) -> None:
    """A socket that nobody listens on, as a kubelet leaves behind that was killed."""
    node.changes["pod_resources_socket"] = node.folder / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(node.folder / "dead.sock"))


def with_unknown_region(node: Node) -> None:
    (node.regions / CONTAINER / "0fc3eda5-e98b-a25b-5b0d-cf5c855d1448.cache").write_bytes(b"?" * 1000)


def failing(function: str, code: int) -> Callable[[Node], None]:
    """Every version of a call into the driver fails with an `nvmlReturn_t`."""

    def change(node: Node) -> None:
        for version in ("", "_v2", "_v3"):
            node.world.line("err", fn=function + version, ret=code)

    return change


TRAPS: dict[str, Callable[[Node], object]] = {
    "nvml-missing": without_library,
    "nvml-driver": failing("nvmlDeviceGetCount", 9),
    "no-cards": lambda node: node.world.without_card(0).without("proc"),
    "driver-old": lambda node: node.world.system(driver="470.57.02"),
    "card-unwell": lambda node: node.world.card(0, lost=1),
    "sm-active-unavailable": without_gpm,
    "mig-without-activity": with_mig(A100, has_instance=True),
    "mig-empty": with_mig(H100, has_instance=False),
    "processes-untold": failing("nvmlDeviceGetComputeRunningProcesses", 999),
    "nvml-right-missing": failing("nvmlDeviceGetComputeRunningProcesses", 4),
    "mps-hides-clients": lambda node: node.world.line("proc", dev=0, pid=8, mem=1 << 20, kind="mps"),
    "card-xid": lambda node: node.world.line("xid", dev=0, code=79),
    "compute-mode": lambda node: node.world.card(0, computemode=3),
    "card-model-unknown": lambda node: node.world.card(0, name="GRID V100DX-16Q"),
    "host-pids-hidden": lambda node: node.processes.hide_host(),
    "cgroups-hidden": lambda node: node.processes.put(1, name=b"systemd", cgroup="/../../kubepods"),
    "pod-resources-missing": without_socket,
    "pod-resources-denied": with_dead_socket,
    "regions-missing": lambda node: node.changes.update(containers_folder=node.folder / "none"),
    "region-doubtful": with_unknown_region,
}


def test_sound_node_has_no_finding(node: Node) -> None:
    found = node.look()
    assert codes(found) == set()
    assert {one.state for one in found} == {State.OK}
    assert {one.check for one in found} == {"driver", "cards", "processes", "kubelet", "regions"}


@pytest.mark.parametrize("trap", TRAPS)
def test_trap_is_named(trap: str, node: Node) -> None:
    TRAPS[trap](node)
    until(lambda: trap in codes(node.look()))  # the driver's events are read beside the cards


def test_region_of_a_known_layout_is_believed(node: Node) -> None:
    layout = next(iter(PLAIN.values()))
    (node.regions / CONTAINER / "0fc3eda5-e98b-a25b-5b0d-cf5c855d1448.cache").write_bytes(b"\0" * layout.size)
    assert "region-doubtful" not in codes(node.look())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_that_may_not_be_written_is_named(node: Node) -> None:
    node.regions.chmod(0o555)
    assert "regions-denied" in codes(node.look())
    node.regions.chmod(0o755)
