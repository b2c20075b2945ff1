"""Device ids and HAMi's annotations are the same after writing and reading, and garbage is Corrupt, never a crash."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import Corrupt
from fleet.grammars import hami as grammar
from fleet.grammars.device_ids import DeviceId, DeviceIdForm, is_card_uuid, parse_device_id
from fleet.grammars.hami import DeviceGrant, RegisteredDevice
from tests.fleet.written_annotations import render_device_id, render_node_register_csv

CARDS = st.uuids().map(lambda value: f"GPU-{value}")
NUMBERS = st.integers(0, 999_999)
TYPES = st.text(st.characters(codec="ascii", exclude_characters=",:;", categories=["L", "N", "P", "Zs"]), max_size=40)
GRANTS = st.builds(
    DeviceGrant,
    card=CARDS,
    device_type=TYPES,
    framebuffer_mib=st.integers(0, 10**9),
    core_percent=st.integers(0, 100),
    mig_place=st.none() | st.from_regex(r"[A-Za-z0-9._]{1,12}-[0-9]{1,3}", fullmatch=True),
)
REGISTERED = st.builds(
    RegisteredDevice,
    card=CARDS,
    slices_max=NUMBERS,
    framebuffer_mib=NUMBERS,
    core_percent=NUMBERS,
    device_type=TYPES,
    numa=st.integers(0, 7),
    is_healthy=st.booleans(),
    index=st.integers(0, 15),
    mode=st.sampled_from(["hami-core", "mig", "mps"]),
)
DEVICE_IDS = st.one_of(
    st.builds(DeviceId, form=st.just(DeviceIdForm.CARD), card=CARDS),
    st.builds(
        DeviceId, form=st.sampled_from([DeviceIdForm.HAMI_SLICE, DeviceIdForm.REPLICA]), card=CARDS, number=NUMBERS
    ),
    st.builds(DeviceId, form=st.just(DeviceIdForm.MIG), mig=st.uuids().map(lambda value: f"MIG-{value}")),
    st.builds(
        DeviceId,
        form=st.just(DeviceIdForm.MIG_REPLICA),
        mig=st.uuids().map(lambda value: f"MIG-{value}"),
        number=NUMBERS,
    ),
    st.builds(
        DeviceId, form=st.just(DeviceIdForm.MIG_LEGACY), card=CARDS, gpu_instance=NUMBERS, compute_instance=NUMBERS
    ),
)
CARD = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"


@given(DEVICE_IDS)
def test_device_ids_are_the_same_after_writing_and_reading(device: DeviceId) -> None:
    assert parse_device_id(render_device_id(device)) == device


def test_a_hami_id_is_a_slice_of_the_card_before_its_last_number() -> None:
    assert parse_device_id(f"{CARD}-3") == DeviceId(form=DeviceIdForm.HAMI_SLICE, card=CARD, number=3)


@given(st.lists(st.lists(GRANTS, max_size=3), max_size=4))
def test_allocations_are_the_same_after_writing_and_reading(containers: list[list[DeviceGrant]]) -> None:
    read = grammar.parse_devices_allocated(grammar.render_devices_allocated(containers))
    assert read == tuple(tuple(grants) for grants in containers)


def test_containers_without_a_card_keep_their_place() -> None:
    read = grammar.parse_devices_allocated(f";{CARD},NVIDIA,3000,30:;;{CARD},NVIDIA,5000,0:;")
    assert [[grant.framebuffer_mib for grant in grants] for grants in read] == [[], [3000], [], [5000]]


@pytest.mark.parametrize("place", ["0-2", "group1-10"], ids=["hami-before-2.10", "volcano"])
def test_a_place_in_a_mig_geometry_is_no_part_of_the_cards_id(place: str) -> None:
    ((grant,),) = grammar.parse_devices_allocated(f"{CARD}[{place}],NVIDIA,10240,14:;")
    assert (grant.card, grant.mig_place, grant.framebuffer_mib) == (CARD, place, 10240)


@pytest.mark.parametrize("text", [f"{CARD}[]", f"{CARD}[1]", f"{CARD}[1-0", f"[1-0]{CARD}", f"{CARD}[1-0][1-0]"])
def test_brackets_that_name_no_place_are_corrupt(text: str) -> None:
    with pytest.raises(Corrupt):
        grammar.parse_devices_allocated(f"{text},NVIDIA,1,1:;")


def test_a_numa_node_that_nobody_knows_makes_no_register_unreadable() -> None:
    for text in (f'[{{"id":"{CARD}","numa":-1}}]', f"{CARD},10,32768,100,NVIDIA-T,-1,true:"):
        (device,) = grammar.parse_node_register(text)
        assert device.numa == 0


@given(st.lists(REGISTERED, max_size=4))
def test_registers_are_the_same_after_writing_and_reading_in_both_grammars(devices: list[RegisteredDevice]) -> None:
    assert grammar.parse_node_register(grammar.render_node_register(devices)) == tuple(devices)
    assert grammar.parse_node_register(render_node_register_csv(devices)) == tuple(devices)


def test_fields_left_out_of_a_json_register_are_zero_and_unhealthy() -> None:
    (device,) = grammar.parse_node_register(
        f'[{{"id":"{CARD}","count":10,"devmem":81559,"devcore":100,"type":"NVIDIA-A"}}]'
    )
    assert (device.index, device.numa, device.is_healthy, device.mode) == (0, 0, False, None)


def test_the_older_register_of_seven_fields_is_read() -> None:
    (device,) = grammar.parse_node_register(f"{CARD},10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:")
    assert (device.device_type, device.framebuffer_mib, device.is_healthy) == (
        "NVIDIA-Tesla V100-PCIE-32GB",
        32768,
        True,
    )


@given(st.text(max_size=80))
def test_any_text_is_read_or_corrupt(text: str) -> None:
    for read in (parse_device_id, grammar.parse_devices_allocated, grammar.parse_node_register):
        try:
            read(text)
        except Corrupt as error:
            assert len(str(error)) < 400  # noqa: PT017 - a message that a hostile text can't blow up


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "[1]", "[{}]", '[{"id":7}]', f'[{{"id":"{CARD}","count":true}}]', f'[{{"id":"{CARD}","count":-1}}]',
     f'[{{"id":"{CARD}","health":"yes"}}]', f"{CARD},1,2,3", "a,1,2,3,t,0,maybe:", ":" * 5000, "x" * 300_000],
)  # fmt: skip
def test_a_register_that_is_garbage_is_corrupt(text: str) -> None:
    with pytest.raises(Corrupt):
        grammar.parse_node_register(text)


@pytest.mark.parametrize(
    "text", [f"{CARD},NVIDIA,1,1", f"{CARD},NVIDIA,1:;", f"{CARD},NVIDIA,-1,1:;", "a b,N,1,1:;", ";" * 5000]
)
def test_an_allocation_that_is_garbage_is_corrupt(text: str) -> None:
    with pytest.raises(Corrupt):
        grammar.parse_devices_allocated(text)


def test_a_card_uuid_has_small_hexadecimal_digits_only() -> None:
    assert is_card_uuid(f"GPU-{uuid.UUID(int=5)}")
    assert not is_card_uuid(f"GPU-{uuid.UUID(int=5)}-1")
    assert not is_card_uuid("GPU-xyz")
