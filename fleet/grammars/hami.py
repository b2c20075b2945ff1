"""HAMi's annotations: what its scheduler granted a pod, and which cards a node has.

Pure parsing and rendering. The exporter and the scheduler layer read them; the enforcer and the simulated cluster write
them. The texts come from a cluster, where any tenant with the right may have written them: sizes are bounded, and
everything that is not the grammar is `Corrupt`. The other grammars stand beside this one: `grammars.device_ids` (what
the kubelet's pod-resources list), `grammars.mig`, `grammars.volcano`, `grammars.kai`, `grammars.claims`,
`grammars.vgpumanager`, `grammars.mgpu` and, for other vendors, `grammars.vendors`.

Sources: Project-HAMi/HAMi:pkg/device/devices.go (EncodeContainerDevices, EncodePodSingleDevice, EncodeNodeDevices,
MarshalNodeDevices; ExtractMigTemplatesFromUUID before 2.10).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.errors import Corrupt
from fleet.grammars.text import (
    CONTAINERS_MAX,
    DEVICES_MAX,
    check_length,
    device_type,
    flag_member,
    identifier,
    integer_member,
    json_list,
    json_object,
    numa_member,
    number,
    shown,
    terminated,
    text_member,
)

DEVICES_ALLOCATED_ANNOTATION = "hami.io/vgpu-devices-allocated"
"""Pod annotation with what the HAMi scheduler granted; the truth about which card a pod got."""

NODE_REGISTER_ANNOTATION = "hami.io/node-nvidia-register"
"""Node annotation in which HAMi's device plugin lists the node's cards."""

DEVICE_CORDON_ANNOTATION = "hami.io/device-cordon"
"""On a node: cards on which nothing new is granted, separated by commas."""

NODE_HANDSHAKE_ANNOTATION = "hami.io/node-handshake"
"""On a node: `Requesting_…` by the scheduler, `Reported…` by the plugin; only then does the scheduler read it anew."""

VGPU_NODE_ANNOTATION = "hami.io/vgpu-node"
"""Pod annotation and label: the node that the HAMi scheduler chose."""

# How a pod asks HAMi for slices, cards and card models, by the names of its chart. A cluster may rename the resources
# in the ConfigMap `hami-scheduler-device`. Source: Project-HAMi/HAMi:pkg/device/nvidia/device.go (NvidiaConfig).
COUNT_RESOURCE = "nvidia.com/gpu"
FRAMEBUFFER_RESOURCE = "nvidia.com/gpumem"
FRAMEBUFFER_PERCENT_RESOURCE = "nvidia.com/gpumem-percentage"
CORES_RESOURCE = "nvidia.com/gpucores"
PRIORITY_RESOURCE = "nvidia.com/priority"
PRIORITY_ENV = "CUDA_TASK_PRIORITY"
CORE_POLICY_ENV = "GPU_CORE_UTILIZATION_POLICY"
DISABLE_CONTROL_ENV = "CUDA_DISABLE_CONTROL"
USE_CARD_ANNOTATION = "nvidia.com/use-gpuuuid"
AVOID_CARD_ANNOTATION = "nvidia.com/nouse-gpuuuid"
USE_MODEL_ANNOTATION = "nvidia.com/use-gputype"
AVOID_MODEL_ANNOTATION = "nvidia.com/nouse-gputype"
NODE_POLICY_ANNOTATION = "hami.io/node-scheduler-policy"
CARD_POLICY_ANNOTATION = "hami.io/gpu-scheduler-policy"

_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_MIG_PLACE = re.compile(r"(?P<card>[^\[\]]+)\[(?P<place>[A-Za-z0-9._]{1,63}-\d{1,4})\]", re.ASCII)


def core_policy_of(env: Iterable[Mapping[str, Any]]) -> str:
    """What a container's variables say about its core limit: `default`, `force`, `disable`, or another word.

    The last variable of the name counts; `disable` also where something else than the manifest says the value.
    Source: Project-HAMi/HAMi-core:src/multiprocess/multiprocess_memory_limit.c (set_env_utilization_switch).
    """
    found = [entry for entry in env if entry.get("name") == CORE_POLICY_ENV]
    if not found:
        return "default"
    return "disable" if "valueFrom" in found[-1] else str(found[-1].get("value") or "default").strip().lower()


def disables_control(env: Iterable[Mapping[str, Any]], backend: str) -> bool:
    """Whether a container's variables keep the device plugin from giving it the library.

    HAMi's plugin goes by Go's strconv.ParseBool, Volcano's by the name alone; a value from elsewhere counts as true.
    Source: Project-HAMi/HAMi:pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go (Allocate).
    """
    found = [entry for entry in env if entry.get("name") == DISABLE_CONTROL_ENV]
    return any(backend == "volcano" or "valueFrom" in entry or entry.get("value") in _TRUE for entry in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGrant:
    """One card's share for one container, as HAMi's pod annotation writes it.

    Attributes:
        card: UUID of the card (or MIG instance).
        device_type: vendor's word, such as `NVIDIA`.
        core_percent: compute granted, percent of the card; 0 is no limit.
        mig_place: the MIG instance on the card, as HAMi before 2.10 and Volcano's plugin name it: a geometry of their
            configuration, and a place in it (`1-0`); None for other shares. Says nothing without that configuration.
    """

    card: str
    device_type: str
    framebuffer_mib: int
    core_percent: int
    mig_place: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredDevice:
    """One card of a node, as HAMi's node annotation lists it.

    Attributes:
        slices_max: how many slices the card is split into at most.
        framebuffer_mib: framebuffer that may be granted, MiB, already multiplied by the node's oversubscription factor.
        core_percent: compute that may be granted, percent.
        device_type: `NVIDIA-` and the model as the driver prints it.
        is_healthy: False takes it out of scheduling.
        mode: `hami-core`, `mig` or `mps`; None where the release writes none.
    """

    card: str
    slices_max: int
    framebuffer_mib: int
    core_percent: int
    device_type: str
    numa: int
    is_healthy: bool
    index: int = 0
    mode: str | None = None


def parse_devices_allocated(
    text: str, annotation: str = DEVICES_ALLOCATED_ANNOTATION
) -> tuple[tuple[DeviceGrant, ...], ...]:
    """Reads `hami.io/vgpu-devices-allocated`: `UUID,type,MiB,cores:` per device, `;` after each container.

    Args:
        annotation: its key, for messages; HAMi writes other vendors' allocations in the same grammar.

    Returns:
        One tuple per container in the pod's order, init containers first; empty for a container without a card.

    Raises:
        Corrupt: not the grammar, or larger than its bounds.
    """
    check_length(text, annotation)
    return tuple(
        parse_container_devices(container, annotation)
        for container in terminated(text, ";", CONTAINERS_MAX, annotation)
    )


def containers_of_parts(parts: Sequence[Sequence[object]], asks: Sequence[bool], inits: int) -> Sequence[int]:
    """Which container each part of an allocation is of.

    Parts stand by the pod's containers, init containers first. Releases before 2.6 leave init containers out; 2.10.0
    leaves out every container without a card (pkg/scheduler/score.go, nodeDeviceBaseTypes; HAMi issue 2899).

    Args:
        parts: what each was granted.
        asks: of each container, init containers first, whether it asks for a device.
        inits: how many of them are init containers.

    Returns:
        For each part the number of its container in `asks`.

    Raises:
        Corrupt: there are more parts than containers.
    """
    if len(parts) < len(asks) and all(parts) and len(parts) == sum(asks):
        return [number for number, is_asking in enumerate(asks) if is_asking]
    shift = inits if len(parts) <= len(asks) - inits else 0
    if len(parts) > len(asks):
        raise Corrupt(f"cannot read what {len(parts)} containers were granted: the pod has {len(asks)}")
    return range(shift, shift + len(parts))


def parse_container_devices(text: str, annotation: str) -> tuple[DeviceGrant, ...]:
    """Reads one container's devices: `UUID,type,MiB,cores:` each, or `UUID[geometry-place],…`; none of an empty text.

    Raises:
        Corrupt: not the grammar, or larger than its bounds.
    """
    return tuple(_device_grant(device, annotation) for device in terminated(text, ":", DEVICES_MAX, annotation))


def render_devices_allocated(containers: Sequence[Sequence[DeviceGrant]]) -> str:
    """Writes `hami.io/vgpu-devices-allocated`; the inverse of `parse_devices_allocated`."""
    return "".join(render_container_devices(grants) + ";" for grants in containers)


def render_container_devices(grants: Sequence[DeviceGrant]) -> str:
    """Writes one container's devices; the inverse of `parse_container_devices`."""
    parts = []
    for grant in grants:
        place = "" if grant.mig_place is None else f"[{grant.mig_place}]"
        parts.append(f"{grant.card}{place},{grant.device_type},{grant.framebuffer_mib},{grant.core_percent}:")
    return "".join(parts)


