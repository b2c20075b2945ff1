"""What cards and pods were granted, from manifests alone."""

from __future__ import annotations

import json

import pytest

from exporter.allocation.state import Allocation
from exporter.cluster.reader import Watched
from fleet.grammars.kai import READY_CONDITION
from fleet.schema import GRANT_LABELS, NODE_INFO_LABELS
from fleet.units import GIB, MIB
from tests.exporter.allocation_manifests import (
    CARD_MIB,
    MODEL,
    Manifest,
    card_id,
    container,
    grant,
    node,
    of,
    owned,
    pod,
    rows,
    take,
)

NODES, PODS = Watched.NODES, Watched.PODS


def card(number: int, on: str = "n1") -> tuple[str, ...]:
    return ("c1", on, card_id(number), MODEL)


def test_granted_and_free_framebuffer_and_cores_add_up_to_what_may_be_granted():
    found = of(
        (NODES, node(cards=1)),
        (PODS, pod("a", granted=grant(0, 8000, 30) + ";")),
        (PODS, pod("b", granted=grant(0, 4000, 20) + ";")),
    )
    assert found["gputide_card_framebuffer_granted_bytes"][card(0)] == 12_000 * MIB
    assert found["gputide_card_framebuffer_left_to_grant_bytes"][card(0)] == (CARD_MIB - 12_000) * MIB
    assert found["gputide_card_compute_granted_ratio"][card(0)] == 0.5
    assert found["gputide_card_compute_free_ratio"][card(0)] == 0.5
    assert found["gputide_card_tenants"][card(0)] == 2


def test_card_that_nobody_holds_is_free_and_not_absent():
    found = of((NODES, node(cards=1)))
    assert found["gputide_card_tenants"][card(0)] == 0
    assert found["gputide_card_framebuffer_grantable_bytes"][card(0)] == CARD_MIB * MIB


def test_until_all_pods_are_known_nothing_is_called_free():
    allocation = Allocation("c1")
    take(allocation, NODES, node(cards=1))
    shown = rows(allocation, frozenset({Watched.NODES}))
    assert "gputide_card_framebuffer_grantable_bytes" in shown
    assert (
        not {"gputide_card_framebuffer_left_to_grant_bytes", "gputide_card_tenants", "gputide_pending_pods"}
        & shown.keys()
    )
    assert "gputide_node_info" not in rows(allocation, frozenset({Watched.PODS}))


def test_until_owners_are_known_no_grant_names_a_workload_that_changes_at_once():
    allocation = Allocation("c1")
    take(allocation, NODES, node(cards=1))
    take(allocation, PODS, pod(granted=grant(0) + ";", owner=("ReplicaSet", "svc-7d9", "rs-1")))
    shown = rows(allocation, frozenset({NODES, PODS}))
    assert "gputide_slice_info" not in shown
    assert shown["gputide_card_tenants"][card(0)] == 1


