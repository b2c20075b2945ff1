"""Cards of other vendors as HAMi handles them: resources, units and annotations, as one table of data.

HAMi writes every vendor's allocation and register in the grammars of `fleet.grammar`; what differs are names and units.
Where facts are missing the field is None. Read by the exporter's attribution and the scheduler layer.

Sources: Project-HAMi/HAMi:charts/hami/templates/scheduler/device-configmap.yaml, charts/hami/values.yaml,
pkg/device/<vendor>/*.go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fleet.grammar import DeviceGrant, parse_devices_allocated
from fleet.grammar_text import device_type, identifier, integer_member, json_list, json_object, text_member
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
        vendor: who makes it.
        count_resource: resource that counts devices.
        framebuffer_resource: resource for framebuffer of each device; None where there is none.
        framebuffer_unit_bytes: bytes per unit of that resource; None without it.
        core_resource: resource for compute of each device; None where there is none.
        cores_per_card: units of that resource in a whole card; None without it, or where it is not known.
        allocated_annotations: pod annotations with what was granted, in HAMi's grammar; the first that is there counts.
        templates_annotation: pod annotation with the vendor's own JSON of what was granted; None where there is none.
        register_annotation: node annotation that lists the cards, in either of HAMi's grammars; None where not known.
        use_annotation: pod annotation with the cards that the user wants; None where not known.
        avoid_annotation: pod annotation with the cards that the user does not want; None where not known.
    """

    name: str
    vendor: Vendor
    count_resource: str
    framebuffer_resource: str | None = None
    framebuffer_unit_bytes: int | None = None
    core_resource: str | None = None
    cores_per_card: int | None = None
    allocated_annotations: tuple[str, ...] = ()
    templates_annotation: str | None = None
    register_annotation: str | None = None
    use_annotation: str | None = None
    avoid_annotation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendTemplate:
    """A size in which an Ascend chip is cut.

    Attributes:
        name: such as `vir05_1c_16g`.
        framebuffer_mib: framebuffer, MiB.
        ai_cores: AI cores.
    """

    name: str
    framebuffer_mib: int
    ai_cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendChip:
    """An Ascend chip as HAMi's chart knows it.

    Attributes:
        name: HAMi's word, such as `Ascend910B3`.
        framebuffer_mib: framebuffer that can be granted, MiB.
        ai_cores: AI cores.
        templates: the sizes, smallest first.
    """

    name: str
    framebuffer_mib: int
    ai_cores: int
    templates: tuple[AscendTemplate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendGrant:
    """One chip's share for a pod, as `huawei.com/<chip>` writes it.

    Attributes:
        card: id of the chip.
        template: the size; None for a whole chip or a soft split.
        framebuffer_mib: framebuffer, MiB; 0 where the annotation leaves it out.
        core_percent: compute, percent; 0 where the annotation leaves it out.
    """

    card: str
    template: str | None
    framebuffer_mib: int
    core_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorAllocation:
    """What a pod was granted of one kind of device.

    Attributes:
        device: the kind.
        annotation: the annotation that says so.
        containers: one tuple per container in the pod's order, init containers first.
    """

    device: VendorDevice
    annotation: str
    containers: tuple[tuple[DeviceGrant, ...], ...]


def _chip(name: str, framebuffer_mib: int, ai_cores: int, *templates: tuple[str, int, int]) -> AscendChip:
    return AscendChip(
        name=name,
        framebuffer_mib=framebuffer_mib,
        ai_cores=ai_cores,
        templates=tuple(
            AscendTemplate(name=word, framebuffer_mib=mib, ai_cores=cores) for word, mib, cores in templates
        ),
    )


_B3_TEMPLATES = (("vir05_1c_16g", 16384, 5), ("vir10_3c_32g", 32768, 10))

ASCEND_CHIPS: tuple[AscendChip, ...] = (
    _chip("Ascend910A", 32768, 30, ("vir02", 2184, 2), ("vir04", 4369, 4), ("vir08", 8738, 8), ("vir16", 17476, 16)),
    _chip("Ascend910B2", 65536, 24, ("vir03_1c_8g", 8192, 3), ("vir06_1c_16g", 16384, 6), ("vir12_3c_32g", 32768, 12)),
    _chip("Ascend910B3", 65536, 20, *_B3_TEMPLATES),
    _chip("Ascend910B4", 32768, 20, ("vir05_1c_8g", 8192, 5), ("vir10_3c_16g", 16384, 10)),
    _chip("Ascend910B4-1", 65536, 20, *_B3_TEMPLATES),
    _chip("Ascend910C", 65536, 20, *_B3_TEMPLATES),
    _chip("Ascend310P", 21527, 8, ("vir01", 3072, 1), ("vir02", 6144, 2), ("vir04", 12288, 4)),
)
"""Chart defaults; a cluster may define others."""


def _ascend(chip: str) -> VendorDevice:
    return VendorDevice(
        name=chip,
        vendor=Vendor.ASCEND,
        count_resource=f"huawei.com/{chip}",
        framebuffer_resource=f"huawei.com/{chip}-memory",
        framebuffer_unit_bytes=MIB,
        core_resource=f"huawei.com/{chip}-core",
        cores_per_card=_PERCENT_PER_CARD,
        allocated_annotations=(f"hami.io/{chip}-devices-allocated",),
        templates_annotation=f"huawei.com/{chip}",
        register_annotation=f"hami.io/node-register-{chip}",
        use_annotation=f"hami.io/use-{chip}-uuid",
        avoid_annotation=f"hami.io/no-use-{chip}-uuid",
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
        allocated_annotations=(f"hami.io/{chip}-devices-allocated",),
        register_annotation=f"hami.io/node-{chip}-register",
        use_annotation=f"hami.io/use-{chip}-uuid",
        avoid_annotation=f"hami.io/no-use-{chip}-uuid",
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
        allocated_annotations=("hami.io/cambricon-mlu-devices-allocated",),
        use_annotation="cambricon.com/use-gpuuuid",
        avoid_annotation="cambricon.com/nouse-gpuuuid",
    ),
    VendorDevice(
        name="DCU",
        vendor=Vendor.HYGON,
        count_resource="hygon.com/dcunum",
        framebuffer_resource="hygon.com/dcumem",
        framebuffer_unit_bytes=MIB,
        core_resource="hygon.com/dcucores",
        cores_per_card=_PERCENT_PER_CARD,
        allocated_annotations=("hami.io/dcu-devices-allocated",),
        register_annotation="hami.io/node-dcu-register",
        use_annotation="hygon.com/use-gpuuuid",
        avoid_annotation="hygon.com/nouse-gpuuuid",
    ),
    *(_iluvatar(chip) for chip in ("BI-V100", "BI-V150", "MR-V50", "MR-V100")),
    VendorDevice(
        name="Metax-GPU",
        vendor=Vendor.METAX,
        count_resource="metax-tech.com/gpu",
        allocated_annotations=("hami.io/metax-gpu-devices-allocated", "metax-tech.com/gpu-devices-allocated"),
        register_annotation="metax-tech.com/node-gpu-devices",
        use_annotation="metax-tech.com/use-gpuuuid",
        avoid_annotation="metax-tech.com/nouse-gpuuuid",
    ),
    VendorDevice(
        name="Metax-SGPU",
        vendor=Vendor.METAX,
        count_resource="metax-tech.com/sgpu",
        framebuffer_resource="metax-tech.com/vmemory",
        framebuffer_unit_bytes=GIB,
        core_resource="metax-tech.com/vcore",
        cores_per_card=_PERCENT_PER_CARD,
        allocated_annotations=("hami.io/metax-sgpu-devices-allocated",),
        use_annotation="metax-tech.com/use-gpuuuid",
        avoid_annotation="metax-tech.com/nouse-gpuuuid",
    ),
    VendorDevice(
        name="Mthreads",
        vendor=Vendor.MOORE_THREADS,
        count_resource="mthreads.com/vgpu",
        framebuffer_resource="mthreads.com/sgpu-memory",
        framebuffer_unit_bytes=512 * MIB,
        core_resource="mthreads.com/sgpu-core",
        cores_per_card=16,
        allocated_annotations=("hami.io/mthreads-vgpu-devices-allocated",),
        use_annotation="mthreads.ai/use-gpuuuid",
        avoid_annotation="mthreads.ai/nouse-gpuuuid",
    ),
    VendorDevice(
        name="Kunlun",
        vendor=Vendor.KUNLUNXIN,
        count_resource="kunlunxin.com/xpu",
        allocated_annotations=("hami.io/kunlun-allocated",),
        use_annotation="baidu.com/use-gpuuuid",
        avoid_annotation="baidu.com/nouse-gpuuuid",
    ),
    VendorDevice(
        name="XPU",
        vendor=Vendor.KUNLUNXIN,
        count_resource="kunlunxin.com/vxpu",
        framebuffer_resource="kunlunxin.com/vxpu-memory",
        framebuffer_unit_bytes=MIB,
        allocated_annotations=("hami.io/xpu-devices-allocated",),
        register_annotation="hami.io/node-register-xpu",
        use_annotation="hami.io/use-xpu-uuid",
        avoid_annotation="hami.io/no-use-xpu-uuid",
    ),
    VendorDevice(
        name="Enflame-GCU",
        vendor=Vendor.ENFLAME,
        count_resource="enflame.com/gcu",
        framebuffer_resource="enflame.com/gcu-memory",
        framebuffer_unit_bytes=MIB,
        core_resource="enflame.com/gcu-core",
        cores_per_card=_PERCENT_PER_CARD,
        allocated_annotations=("hami.io/enflame-gcu-devices-allocated",),
        use_annotation="enflame.com/use-gpuuuid",
        avoid_annotation="enflame.com/nouse-gpuuuid",
    ),
    VendorDevice(
        name="Enflame-VGCU",
        vendor=Vendor.ENFLAME,
        count_resource="enflame.com/drs-gcu",
        allocated_annotations=("hami.io/enflame-vgpu-devices-allocated",),
        use_annotation="enflame.com/use-gpuuuid",
        avoid_annotation="enflame.com/nouse-gpuuuid",
    ),
    VendorDevice(
        name="AMDGPU",
        vendor=Vendor.AMD,
        count_resource="amd.com/gpu",
        framebuffer_resource="amd.com/gpumem",
        core_resource="amd.com/gpucores",
        allocated_annotations=("hami.io/amd-devices-allocated",),
        register_annotation="hami.io/node-amd-register",
        use_annotation="amd.com/use-gpu-uuid",
        avoid_annotation="amd.com/nouse-gpu-uuid",
    ),
    VendorDevice(
        name="AWSNeuron",
        vendor=Vendor.AWS,
        count_resource="aws.amazon.com/neuron",
        core_resource="aws.amazon.com/neuroncore",
        allocated_annotations=("hami.io/aws-neuron-devices-allocated",),
        use_annotation="aws.amazon.com/use-neuron-uuid",
        avoid_annotation="aws.amazon.com/nouse-neuron-uuid",
    ),
    VendorDevice(
        name="Biren",
        vendor=Vendor.BIREN,
        count_resource="birentech.com/gpu",
        register_annotation="hami.io/node-biren-register",
    ),
    VendorDevice(
        name="Vastai",
        vendor=Vendor.VASTAI,
        count_resource="vastaitech.com/va",
        register_annotation="hami.io/node-va-register",
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
        annotation = next((key for key in device.allocated_annotations if key in annotations), None)
        if annotation is not None:
            containers = parse_devices_allocated(annotations[annotation], annotation)
            allocations.append(VendorAllocation(device=device, annotation=annotation, containers=containers))
    return tuple(allocations)


def parse_ascend_grants(text: str, annotation: str) -> tuple[AscendGrant, ...]:
    """Reads `huawei.com/<chip>`: a JSON list of `{UUID, temp, memory, core}`, empty fields left out.

    Raises:
        Corrupt: not the grammar, or larger than its bounds.
    """
    grants = []
    for value in json_list(text, annotation):
        entry = json_object(value, annotation)
        grants.append(
            AscendGrant(
                card=identifier(text_member(entry, "UUID", annotation)),
                template=device_type(text_member(entry, "temp", annotation)) or None,
                framebuffer_mib=integer_member(entry, "memory", annotation),
                core_percent=integer_member(entry, "core", annotation),
            )
        )
    return tuple(grants)


def render_ascend_grants(grants: Sequence[AscendGrant]) -> str:
    """Writes `huawei.com/<chip>`; the inverse of `parse_ascend_grants`."""
    entries = [
        {"UUID": grant.card, "temp": grant.template, "memory": grant.framebuffer_mib, "core": grant.core_percent}
        for grant in grants
    ]
    return json.dumps(
        [{key: value for key, value in entry.items() if value} for entry in entries], separators=(",", ":")
    )