def parse_node_register(text: str, annotation: str = NODE_REGISTER_ANNOTATION) -> tuple[RegisteredDevice, ...]:
    """Reads `hami.io/node-nvidia-register` in either grammar: JSON (v2.10) or the older CSV of 7 or 9 fields.

    In JSON a field that is zero, empty or false is left out, health included.

    Args:
        annotation: its key, for messages; HAMi registers other vendors' cards in the same two grammars.

    Raises:
        Corrupt: neither grammar, or larger than its bounds.
    """
    check_length(text, annotation)
    if text.startswith("["):
        return tuple(_registered_of_json(entry, annotation) for entry in json_list(text, annotation))
    return tuple(_registered_of_csv(part, annotation) for part in terminated(text, ":", DEVICES_MAX, annotation))


def render_node_register(devices: Sequence[RegisteredDevice]) -> str:
    """Writes `hami.io/node-nvidia-register` as v2.10 does: JSON without fields that are zero, empty or false."""
    entries = [
        {
            "id": device.card,
            "index": device.index,
            "count": device.slices_max,
            "devmem": device.framebuffer_mib,
            "devcore": device.core_percent,
            "type": device.device_type,
            "numa": device.numa,
            "mode": device.mode,
            "health": device.is_healthy,
        }
        for device in devices
    ]
    return json.dumps(
        [{key: value for key, value in entry.items() if value} for entry in entries], separators=(",", ":")
    )