def test_granted_slice_has_a_series_from_the_moment_it_is_bound():
    labels = {"app": "svc"}
    owner = ("ReplicaSet", "svc-7d9", "rs-1")
    found = of(
        (NODES, node(cards=1)),
        (Watched.REPLICA_SETS, owned("svc-7d9", "rs-1", ("Deployment", "svc", "d-1"))),
        (PODS, pod(phase="Pending", granted=grant(0) + ";", owner=owner, labels=labels)),
    )
    (info,) = found["gputide_slice_info"]
    told = dict(zip(GRANT_LABELS, info, strict=True))
    assert (told["workload_kind"], told["workload"]) == ("Deployment", "svc")
    assert (told["card"], told["card_model"], told["node"]) == (card_id(0), MODEL, "n1")
    assert told["framebuffer_granted_bytes"] == str(8000 * MIB)
    assert told["framebuffer_bytes"] == str(CARD_MIB * MIB)
    assert (told["compute_granted_ratio"], told["cpu_request_cores"]) == ("0.3", "2")
    assert told["memory_request_bytes"] == str(8 * GIB)
    assert json.loads(told["labels"]) == labels
    assert told["started_at"] == "2026-01-12T08:30:04+00:00"


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (pod(on=None, granted=grant(0) + ";"), "unbound"),
        (pod(on=None, granted=grant(0) + ";", annotations={"hami.io/bind-phase": "failed"}), "bind_failed"),
        (pod(phase="Pending", granted=grant(0) + ";", annotations={"hami.io/bind-phase": "failed"}), "bind_failed"),
        (pod(phase="Failed", granted=grant(0) + ";"), "finished"),
        (pod(phase="Succeeded", granted=grant(0) + ";"), "finished"),
        (pod(granted=grant(0) + ";", annotations={"hami.io/vgpu-node": "n2"}), "node_differs"),
        (pod(granted=grant(0)), "corrupt"),
        (pod(granted=(grant(0) + ";") * 2), "corrupt"),
        (pod(granted=f"{card_id(0)},NVIDIA,9999999999999,1:;"), "corrupt"),
    ],
)
def test_annotation_that_is_no_grant_is_counted_by_its_reason_and_takes_nothing(manifest: Manifest, reason: str):
    found = of((NODES, node(cards=1)), (PODS, manifest))
    assert found["gputide_card_tenants"][card(0)] == 0
    assert found["gputide_card_framebuffer_granted_bytes"][card(0)] == 0
    counted = {labels[1]: value for labels, value in found["gputide_distrusted_grants"].items()}
    assert counted.pop(reason) == 1
    assert set(counted.values()) == {0}
    assert not found["gputide_slice_info"]


def test_deleted_pod_leaves_no_trace():
    allocation = Allocation("c1")
    take(allocation, NODES, node(cards=1))
    empty = rows(allocation)
    manifest = pod(granted=grant(0) + ";")
    take(allocation, PODS, manifest)
    assert rows(allocation) != empty
    allocation.retain(PODS, set())
    assert rows(allocation) == empty


def test_init_container_that_has_ended_holds_nothing_and_a_sidecar_does():
    limits = {"nvidia.com/gpu": "1"}
    text = f"{grant(0, 1000)};{grant(0, 2000)};{grant(0, 4000)};"
    ended = [{"name": name, "state": {"terminated": {"exitCode": 0}}} for name in ("init", "side")]
    manifest = pod(
        granted=text, init_statuses=ended,
        inits=[container("init", limits), container("side", limits, restartPolicy="Always")],
    )  # fmt: skip
    found = of((NODES, node(cards=1)), (PODS, manifest))
    assert found["gputide_card_framebuffer_granted_bytes"][card(0)] == 6000 * MIB
    # The init container ran alone, before the two others.
    assert found["gputide_node_devices_granted"]["c1", "n1", "nvidia.com/gpu"] == 2


def test_release_that_leaves_init_containers_out_is_read_right():
    manifest = pod(granted=grant(0) + ";", inits=[container("init", {})])
    (labels,) = of((NODES, node(cards=1)), (PODS, manifest))["gputide_slice_framebuffer_granted_bytes"]
    assert labels[3] == "main"


def test_release_that_leaves_out_containers_without_a_card_is_read_right():
    limits = {"nvidia.com/gpu": "1"}
    containers = [container("proxy", {}), container("first", limits), container("last", limits)]
    manifest = pod(granted=f"{grant(0, 1000)};{grant(0, 2000)};", containers=containers, inits=[container("init", {})])
    found = of((NODES, node(cards=1)), (PODS, manifest))["gputide_slice_framebuffer_granted_bytes"]
    assert {labels[3]: value for labels, value in found.items()} == {"first": 1000 * MIB, "last": 2000 * MIB}


def test_volcanos_annotation_has_a_part_for_each_container_with_a_card_alone():
    containers = [container("proxy", {}), container("server", {"volcano.sh/vgpu-number": "1"})]
    annotations = {"volcano.sh/vgpu-ids-new": grant(0, 1000), "volcano.sh/vgpu-node": "n1"}
    manifest = pod(annotations=annotations, containers=containers)
    (labels,) = of((NODES, node(cards=1)), (PODS, manifest))["gputide_slice_framebuffer_granted_bytes"]
    assert labels[3] == "server"


