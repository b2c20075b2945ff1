"""Cards of other vendors, and resources by other names, are granted, shared and free like any other."""

from __future__ import annotations

import json

import pytest

from exporter.allocation.manifest import Shared
from exporter.allocation.objects import key_of, record_of
from exporter.allocation.records import PodRecord
from exporter.allocation.state import Allocation
from exporter.cluster.reader import Watched
from fleet.schema import GRANT_LABELS
from fleet.units import MIB
from tests.exporter.allocation_manifests import (
    MODEL,
    Manifest,
    card_id,
    container,
    grant,
    node,
    of,
    pod,
    rows,
    take,
)

NODES, PODS, QUOTAS = Watched.NODES, Watched.PODS, Watched.RESOURCE_QUOTAS
OWN_NAME = "example.com/slice"


def renamed(name: str = "p1", *, granted: str | None, on: str | None = "n1") -> Manifest:
    """A pod of a cluster in which HAMi's count resource was given another name."""
    return pod(name, on=on, granted=granted, containers=[container("main", {OWN_NAME: "1"})])


def vendor_pod(annotation: str, text: str, resource: str) -> Manifest:
    annotations = {annotation: text, "hami.io/vgpu-node": "n1"}
    return pod(annotations=annotations, containers=[container("main", {resource: "1"})])


# --- a resource by another name ---------------------------------------------------------------------------------------


def test_a_grant_is_found_by_its_annotation_whatever_its_resource_is_called() -> None:
    found = of((NODES, node(cards=1)), (PODS, renamed(granted=grant(0, 8000, 30) + ";")))
    place = ("c1", "n1", card_id(0), MODEL)
    assert found["gputide_card_tenants"][place] == 1
    assert found["gputide_card_framebuffer_granted_bytes"][place] == 8000 * MIB
    (info,) = found["gputide_slice_info"]
    assert dict(zip(GRANT_LABELS, info, strict=True))["framebuffer_granted_bytes"] == str(8000 * MIB)


@pytest.mark.parametrize(
    "limits", [{}, {"cpu": "4"}, {"hugepages-2Mi": "4"}, {"example.kubernetes.io/slot": "1"}], ids=str
)
def test_what_a_pod_without_any_device_has_written_on_it_is_no_grant(limits: dict[str, str]) -> None:
    forged = pod(granted=grant(0) + ";", containers=[container("main", limits)])
    found = of((NODES, node(cards=1)), (PODS, forged))
    assert found["gputide_card_tenants"]["c1", "n1", card_id(0), MODEL] == 0


def test_resources_that_a_setting_names_count_devices_of_nodes_pods_and_quotas() -> None:
    allocation = Allocation("c1")
    quota = {
        "metadata": {"namespace": "team", "name": "q"},
        "status": {"hard": {f"requests.{OWN_NAME}": "8"}, "used": {f"requests.{OWN_NAME}": "3"}},
    }
    objects = (
        (NODES, node(cards=1, allocatable={OWN_NAME: "10"})),
        (PODS, renamed(granted=grant(0) + ";")),
        (PODS, renamed("waits", on=None, granted=None)),
        (QUOTAS, quota),
    )
    for watched, manifest in objects:
        record = record_of(watched, manifest, Shared(), frozenset({OWN_NAME}))
        allocation.put(watched, key_of(manifest), record)
    found = rows(allocation)
    assert found["gputide_node_devices_allocatable"]["c1", "n1", OWN_NAME] == 10
    assert found["gputide_node_devices_granted"]["c1", "n1", OWN_NAME] == 1
    assert found["gputide_pending_devices"]["c1", OWN_NAME] == 1
    assert found["gputide_quota_limit"]["c1", "team", "q", f"requests.{OWN_NAME}"] == 8


def test_what_mgpu_lends_to_offline_work_is_devices_too() -> None:
    offline = pod(on=None, containers=[container("main", {"vke.volcengine.com/reclaimed-mgpu-core": "30"})])
    found = of((PODS, offline), (NODES, node(cards=0)))
    assert found["gputide_pending_devices"]["c1", "vke.volcengine.com/reclaimed-mgpu-core"] == 0.3


