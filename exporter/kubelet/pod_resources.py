"""Which devices the kubelet handed to which container, as `exporter.kubelet.client` reads it.

The kubelet knows a grant from the moment it is made, used or not, but neither the pod's UID nor, for HAMi and Volcano,
the card that was really given (`fleet.grammars.device_ids`). `exporter.attribution.attributor` joins these rows with
the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

AMOUNT_RESOURCES = frozenset(
    {
        "volcano.sh/vgpu-memory",
        "volcano.sh/vgpu-memory-percentage",
        "volcano.sh/vgpu-cores",
        "nvidia.com/vgpu-memory",
        "nvidia.com/vgpu-cores",
    }
)
"""Resources whose device ids are counts of MiB or percent: tens of thousands per container, and none names a card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """Devices of one resource that one container was handed.

    Attributes:
        ids: device ids as the plugin wrote them.
    """

    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """One device that one container was given by dynamic resource allocation.

    Attributes:
        pool: pool of the driver; empty in kubelets before 1.29.
        device: name of the device within the pool; empty in kubelets before 1.29.
        share_id: id of the share where several claims hold one device; None where it is held alone.
    """

    claim: str
    namespace: str
    driver: str
    pool: str
    device: str
    share_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRow:
    """What one container was handed; most have nothing.

    Attributes:
        devices: devices of device plugins, without `AMOUNT_RESOURCES`.
        claims: devices of dynamic resource allocation.
    """

    container: str
    devices: tuple[DeviceRow, ...] = ()
    claims: tuple[ClaimRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRow:
    """What one pod was handed. The kubelet gives no UID: two lives of a name can't be distinguished by it."""

    namespace: str
    pod: str
    containers: tuple[ContainerRow, ...]