def test_no_limit_on_cores_takes_nothing_of_the_cards_compute():
    found = of((NODES, node(cards=1)), (PODS, pod(granted=grant(0, 8000, 0) + ";")))
    assert found["gputide_card_compute_granted_ratio"][card(0)] == 0
    assert set(found["gputide_slice_compute_granted_ratio"].values()) == {1.0}


def test_oversubscribed_card_shows_what_it_has_and_what_may_be_granted():
    found = of((NODES, node(cards=1, scaling=2.0)))
    assert found["gputide_card_framebuffer_grantable_bytes"][card(0)] == 2 * CARD_MIB * MIB
    (info,) = found["gputide_card_info"]
    assert info[4] == str(24 * GIB)


def test_framebuffer_of_a_share_that_nobody_knows_makes_the_cards_absent_and_not_zero():
    unknown = {"nvidia.com/real-allocated": f"main[0_{card_id(0)}_10_0]"}
    plain = json.dumps([{"id": card_id(0), "devcore": 100, "type": "Odd Card", "health": True}])
    manifest = node(cards=0, annotations={"hami.io/node-nvidia-register": plain})
    found = of((NODES, manifest), (PODS, pod(annotations=unknown)))
    assert found["gputide_card_tenants"]["c1", "n1", card_id(0), "Odd Card"] == 1
    assert not found["gputide_card_framebuffer_granted_bytes"]
    assert not found["gputide_card_framebuffer_grantable_bytes"]


def test_card_named_twice_for_one_container_is_summed():
    found = of((NODES, node(cards=1)), (PODS, pod(granted=grant(0, 1000, 10) + grant(0, 2000, 20) + ";")))
    assert set(found["gputide_slice_framebuffer_granted_bytes"].values()) == {3000 * MIB}
    assert found["gputide_card_compute_granted_ratio"][card(0)] == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (node(), {("hami", "hami-core")}),
        (node(mode="mig"), {("hami", "mig")}),
        (node(cards=0, allocatable={"nvidia.com/gpu": "8"}), {("nvidia", "")}),
        (
            node(cards=0, allocatable={"nvidia.com/gpu": "8"}, labels={"nvidia.com/gpu.sharing-strategy": "none"}),
            {("nvidia", "whole")},
        ),
        (
            node(
                cards=0,
                allocatable={"nvidia.com/gpu.shared": "40"},
                labels={"nvidia.com/gpu.sharing-strategy": "time-slicing"},
            ),
            {("nvidia", "time-slicing")},
        ),
        (node(cards=0, allocatable={"nvidia.com/mig-1g.10gb": "7"}), {("nvidia", "mig")}),
        (
            node(cards=0, annotations={"volcano.sh/node-vgpu-register": f"{card_id(0)},10,23028,{MODEL},true,mig:"}),
            {("volcano", "mig")},
        ),
        (node(cards=0, labels={"vke.node.gpu.schedule": "mgpu"}), {("mgpu", "")}),
        (node(cards=0), set()),
    ],
)
def test_backend_and_mode_of_a_node_are_told(manifest: Manifest, expected: set[tuple[str, str]]):
    found = of((NODES, manifest))
    assert {labels[2:] for labels in found["gputide_node_sharing_info"]} == expected


def test_cordoned_and_unhealthy_cards_are_told():
    register = json.dumps([{"id": card_id(number), "type": f"NVIDIA-{MODEL}", "devmem": CARD_MIB} for number in (0, 1)])
    annotations = {"hami.io/node-nvidia-register": register, "hami.io/device-cordon": card_id(1)}
    found = of((NODES, node(cards=0, annotations=annotations)))
    assert found["gputide_card_healthy"][card(0)] == 0
    assert [found["gputide_card_cordoned"][card(number)] for number in (0, 1)] == [0, 1]


