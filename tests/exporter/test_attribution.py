"""Every granted container has its slice on the card that it really holds, whichever backend handed it out."""

import json
from dataclasses import replace

import pytest

from exporter.allocation.manifest import Shared
from exporter.allocation.records import OwnerLinkRecord
from exporter.attribution.attributor import FINDINGS_MAX, attribute
from exporter.attribution.cards import KnownInstance
from exporter.attribution.pods import pod_facts
from exporter.attribution.records import FindingKind, GrantSource
from exporter.kubelet.pod_resources import ContainerRow, DeviceRow
from fleet.grammars.claims import ClaimAllocation, ClaimedDevice, PublishedDevice
from fleet.inventory import CardId, CardModelName, Priority
from tests.exporter.node import (
    CARD_BYTES,
    GIB,
    NODE,
    NOW,
    card_id,
    facts,
    given_claim,
    hami,
    handed,
    instance_id,
    known,
    manifest,
    odd,
    only,
    row,
    told,
    uid,
    view,
)

ONE_G = KnownInstance(
    instance=instance_id(1), profile="1g.10gb", framebuffer_bytes=10 * GIB, gpu_instance=7, compute_instance=0
)
THREE_G = KnownInstance(
    instance=instance_id(3), profile="3g.40gb", framebuffer_bytes=40 * GIB, gpu_instance=2, compute_instance=0
)


# --- NVIDIA's plugin: the kubelet is the truth ------------------------------------------------------------------------


def test_a_whole_card_is_granted_from_the_moment_that_the_kubelet_lists_it_used_or_not() -> None:
    found = only(attribute(view(rows=[row("train", handed(card_id(1)))], pods=[facts("train", 1)]), NOW))
    assert (found.grant.card, found.grant.framebuffer_granted_bytes, found.grant.compute_granted_ratio) == (
        card_id(1),
        CARD_BYTES,
        1.0,
    )
    assert (found.sources, found.is_certain, found.pids) == ((GrantSource.POD_RESOURCES,), True, ())
    assert (found.grant.cpu_request_cores, found.grant.memory_request_bytes) == (2.0, 4 * GIB)
    assert found.grant.started_at.hour == 11


def test_the_kubelet_alone_is_enough_when_the_api_server_was_never_reached() -> None:
    attribution = attribute(view(rows=[row("train", handed(card_id(1)))], pods=None), NOW)
    found = only(attribution)
    assert (found.grant.workload_kind, found.grant.workload, found.grant.started_at) == ("Pod", "train", NOW)
    assert (found.pod_uid, found.is_certain) == (None, True)
    assert attribution.findings == ()


def test_one_container_with_several_cards_has_one_slice_per_card() -> None:
    attribution = attribute(
        view(
            rows=[row("train", handed(card_id(0), card_id(1)))],
            pods=[facts("train", 1, resources={"nvidia.com/gpu": "2"})],
        ),
        NOW,
    )
    assert told(attribution) == [("train", "main", card_id(0), 80.0), ("train", "main", card_id(1), 80.0)]