@pytest.mark.parametrize(
    ("annotations", "limits", "priority"),
    [
        ({"metax-tech.com/sgpu-app-class": "online"}, {"metax-tech.com/sgpu": "1"}, "high"),
        ({"metax-tech.com/sgpu-app-class": "offline"}, {"metax-tech.com/sgpu": "1"}, "low"),
        ({"metax-tech.com/sgpu-app-class": "?"}, {"metax-tech.com/sgpu": "1"}, "normal"),
        ({}, {"vke.volcengine.com/reclaimed-mgpu-core": "30"}, "low"),
    ],
    ids=["online", "offline", "unknown", "reclaimed"],
)
def test_online_and_offline_work_have_their_priorities(
    annotations: dict[str, str], limits: dict[str, str], priority: str
) -> None:
    record = record_of(PODS, pod(annotations=annotations, containers=[container("main", limits)]), Shared())
    assert isinstance(record, PodRecord)
    assert [needs.priority.value for needs in record.containers] == [priority]


def test_volcanos_queues_count_device_classes_and_amounts_of_them() -> None:
    queue = {
        "metadata": {"name": "q"},
        "spec": {
            "capability": {
                "cpu": "100",
                "deviceclass/gpu.nvidia.com": "8",
                "cores.deviceclass/hami-core-gpu.project-hami.io": "800",
            }
        },
    }
    limits = of((Watched.VOLCANO_QUEUES, queue))["gputide_queue_limit"]
    assert {labels[-1]: value for labels, value in limits.items()} == {
        "deviceclass/gpu.nvidia.com": 8,
        "cores.deviceclass/hami-core-gpu.project-hami.io": 800,
    }


def test_cores_that_a_driver_publishes_are_free_until_a_claim_consumes_them() -> None:
    published = {
        "metadata": {"name": "n1-slice"},
        "spec": {
            "driver": "hami-core-gpu.project-hami.io", "nodeName": "n1", "pool": {"name": "n1"},
            "devices": [
                {"name": "hami-gpu-0", "allowMultipleAllocations": True,
                 "attributes": {"uuid": {"string": card_id(7)}, "productName": {"string": MODEL}},
                 "capacity": {"memory": {"value": "24Gi"}, "cores": {"value": "100"}}}
            ],
        },
    }  # fmt: skip
    results = [
        {"request": "gpu", "driver": "hami-core-gpu.project-hami.io", "pool": "n1", "device": "hami-gpu-0",
         "consumedCapacity": {"memory": "4Gi", "cores": "30"}}
    ]  # fmt: skip
    claim = {
        "metadata": {"namespace": "team", "name": "claim-1"},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": "p1", "uid": "uid-p1"}],
        },
    }
    user = pod(
        containers=[{"name": "main", "resources": {"claims": [{"name": "card"}]}}],
        claims=[{"name": "card", "resourceClaimName": "claim-1"}],
    )
    found = of(
        (PODS, user), (Watched.RESOURCE_CLAIMS, claim), (Watched.RESOURCE_SLICES, published), (NODES, node(cards=0))
    )
    place = ("c1", "n1", card_id(7), MODEL)
    assert found["gputide_card_compute_free_ratio"][place] == pytest.approx(0.7)
    assert found["gputide_card_framebuffer_left_to_grant_bytes"][place] == 20 * 1024 * MIB


# --- MIG by geometries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_volcano", [False, True], ids=["hami-before-2.10", "volcano"])
def test_an_instance_that_is_named_by_its_place_in_a_geometry_is_on_its_card(*, is_volcano: bool) -> None:
    share = f"{card_id(0)}[1-0],NVIDIA,10240,14:"
    volcano = {"volcano.sh/vgpu-ids-new": share, "volcano.sh/vgpu-node": "n1"}
    manifest = pod(annotations=volcano) if is_volcano else pod(granted=share + ";")
    found = of((NODES, node(cards=1, mode="mig")), (PODS, manifest))
    place = ("c1", "n1", card_id(0), MODEL)
    assert found["gputide_card_tenants"][place] == 1
    assert found["gputide_card_framebuffer_granted_bytes"][place] == 10240 * MIB
    assert found["gputide_card_compute_granted_ratio"][place] == pytest.approx(0.14)


