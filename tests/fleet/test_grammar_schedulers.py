"""What Volcano, KAI, vgpu-manager, mGPU and HAMi's MIG mode write of a pod is read back as it was written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import Corrupt
from fleet.grammars.hami import DeviceGrant, RegisteredDevice
from fleet.grammars.kai import (
    KaiShare,
    asks_kai,
    compute_mode,
    container_annotations,
    kai_groups,
    parse_kai_share,
)
from fleet.grammars.mgpu import parse_card_indexes
from fleet.grammars.mig import MigAllocation, is_mig_profile, parse_mig_allocations, profile_of_resource
from fleet.grammars.tensor_fusion import GPU_IDS_ANNOTATION, parse_tensor_fusion
from fleet.grammars.vgpumanager import ContainerVgpus, VgpuGrant, parse_vgpu_allocation, parse_vgpu_register
from fleet.grammars.volcano import parse_volcano_ids, parse_volcano_register
from tests.fleet.written_annotations import (
    render_card_indexes,
    render_kai_annotations,
    render_kai_labels,
    render_mig_allocations,
    render_vgpu_allocation,
    render_vgpu_register,
    render_volcano_ids,
    render_volcano_register,
)

CARD = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
OTHER = "GPU-1fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
INSTANCE = "MIG-6a96bd8b-0c4e-5f1c-8e3a-0d6f2b7c9a11"
CARDS = st.uuids().map(lambda value: f"GPU-{value}")
INSTANCES = st.uuids().map(lambda value: f"MIG-{value}")
AMOUNTS = st.integers(0, 10**9)
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
TYPES = st.text(st.characters(codec="ascii", exclude_characters=",:;", categories=["L", "N", "Zs"]), max_size=30)
GRANTS = st.builds(
    DeviceGrant, card=CARDS, device_type=TYPES, framebuffer_mib=AMOUNTS, core_percent=st.integers(0, 100)
)
TEXTS = st.text(max_size=60) | st.text(
    st.characters(codec="ascii", whitelist_characters='[]{}",:;_GPU-MIG0123abc'), max_size=80
)


@given(st.lists(st.lists(GRANTS, max_size=2), max_size=4).filter(lambda containers: containers != [[]]))
def test_volcano_allocations_are_the_same_after_writing_and_reading(containers: list[list[DeviceGrant]]) -> None:
    assert parse_volcano_ids(render_volcano_ids(containers)) == tuple(tuple(grants) for grants in containers)


def test_volcano_puts_semicolons_between_containers_and_hami_after_them() -> None:
    read = parse_volcano_ids(f"{CARD},NVIDIA,4096,50:;;{OTHER},NVIDIA,1024,0:")
    assert [[grant.framebuffer_mib for grant in grants] for grants in read] == [[4096], [], [1024]]


@given(
    st.lists(
        st.builds(
            RegisteredDevice,
            card=CARDS,
            slices_max=AMOUNTS,
            framebuffer_mib=AMOUNTS,
            core_percent=st.just(100),
            device_type=TYPES,
            numa=st.just(0),
            is_healthy=st.booleans(),
            mode=st.none() | st.sampled_from(["hami-core", "mig"]),
        ),
        max_size=3,
    )
)
def test_volcano_registers_are_the_same_after_writing_and_reading(devices: list[RegisteredDevice]) -> None:
    read = parse_volcano_register(render_volcano_register(devices))
    assert [device.index for device in read] == list(range(len(devices)))
    assert render_volcano_register(read) == render_volcano_register(devices)


def test_the_register_that_volcanos_plugin_writes_is_read() -> None:
    (device,) = parse_volcano_register(f"{CARD},10,32768,NVIDIA-Tesla V100-PCIE-32GB,true,hami-core:")
    assert (device.slices_max, device.framebuffer_mib, device.is_healthy, device.mode) == (10, 32768, True, "hami-core")


@given(
    st.builds(
        KaiShare,
        ratio=st.integers(1, 10**9).map(lambda billionths: billionths / 10**9),
        framebuffer_mib=st.none(),
        cards=st.integers(1, 64),
        container=st.none() | NAMES,
        groups=st.lists(NAMES, unique=True, max_size=3).map(lambda names: tuple(sorted(names))),
    )
    | st.builds(
        KaiShare,
        ratio=st.none(),
        framebuffer_mib=AMOUNTS,
        cards=st.integers(1, 64),
        container=st.none() | NAMES,
        groups=st.lists(NAMES, unique=True, max_size=3).map(lambda names: tuple(sorted(names))),
    )
)
def test_kai_shares_are_the_same_after_writing_and_reading(share: KaiShare) -> None:
    assert parse_kai_share(render_kai_annotations(share), render_kai_labels(share)) == share


REQUEST, LIMIT = (f"nvidia.com/container.main.gpu-memory.{bound}" for bound in ("request", "limit"))


@pytest.mark.parametrize(
    ("asked", "mib"),
    [
        ({REQUEST: "8Gi"}, 8192),
        ({LIMIT: "8Gi"}, 8192),
        ({REQUEST: "8Gi", LIMIT: "20Gi", "gpu-fraction": "0.5"}, 8192),
        ({REQUEST: "1073741824"}, 1024),
    ],
)
def test_what_kai_holds_a_container_to_is_read_by_its_request(asked: dict[str, str], mib: int) -> None:
    share = parse_kai_share({**asked, "gpu-fraction-num-devices": "2"}, {"runai-gpu-group/a": "a"})
    assert share == KaiShare(ratio=None, framebuffer_mib=mib, cards=2, container="main", groups=("a",), is_capped=True)
    assert asks_kai(asked)


@pytest.mark.parametrize(
    ("said", "cards"),
    [
        (f"{OTHER},{CARD}", (CARD, OTHER)),
        (f" {CARD} ", (CARD,)),
        ("0,1", ()),
        ("all", ()),
        ("", ()),
        (f"{CARD},1", ()),
        (",".join([CARD] * 65), ()),
    ],
)
def test_cards_that_kai_lets_a_container_see_are_its_cards_by_uuid_alone(said: str, cards: tuple[str, ...]) -> None:
    share = parse_kai_share({REQUEST: "8Gi", "nvidia.com/container.main.gpus.devices": said}, {})
    assert share is not None
    assert share.on_cards == cards


@given(
    st.lists(CARDS, min_size=1, max_size=4, unique=True),
    st.none() | st.integers(1, 2**40),
    st.none() | st.integers(1, 100),
    st.none() | NAMES,
)
def test_what_tensor_fusion_gives_is_the_same_after_writing_and_reading(
    cards: list[str], size: int | None, percent: int | None, container: str | None
) -> None:
    written = {
        "gpu-ids": ",".join(card.lower() for card in cards), "vram-request": size, "compute-percent-limit": percent,
        "inject-container": container,
    }  # fmt: skip
    read = parse_tensor_fusion({f"tensor-fusion.ai/{key}": str(value) for key, value in written.items() if value})
    assert read is not None
    ratio = None if percent is None else percent / 100
    assert (read.cards, read.framebuffer_bytes, read.compute_ratio, read.container) == (
        tuple(cards), size, ratio, container,
    )  # fmt: skip
    assert parse_tensor_fusion({}) is None


def test_annotations_of_a_container_are_read_from_kube_state_metrics() -> None:
    prefix = "annotation_nvidia_com_container_my_server"
    written = {f"{prefix}_gpu_memory_request": "8Gi", f"{prefix}_gpus_devices": CARD, "annotation_gpu_fraction": "0.5"}
    assert container_annotations(written) == {
        "nvidia.com/container.my-server.gpu-memory.request": "8Gi",
        "nvidia.com/container.my-server.gpus.devices": CARD,
    }


@pytest.mark.parametrize(
    "asked",
    [
        {REQUEST: "1023Ki"},
        {REQUEST: "-1Gi"},
        {REQUEST: "1e999999999"},
        {REQUEST: "all"},
        {LIMIT: ""},
        {REQUEST: "1Gi", "nvidia.com/container.other.gpu-memory.limit": "1Gi"},
        {"nvidia.com/container.A$.gpu-memory.limit": "1Gi"},
    ],
)
def test_what_kai_cannot_hold_a_container_to_is_corrupt(asked: dict[str, str]) -> None:
    with pytest.raises(Corrupt):
        parse_kai_share(asked, {})


def test_a_pod_without_kais_annotations_shares_nothing() -> None:
    assert parse_kai_share({"hami.io/vgpu-node": "a"}, {"runai-gpu-group": "g1"}) is None


def test_a_reservation_pod_has_the_group_of_the_pods_that_share_its_card() -> None:
    assert kai_groups({"runai-gpu-group": "g1", "app": "x"}) == ("g1",)
    assert kai_groups({"runai-gpu-group/a": "a", "runai-gpu-group/b": "b"}) == ("a", "b")


@pytest.mark.parametrize(
    "fraction", ["0", "0.0", "-0.5", "1.5", "nan", "inf", "0.5x", "", "1e-3", "٠.٥", "0." + "1" * 99]
)
def test_a_fraction_outside_of_a_card_is_corrupt(fraction: str) -> None:
    with pytest.raises(Corrupt):
        parse_kai_share({"gpu-fraction": fraction}, {})


@given(
    st.lists(
        st.builds(
            ContainerVgpus,
            container=NAMES,
            grants=st.lists(
                st.builds(
                    VgpuGrant,
                    index=st.integers(0, 15),
                    card=CARDS,
                    core_percent=st.integers(0, 100),
                    framebuffer_mib=AMOUNTS,
                ),
                max_size=2,
            ).map(tuple),
        ),
        max_size=3,
    )
)
def test_vgpu_managers_allocations_are_the_same_after_writing_and_reading(containers: list[ContainerVgpus]) -> None:
    assert parse_vgpu_allocation(render_vgpu_allocation(containers)) == tuple(containers)


def test_vgpu_managers_register_is_the_same_after_writing_and_reading() -> None:
    device = RegisteredDevice(
        card=CARD,
        slices_max=10,
        framebuffer_mib=24576,
        core_percent=100,
        device_type="NVIDIA A10",
        numa=1,
        is_healthy=True,
        index=2,
        mode="mig",
    )
    assert parse_vgpu_register(render_vgpu_register([device])) == (device,)
    assert parse_vgpu_register(f'[{{"uuid":"{CARD}","numa":-1}}]')[0].numa == 0


@given(st.lists(st.integers(0, 999), unique=True, min_size=1, max_size=16))
def test_mgpus_card_numbers_are_the_same_after_writing_and_reading(indexes: list[int]) -> None:
    assert parse_card_indexes(render_card_indexes(indexes)) == tuple(indexes)


@given(
    st.lists(
        st.builds(
            MigAllocation,
            container_index=st.integers(0, 5),
            device_index=st.integers(0, 5),
            card=CARDS,
            profile=st.sampled_from(["1g.10gb", "1g.10gb+me", "7g.80gb"]),
            placement_start=st.integers(0, 7),
            placement_size=st.integers(1, 8),
            instance=INSTANCES,
            gpu_instance=st.integers(0, 14),
            compute_instance=st.integers(0, 6),
        ),
        max_size=3,
    )
)
def test_hamis_mig_allocations_are_the_same_after_writing_and_reading(allocations: list[MigAllocation]) -> None:
    assert parse_mig_allocations(render_mig_allocations(allocations)) == tuple(allocations)


def test_a_mig_place_that_is_only_reserved_has_no_instance_yet() -> None:
    (allocation,) = parse_mig_allocations(
        f'[{{"gpuUUID":"{CARD}","profile":"1g.10gb","placement":{{"start":4,"size":1}},"migUUID":"","gpuInstanceID":0}}]'
    )
    assert (allocation.instance, allocation.gpu_instance, allocation.placement_start) == (None, None, 4)
    assert parse_mig_allocations(render_mig_allocations([allocation])) == (allocation,)


@pytest.mark.parametrize(
    ("resource", "profile"),
    [("nvidia.com/mig-1g.10gb", "1g.10gb"), ("nvidia.com/mig-1g.10gb.me", "1g.10gb+me"),
     ("nvidia.com/mig-3g.40gb.shared", "3g.40gb"), ("nvidia.com/mig-1g.10gb.me.shared", "1g.10gb+me"),
     ("nvidia.com/mig-1g.24gb-me", "1g.24gb-me"), ("nvidia.com/gpu", None), ("nvidia.com/mig-many", None)],
)  # fmt: skip
def test_a_mig_resource_names_its_profile(resource: str, profile: str | None) -> None:
    assert profile_of_resource(resource) == profile
    assert profile is None or is_mig_profile(profile)


@given(TEXTS)
def test_any_text_is_read_or_corrupt(text: str) -> None:
    readers = (
        parse_volcano_ids,
        parse_volcano_register,
        parse_vgpu_allocation,
        parse_vgpu_register,
        parse_card_indexes,
        parse_mig_allocations,
        lambda fraction: parse_kai_share({"gpu-fraction": fraction, "gpu-fraction-num-devices": fraction}, {}),
        lambda amount: parse_kai_share({"gpu-memory": amount, "gpu-fraction-container-name": amount}, {}),
        lambda amount: parse_kai_share({f"nvidia.com/container.{amount}.gpu-memory.request": amount}, {}),
        lambda group: parse_kai_share({"gpu-fraction": "0.5"}, {"runai-gpu-group": group}),
        lambda seen: parse_kai_share({"gpu-fraction": "0.5", "nvidia.com/container.a.gpus.devices": seen}, {}),
        lambda mode: compute_mode({"nvidia.com/container.a.gpu-compute.mode": mode}),
        lambda ids: parse_tensor_fusion({GPU_IDS_ANNOTATION: ids}),
        lambda amount: parse_tensor_fusion(
            {
                GPU_IDS_ANNOTATION: CARD.lower(), "tensor-fusion.ai/vram-request": amount,
                "tensor-fusion.ai/compute-percent-limit": amount, "tensor-fusion.ai/inject-container": amount,
            }
        ),
    )  # fmt: skip
    for read in readers:
        try:
            read(text)
        except Corrupt as error:
            assert len(str(error)) < 400  # noqa: PT017 - a message that a hostile text can't blow up


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (parse_volcano_ids, ";" * 5000),
        (parse_volcano_ids, "x" * 300_000),
        (parse_volcano_register, f"{CARD},10,1,t,maybe:"),
        (parse_vgpu_allocation, f"main[0_{CARD}_10]"),
        (parse_vgpu_allocation, f"main[0_{CARD}_10_20"),
        (parse_vgpu_allocation, f"Main[0_{CARD}_10_20]"),
        (parse_vgpu_allocation, "main[0_GPU-1_10_20]"),
        (parse_vgpu_register, "[" * 100_000),
        (parse_vgpu_register, '[{"uuid":"x"}]'),
        (parse_card_indexes, "0,0"),
        (parse_card_indexes, ""),
        (parse_card_indexes, "-1"),
        (parse_mig_allocations, f'[{{"gpuUUID":"{CARD}","profile":"1g.10gb","migUUID":"x"}}]'),
        (parse_mig_allocations, f'[{{"gpuUUID":"{CARD}","profile":"1g.10gb","placement":{{"start":NaN}}}}]'),
        (parse_mig_allocations, f'[{{"gpuUUID":"{INSTANCE}","profile":"1g.10gb"}}]'),
        (parse_mig_allocations, f'[{{"gpuUUID":"{CARD}","profile":"big"}}]'),
    ],
)
def test_garbage_is_corrupt(read, text: str) -> None:
    with pytest.raises(Corrupt):
        read(text)
