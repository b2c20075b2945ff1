"""Every plugin's device ids are the same after writing and reading, and say no more of the card than they can."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import Corrupt
from fleet.grammars.device_ids import DeviceId, DeviceIdForm, IdTruth, is_instance_uuid, parse_device_id
from tests.fleet.written_annotations import render_device_id

CARD = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
INSTANCE = "MIG-6a96bd8b-0c4e-5f1c-8e3a-0d6f2b7c9a11"
NUMBERS = st.integers(0, 999_999)
OPTIONAL = st.none() | NUMBERS
CARDS = st.uuids().map(lambda value: f"GPU-{value}")
IDS = st.one_of(
    st.builds(
        DeviceId,
        form=st.sampled_from([DeviceIdForm.VOLCANO_FRAMEBUFFER, DeviceIdForm.VOLCANO_CORES]),
        card=CARDS,
        number=NUMBERS,
    ),
    st.builds(
        DeviceId,
        form=st.just(DeviceIdForm.MIG_LEGACY),
        card=CARDS,
        gpu_instance=NUMBERS,
        compute_instance=NUMBERS,
        number=OPTIONAL,
    ),
    st.builds(DeviceId, form=st.just(DeviceIdForm.GKE), index=NUMBERS, gpu_instance=OPTIONAL, number=OPTIONAL),
)


@given(IDS)
def test_ids_of_volcano_gke_and_old_drivers_are_the_same_after_writing_and_reading(device: DeviceId) -> None:
    assert parse_device_id(render_device_id(device)) == device


@pytest.mark.parametrize(
    ("text", "truth", "unit"),
    [
        (CARD, IdTruth.CARD, CARD),
        (f"{CARD}::3", IdTruth.CARD, CARD),
        (f"{CARD}-3", IdTruth.MAY_DIFFER, CARD),
        (f"{CARD}-memory-4096", IdTruth.AMOUNT, None),
        (f"{CARD}-core-30", IdTruth.AMOUNT, None),
        (INSTANCE, IdTruth.INSTANCE, INSTANCE),
        (f"{INSTANCE}::1", IdTruth.INSTANCE, INSTANCE),
        (f"MIG-{CARD}/3/0", IdTruth.INSTANCE, f"MIG-{CARD}/3/0"),
        ("nvidia0", IdTruth.INDEX, "nvidia0"),
        ("nvidia0/vgpu2", IdTruth.INDEX, "nvidia0"),
        ("nvidia2/gi5", IdTruth.INSTANCE, "nvidia2/gi5"),
        ("nvidia2/gi5/vgpu1", IdTruth.INSTANCE, "nvidia2/gi5"),
    ],
)
def test_an_id_says_of_the_card_only_what_its_plugin_promises(text: str, truth: IdTruth, unit: str | None) -> None:
    device = parse_device_id(text)
    assert (device.truth, device.unit) == (truth, unit)


@pytest.mark.parametrize(
    ("text", "is_replica"),
    [(CARD, False), (f"{CARD}::0", True), (f"{CARD}-0", False), (f"{INSTANCE}::1", True), ("nvidia0", False),
     ("nvidia0/vgpu0", True), (f"{CARD}-memory-1", False)],
)  # fmt: skip
def test_only_replicas_are_shared_on_purpose(text: str, is_replica: bool) -> None:
    assert parse_device_id(text).is_replica is is_replica


@pytest.mark.parametrize(
    "text",
    ["", "GPU-xyz", f"{CARD}-", f"{CARD}:0", f"{CARD}-memory-", f"{CARD}-core-x", f"{CARD}-1-2", "nvidia", "nvidia0/gi",
     f"{CARD}::1234567", f"{CARD}\n", f"MIG-{CARD}/1", "nvidia١", "x" * 100_000],
)  # fmt: skip
def test_an_id_that_is_none_is_corrupt(text: str) -> None:
    with pytest.raises(Corrupt) as caught:
        parse_device_id(text)
    assert len(str(caught.value)) < 300


def test_both_names_of_a_mig_instance_are_known() -> None:
    assert is_instance_uuid(INSTANCE)
    assert is_instance_uuid(f"MIG-{CARD}/3/0")
    assert not is_instance_uuid(CARD)