def test_register_that_cannot_be_read_is_counted_and_its_node_kept():
    found = of((NODES, node(cards=0, annotations={"hami.io/node-nvidia-register": "[{"})))
    assert found["gputide_node_unreadable_registers"] == {("c1", "n1"): 1}
    assert not found["gputide_card_info"]


def test_plain_device_plugin_pod_is_granted_devices_though_no_card_is_named():
    offered = node(cards=0, allocatable={"nvidia.com/gpu": "8"})
    found = of((NODES, offered), (PODS, pod(resources={"nvidia.com/gpu": "2"})))
    assert found["gputide_container_devices_granted"] == {("c1", "team", "p1", "main", "n1", "nvidia.com/gpu"): 2}
    assert found["gputide_node_devices_allocatable"]["c1", "n1", "nvidia.com/gpu"] == 8
    assert found["gputide_node_devices_granted"]["c1", "n1", "nvidia.com/gpu"] == 2


def test_volcano_and_vgpu_manager_are_read_like_hami():
    volcano = {"volcano.sh/vgpu-ids-new": grant(0, 3000, 25), "volcano.sh/vgpu-node": "n1"}
    manager = {"nvidia.com/real-allocated": f"main[0_{card_id(0)}_10_2000]"}
    found = of((NODES, node(cards=1)), (PODS, pod("v", annotations=volcano)), (PODS, pod("m", annotations=manager)))
    assert found["gputide_card_framebuffer_granted_bytes"][card(0)] == 5000 * MIB
    assert found["gputide_card_compute_granted_ratio"][card(0)] == pytest.approx(0.35)


def test_fraction_of_kai_is_found_on_the_card_that_its_reservation_pod_holds():
    labels = {"nvidia.com/gpu.product": "NVIDIA-A10", "nvidia.com/gpu.memory": str(CARD_MIB)}
    offered = node(cards=0, allocatable={"nvidia.com/gpu": "1"}, labels=labels)
    reserved = pod(
        "reservation", namespace="kai-resource-reservation", labels={"runai-gpu-group": "g1"},
        annotations={"run.ai/reserve_for_gpu_index": card_id(5)},
    )  # fmt: skip
    sharer = pod(resources={}, annotations={"gpu-fraction": "0.5"}, labels={"runai-gpu-group": "g1"})
    found = of((NODES, offered), (PODS, sharer), (PODS, reserved))
    place = ("c1", "n1", card_id(5), "A10")
    assert found["gputide_card_tenants"][place] == 1
    assert found["gputide_card_framebuffer_granted_bytes"][place] == CARD_MIB * MIB // 2
    assert ("c1", "n1", "kai", "fraction") in found["gputide_node_sharing_info"]
    assert of((NODES, offered), (PODS, sharer))["gputide_card_tenants"] == {}


def test_tensor_fusions_pods_hold_what_its_scheduler_gave_them():
    given = {"tensor-fusion.ai/gpu-ids": card_id(0).lower(), "tensor-fusion.ai/vram-request": "2Gi",
             "tensor-fusion.ai/compute-percent-limit": "25"}  # fmt: skip

    def fused(name, **annotations):
        return pod(name, resources={"tensor-fusion.ai/index_0": "1"}, annotations={**given, **annotations})

    found = of((NODES, node(cards=1)), *((PODS, fused(name)) for name in "ab"))
    assert found["gputide_card_framebuffer_granted_bytes"][card(0)] == 2 * 2048 * MIB
    assert found["gputide_card_compute_granted_ratio"][card(0)] == pytest.approx(0.5)
    for wrong in ({"gpu-ids": card_id(0)}, {"gpu-ids": ""}, {"vram-request": "much"}, {"vram-request": "-1"},
                  {"compute-percent-limit": "101"}, {"inject-container": "other"}):  # fmt: skip
        bad = of((NODES, node(cards=1)), (PODS, fused("a", **{f"tensor-fusion.ai/{k}": v for k, v in wrong.items()})))
        assert bad["gputide_distrusted_grants"]["c1", "corrupt"] == 1, wrong


