"""Each node's backend is told by its own signs; two on one node are both told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from enforcer.backends.detect import conflicts, detect_backends
from enforcer.manifest import Manifest
from fleet.capabilities.register import CAPABILITIES
from tests.enforcer.kin_cluster import HAMI, KINS, MGPU, VOLCANO, Kin, a_kin_node


def a_node(
    name: str = "node-0",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    offers: Mapping[str, str] | None = None,
) -> Manifest:
    return {
        "kind": "Node",
        "metadata": {"name": name, "annotations": dict(annotations or {}), "labels": dict(labels or {})},
        "status": {"allocatable": {"cpu": "8", **(offers or {})}},
    }


def found(*nodes: Manifest, **more: Any) -> list[tuple[str, str]]:
    return [(entry.node, entry.backend) for entry in detect_backends(nodes, **more)]


@pytest.mark.parametrize("kin", [kin for kin in KINS if kin.name != "effectivegpu"], ids=lambda kin: kin.name)
def test_kin_is_told_by_what_its_plugin_writes(kin: Kin) -> None:
    node = a_kin_node(kin, "node-0", 0)
    node["status"]["allocatable"]["nvidia.com/gpu"] = "40"
    assert found(node) == [("node-0", kin.name)]


@pytest.mark.parametrize(
    ("node", "backend"),
    [
        (a_node(offers={"nvidia.com/gpu": "4"}), "whole_cards"),
        (
            a_node(offers={"nvidia.com/gpu.shared": "8"}, labels={"nvidia.com/gpu.sharing-strategy": "time-slicing"}),
            "nvidia_time_slicing",
        ),
        (a_node(offers={"nvidia.com/gpu": "8"}, labels={"nvidia.com/gpu.sharing-strategy": "mps"}), "nvidia_mps"),
        (a_node(offers={"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "7"}), "mig"),
        (a_node(offers={"volcano.sh/vgpu-number": "40"}), "volcano"),
    ],
)
def test_backend_is_told_by_labels_and_resources(node: Manifest, backend: str) -> None:
    assert found(node) == [("node-0", backend)]


def test_node_without_cards_has_no_backend() -> None:
    idle = a_node(annotations={"hami.io/node-nvidia-register": "[]"}, offers={"nvidia.com/gpu": "0"})
    assert found(a_node(), idle, a_node(offers={"nvidia.com/gpu": "nonsense"})) == []


def test_register_that_hamis_scheduler_gave_up_does_not_count() -> None:
    node = a_kin_node(HAMI, "node-0", 0)
    node["metadata"]["annotations"]["hami.io/node-handshake"] = "Deleted_2026.01.12 00:00:00"
    node["status"]["allocatable"]["nvidia.com/gpu"] = "4"
    assert found(node) == [("node-0", "whole_cards")]


def test_two_backends_on_a_node_are_a_conflict() -> None:
    node = a_kin_node(HAMI, "node-0", 0)
    node["metadata"]["annotations"].update(a_kin_node(VOLCANO, "node-0", 0)["metadata"]["annotations"])
    both = detect_backends([node, a_kin_node(MGPU, "node-1", 4)])
    ((name, said),) = conflicts(both).items()
    assert name == "node-0"
    assert str(said) == (
        "node node-0 is shared by hami (hami.io/node-nvidia-register) and volcano (volcano.sh/node-vgpu-register): "
        "only one may hand out its cards"
    )


def test_kai_works_on_top_of_the_plugin() -> None:
    node = a_node(offers={"nvidia.com/gpu": "4"})
    pod = {"metadata": {"namespace": "kai-resource-reservation", "name": "gpu-0"}, "spec": {"nodeName": "node-0"}}
    both = detect_backends([node], pods=[pod])
    assert [entry.backend for entry in both] == ["kai", "whole_cards"]
    assert conflicts(both) == {}


@pytest.mark.parametrize(("status", "backend"), [("True", "kai_nvfractions"), ("False", "kai")])
def test_kai_holds_limits_on_nodes_that_say_they_are_ready(status: str, backend: str) -> None:
    node = a_node(offers={"nvidia.com/gpu": "4"})
    node["status"]["conditions"] = [
        {"type": "Ready", "status": "True"},
        {"type": "gpu-fractioning.nvidia.com/Ready", "status": status},
    ]
    pod = {"metadata": {"namespace": "kai-resource-reservation", "name": "gpu-0"}, "spec": {"nodeName": "node-0"}}
    both = detect_backends([node], pods=[pod])
    assert [entry.backend for entry in both] == [backend, "whole_cards"]
    assert conflicts(both) == {}


def test_tensor_fusion_is_told_by_its_own_hypervisor_and_not_by_a_tenants_word() -> None:
    def pod(namespace: str) -> Manifest:
        labels = {"tensor-fusion.ai/component": "hypervisor"}
        return {"metadata": {"namespace": namespace, "name": "h", "labels": labels}, "spec": {"nodeName": "node-0"}}

    node = a_node(offers={"nvidia.com/gpu": "4"})
    both = detect_backends([node], pods=[pod("tensor-fusion-sys")])
    assert [entry.backend for entry in both] == ["tensor_fusion", "whole_cards"]
    assert conflicts(both) == {}
    assert [entry.backend for entry in detect_backends([node], pods=[pod("team")])] == ["whole_cards"]


def test_claims_are_told_by_resource_slices() -> None:
    entry = {"spec": {"driver": "gpu.nvidia.com", "nodeName": "node-0", "devices": [{"name": "gpu-0"}]}}
    other = {"spec": {"driver": "dra.example.com", "nodeName": "node-1", "devices": [{"name": "nic-0"}]}}
    told = found(a_node(), a_node("node-1"), resource_slices=[entry, other])
    assert told == [("node-0", "dra_shared")]


def test_every_name_is_a_record() -> None:
    names = {record.backend for record in CAPABILITIES}
    nodes = [a_kin_node(kin, kin.name, 0) for kin in KINS]
    assert {entry.backend for entry in detect_backends(nodes)} <= names
