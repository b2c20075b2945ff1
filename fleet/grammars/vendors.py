"""Cards of other vendors as HAMi handles them: resources, units and annotations, as one table of data.

HAMi writes every vendor's allocation in the grammar of `fleet.grammars.hami`, and most registers too; what differs are
names and units. Where facts are missing the field is None. Read by the exporter's attribution and the scheduler layer.

Sources: Project-HAMi/HAMi:charts/hami/templates/scheduler/device-configmap.yaml, charts/hami/values.yaml,
pkg/device/<vendor>/*.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet.grammars.ascend import ASCEND_CHIPS, ascend_ratios
from fleet.grammars.hami import DeviceGrant, parse_devices_allocated
from fleet.grammars.metax import METAX_REGISTER_ANNOTATION
from fleet.units import GIB, MIB

_PERCENT_PER_CARD = 100


class Vendor(StrEnum):
    """Who makes the card."""

    AMD = "amd"
    ASCEND = "ascend"
    AWS = "aws"
    BIREN = "biren"
    CAMBRICON = "cambricon"
    ENFLAME = "enflame"
    HYGON = "hygon"
    ILUVATAR = "iluvatar"
    KUNLUNXIN = "kunlunxin"
    METAX = "metax"
    MOORE_THREADS = "moore_threads"
    VASTAI = "vastai"


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorDevice:
    """One kind of device of one vendor, as a pod asks for it.

    Attributes:
        name: HAMi's word for the kind.
        framebuffer_resource: resource for framebuffer of each device; None where there is none.
        framebuffer_unit_bytes: bytes per unit of that resource; None without it.
        core_resource: resource for compute of each device; None where there is none.
        cores_per_card: units of that resource in a whole card; None without it, or where a card's own size is the
            unit.
        framebuffer_percent_max: amounts of framebuffer up to this one in `allocated_annotation` are percent of the
            card; 0 where all of them are MiB.
        allocated_annotation: pod annotation with what was granted, in HAMi's grammar; None where there is none.
        register_annotation: node annotation that lists the cards; None where there is none.
        handshake_annotation: node annotation in which HAMi's scheduler says that it has given the node up; None where
            there is none.
        numbered: where no register lists the cards, HAMi numbers them: `<node><numbered><number>`; None elsewhere.
    """

    name: str
    vendor: Vendor
    count_resource: str
    framebuffer_resource: str | None = None
    framebuffer_unit_bytes: int | None = None
    core_resource: str | None = None
    cores_per_card: int | None = None
    framebuffer_percent_max: int = 0
    allocated_annotation: str | None = None
    register_annotation: str | None = None
    handshake_annotation: str | None = None
    numbered: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorGrant:
    """One card's share for one container, in units that all vendors have.

    Attributes:
        framebuffer_mib: framebuffer granted, MiB; None where nothing is said in MiB.
        compute_ratio: limit on its compute, share of the card, 0-1; None where there is none, or nothing is said.
    """

    card: str
    framebuffer_mib: int | None
    compute_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorAllocation:
    """What a pod was granted of one kind of device.

    Attributes:
        containers: one tuple per container in the pod's order, init containers first.
    """

    device: VendorDevice
    containers: tuple[tuple[VendorGrant, ...], ...]


def _ascend(chip: str) -> VendorDevice:
    return VendorDevice(
        name=chip,
        vendor=Vendor.ASCEND,
        count_resource=f"huawei.com/{chip}",
        framebuffer_resource=f"huawei.com/{chip}-memory",
        framebuffer_unit_bytes=MIB,
        core_resource=f"huawei.com/{chip}-core",
        cores_per_card=_PERCENT_PER_CARD,
        allocated_annotation=f"hami.io/{chip}-devices-allocated",
        register_annotation=f"hami.io/node-register-{chip}",
        handshake_annotation=f"hami.io/node-handshake-{chip}",
    )


def _iluvatar(chip: str) -> VendorDevice:
    return VendorDevice(
        name=chip,
        vendor=Vendor.ILUVATAR,
        count_resource=f"iluvatar.ai/{chip}-vgpu",
        framebuffer_resource=f"iluvatar.ai/{chip}.vMem",
        framebuffer_unit_bytes=256 * MIB,
        core_resource=f"iluvatar.ai/{chip}.vCore",
        cores_per_card=_PERCENT_PER_CARD,
        allocated_annotation=f"hami.io/{chip}-devices-allocated",
        register_annotation=f"hami.io/node-{chip}-register",
        handshake_annotation=f"hami.io/node-handshake-{chip}",
    )


VENDOR_DEVICES: tuple[VendorDevice, ...] = (
    *(_ascend(chip.name) for chip in ASCEND_CHIPS),
    VendorDevice(
        name="MLU",
        vendor=Vendor.CAMBRICON,
        count_resource="cambricon.com/vmlu",
        framebuffer_resource="cambricon.com/mlu.smlu.vmemory",
        framebuffer_unit_bytes=256 * MIB,
        core_resource="cambricon.com/mlu.smlu.vcore",
        cores_per_card=_PERCENT_PER_CARD,
        allocated_annotation="hami.io/cambricon-mlu-devices-allocated",
        numbered="-cambricon-mlu-",
    ),
    VendorDevice(
        name="DCU",
        vendor=Vendor.HYGON,
        count_resource="hygon.com/dcunum",
        framebuffer_resource="hygon.com/dcumem",
        framebuffer_unit_bytes=MIB,
        core_resource="hygon.com/dcucores",
        cores_per_card=_PERCENT_PER_CARD,
        allocated_annotation="hami.io/dcu-devices-allocated",
        register_annotation="hami.io/node-dcu-register",
        handshake_annotation="hami.io/node-handshake-dcu",
    ),
    *(_iluvatar(chip) for chip in ("BI-V100", "BI-V150", "MR-V50", "MR-V100")),
    VendorDevice(
        name="Metax-GPU",
        vendor=Vendor.METAX,
        count_resource="metax-tech.com/gpu",
        allocated_annotation="hami.io/metax-gpu-devices-allocated",
        numbered="-metax-",
    ),
    VendorDevice(
        name="Metax-SGPU",
        vendor=Vendor.METAX,
        count_resource="metax-tech.com/sgpu",
        framebuffer_resource="metax-tech.com/vmemory",
        framebuffer_unit_bytes=GIB,
        core_resource="metax-tech.com/vcore",
        cores_per_card=_PERCENT_PER_CARD,
        allocated_annotation="hami.io/metax-sgpu-devices-allocated",
        register_annotation=METAX_REGISTER_ANNOTATION,
    ),
    VendorDevice(
        name="Mthreads",
        vendor=Vendor.MOORE_THREADS,
        count_resource="mthreads.com/vgpu",
        framebuffer_resource="mthreads.com/sgpu-memory",
        framebuffer_unit_bytes=512 * MIB,
        core_resource="mthreads.com/sgpu-core",
        cores_per_card=16,
        allocated_annotation="hami.io/mthreads-vgpu-devices-allocated",
        numbered="-mthreads-",
    ),
    VendorDevice(
        name="Kunlun",
        vendor=Vendor.KUNLUNXIN,
        count_resource="kunlunxin.com/xpu",
        allocated_annotation="hami.io/kunlun-allocated",
        numbered="-kunlun-",
    ),
    VendorDevice(
        name="XPU",
        vendor=Vendor.KUNLUNXIN,
        count_resource="kunlunxin.com/vxpu",
        framebuffer_resource="kunlunxin.com/vxpu-memory",
        framebuffer_unit_bytes=MIB,
        allocated_annotation="hami.io/xpu-devices-allocated",
        register_annotation="hami.io/node-register-xpu",
        handshake_annotation="hami.io/node-handshake-xpu",
    ),
    VendorDevice(
        name="Enflame-GCU",
        vendor=Vendor.ENFLAME,
        count_resource="enflame.com/gcu",
        framebuffer_resource="enflame.com/gcu-memory",
        framebuffer_unit_bytes=MIB,
        core_resource="enflame.com/gcu-core",
        cores_per_card=_PERCENT_PER_CARD,
        framebuffer_percent_max=_PERCENT_PER_CARD,
        allocated_annotation="hami.io/enflame-gcu-devices-allocated",
        numbered="-GCU-",
    ),
    VendorDevice(
        name="Enflame-VGCU",
        vendor=Vendor.ENFLAME,
        count_resource="enflame.com/drs-gcu",
        framebuffer_percent_max=_PERCENT_PER_CARD,
        allocated_annotation="hami.io/enflame-vgpu-devices-allocated",
    ),
    VendorDevice(
        name="AMDGPU",
        vendor=Vendor.AMD,
        count_resource="amd.com/gpu",
        framebuffer_resource="amd.com/gpumem",
        core_resource="amd.com/gpucores",
        allocated_annotation="hami.io/amd-devices-allocated",
        register_annotation="hami.io/node-amd-register",
    ),
    VendorDevice(
        name="AWSNeuron",
        vendor=Vendor.AWS,
        count_resource="aws.amazon.com/neuron",
        core_resource="aws.amazon.com/neuroncore",
        allocated_annotation="hami.io/aws-neuron-devices-allocated",
    ),
    VendorDevice(
        name="Biren",
        vendor=Vendor.BIREN,
        count_resource="birentech.com/gpu",
        register_annotation="hami.io/node-biren-register",
        handshake_annotation="hami.io/node-handshake-biren",
    ),
    VendorDevice(
        name="Vastai",
        vendor=Vendor.VASTAI,
        count_resource="vastaitech.com/va",
        register_annotation="hami.io/node-va-register",
        handshake_annotation="hami.io/node-handshake-va",
    ),
)
"""Every kind of device of other vendors that HAMi hands out."""

_BY_RESOURCE = {device.count_resource: device for device in VENDOR_DEVICES} | {
    # The older name of Enflame's shared cards.
    "enflame.com/shared-gcu": next(device for device in VENDOR_DEVICES if device.name == "Enflame-VGCU")
}


def vendor_device(resource: str) -> VendorDevice | None:
    """The kind of device that a resource counts; None for NVIDIA's and unknown ones."""
    return _BY_RESOURCE.get(resource)


