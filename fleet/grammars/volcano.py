"""Volcano vGPU's annotations: what its scheduler granted a pod, and which cards a node has.

The pieces are HAMi's, the punctuation is its own. Pure parsing; read by the exporter's attribution and the
scheduler layer.

Sources: Project-HAMi/volcano-vgpu-device-plugin:pkg/util/util.go (EncodePodDevices, EncodeNodeDevices) and
pkg/util/types.go.
"""

from __future__ import annotations

from fleet.errors import Corrupt
from fleet.grammars.hami import DeviceGrant, RegisteredDevice, parse_container_devices
from fleet.grammars.text import (
    CONTAINERS_MAX,
    DEVICES_MAX,
    check_length,
    device_type,
    identifier,
    number,
    separated,
    shown,
    terminated,
)

IDS_ANNOTATION = "volcano.sh/vgpu-ids-new"
"""Pod annotation with what Volcano's scheduler granted; the truth about which card a pod got."""


REGISTER_ANNOTATION = "volcano.sh/node-vgpu-register"
"""Node annotation in which the device plugin lists the node's cards."""

COUNT_RESOURCE = "volcano.sh/vgpu-number"
FRAMEBUFFER_RESOURCE = "volcano.sh/vgpu-memory"
"""MiB of one card, divided by the plugin's `gpuMemoryFactor`; its device ids are counts."""
CORES_RESOURCE = "volcano.sh/vgpu-cores"
"""Percent of one card; its device ids are counts."""

_WHOLE_CORE_PERCENT = 100


def parse_volcano_ids(text: str) -> tuple[tuple[DeviceGrant, ...], ...]:
    """Reads `volcano.sh/vgpu-ids-new`: `UUID,type,MiB,cores:` per device, `;` between containers.

    Returns:
        One tuple per container that asks for a card, in the pod's order: Volcano leaves out the others and all init
        containers (pkg/scheduler/api/devices/util.go, ExtractResourceRequest). An empty text has none.

    Raises:
        Corrupt: not the grammar, or larger than its bounds.
    """
    check_length(text, IDS_ANNOTATION)
    if not text:
        return ()
    return tuple(
        parse_container_devices(container, IDS_ANNOTATION)
        for container in separated(text, ";", CONTAINERS_MAX, IDS_ANNOTATION)
    )


def parse_volcano_register(text: str) -> tuple[RegisteredDevice, ...]:
    """Reads `volcano.sh/node-vgpu-register`: `UUID,count,MiB,type,health,mode:` per card; older ones have no mode.

    Volcano writes neither cores nor NUMA node: a card has 100 percent there, and node 0 stands for unknown.

    Raises:
        Corrupt: not the grammar, or larger than its bounds.
    """
    check_length(text, REGISTER_ANNOTATION)
    cards = terminated(text, ":", DEVICES_MAX, REGISTER_ANNOTATION)
    return tuple(_registered(card, index) for index, card in enumerate(cards))


def _registered(text: str, index: int) -> RegisteredDevice:
    fields = text.split(",")
    if len(fields) not in (5, 6) or fields[4] not in ("true", "false"):
        raise Corrupt(
            f"cannot read {REGISTER_ANNOTATION}: {shown(text)} has not 5 or 6 fields, the 5th being its health"
        )
    return RegisteredDevice(
        card=identifier(fields[0]),
        slices_max=number(fields[1]),
        framebuffer_mib=number(fields[2]),
        core_percent=_WHOLE_CORE_PERCENT,
        device_type=device_type(fields[3]),
        numa=0,
        is_healthy=fields[4] == "true",
        index=index,
        mode=(device_type(fields[5]) or None) if len(fields) == 6 else None,
    )
