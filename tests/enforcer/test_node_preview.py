"""Counted cards: never more than the devices that pods ask for must lie on."""

from __future__ import annotations

from enforcer.backends.mgpu import MgpuBackend
from enforcer.backends.mig import MigBackend
from enforcer.backends.nvidia_sharing import TimeSlicingBackend
from enforcer.node_preview import counted_after, counted_cards
from enforcer.snapshot import take_snapshot
from tests.enforcer.builders import NOW, a_plan
from tests.enforcer.plugin_cluster import StandingCluster, a_node, a_pod


def test_instances_of_two_profiles_on_one_card_count_as_one_card() -> None:
    given = [a_node("node-0", 1), a_pod("a", 0, "node-0", limits={"nvidia.com/mig-3g.20gb": "1"})]
    given.append(a_pod("b", 0, "node-0", limits={"nvidia.com/mig-4g.20gb": "1"}))
    snapshot = take_snapshot(StandingCluster(given), MigBackend(NOW).dialect)
    assert counted_cards(snapshot) == {"node-0": 1}


def test_replicas_of_pods_that_no_plan_names_are_counted_the_same_before_and_after() -> None:
    labels, shared = {"nvidia.com/gpu.replicas": "4"}, {"nvidia.com/gpu.shared": "1"}
    given = [a_node("node-0", 2, labels=labels, offers={"nvidia.com/gpu.shared": 8})]
    given += [a_pod("x", number, "node-0", limits=shared) for number in range(4)]
    snapshot = take_snapshot(StandingCluster(given), TimeSlicingBackend(NOW).dialect)
    held = counted_cards(snapshot)
    assert held == {"node-0": 1}
    assert counted_after(a_plan({}, []), snapshot, held) == held


def test_whole_cards_of_a_node_that_is_shared_count_one_by_one() -> None:
    offers = {"vke.volcengine.com/mgpu-core": 400, "vke.volcengine.com/mgpu-memory": 4 * 24576}
    given = [a_node("node-0", 0, labels={"vke.node.gpu.schedule": "mgpu"}, offers=offers)]
    given += [a_pod("x", number, "node-0", limits={"vke.volcengine.com/mgpu-core": "100"}) for number in range(3)]
    snapshot = take_snapshot(StandingCluster(given), MgpuBackend(NOW).dialect)
    held = counted_cards(snapshot)
    assert held == {"node-0": 3}
    assert counted_after(a_plan({}, []), snapshot, held) == held


def test_all_cores_of_a_card_beside_a_share_of_its_framebuffer_are_no_whole_card() -> None:
    """mGPU books what online and offline work asks for apart: these two lie on one card."""
    offers = {"vke.volcengine.com/mgpu-core": 200, "vke.volcengine.com/mgpu-memory": 2 * 24576}
    given = [a_node("node-0", 0, labels={"vke.node.gpu.schedule": "mgpu"}, offers=offers)]
    for name, cores in (("x", "mgpu-core"), ("y", "reclaimed-mgpu-core")):
        limits = {f"vke.volcengine.com/{cores}": "100", "vke.volcengine.com/mgpu-memory": "9000"}
        given.append(a_pod(name, 0, "node-0", limits=limits))
    snapshot = take_snapshot(StandingCluster(given), MgpuBackend(NOW).dialect)
    assert counted_cards(snapshot) == {"node-0": 1}