def test_card_that_an_administrator_tainted_has_no_room_and_says_whose_taint_it_is():
    effects = {"closing": ("NoSchedule", {"driver": "gpu.nvidia.com", "device": "gpu-0"}), "saying": ("None", {}),
               "elsewhere": ("NoExecute", {"pool": "n2"})}  # fmt: skip
    rules = [
        (Watched.TAINT_RULES, {"metadata": {"name": name}, "spec": {
            "deviceSelector": selector, "taint": {"key": "ops/link", "value": "bad", "effect": effect}}})
        for name, (effect, selector) in effects.items()
    ]  # fmt: skip
    place = ("c1", "n1", card_id(7), MODEL)
    slices = dra_objects()[2:3]
    open_, closed = of((NODES, node(cards=0)), *slices), of((NODES, node(cards=0)), *slices, *rules)
    assert open_["gputide_card_framebuffer_left_to_grant_bytes"][place] == CARD_MIB * MIB
    assert (open_["gputide_card_cordoned"], open_["gputide_card_taint_info"]) == ({}, {})
    assert closed["gputide_card_framebuffer_left_to_grant_bytes"][place] == 0
    assert closed["gputide_card_cordoned"] == {place: 1}
    assert set(closed["gputide_card_taint_info"]) == {
        (*place, "ops/link", "bad", "NoSchedule", "DeviceTaintRule closing"),
        (*place, "ops/link", "bad", "None", "DeviceTaintRule saying"),
    }


@pytest.mark.parametrize(
    ("seen", "is_ready", "held"),
    [(card_id(6), "True", 6), (card_id(6), "False", 5), ("GPU-ffffffff-ffff-ffff-ffff-ffffffffffff", "True", 5)],
)
def test_capped_share_of_kai_is_on_the_card_that_its_container_sees_if_its_node_caps_and_has_it(seen, is_ready, held):
    labels = {"nvidia.com/gpu.product": "NVIDIA-A10", "nvidia.com/gpu.memory": str(CARD_MIB)}
    reserved = [
        pod(f"r{number}", namespace="kai-resource-reservation", labels={"runai-gpu-group": f"g{number}"},
            annotations={"run.ai/reserve_for_gpu_index": card_id(number)})
        for number in (5, 6)
    ]  # fmt: skip
    asked = {"nvidia.com/container.main.gpu-memory.request": "2Gi", "nvidia.com/container.main.gpus.devices": seen}
    sharer = pod(resources={}, annotations=asked, labels={"runai-gpu-group": "g5"})
    capping = node(cards=0, labels=labels)
    capping["status"]["conditions"] = [{"type": READY_CONDITION, "status": is_ready}]
    found = of((NODES, capping), *((PODS, one) for one in (sharer, *reserved)))
    assert found["gputide_card_framebuffer_granted_bytes"]["c1", "n1", card_id(held), "A10"] == 2 * 1024 * MIB


@pytest.mark.parametrize("asked", [{"gpu-fraction": "0.99"}, {"nvidia.com/container.main.gpu-memory.request": "20Gi"}])
def test_pod_that_asks_for_nothing_and_writes_that_it_sees_another_pods_card_holds_none_of_it(asked):
    thief = pod("thief", resources={}, annotations={**asked, "nvidia.com/container.main.gpus.devices": card_id(0)})
    victim = pod(granted=grant(0, 8000) + ";")
    found = of((NODES, node(cards=1)), (PODS, victim), (PODS, thief))
    assert found["gputide_card_framebuffer_granted_bytes"][card(0)] == 8000 * MIB