def parse_vendor_allocations(annotations: Mapping[str, str]) -> tuple[VendorAllocation, ...]:
    """What a pod was granted of other vendors' cards, in the table's order.

    Raises:
        Corrupt: one of the annotations is not the grammar.
    """
    allocations = []
    for device in VENDOR_DEVICES:
        annotation = device.allocated_annotation
        if annotation is None or annotation not in annotations:
            continue
        containers = parse_devices_allocated(annotations[annotation], annotation)
        # What Ascend's templates cut, its own annotation says, or the size.
        ratios = iter(ascend_ratios(device.name, containers, annotations)) if device.vendor is Vendor.ASCEND else None
        allocations.append(
            VendorAllocation(
                device=device,
                containers=tuple(
                    tuple(
                        VendorGrant(
                            card=grant.card,
                            framebuffer_mib=_framebuffer_mib(device, grant),
                            compute_ratio=_ratio(device, grant) if ratios is None else next(ratios),
                        )
                        for grant in grants
                    )
                    for grants in containers
                ),
            )
        )
    return tuple(allocations)


def _framebuffer_mib(device: VendorDevice, grant: DeviceGrant) -> int | None:
    return grant.framebuffer_mib if grant.framebuffer_mib > device.framebuffer_percent_max else None


def _ratio(device: VendorDevice, grant: DeviceGrant) -> float | None:
    if device.core_resource is not None and device.cores_per_card is None:
        # AMD writes compute units, of which each model has another number; AWS a mask of cores.
        return None
    whole = device.cores_per_card or _PERCENT_PER_CARD
    return min(grant.core_percent, whole) / whole if grant.core_percent else None