def _device_grant(text: str, annotation: str) -> DeviceGrant:
    fields = text.split(",")
    if len(fields) != 4:
        raise Corrupt(f"cannot read {annotation}: {shown(text)} has {len(fields)} fields, not 4")
    placed = _MIG_PLACE.fullmatch(fields[0])
    return DeviceGrant(
        card=identifier(fields[0] if placed is None else placed["card"]),
        device_type=device_type(fields[1]),
        framebuffer_mib=number(fields[2]),
        core_percent=number(fields[3]),
        mig_place=None if placed is None else placed["place"],
    )


def _registered_of_csv(text: str, annotation: str) -> RegisteredDevice:
    fields = text.split(",")
    if len(fields) not in (7, 9) or fields[6] not in ("true", "false"):
        raise Corrupt(f"cannot read {annotation}: {shown(text)} has not 7 or 9 fields, the 7th being its health")
    return RegisteredDevice(
        card=identifier(fields[0]),
        slices_max=number(fields[1]),
        framebuffer_mib=number(fields[2]),
        core_percent=number(fields[3]),
        device_type=device_type(fields[4]),
        numa=0 if fields[5] == "-1" else number(fields[5]),
        is_healthy=fields[6] == "true",
        index=number(fields[7]) if len(fields) == 9 else 0,
        mode=(device_type(fields[8]) or None) if len(fields) == 9 else None,
    )


def _registered_of_json(value: object, annotation: str) -> RegisteredDevice:
    entry = json_object(value, annotation)
    return RegisteredDevice(
        card=identifier(text_member(entry, "id", annotation)),
        slices_max=integer_member(entry, "count", annotation),
        framebuffer_mib=integer_member(entry, "devmem", annotation),
        core_percent=integer_member(entry, "devcore", annotation),
        device_type=device_type(text_member(entry, "type", annotation)),
        numa=numa_member(entry, "numa", annotation),
        is_healthy=flag_member(entry, "health", annotation),
        index=integer_member(entry, "index", annotation),
        mode=device_type(text_member(entry, "mode", annotation)) or None,
    )
