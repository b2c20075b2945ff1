"""Other vendors' allocations and registers are read by HAMi's grammar, with each vendor's own names and units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import Corrupt
from fleet.grammar import DeviceGrant, parse_node_register, render_devices_allocated
from fleet.grammar_vendors import (
    ASCEND_CHIPS,
    VENDOR_DEVICES,
    AscendGrant,
    Vendor,
    VendorDevice,
    parse_ascend_grants,
    parse_vendor_allocations,
    render_ascend_grants,
    vendor_device,
)

MIB = 2**20


@pytest.mark.parametrize(
    "device", [device for device in VENDOR_DEVICES if device.allocated_annotations], ids=lambda device: device.name
)
def test_every_vendors_allocation_is_found_under_each_of_its_annotations(device: VendorDevice) -> None:
    granted = DeviceGrant(card="card-0", device_type=device.name, framebuffer_mib=1024, core_percent=25)
    for annotation in device.allocated_annotations:
        (allocation,) = parse_vendor_allocations({annotation: render_devices_allocated([[], [granted]]), "app": "x"})
        assert (allocation.device, allocation.annotation) == (device, annotation)
        assert allocation.containers == ((), (granted,))


@pytest.mark.parametrize(
    ("resource", "unit_bytes", "cores_per_card"),
    [("huawei.com/Ascend910B3", MIB, 100), ("cambricon.com/vmlu", 256 * MIB, 100), ("hygon.com/dcunum", MIB, 100),
     ("iluvatar.ai/BI-V150-vgpu", 256 * MIB, 100), ("metax-tech.com/sgpu", 1024 * MIB, 100),
     ("mthreads.com/vgpu", 512 * MIB, 16), ("kunlunxin.com/vxpu", MIB, None), ("enflame.com/gcu", MIB, 100),
     ("metax-tech.com/gpu", None, None), ("amd.com/gpu", None, None)],
)  # fmt: skip
def test_a_resource_leads_to_its_vendors_units(
    resource: str, unit_bytes: int | None, cores_per_card: int | None
) -> None:
    device = vendor_device(resource)
    assert device is not None
    assert (device.framebuffer_unit_bytes, device.cores_per_card) == (unit_bytes, cores_per_card)


def test_nvidias_resources_are_no_other_vendors() -> None:
    assert vendor_device("nvidia.com/gpu") is None
    assert vendor_device("enflame.com/shared-gcu") == vendor_device("enflame.com/drs-gcu")


def test_names_and_annotations_of_the_table_are_each_one_devices() -> None:
    for names in (
        [device.name for device in VENDOR_DEVICES],
        [device.count_resource for device in VENDOR_DEVICES],
        [annotation for device in VENDOR_DEVICES for annotation in device.allocated_annotations],
        [device.register_annotation for device in VENDOR_DEVICES if device.register_annotation],
    ):
        assert len(set(names)) == len(names)
    assert {device.vendor for device in VENDOR_DEVICES} == set(Vendor)


def test_no_ascend_template_is_larger_than_its_chip() -> None:
    for chip in ASCEND_CHIPS:
        for template in chip.templates:
            assert template.framebuffer_mib <= chip.framebuffer_mib
            assert template.ai_cores <= chip.ai_cores


@pytest.mark.parametrize(
    "text",
    ["DCU-0,4,16384,100,DCU-Z100,0,true:",
     '[{"id":"DCU-0","count":4,"devmem":16384,"devcore":100,"type":"DCU-Z100","health":true}]'],
)  # fmt: skip
def test_a_vendors_register_is_read_in_both_grammars(text: str) -> None:
    (device,) = parse_node_register(text, "hami.io/node-dcu-register")
    assert (device.card, device.framebuffer_mib, device.device_type, device.is_healthy) == (
        "DCU-0",
        16384,
        "DCU-Z100",
        True,
    )


def test_a_message_names_the_vendors_annotation() -> None:
    with pytest.raises(Corrupt, match=r"hami\.io/dcu-devices-allocated"):
        parse_vendor_allocations({"hami.io/dcu-devices-allocated": "DCU-0,1"})


@given(
    st.lists(
        st.builds(
            AscendGrant,
            card=st.from_regex(r"[A-Za-z0-9._/-]{1,40}", fullmatch=True),
            template=st.none() | st.sampled_from(["vir05_1c_16g", "vir04"]),
            framebuffer_mib=st.integers(0, 10**6),
            core_percent=st.integers(0, 100),
        ),
        max_size=3,
    )
)
def test_ascends_own_annotation_is_the_same_after_writing_and_reading(grants: list[AscendGrant]) -> None:
    assert parse_ascend_grants(render_ascend_grants(grants), "huawei.com/Ascend910B3") == tuple(grants)


@given(st.text(max_size=60))
def test_any_text_is_read_or_corrupt(text: str) -> None:
    for read in (
        lambda: parse_ascend_grants(text, "huawei.com/Ascend910B3"),
        lambda: parse_vendor_allocations({"hami.io/xpu-devices-allocated": text}),
    ):
        try:
            read()
        except Corrupt as error:
            assert len(str(error)) < 400  # noqa: PT017 - a message that a hostile text can't blow up
