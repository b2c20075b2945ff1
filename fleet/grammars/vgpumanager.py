"""vgpu-manager's annotations: what its device plugin really handed out, and which cards a node has.

Its kubelet device ids are packed numbers that name no card, so the annotation is all there is. Pure parsing; read by
the exporter's attribution and the scheduler layer.

Sources: coldzerofear/vgpu-manager:pkg/util (PodVGPURealAllocAnnotation, MakeDeviceID), pkg/device
(PodDevices.MarshalText, NodeDeviceInfo).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleet.errors import Corrupt
from fleet.grammars.device_ids import is_card_uuid
from fleet.grammars.hami import RegisteredDevice
from fleet.grammars.text import (
    CONTAINERS_MAX,
    DEVICES_MAX,
    check_length,
    container_name,
    device_type,
    flag_member,
    integer_member,
    json_list,
    json_object,
    numa_member,
    number,
    separated,
    shown,
    text_member,
)

REAL_ALLOCATED_ANNOTATION = "nvidia.com/real-allocated"
"""Pod annotation with what the device plugin handed out; the truth about which card a pod got."""


USE_CARD_ANNOTATION = "nvidia.com/include-gpu-uuid"
NODE_POLICY_ANNOTATION = "nvidia.com/node-scheduler-policy"
CARD_POLICY_ANNOTATION = "nvidia.com/device-scheduler-policy"
"""Pod annotations: only these cards; `binpack` or `spread` over nodes, and over a node's cards."""

REGISTER_ANNOTATION = "nvidia.com/node-device-register"
"""Node annotation in which the device plugin lists the node's cards, as JSON."""

_CONTAINER = re.compile(r"(?P<name>[^\[\]]{1,63})\[(?P<devices>[^\[\]]*)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class VgpuGrant:
    """One card's share for one container.

    Attributes:
        core_percent: compute granted, percent of the card.
    """

    index: int
    card: str
    core_percent: int
    framebuffer_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerVgpus:
    """What one container was handed.

    Attributes:
        grants: one per card.
    """

    container: str
    grants: tuple[VgpuGrant, ...]


def parse_vgpu_allocation(text: str) -> tuple[ContainerVgpus, ...]:
    """Reads `nvidia.com/real-allocated`: `container[index_UUID_cores_MiB,…]`, `;` between containers.

    Raises:
        Corrupt: not the grammar, or larger than its bounds.
    """
    check_length(text, REAL_ALLOCATED_ANNOTATION)
    if not text:
        return ()
    return tuple(_container(part) for part in separated(text, ";", CONTAINERS_MAX, REAL_ALLOCATED_ANNOTATION))


def parse_vgpu_register(text: str) -> tuple[RegisteredDevice, ...]:
    """Reads `nvidia.com/node-device-register`.

    Raises:
        Corrupt: not the grammar, or larger than its bounds.
    """
    return tuple(_registered(entry) for entry in json_list(text, REGISTER_ANNOTATION))


def _container(text: str) -> ContainerVgpus:
    match = _CONTAINER.fullmatch(text)
    if match is None:
        raise Corrupt(f"cannot read {REAL_ALLOCATED_ANNOTATION}: {shown(text)} is not container[devices]")
    devices = match["devices"]
    parts = separated(devices, ",", DEVICES_MAX, REAL_ALLOCATED_ANNOTATION) if devices else []
    return ContainerVgpus(container=container_name(match["name"]), grants=tuple(_grant(part) for part in parts))


def _grant(text: str) -> VgpuGrant:
    fields = text.split("_")
    if len(fields) != 4 or not is_card_uuid(fields[1]):
        raise Corrupt(f"cannot read {REAL_ALLOCATED_ANNOTATION}: {shown(text)} is not index_UUID_cores_MiB")
    return VgpuGrant(
        index=number(fields[0]), card=fields[1], core_percent=number(fields[2]), framebuffer_mib=number(fields[3])
    )


def _registered(value: object) -> RegisteredDevice:
    entry = json_object(value, REGISTER_ANNOTATION)
    card = text_member(entry, "uuid", REGISTER_ANNOTATION)
    if not is_card_uuid(card):
        raise Corrupt(f"cannot read {REGISTER_ANNOTATION}: uuid {shown(card)} is no card")
    return RegisteredDevice(
        card=card,
        slices_max=integer_member(entry, "number", REGISTER_ANNOTATION),
        framebuffer_mib=integer_member(entry, "memory", REGISTER_ANNOTATION),
        core_percent=integer_member(entry, "core", REGISTER_ANNOTATION),
        device_type=device_type(text_member(entry, "type", REGISTER_ANNOTATION)),
        numa=numa_member(entry, "numa", REGISTER_ANNOTATION),
        is_healthy=flag_member(entry, "healthy", REGISTER_ANNOTATION),
        index=integer_member(entry, "id", REGISTER_ANNOTATION),
        mode="mig" if flag_member(entry, "mig", REGISTER_ANNOTATION) else None,
    )