@pytest.mark.parametrize("replicas", [2, 4, 10])
def test_each_of_those_who_share_a_card_by_replicas_has_its_part_of_it(replicas: int) -> None:
    ids = [f"{card_id(0)}::{number}" for number in range(replicas)]
    attribution = attribute(
        view(
            rows=[row("a", handed(ids[0])), row("b", handed(ids[1]))],
            pods=[facts("a", 1), facts("b", 2)],
            allocatable=ids,
        ),
        NOW,
    )
    assert [found.grant.framebuffer_granted_bytes for found in attribution.slices] == [CARD_BYTES // replicas] * 2
    assert [found.grant.compute_granted_ratio for found in attribution.slices] == [1 / replicas] * 2
    assert [found.grant.card for found in attribution.slices] == [card_id(0)] * 2


def test_several_replicas_of_one_card_are_one_slice() -> None:
    ids = [f"{card_id(0)}::{number}" for number in range(4)]
    found = only(attribute(view(rows=[row("a", handed(*ids[:3]))], pods=[facts("a", 1)], allocatable=ids), NOW))
    assert (found.grant.framebuffer_granted_bytes, found.grant.compute_granted_ratio) == (60 * GIB, 0.75)


@pytest.mark.parametrize("broken", range(4))
def test_replica_that_became_unhealthy_leaves_the_share_of_the_others_as_it_was(broken: int) -> None:
    # The kubelet lists as allocatable what is healthy; a fault of the card takes one of its replicas away.
    replicas = [f"{card_id(card)}::{number}" for card in (0, 1) for number in range(4)]
    attribution = attribute(
        view(
            rows=[row("a", handed(f"{card_id(0)}::1"))],
            pods=[facts("a", 1)],
            allocatable=[name for name in replicas if name != f"{card_id(0)}::{broken}"],
        ),
        NOW,
    )
    assert only(attribution).grant.framebuffer_granted_bytes == 20 * GIB
    assert attribution.findings == ()


def test_device_that_the_kubelet_lists_once_per_numa_node_is_held_once() -> None:
    ids = [f"{card_id(0)}::{number}" for number in range(4)]
    twice = ContainerRow(container="main", devices=handed(ids[1]).devices * 2)
    found = only(attribute(view(rows=[row("a", twice)], pods=[facts("a", 1)], allocatable=ids * 2), NOW))
    assert (found.grant.framebuffer_granted_bytes, found.grant.compute_granted_ratio) == (20 * GIB, 0.25)


def test_share_is_told_by_the_replicas_of_its_own_resource() -> None:
    listed = (
        DeviceRow(resource="nvidia.com/gpu.shared", ids=tuple(f"{card_id(0)}::{number}" for number in range(4))),
        DeviceRow(resource="nvidia.com/other.shared", ids=tuple(f"{card_id(1)}::{number}" for number in range(2))),
    )
    rows = [
        row("a", handed(f"{card_id(0)}::1", resource="nvidia.com/gpu.shared")),
        row("b", handed(f"{card_id(1)}::1", resource="nvidia.com/other.shared")),
    ]
    attribution = attribute(replace(view(rows=rows, pods=[facts("a", 1), facts("b", 2)]), allocatable=listed), NOW)
    assert [found.grant.compute_granted_ratio for found in attribution.slices] == [0.25, 0.5]


def test_a_replica_of_who_knows_how_many_counts_as_the_most_it_can_be_and_says_so() -> None:
    attribution = attribute(
        view(rows=[row("a", handed(f"{card_id(0)}::1"))], pods=[facts("a", 1)], allocatable=None), NOW
    )
    assert only(attribution).grant.framebuffer_granted_bytes == CARD_BYTES
    assert not only(attribution).is_amount_known
    assert odd(attribution) == {FindingKind.UNKNOWN_AMOUNT}


@pytest.mark.parametrize(
    "device_id", [instance_id(1), f"MIG-{card_id(0)}/7/0", "nvidia0/gi7"], ids=["current", "legacy", "gke"]
)
def test_a_mig_instance_is_a_part_of_its_card_however_it_is_named(device_id: str) -> None:
    attribution = attribute(
        view(
            cards=[known(0, ONE_G, THREE_G)],
            rows=[row("a", handed(device_id, resource="nvidia.com/mig-1g.10gb"))],
            pods=[facts("a", 1, resources={"nvidia.com/mig-1g.10gb": "1"})],
        ),
        NOW,
    )
    found = only(attribution)
    assert (found.grant.card, found.grant.mig_profile, found.instances) == (card_id(0), "1g.10gb", (instance_id(1),))
    assert found.grant.framebuffer_granted_bytes == 10 * GIB
    assert found.grant.compute_granted_ratio == pytest.approx(1 / 7)
    assert attribution.findings == ()


def test_two_instances_of_one_card_are_one_slice_with_both() -> None:
    found = only(
        attribute(
            view(
                cards=[known(0, ONE_G, THREE_G)],
                rows=[row("a", handed(instance_id(1), instance_id(3)))],
                pods=[facts("a", 1)],
            ),
            NOW,
        )
    )
    assert found.instances == (instance_id(1), instance_id(3))
    assert (found.grant.framebuffer_granted_bytes, found.grant.mig_profile) == (50 * GIB, "3g.40gb")
    assert found.grant.compute_granted_ratio == pytest.approx(4 / 7)


def test_a_replica_of_an_instance_is_a_part_of_the_instance() -> None:
    ids = [f"{instance_id(3)}::{number}" for number in range(2)]
    found = only(
        attribute(
            view(cards=[known(0, THREE_G)], rows=[row("a", handed(ids[1]))], pods=[facts("a", 1)], allocatable=ids), NOW
        )
    )
    assert found.grant.framebuffer_granted_bytes == 20 * GIB


@pytest.mark.parametrize("device_id", ["nvidia1", "nvidia1/vgpu0"])
def test_gkes_ids_name_cards_by_number(device_id: str) -> None:
    attribution = attribute(
        view(rows=[row("a", handed(device_id))], pods=[facts("a", 1)], allocatable=["nvidia1/vgpu0"]), NOW
    )
    assert told(attribution) == [("a", "main", card_id(1), 80.0)]


def test_gke_names_cards_after_their_device_files_and_not_after_the_drivers_order() -> None:
    swapped = [replace(known(0), minor=1), replace(known(1), minor=0)]
    found = only(attribute(view(cards=swapped, rows=[row("a", handed("nvidia1"))], pods=None), NOW))
    assert found.grant.card == card_id(0)


# --- HAMi and Volcano: the annotation is the truth --------------------------------------------------------------------


def test_hamis_annotation_and_not_the_kubelets_id_says_which_card_a_pod_holds() -> None:
    attribution = attribute(
        view(
            rows=[row("a", handed(f"{card_id(0)}-3"))],
            pods=[facts("a", 1, annotations=hami(f"{card_id(1)},20480,30"))],
        ),
        NOW,
    )
    found = only(attribution)
    assert (found.grant.card, found.grant.framebuffer_granted_bytes, found.grant.compute_granted_ratio) == (
        card_id(1),
        20 * GIB,
        0.3,
    )
    assert found.sources == (GrantSource.ANNOTATION, GrantSource.POD_RESOURCES)
    assert odd(attribution) == {FindingKind.CARD_DIFFERS}


def test_a_hami_pod_that_never_touched_its_card_has_its_slice() -> None:
    # No region file and no process: nothing but the grant tells of it.
    attribution = attribute(view(pods=[facts("a", 1, annotations=hami(f"{card_id(1)},1024,10"))]), NOW)
    assert told(attribution) == [("a", "main", card_id(1), 1.0)]
    assert odd(attribution) == {FindingKind.NOT_HANDED_OUT}


def test_a_hami_grant_without_a_limit_of_cores_has_the_whole_cards_compute() -> None:
    found = only(attribute(view(rows=None, pods=[facts("a", 1, annotations=hami(f"{card_id(1)},1024,0"))]), NOW))
    assert found.grant.compute_granted_ratio == 1.0


def test_an_amount_that_no_card_has_is_not_believed() -> None:
    attribution = attribute(view(rows=None, pods=[facts("a", 1, annotations=hami(f"{card_id(1)},99999999,10"))]), NOW)
    assert (only(attribution).grant.framebuffer_granted_bytes, only(attribution).is_amount_known) == (CARD_BYTES, False)
    assert odd(attribution) == {FindingKind.UNKNOWN_AMOUNT}


def test_two_containers_share_a_card_and_a_third_has_none() -> None:
    attribution = attribute(
        view(
            rows=[
                row(
                    "a",
                    handed(f"{card_id(0)}-1", container="first"),
                    handed(f"{card_id(0)}-2", container="third"),
                )
            ],
            pods=[
                facts(
                    "a",
                    1,
                    containers=["first", "second", "third"],
                    annotations=hami(f"{card_id(0)},1024,10", "", f"{card_id(0)},2048,20"),
                )
            ],
        ),
        NOW,
    )
    assert told(attribution) == [("a", "first", card_id(0), 1.0), ("a", "third", card_id(0), 2.0)]
    assert attribution.findings == ()


def test_without_the_annotation_the_kubelets_id_is_used_and_called_uncertain() -> None:
    attribution = attribute(view(rows=[row("a", handed(f"{card_id(0)}-3"))], pods=None), NOW)
    found = only(attribution)
    assert (found.grant.card, found.is_certain, found.is_amount_known) == (card_id(0), False, False)
    assert odd(attribution) == {FindingKind.UNCERTAIN_CARD}


def test_an_annotation_that_a_tenant_wrote_moves_no_slice_that_nvidias_plugin_handed_out() -> None:
    attribution = attribute(
        view(
            rows=[row("a", handed(card_id(0)))],
            pods=[facts("a", 1, annotations=hami(f"{card_id(1)},1,1"))],
        ),
        NOW,
    )
    assert told(attribution) == [("a", "main", card_id(0), 80.0)]
    assert odd(attribution) == {FindingKind.CARD_DIFFERS}


def test_volcanos_annotation_is_read_and_its_ids_that_count_are_not() -> None:
    annotations = {"volcano.sh/vgpu-ids-new": f"{card_id(1)},NVIDIA,4096,50:", "volcano.sh/vgpu-node": NODE}
    attribution = attribute(
        view(
            rows=[
                row(
                    "a",
                    handed(f"{card_id(0)}-0", resource="volcano.sh/vgpu-number"),
                    handed(f"{card_id(0)}-memory-1", resource="custom/vgpu-memory"),
                )
            ],
            pods=[facts("a", 1, annotations=annotations, resources={"volcano.sh/vgpu-number": "1"})],
        ),
        NOW,
    )
    assert told(attribution) == [("a", "main", card_id(1), 4.0)]


def test_vgpu_managers_annotation_counts_for_its_ids_say_nothing() -> None:
    annotations = {"nvidia.com/real-allocated": f"main[1_{card_id(1)}_25_2048]"}
    attribution = attribute(
        view(
            rows=[row("a", handed("\x02\x01", resource="nvidia.com/vgpu-number"))],
            pods=[facts("a", 1, annotations=annotations, resources={"nvidia.com/vgpu-number": "1"})],
        ),
        NOW,
    )
    assert told(attribution) == [("a", "main", card_id(1), 2.0)]
    assert attribution.findings == ()


def mig_allocations(*instances: str, profile: str = "1g.10gb") -> dict[str, str]:
    """HAMi's annotations of one container with these instances of card 0; a plain `-` is reserved only."""
    entries = [
        {
            "containerIndex": 0,
            "deviceIndex": place,
            "gpuUUID": card_id(0),
            "profile": profile,
            "placement": {"start": place, "size": 1},
            "migUUID": "" if instance == "-" else instance,
        }
        for place, instance in enumerate(instances)
    ]
    shares = " ".join(f"{card_id(0)},10240,0" for _ in instances)
    return {**hami(shares), "hami.io/vgpu-mig-allocations": json.dumps(entries)}


def test_hamis_mig_instances_are_found_by_the_uuids_that_its_plugin_filled_in() -> None:
    pod = facts("a", 1, annotations=mig_allocations(instance_id(1)))
    found = only(attribute(view(cards=[known(0, ONE_G)], rows=[row("a", handed(f"{card_id(0)}-0"))], pods=[pod]), NOW))
    assert (found.instances, found.grant.mig_profile) == ((instance_id(1),), "1g.10gb")
    assert found.grant.compute_granted_ratio == pytest.approx(1 / 7)


def test_two_instances_alike_of_one_container_are_two() -> None:
    twin = replace(ONE_G, instance=instance_id(2), gpu_instance=8)
    pod = facts("a", 1, annotations=mig_allocations(instance_id(1), instance_id(2)))
    found = only(attribute(view(cards=[known(0, ONE_G, twin)], rows=None, pods=[pod]), NOW))
    assert found.instances == (instance_id(1), instance_id(2))
    assert found.grant.framebuffer_granted_bytes == 20 * GIB


def test_an_instance_that_is_reserved_only_or_cut_away_is_a_part_of_its_card_all_the_same() -> None:
    reserved = facts("a", 1, annotations=mig_allocations("-"))
    found = only(attribute(view(cards=[known(0, ONE_G)], rows=None, pods=[reserved]), NOW))
    assert (found.instances, found.grant.framebuffer_granted_bytes) == ((), 10 * GIB)
    assert found.grant.mig_profile == "1g.10gb"
    assert found.grant.compute_granted_ratio == pytest.approx(1 / 7)
    gone = facts("a", 1, annotations=mig_allocations(instance_id(9)))
    attribution = attribute(view(cards=[known(0, ONE_G)], rows=None, pods=[gone]), NOW)
    assert only(attribution).grant.framebuffer_granted_bytes == 10 * GIB
    assert odd(attribution) == {FindingKind.INSTANCE_UNKNOWN}


def test_what_mgpu_lends_to_offline_work_sizes_its_share_too() -> None:
    pod = facts(
        "offline",
        1,
        annotations={"vke.volcengine.com/gpu-index-container-main": "1"},
        resources={"vke.volcengine.com/reclaimed-mgpu-core": "30", "vke.volcengine.com/mgpu-memory": "4096"},
    )
    assert only(attribute(view(rows=None, pods=[pod]), NOW)).grant.compute_granted_ratio == pytest.approx(0.3)


def test_mgpus_cards_are_named_by_number_and_sized_by_the_request() -> None:
    pod = facts(
        "a",
        1,
        annotations={"vke.volcengine.com/gpu-index-container-main": "1,0"},
        resources={"vke.volcengine.com/mgpu-core": "60", "vke.volcengine.com/mgpu-memory": "4096"},
    )
    attribution = attribute(view(rows=None, pods=[pod]), NOW)
    assert told(attribution) == [("a", "main", card_id(0), 2.0), ("a", "main", card_id(1), 2.0)]
    assert attribution.slices[0].grant.compute_granted_ratio == pytest.approx(0.3)


def test_another_vendors_card_is_attributed_once_its_reader_knows_it() -> None:
    annotations = {
        "hami.io/dcu-devices-allocated": "DCU-0,DCU,8192,50:;",
        "hami.io/vgpu-node": NODE,
    }
    dcu = known(5)
    dcu = replace(dcu, card=replace(dcu.card, card=CardId("DCU-0"), card_model=CardModelName("Z100")))
    pod = facts("a", 1, annotations=annotations, resources={"hygon.com/dcunum": "1"})
    attribution = attribute(
        view(cards=[dcu], rows=[row("a", handed("x:y", resource="hygon.com/dcunum"))], pods=[pod]), NOW
    )
    assert told(attribution) == [("a", "main", "DCU-0", 8.0)]
    assert odd(attribute(view(rows=None, pods=[pod]), NOW)) == {FindingKind.CARD_UNKNOWN}


# --- KAI and dynamic resource allocation ------------------------------------------------------------------------------


def reservation(number: int, group: str, **more):
    return facts(
        f"gpu-reservation-{group}",
        number,
        namespace="kai-resource-reservation",
        labels={"runai-gpu-group": group},
        **more,
    )


def test_a_share_of_kais_is_on_the_card_that_the_reservation_pod_holds() -> None:
    sharer = facts("a", 1, annotations={"gpu-fraction": "0.25"}, labels={"runai-gpu-group": "g"}, resources={})
    held = row("gpu-reservation-g", handed(card_id(1)), namespace="kai-resource-reservation")
    attribution = attribute(view(rows=[held], pods=[sharer, reservation(2, "g")]), NOW)
    found = only(attribution)
    assert (found.grant.pod, found.grant.card, found.grant.framebuffer_granted_bytes) == ("a", card_id(1), 20 * GIB)
    assert found.sources == (GrantSource.RESERVATION_POD,)
    assert attribution.findings == ()


def test_a_reservation_pods_own_word_counts_while_the_kubelet_is_silent() -> None:
    sharer = facts("a", 1, annotations={"gpu-memory": "2048"}, labels={"runai-gpu-group": "g"}, resources={})
    said = reservation(2, "g", annotations={"run.ai/reserve_for_gpu_index": card_id(1)})
    assert told(attribute(view(rows=None, pods=[sharer, said]), NOW)) == [("a", "main", card_id(1), 2.0)]
    held = row("gpu-reservation-g", handed(card_id(0)), namespace="kai-resource-reservation")
    attribution = attribute(view(rows=[held], pods=[sharer, said]), NOW)
    assert told(attribution) == [("a", "main", card_id(0), 2.0)]
    assert odd(attribution) == {FindingKind.CARD_DIFFERS}


def test_a_share_of_a_group_that_nobody_reserves_for_is_told() -> None:
    sharer = facts("a", 1, annotations={"gpu-fraction": "0.5"}, labels={"runai-gpu-group": "g"}, resources={})
    attribution = attribute(view(pods=[sharer]), NOW)
    assert attribution.slices == ()
    assert odd(attribution) == {FindingKind.UNKNOWN_GROUP}


def test_what_a_pod_writes_that_it_sees_puts_its_share_on_no_card() -> None:
    asked = {"nvidia.com/container.main.gpu-memory.limit": "2Gi"}
    seen = {**asked, "nvidia.com/container.main.gpus.devices": card_id(0)}
    held = row("gpu-reservation-g", handed(card_id(1)), namespace="kai-resource-reservation")
    for annotations in (asked, seen):
        sharer = facts("a", 1, annotations=annotations, labels={"runai-gpu-group": "g"}, resources={})
        found = only(attribute(view(rows=[held], pods=[sharer, reservation(2, "g")]), NOW))
        assert (found.grant.card, found.grant.framebuffer_granted_bytes) == (card_id(1), 2 * GIB)
        assert found.sources == (GrantSource.RESERVATION_POD,)
    for more in (asked, {"gpu-fraction": "0.99"}):
        thief = facts("a", 1, annotations={**seen, **more}, resources={})
        assert attribute(view(pods=[thief]), NOW).slices == ()


def claimed(device: str, *, number: int = 1, **more) -> ClaimAllocation:
    given = ClaimedDevice(driver="gpu.nvidia.com", pool=NODE, device=device, **more)
    return ClaimAllocation(namespace="team", claim="a-gpu", devices=(given,), reserved_for=(uid(number),))


PUBLISHED = (
    PublishedDevice(driver="gpu.nvidia.com", pool=NODE, device="gpu-0", uuid=card_id(1)),
    PublishedDevice(driver="gpu.nvidia.com", pool=NODE, device="mig-1", uuid=instance_id(1), parent=card_id(0)),
)


def test_a_container_has_only_the_devices_of_its_own_requests() -> None:
    given = [
        ClaimedDevice(driver="gpu.nvidia.com", pool=NODE, device=name, request=name) for name in ("gpu-0", "gpu-1")
    ]
    allocation = ClaimAllocation(namespace="team", claim="a-gpu", devices=tuple(given), reserved_for=(uid(1),))
    published = tuple(
        PublishedDevice(driver="gpu.nvidia.com", pool=NODE, device=f"gpu-{number}", uuid=card_id(number))
        for number in range(2)
    )
    pod = facts("a", 1, resources={}, claims={"gpu": "a-gpu"})
    (main,) = pod.record.containers
    users = tuple(
        replace(main, container=name, requests=(("gpu", request),))
        for name, request in (("main", "gpu-0"), ("proxy", "gpu-1"))
    )
    pod = replace(pod, record=replace(pod.record, containers=users))
    found = attribute(view(pods=[pod], claims=(allocation,), published=published), NOW).slices
    assert sorted((one.grant.container, one.grant.card) for one in found) == [
        ("main", card_id(0)), ("proxy", card_id(1)),
    ]  # fmt: skip


def test_a_claim_gives_the_card_that_the_driver_publishes_under_its_name() -> None:
    attribution = attribute(
        view(
            rows=[row("a", given_claim("gpu-0"))],
            pods=[facts("a", 1, resources={}, claims={"gpu": "a-gpu"})],
            claims=(claimed("gpu-0"),),
            published=PUBLISHED,
        ),
        NOW,
    )
    found = only(attribution)
    # `gpu-0` would be card 0 by its minor number; what the driver publishes goes before it.
    assert (found.grant.card, found.grant.framebuffer_granted_bytes) == (card_id(1), CARD_BYTES)
    assert found.sources == (GrantSource.RESOURCE_CLAIM, GrantSource.POD_RESOURCES)
    assert attribution.findings == ()


def test_what_a_claim_consumes_of_a_shared_device_is_what_is_granted() -> None:
    found = only(
        attribute(
            view(
                rows=[row("a", given_claim("gpu-0"))],
                pods=[facts("a", 1, resources={}, claims={"gpu": "a-gpu"})],
                claims=(claimed("gpu-0", share_id="s", framebuffer_bytes=10 * GIB, core_percent=25.0),),
                published=PUBLISHED,
            ),
            NOW,
        )
    )
    assert (found.grant.framebuffer_granted_bytes, found.grant.compute_granted_ratio) == (10 * GIB, 0.25)


def test_the_kubelets_view_of_a_claim_is_enough_without_the_api_server() -> None:
    attribution = attribute(view(rows=[row("a", given_claim("gpu-1"))], pods=None), NOW)
    assert told(attribution) == [("a", "main", card_id(1), 80.0)]
    attribution = attribute(
        view(cards=[known(0, ONE_G)], rows=[row("a", given_claim("mig-1"))], pods=None, published=PUBLISHED), NOW
    )
    assert only(attribution).instances == (instance_id(1),)


def test_a_claim_that_is_reserved_for_another_pod_gives_nothing() -> None:
    pod = facts("a", 1, resources={}, claims={"gpu": "a-gpu"})
    attribution = attribute(view(rows=None, pods=[pod], claims=(claimed("gpu-0", number=7),), published=PUBLISHED), NOW)
    assert attribution.slices == ()


def test_an_administrators_look_at_a_card_is_no_grant_and_an_unknown_device_is_told() -> None:
    pod = facts("a", 1, resources={}, claims={"gpu": "a-gpu"})
    look = attribute(view(rows=None, pods=[pod], claims=(claimed("gpu-0", is_admin=True),), published=PUBLISHED), NOW)
    assert (look.slices, look.findings) == ((), ())
    unknown = attribute(view(rows=None, pods=[pod], claims=(claimed("gpu-9"),)), NOW)
    assert odd(unknown) == {FindingKind.DEVICE_UNKNOWN}


# --- what is old, gone or hostile -------------------------------------------------------------------------------------


def test_devices_of_a_pod_that_is_over_do_not_count() -> None:
    attribution = attribute(
        view(rows=[row("done", handed(card_id(0)))], pods=[facts("done", 1, phase="Succeeded")]), NOW
    )
    assert attribution.slices == ()
    assert odd(attribution) == {FindingKind.FINISHED_POD}


def test_an_annotation_of_a_pod_that_is_over_or_elsewhere_does_not_count() -> None:
    annotations = hami(f"{card_id(0)},1024,10")
    over = facts("over", 1, annotations=annotations, phase="Failed")
    elsewhere = facts("elsewhere", 2, annotations=annotations, node="node-2")
    attribution = attribute(view(pods=[over, elsewhere]), NOW)
    assert (attribution.slices, attribution.findings) == ((), ())


def test_a_pod_that_the_api_has_not_named_yet_has_its_slice_already() -> None:
    attribution = attribute(view(rows=[row("new", handed(card_id(0)))], pods=[]), NOW)
    assert told(attribution) == [("new", "main", card_id(0), 80.0)]
    assert odd(attribution) == {FindingKind.UNKNOWN_POD}


def test_two_lives_of_a_name_at_once_are_not_taken_for_one_certain_pod() -> None:
    rows = [row("web-0", handed(card_id(0))), row("web-0", handed(card_id(1)))]
    attribution = attribute(view(rows=rows, pods=[facts("web-0", 1)]), NOW)
    assert [found.is_certain for found in attribution.slices] == [False, False]
    assert FindingKind.TWO_LIVES in odd(attribution)


def test_a_card_that_was_replaced_is_told_and_granted_to_nobody() -> None:
    attribution = attribute(
        view(
            rows=[row("a", handed(card_id(9))), row("b", handed(instance_id(9)))],
            pods=[facts("a", 1), facts("b", 2), facts("c", 3, annotations=hami(f"{card_id(8)},1,1"))],
        ),
        NOW,
    )
    assert attribution.slices == ()
    assert {(finding.pod, finding.kind, finding.card) for finding in attribution.findings} == {
        ("a", FindingKind.CARD_UNKNOWN, card_id(9)),
        ("b", FindingKind.INSTANCE_UNKNOWN, instance_id(9)),
        ("c", FindingKind.CARD_UNKNOWN, card_id(8)),
    }


def test_an_instance_number_that_was_cut_anew_leads_to_the_new_instance() -> None:
    again = replace(ONE_G, instance=instance_id(5), profile="2g.20gb", framebuffer_bytes=20 * GIB)
    rows = [row("a", handed(instance_id(1)))]
    assert odd(attribute(view(cards=[known(0, again)], rows=rows, pods=None), NOW)) == {FindingKind.INSTANCE_UNKNOWN}


def test_network_cards_and_other_devices_of_a_pod_are_no_cards() -> None:
    devices = handed("rdma-0", "0000:3b:00.1", resource="rdma/hca")
    attribution = attribute(view(rows=[row("a", devices)], pods=None), NOW)
    assert (attribution.slices, attribution.findings) == ((), ())


def test_a_card_resource_with_an_id_that_nobody_can_read_is_told() -> None:
    attribution = attribute(view(rows=[row("a", handed("\x1b[31m"))], pods=None), NOW)
    (finding,) = attribution.findings
    assert finding.kind is FindingKind.UNREADABLE
    assert "\x1b" not in finding.detail


def test_an_annotation_that_is_garbage_costs_neither_the_others_nor_the_kubelets_word() -> None:
    broken = facts("broken", 1, annotations={"hami.io/vgpu-devices-allocated": "x" * 1000})
    fine = facts("fine", 2, annotations=hami(f"{card_id(1)},1024,10"))
    rows = [row("broken", handed(f"{card_id(0)}-1")), row("fine", handed(f"{card_id(1)}-1"))]
    attribution = attribute(view(rows=rows, pods=[broken, fine]), NOW)
    assert [found.grant.pod for found in attribution.slices] == ["broken", "fine"]
    assert [found.is_certain for found in attribution.slices] == [False, True]
    assert FindingKind.DISTRUSTED in odd(attribution)


def test_findings_are_bounded_however_many_pods_are_odd() -> None:
    rows = [row(f"p{number}", handed(card_id(99))) for number in range(FINDINGS_MAX + 50)]
    assert len(attribute(view(rows=rows, pods=None), NOW).findings) == FINDINGS_MAX


def test_an_inventory_is_counted_by_grants_and_not_by_what_is_running() -> None:
    # Two pods on a card, one of them with five processes and the other with none: two slices.
    ids = [f"{card_id(0)}::{number}" for number in range(2)]
    attribution = attribute(
        view(
            rows=[row("a", handed(ids[0])), row("b", handed(ids[1]))],
            pods=[facts("a", 1), facts("b", 2)],
            allocatable=ids,
        ),
        NOW,
    )
    assert [(found.grant.pod, found.grant.card) for found in attribution.slices] == [
        ("a", card_id(0)),
        ("b", card_id(0)),
    ]


# --- who a pod belongs to ---------------------------------------------------------------------------------------------


def test_a_slice_carries_owner_labels_and_priority_of_its_pod() -> None:
    replica_set = OwnerLinkRecord(uid="rs", kind="ReplicaSet", name="web-7d4b9c")
    pod = facts(
        "web-7d4b9c-x2x",
        1,
        owner=replica_set,
        labels={"app": "web", "pod-template-hash": "7d4b9c"},
        resources={"nvidia.com/gpu": "1", "nvidia.com/priority": "0"},
    )
    grant = only(attribute(view(rows=[row("web-7d4b9c-x2x", handed(card_id(0)))], pods=[pod]), NOW)).grant
    assert (grant.workload_kind, grant.workload, grant.priority) == ("Deployment", "web", Priority.HIGH)
    assert grant.label("app") == "web"


def test_no_grant_begins_in_the_future() -> None:
    pod = facts("a", 1, bound_at="2026-03-04T13:00:00Z")
    assert only(attribute(view(rows=[row("a", handed(card_id(0)))], pods=[pod]), NOW)).grant.started_at == NOW


def test_a_manifest_without_anything_to_do_with_cards_is_no_pod_of_ours() -> None:

    assert pod_facts(manifest("web", 1, resources={"cpu": "1"}), Shared()) is None
