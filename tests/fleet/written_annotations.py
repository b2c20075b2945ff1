"""What device plugins and schedulers write, from the records that their texts are read into."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fleet.grammars.ascend import AscendGrant
from fleet.grammars.device_ids import DeviceId, DeviceIdForm
from fleet.grammars.hami import DeviceGrant, RegisteredDevice, render_container_devices
from fleet.grammars.kai import (
    CARDS_ANNOTATION,
    CONTAINER_ANNOTATION,
    FRACTION_ANNOTATION,
    FRAMEBUFFER_ANNOTATION,
    GROUP_LABEL,
    GROUP_LABEL_PREFIX,
    KaiShare,
)
from fleet.grammars.mig import MigAllocation
from fleet.grammars.vgpumanager import ContainerVgpus


def render_device_id(device: DeviceId) -> str:
    """Writes a device id in its form; the inverse of `parse_device_id`."""
    replica = "" if device.number is None else f"::{device.number}"
    match device.form:
        case DeviceIdForm.CARD:
            return f"{device.card}"
        case DeviceIdForm.HAMI_SLICE:
            return f"{device.card}-{device.number}"
        case DeviceIdForm.REPLICA:
            return f"{device.card}{replica}"
        case DeviceIdForm.VOLCANO_FRAMEBUFFER:
            return f"{device.card}-memory-{device.number}"
        case DeviceIdForm.VOLCANO_CORES:
            return f"{device.card}-core-{device.number}"
        case DeviceIdForm.MIG | DeviceIdForm.MIG_REPLICA:
            return f"{device.mig}{replica}"
        case DeviceIdForm.MIG_LEGACY:
            return f"MIG-{device.card}/{device.gpu_instance}/{device.compute_instance}{replica}"
        case DeviceIdForm.GKE:
            instance = "" if device.gpu_instance is None else f"/gi{device.gpu_instance}"
            return f"nvidia{device.index}{instance}" + ("" if device.number is None else f"/vgpu{device.number}")


def render_node_register_csv(devices: Sequence[RegisteredDevice]) -> str:
    """Writes `hami.io/node-nvidia-register` as releases before JSON did: 9 fields, or 7 where no mode is known."""
    parts = []
    for device in devices:
        fields: list[object] = [device.card, device.slices_max, device.framebuffer_mib, device.core_percent]
        fields += [device.device_type, device.numa, "true" if device.is_healthy else "false"]
        fields += [] if device.mode is None else [device.index, device.mode]
        parts.append(",".join(str(field) for field in fields) + ":")
    return "".join(parts)


def render_ascend_grants(grants: Sequence[AscendGrant]) -> str:
    """Writes `huawei.com/<chip>`; the inverse of `parse_ascend_grants`."""
    entries = [
        {"UUID": grant.card, "temp": grant.template, "memory": grant.framebuffer_mib, "core": grant.core_percent}
        for grant in grants
    ]
    return json.dumps(
        [{key: value for key, value in entry.items() if value} for entry in entries], separators=(",", ":")
    )


def render_kai_annotations(share: KaiShare) -> dict[str, str]:
    """The annotations by which a pod asks for the share, for a manifest."""
    annotations: dict[str, str] = {}
    if share.ratio is not None:
        annotations[FRACTION_ANNOTATION] = f"{share.ratio:.9f}".rstrip("0").rstrip(".")
    elif share.framebuffer_mib is not None:
        annotations[FRAMEBUFFER_ANNOTATION] = str(share.framebuffer_mib)
    if share.cards != 1:
        annotations[CARDS_ANNOTATION] = str(share.cards)
    if share.container is not None:
        annotations[CONTAINER_ANNOTATION] = share.container
    return annotations


def render_kai_labels(share: KaiShare) -> dict[str, str]:
    """The labels that bind a pod to the share's groups, for a manifest."""
    if len(share.groups) == 1:
        return {GROUP_LABEL: share.groups[0]}
    return {f"{GROUP_LABEL_PREFIX}{group}": group for group in share.groups}


def render_card_indexes(indexes: Sequence[int]) -> str:
    """Writes `vke.volcengine.com/gpu-index-container-…`; the inverse of `parse_card_indexes`."""
    return ",".join(str(index) for index in indexes)


def render_mig_allocations(allocations: Sequence[MigAllocation]) -> str:
    """Writes `hami.io/vgpu-mig-allocations`; the inverse of `parse_mig_allocations`."""
    entries: list[dict[str, object]] = []
    for allocation in allocations:
        entry: dict[str, object] = {
            "containerIndex": allocation.container_index,
            "deviceIndex": allocation.device_index,
            "gpuUUID": allocation.card,
            "profile": allocation.profile,
            "placement": {"start": allocation.placement_start, "size": allocation.placement_size},
        }
        if allocation.instance is not None:
            entry["migUUID"] = allocation.instance
            entry["gpuInstanceID"] = allocation.gpu_instance
            entry["computeInstanceID"] = allocation.compute_instance
        entries.append(entry)
    return json.dumps(entries, separators=(",", ":"))


def render_vgpu_allocation(containers: Sequence[ContainerVgpus]) -> str:
    """Writes `nvidia.com/real-allocated`; the inverse of `parse_vgpu_allocation`."""
    return ";".join(
        f"{part.container}["
        + ",".join(f"{grant.index}_{grant.card}_{grant.core_percent}_{grant.framebuffer_mib}" for grant in part.grants)
        + "]"
        for part in containers
    )


def render_vgpu_register(devices: Sequence[RegisteredDevice]) -> str:
    """Writes `nvidia.com/node-device-register`, the fields that the records know."""
    entries = [
        {
            "id": device.index,
            "type": device.device_type,
            "uuid": device.card,
            "core": device.core_percent,
            "memory": device.framebuffer_mib,
            "number": device.slices_max,
            "numa": device.numa,
            "mig": device.mode == "mig",
            "healthy": device.is_healthy,
        }
        for device in devices
    ]
    return json.dumps(entries, separators=(",", ":"))


def render_volcano_ids(containers: Sequence[Sequence[DeviceGrant]]) -> str:
    """Writes `volcano.sh/vgpu-ids-new`.

    The inverse of `parse_volcano_ids`, but for a single container without a card, which the grammar can't tell from
    no container.
    """
    return ";".join(render_container_devices(grants) for grants in containers)


def render_volcano_register(devices: Sequence[RegisteredDevice]) -> str:
    """Writes `volcano.sh/node-vgpu-register`; what the grammar has no field for is lost."""
    parts = []
    for device in devices:
        health = "true" if device.is_healthy else "false"
        fields: list[object] = [device.card, device.slices_max, device.framebuffer_mib, device.device_type, health]
        fields += [] if device.mode is None else [device.mode]
        parts.append(",".join(str(field) for field in fields) + ":")
    return "".join(parts)