def test_a_mig_profile_is_that_of_its_own_card() -> None:
    allocations = [{"containerIndex": 0, "deviceIndex": 0, "gpuUUID": card_id(1), "profile": "1g.6gb"}]
    annotations = {"hami.io/vgpu-mig-allocations": json.dumps(allocations)}
    found = of((NODES, node(cards=2)), (PODS, pod(granted=grant(0) + ";", annotations=annotations)))
    (info,) = found["gputide_slice_info"]
    assert dict(zip(GRANT_LABELS, info, strict=True))["mig_profile"] == ""


# --- other vendors ----------------------------------------------------------------------------------------------------

ASCEND = json.dumps(
    [{"id": "npu-0", "count": 4, "devmem": 65536, "devcore": 20, "type": "Ascend910B3", "health": True}]
)
METAX_CARD = "GPU-f2b4ac4a-4f3c-8b6c-bd3d-0c2e3c3f6c01"
METAX = json.dumps(
    [{"uuid": METAX_CARD, "model": "MXC500", "totalDevCount": 16, "totalCompute": 100, "totalVRam": 65536,
      "healthy": True}]
)  # fmt: skip


def test_a_template_of_an_ascend_chip_takes_its_part_of_framebuffer_and_compute() -> None:
    offered = node(cards=0, annotations={"hami.io/node-register-Ascend910B3": ASCEND})
    user = vendor_pod("hami.io/Ascend910B3-devices-allocated", "npu-0,Ascend910B3,16384,0:;", "huawei.com/Ascend910B3")
    user["metadata"]["annotations"]["huawei.com/Ascend910B3"] = '[{"UUID":"npu-0","temp":"vir05_1c_16g"}]'
    found = of((NODES, offered), (PODS, user))
    place = ("c1", "n1", "npu-0", "Ascend910B3")
    assert found["gputide_card_framebuffer_left_to_grant_bytes"][place] == (65536 - 16384) * MIB
    assert found["gputide_card_compute_granted_ratio"][place] == 0.25
    assert found["gputide_card_compute_free_ratio"][place] == 0.75
    (info,) = found["gputide_slice_info"]
    told = dict(zip(GRANT_LABELS, info, strict=True))
    assert (told["card"], told["framebuffer_bytes"]) == ("npu-0", str(65536 * MIB))
    assert (told["framebuffer_granted_bytes"], told["compute_granted_ratio"]) == (str(16384 * MIB), "0.25")


def test_metaxs_cards_and_shares_are_read_though_it_writes_in_its_own_words_beside_hamis() -> None:
    offered = node(cards=0, annotations={"metax-tech.com/node-gpu-devices": METAX})
    user = vendor_pod(
        "hami.io/metax-sgpu-devices-allocated", f"{METAX_CARD},Metax-SGPU,16384,30:;", "metax-tech.com/sgpu"
    )
    own = [[{"uuid": METAX_CARD, "compute": 30, "vRam": 16384}]]
    user["metadata"]["annotations"]["metax-tech.com/gpu-devices-allocated"] = json.dumps(own)
    found = of((NODES, offered), (PODS, user))
    place = ("c1", "n1", METAX_CARD, "MXC500")
    assert not found["gputide_node_unreadable_registers"]
    assert found["gputide_card_tenants"][place] == 1
    assert found["gputide_card_framebuffer_left_to_grant_bytes"][place] == (65536 - 16384) * MIB
    assert found["gputide_card_compute_free_ratio"][place] == pytest.approx(0.7)
    assert found["gputide_distrusted_grants"]["c1", "corrupt"] == 0