def dra_objects(*, reserved_for: str = "uid-p1") -> list[tuple[Watched, Manifest]]:
    published = {
        "metadata": {"name": "n1-slice"},
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": "n1", "pool": {"name": "n1"},
            "devices": [
                {"name": "gpu-0", "attributes": {"uuid": {"string": card_id(7)}, "productName": {"string": MODEL}},
                 "capacity": {"memory": {"value": f"{CARD_MIB}Mi"}}}
            ],
        },
    }  # fmt: skip
    claim = {
        "metadata": {"namespace": "team", "name": "claim-1"},
        "status": {
            "allocation": {"devices": {"results": [
                {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}]}},
            "reservedFor": [{"resource": "pods", "name": "p1", "uid": reserved_for}],
        },
    }  # fmt: skip
    user = {"name": "main", "resources": {"claims": [{"name": "card"}]}}
    using = pod(containers=[user], claims=[{"name": "card", "resourceClaimName": "claim-1"}])
    return [
        (Watched.PODS, using), (Watched.RESOURCE_CLAIMS, claim), (Watched.RESOURCE_SLICES, published),
        (Watched.NODES, node(cards=0)),
    ]  # fmt: skip


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "deviceclass.resource.kubernetes.io/gpu.nvidia.com"])
def test_card_behind_an_extended_resource_is_that_of_the_claim_that_the_scheduler_made(resource):
    _, claim, published, standing = dra_objects()
    using = pod(resources={resource: "1"})
    using["status"]["extendedResourceClaimStatus"] = {
        "resourceClaimName": "claim-1",
        "requestMappings": [
            {"containerName": "main", "resourceName": resource, "requestName": "container-0-request-0"}
        ],
    }
    claim[1]["status"]["allocation"]["devices"]["results"][0]["request"] = "container-0-request-0"
    found = of((Watched.PODS, using), claim, published, standing)
    assert found["gputide_card_tenants"][card(7)] == 1
    assert found["gputide_card_framebuffer_left_to_grant_bytes"][card(7)] == 0


@pytest.mark.parametrize("is_extended", [True, False])
def test_container_has_only_the_cards_of_its_own_requests(is_extended):
    _, (_, claim), (_, published), standing = dra_objects()
    (device,) = published["spec"]["devices"]
    more = {"uuid": {"string": card_id(8)}, "productName": {"string": MODEL}}
    published["spec"]["devices"] = [device, {**device, "name": "gpu-1", "attributes": more}]
    result = {"driver": "gpu.nvidia.com", "pool": "n1"}
    claim["status"]["allocation"]["devices"]["results"] = [
        {**result, "device": "gpu-0", "request": "first"}, {**result, "device": "gpu-1", "request": "second/large"},
    ]  # fmt: skip
    requests = {"main": "first", "sidecar": "second"}
    if is_extended:
        using = pod(containers=[container(name, {"nvidia.com/gpu": "1"}) for name in requests],
                    inits=[container("load", {"nvidia.com/gpu": "1"})])  # fmt: skip
        using["status"]["extendedResourceClaimStatus"] = {
            "resourceClaimName": "claim-1",
            "requestMappings": [
                {"containerName": name, "resourceName": "nvidia.com/gpu", "requestName": request}
                for name, request in {**requests, "load": "first"}.items()
            ],
        }
    else:
        users = [
            {"name": name, "resources": {"claims": [{"name": "card", "request": request}]}}
            for name, request in requests.items()
        ]
        using = pod(containers=users, claims=[{"name": "card", "resourceClaimName": "claim-1"}])
    found = of((PODS, using), (Watched.RESOURCE_CLAIMS, claim), (Watched.RESOURCE_SLICES, published), standing)
    slices = [dict(zip(GRANT_LABELS, labels, strict=True)) for labels in found["gputide_slice_info"]]
    assert sorted((one["container"], one["card"]) for one in slices) == [("main", card_id(7)), ("sidecar", card_id(8))]


def test_claim_grants_the_card_that_its_slice_publishes():
    found = of(*dra_objects())
    assert found["gputide_card_tenants"][card(7)] == 1
    assert found["gputide_card_framebuffer_left_to_grant_bytes"][card(7)] == 0
    assert len(found["gputide_slice_info"]) == 1
    assert ("c1", "n1", "dra", "") in found["gputide_node_sharing_info"]


