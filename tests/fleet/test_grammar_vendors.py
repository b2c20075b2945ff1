"""Other vendors' allocations and registers are read by HAMi's grammar, with each vendor's own names and units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import Corrupt
from fleet.grammars.hami import DeviceGrant, parse_node_register, render_devices_allocated
from fleet.grammars.metax import METAX_REGISTER_ANNOTATION, parse_metax_register
from fleet.grammars.vendors import (
    VENDOR_DEVICES,
    Vendor,
    VendorDevice,
    VendorGrant,
    parse_vendor_allocations,
    vendor_device,
)

MIB = 2**20
METAX_CARD = "GPU-f2b4ac4a-4f3c-8b6c-bd3d-0c2e3c3f6c01"


@pytest.mark.parametrize(
    "device", [device for device in VENDOR_DEVICES if device.allocated_annotation], ids=lambda device: device.name
)
def test_every_vendors_allocation_is_found_under_its_annotation(device: VendorDevice) -> None:
    assert device.allocated_annotation is not None
    granted = DeviceGrant(card="card-0", device_type=device.name, framebuffer_mib=1024, core_percent=0)
    text = render_devices_allocated([[], [granted]])
    (allocation,) = parse_vendor_allocations({device.allocated_annotation: text, "app": "x"})
    assert allocation.device == device
    assert allocation.containers == ((), (VendorGrant(card="card-0", framebuffer_mib=1024, compute_ratio=None),))


@pytest.mark.parametrize(
    ("annotation", "cores", "ratio"),
    [("hami.io/dcu-devices-allocated", 30, 0.3), ("hami.io/metax-sgpu-devices-allocated", 100, 1.0),
     # Sixteen units are a card of Moore Threads.
     ("hami.io/mthreads-vgpu-devices-allocated", 8, 0.5), ("hami.io/mthreads-vgpu-devices-allocated", 16, 1.0),
     ("hami.io/xpu-devices-allocated", 25, 0.25), ("hami.io/dcu-devices-allocated", 300, 1.0),
     # Compute units of AMD and core masks of AWS are of a card whose number of them the annotation doesn't say.
     ("hami.io/amd-devices-allocated", 38, None), ("hami.io/aws-neuron-devices-allocated", 2, None)],
)  # fmt: skip
def test_cores_are_counted_in_the_vendors_own_unit(annotation: str, cores: int, ratio: float | None) -> None:
    (allocation,) = parse_vendor_allocations({annotation: f"card-0,X,1024,{cores}:;"})
    assert allocation.containers[0][0].compute_ratio == ratio


def test_framebuffer_that_enflame_writes_in_percent_is_not_taken_for_mib() -> None:
    for annotation in ("hami.io/enflame-vgpu-devices-allocated", "hami.io/enflame-gcu-devices-allocated"):
        percent, mib = (
            parse_vendor_allocations({annotation: f"n1-enflame-0,Enflame,{amount},0:;"})[0].containers[0][0]
            for amount in (25, 16384)
        )
        assert (percent.framebuffer_mib, mib.framebuffer_mib) == (None, 16384)


def test_what_metax_writes_for_its_own_plugin_takes_nothing_from_what_hami_writes() -> None:
    annotations = {
        "hami.io/metax-sgpu-devices-allocated": f"{METAX_CARD},Metax-SGPU,16384,30:;",
        "metax-tech.com/gpu-devices-allocated": f'[[{{"uuid":"{METAX_CARD}","compute":30,"vRam":16384}}]]',
    }
    (allocation,) = parse_vendor_allocations(annotations)
    assert allocation.containers == ((VendorGrant(card=METAX_CARD, framebuffer_mib=16384, compute_ratio=0.3),),)


def test_metaxs_register_is_read_in_its_own_words() -> None:
    text = (
        f'[{{"uuid":"{METAX_CARD}","bdf":"0000:08:00.0","model":"MXC500","totalDevCount":16,"totalCompute":100,'
        '"totalVRam":65536,"numa":-1,"healthy":true,"qosPolicy":"best-effort"},{"uuid":"GPU-2"}]'
    )
    first, second = parse_metax_register(text)
    assert (first.card, first.device_type, first.slices_max) == (METAX_CARD, "MXC500", 16)
    assert (first.framebuffer_mib, first.core_percent, first.numa, first.is_healthy) == (65536, 100, 0, True)
    assert (second.index, second.framebuffer_mib, second.is_healthy) == (1, 0, False)
    with pytest.raises(Corrupt, match=METAX_REGISTER_ANNOTATION):
        parse_metax_register('{"uuid":"GPU-2"}')


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
        [device.allocated_annotation for device in VENDOR_DEVICES if device.allocated_annotation],
        [device.register_annotation for device in VENDOR_DEVICES if device.register_annotation],
        [device.handshake_annotation for device in VENDOR_DEVICES if device.handshake_annotation],
        [device.numbered for device in VENDOR_DEVICES if device.numbered],
    ):
        assert len(set(names)) == len(names)
    assert {device.vendor for device in VENDOR_DEVICES} == set(Vendor)


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


@given(st.text(max_size=60))
def test_any_text_is_read_or_corrupt(text: str) -> None:
    for read in (
        lambda: parse_metax_register(text),
        lambda: parse_vendor_allocations({"hami.io/xpu-devices-allocated": text}),
    ):
        try:
            read()
        except Corrupt as error:
            assert len(str(error)) < 400  # noqa: PT017 - a message that a hostile text can't blow up