@pytest.mark.parametrize(
    ("capacity", "cards", "framebuffer_mib", "text", "annotation", "ratio"),
    [
        pytest.param(
            {"cambricon.com/vmlu": "200", "cambricon.com/mlu.smlu.vcore": "200",
             "cambricon.com/mlu.smlu.vmemory": "192"},
            ["n1-cambricon-mlu-0", "n1-cambricon-mlu-1"], 24576, "n1-cambricon-mlu-1,MLU,2560,20:;",
            "hami.io/cambricon-mlu-devices-allocated", 0.2, id="cambricon",
        ),
        pytest.param(
            {"mthreads.com/vgpu": "32", "mthreads.com/sgpu-core": "32", "mthreads.com/sgpu-memory": "192"},
            ["n1-mthreads-0", "n1-mthreads-1"], 49152, "n1-mthreads-1,Mthreads,8192,8:;",
            "hami.io/mthreads-vgpu-devices-allocated", 0.5, id="moore-threads",
        ),
        pytest.param(
            {"kunlunxin.com/xpu": "2"}, ["n1-kunlun-0", "n1-kunlun-1"], None, "n1-kunlun-1,kunlun,98304,100:;",
            "hami.io/kunlun-allocated", 1.0, id="kunlun",
        ),
    ],
)  # fmt: skip
def test_cards_that_no_annotation_lists_are_those_that_hami_numbers(
    capacity: dict[str, str], cards: list[str], framebuffer_mib: int | None, text: str, annotation: str, ratio: float
) -> None:
    offered = node(cards=0)
    offered["status"]["capacity"] = capacity
    resource = next(iter(capacity))
    found = of((NODES, offered), (PODS, vendor_pod(annotation, text, resource)))
    tenants = {labels[2]: value for labels, value in found["gputide_card_tenants"].items()}
    assert tenants == {cards[0]: 0, cards[1]: 1}
    left = {labels[2]: value for labels, value in found["gputide_card_framebuffer_left_to_grant_bytes"].items()}
    if framebuffer_mib is None:
        assert left == {}
    else:
        assert left[cards[0]] == framebuffer_mib * MIB
    assert set(found["gputide_slice_compute_granted_ratio"].values()) == {ratio}


@pytest.mark.parametrize("is_annotated", [False, True], ids=["before", "after"])
def test_cards_of_a_node_on_which_hami_granted_none_are_not_called_free(*, is_annotated: bool) -> None:
    # Other schedulers hand out the same resources and write no annotation.
    offered = node(cards=0)
    offered["status"]["capacity"] = {"kunlunxin.com/xpu": "2"}
    user = vendor_pod("hami.io/kunlun-allocated", "n1-kunlun-1,kunlun,98304,100:;", "kunlunxin.com/xpu")
    plain = pod(containers=[container("main", {"kunlunxin.com/xpu": "1"})])
    allocation = Allocation("c1")
    for watched, manifest in ((NODES, offered), (PODS, plain), (PODS, user if is_annotated else plain)):
        take(allocation, watched, manifest)
        rows(allocation)
    assert len(rows(allocation)["gputide_card_tenants"]) == (2 if is_annotated else 0)
    take(allocation, PODS, plain)
    assert not rows(allocation)["gputide_card_tenants"]


def test_no_capacity_makes_more_cards_than_a_node_can_have() -> None:
    offered = node(cards=0)
    offered["status"]["capacity"] = {"kunlunxin.com/xpu": "1e12", "metax-tech.com/gpu": "-3"}
    user = vendor_pod("hami.io/kunlun-allocated", "n1-kunlun-1,kunlun,98304,100:;", "kunlunxin.com/xpu")
    assert len(of((NODES, offered), (PODS, user))["gputide_card_tenants"]) == 1024


@pytest.mark.parametrize("units", ["1e300", "-5", "0", "x", ""])
def test_framebuffer_that_no_card_has_is_absent(units: str) -> None:
    offered = node(cards=0)
    offered["status"]["capacity"] = {"mthreads.com/sgpu-core": "16", "mthreads.com/sgpu-memory": units}
    user = vendor_pod("hami.io/mthreads-vgpu-devices-allocated", "n1-mthreads-0,Mthreads,8192,8:;", "mthreads.com/vgpu")
    found = of((NODES, offered), (PODS, user))
    assert len(found["gputide_card_tenants"]) == 1
    assert not found["gputide_card_framebuffer_grantable_bytes"]


def test_a_vendors_plugin_that_is_gone_makes_its_cards_unhealthy() -> None:
    annotations = {
        "hami.io/node-register-Ascend910B3": ASCEND,
        "hami.io/node-handshake-Ascend910B3": "Deleted_2026-01-12 08:00:00",
        "volcano.sh/node-vgpu-register": f"{card_id(5)},10,23028,{MODEL},true,mig:",
        "volcano.sh/node-vgpu-handshake": "Deleted_2026.01.12 08:00:00",
    }
    found = of((NODES, node(cards=1, annotations=annotations)))
    healthy = {labels[2]: value for labels, value in found["gputide_card_healthy"].items()}
    assert healthy == {"npu-0": 0, card_id(5): 0, card_id(0): 1}