def test_claim_of_another_pod_grants_nothing():
    assert of(*dra_objects(reserved_for="uid-of-a-former-p1"))["gputide_card_tenants"][card(7)] == 0


def test_claim_that_two_pods_use_is_granted_once():
    using, (kind, claim), *others = dra_objects()
    claim["status"]["reservedFor"].append({"resource": "pods", "name": "p2", "uid": "uid-p2"})
    second = pod(
        "p2", claims=[{"name": "card", "resourceClaimName": "claim-1"}],
        containers=[{"name": "main", "resources": {"claims": [{"name": "card"}]}}],
    )  # fmt: skip
    found = of(using, (kind, claim), (PODS, second), *others)
    assert found["gputide_card_tenants"][card(7)] == 2
    assert found["gputide_card_framebuffer_granted_bytes"][card(7)] == CARD_MIB * MIB
    assert len(found["gputide_slice_framebuffer_granted_bytes"]) == 2


def test_pod_without_cards_costs_nothing():
    allocation = Allocation("c1")
    take(allocation, PODS, pod(resources={"cpu": "1"}))
    assert allocation.held(PODS) == 0


def test_labels_beyond_bounds_are_left_out_and_own_ones_kept():
    labels = {f"key-{number}": "x" * 60 for number in range(100)} | {"gputide.io/opt-out": "true"}
    (info,) = of((NODES, node(cards=1)), (PODS, pod(granted=grant(0) + ";", labels=labels)))["gputide_slice_info"]
    assert json.loads(dict(zip(GRANT_LABELS, info, strict=True))["labels"]) == {"gputide.io/opt-out": "true"}


@pytest.mark.parametrize(
    ("tier", "limits", "priority"),
    [
        ("protected", {}, "high"),
        ("mid", {}, "normal"),
        ("batch", {}, "low"),
        ("free", {}, "low"),
        ("root", {}, "normal"),
        ("free", {"nvidia.com/priority": "0"}, "high"),
    ],
)
def test_priority_is_that_of_the_tier_where_no_word_of_a_backend_says_one(
    tier: str, limits: dict[str, str], priority: str
) -> None:
    manifest = pod(
        granted=grant(0) + ";", containers=[container("main", {"nvidia.com/gpu": "1", **limits})],
        labels={"gputide.io/tier": tier},
    )  # fmt: skip
    (info,) = of((NODES, node(cards=1)), (PODS, manifest))["gputide_slice_info"]
    assert dict(zip(GRANT_LABELS, info, strict=True))["priority"] == priority


@pytest.mark.parametrize(
    ("limits", "env", "priority"),
    [
        ({"nvidia.com/gpu": "1"}, [], "normal"),
        ({"nvidia.com/gpu": "1", "nvidia.com/priority": "0"}, [], "high"),
        ({"nvidia.com/gpu": "1"}, [{"name": "CUDA_TASK_PRIORITY", "value": "1"}], "low"),
        ({"nvidia.com/gpu": "1"}, [{"name": "CUDA_TASK_PRIORITY", "value": "-"}], "normal"),
    ],
)
def test_priority_is_the_one_that_somebody_set(limits: dict[str, str], env: list[Manifest], priority: str):
    manifest = pod(granted=grant(0) + ";", containers=[container("main", limits, env=env)])
    (info,) = of((NODES, node(cards=1)), (PODS, manifest))["gputide_slice_info"]
    assert dict(zip(GRANT_LABELS, info, strict=True))["priority"] == priority


@pytest.mark.parametrize(("said", "kept"), [("aws:///eu-west-1a/i-0abc", "aws:///eu-west-1a/i-0abc"), ("x" * 513, "")])
def test_a_nodes_provider_id_travels_within_bounds(said: str, kept: str) -> None:
    manifest = node(cards=1)
    manifest["spec"]["providerID"] = said
    (labels,) = of((NODES, manifest))["gputide_node_info"]
    assert labels[NODE_INFO_LABELS.index("provider_id")] == kept
