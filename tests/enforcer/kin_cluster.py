"""Clusters of HAMi and its kin as manifests: the same pods on the same cards, each in its backend's own words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from enforcer.backend import Backend, Move
from enforcer.backends.effectivegpu import EFFECTIVE_GPU_DIALECT, EffectiveGpuBackend
from enforcer.backends.hami import HamiBackend
from enforcer.backends.hami_dialect import DEVICE_CONFIG
from enforcer.backends.mgpu import MgpuBackend
from enforcer.backends.vgpumanager import NODE_CONFIG as VGPU_MANAGER_CONFIG
from enforcer.backends.vgpumanager import VgpuManagerBackend
from enforcer.backends.volcano import NODE_CONFIG as VOLCANO_CONFIG
from enforcer.backends.volcano import VolcanoBackend
from enforcer.dialect import ObjectKey, SeatSlice
from enforcer.manifest import Manifest, set_field
from fleet.grammars.hami import (
    DEVICES_ALLOCATED_ANNOTATION,
    NODE_REGISTER_ANNOTATION,
    DeviceGrant,
    RegisteredDevice,
    render_devices_allocated,
    render_node_register,
)
from fleet.grammars.vgpumanager import REAL_ALLOCATED_ANNOTATION, ContainerVgpus, VgpuGrant
from fleet.grammars.vgpumanager import REGISTER_ANNOTATION as VGPU_MANAGER_REGISTER
from fleet.grammars.volcano import IDS_ANNOTATION
from fleet.grammars.volcano import REGISTER_ANNOTATION as VOLCANO_REGISTER
from tests.enforcer.builders import NOW, card_id
from tests.enforcer.plugin_cluster import StandingCluster, a_config
from tests.fleet.written_annotations import (
    render_vgpu_allocation,
    render_vgpu_register,
    render_volcano_ids,
    render_volcano_register,
)

CARD_MIB = 24 * 1024
CARDS_PER_NODE = 4
WHOLE = 100

HOMES = {
    "a-0": 0, "a-1": 1, "b-0": 2, "b-1": 3, "c-0": 4, "c-1": 5, "book-0": 6, "train-0": 7,
}  # fmt: skip
KINDS = {"book": "Notebook", "train": "Job"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kin:
    """How one backend's cluster looks.

    Attributes:
        backend: the adapter.
        limits: what a pod with a card of its own asks for.
        whole: share of such a pod on a card, by container and number of the card.
        pod_annotations: what stands on a pod that holds these shares.
        node_annotations: what its device plugin writes on a node with these cards.
        config: the nodes' configuration, None where there is none.
        config_field: data of it and its content at first.
        plugin: name of the device plugin's DaemonSet.
    """

    backend: Backend
    limits: Mapping[str, str]
    whole: Callable[[str, int], SeatSlice]
    pod_annotations: Callable[[Iterable[SeatSlice]], Mapping[str, str]]
    node_annotations: Callable[[list[RegisteredDevice]], Mapping[str, str]]
    config: ObjectKey | None
    config_field: tuple[str, str]
    plugin: str

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.backend.capabilities.backend


def on_card(core_percent: int) -> Callable[[str, int], SeatSlice]:
    def share(container: str, card: int) -> SeatSlice:
        return SeatSlice(
            container=container,
            card=card_id(card),
            framebuffer_mib=CARD_MIB,
            core_percent=core_percent,
            priority=None,
        )

    return share


def a_counted_card(container: str, card: int) -> SeatSlice:
    return SeatSlice(
        container=container, card=None, framebuffer_mib=0, core_percent=WHOLE, priority=None,
        node=f"node-{card // CARDS_PER_NODE}", resource="vke.volcengine.com/mgpu-core",
    )  # fmt: skip


def _grants(slices: Iterable[SeatSlice]) -> list[list[DeviceGrant]]:
    return [
        [
            DeviceGrant(
                card=part.card or "",
                device_type="NVIDIA",
                framebuffer_mib=part.framebuffer_mib,
                core_percent=part.core_percent,
            )
            for part in slices
        ]
    ]


def _of_hami(slices: Iterable[SeatSlice]) -> Mapping[str, str]:
    return {DEVICES_ALLOCATED_ANNOTATION: render_devices_allocated(_grants(slices))}


def _of_volcano(slices: Iterable[SeatSlice]) -> Mapping[str, str]:
    return {IDS_ANNOTATION: render_volcano_ids(_grants(slices))}


def _of_vgpu_manager(slices: Iterable[SeatSlice]) -> Mapping[str, str]:
    grants = tuple(
        VgpuGrant(index=0, card=part.card or "", core_percent=part.core_percent, framebuffer_mib=part.framebuffer_mib)
        for part in slices
    )
    return {REAL_ALLOCATED_ANNOTATION: render_vgpu_allocation([ContainerVgpus(container="server", grants=grants)])}


NODE_CONFIG_TEXT = ("config.json", json.dumps({"nodeconfig": [{"name": "node-9", "devicesplitcount": 4}]}))

HAMI = Kin(
    backend=HamiBackend(NOW),
    limits={"nvidia.com/gpu": "1"},
    whole=on_card(WHOLE),
    pod_annotations=_of_hami,
    node_annotations=lambda devices: {NODE_REGISTER_ANNOTATION: render_node_register(devices)},
    config=DEVICE_CONFIG,
    config_field=NODE_CONFIG_TEXT,
    plugin="hami-device-plugin",
)
EFFECTIVE_GPU = Kin(
    backend=EffectiveGpuBackend(NOW),
    limits={"nvidia.com/gpu": "1"},
    whole=on_card(WHOLE),
    pod_annotations=_of_hami,
    node_annotations=lambda devices: {NODE_REGISTER_ANNOTATION: render_node_register(devices)},
    config=EFFECTIVE_GPU_DIALECT.node_config,
    config_field=NODE_CONFIG_TEXT,
    plugin="egpu-device-plugin",
)
VOLCANO = Kin(
    backend=VolcanoBackend(NOW, low_priority_queue="offline"),
    limits={"volcano.sh/vgpu-number": "1"},
    whole=on_card(0),
    pod_annotations=_of_volcano,
    node_annotations=lambda devices: {VOLCANO_REGISTER: render_volcano_register(devices)},
    config=VOLCANO_CONFIG,
    config_field=NODE_CONFIG_TEXT,
    plugin="volcano-device-plugin",
)
VGPU_MANAGER = Kin(
    backend=VgpuManagerBackend(NOW),
    limits={"nvidia.com/vgpu-number": "1"},
    whole=on_card(WHOLE),
    pod_annotations=_of_vgpu_manager,
    node_annotations=lambda devices: {VGPU_MANAGER_REGISTER: render_vgpu_register(devices)},
    config=VGPU_MANAGER_CONFIG,
    config_field=("nodeConfig.json", json.dumps([{"nodeName": "node-9", "deviceSplitCount": 4}])),
    plugin="vgpu-manager-device-plugin",
)
MGPU = Kin(
    backend=MgpuBackend(NOW),
    limits={"vke.volcengine.com/mgpu-core": "100"},
    whole=a_counted_card,
    pod_annotations=lambda slices: {},
    node_annotations=lambda devices: {},
    config=None,
    config_field=("", ""),
    plugin="mgpu-device-plugin",
)

KINS = (HAMI, EFFECTIVE_GPU, VOLCANO, MGPU, VGPU_MANAGER)


def a_kin_cluster(kin: Kin, *, plugin_pods: bool = True) -> StandingCluster:
    """Three services of two pods each on cards 0-5, a notebook on card 6, a job on card 7; nothing is shared."""
    cluster = StandingCluster([a_kin_node(kin, "node-0", 0), a_kin_node(kin, "node-1", CARDS_PER_NODE)])
    for name in ("a", "b", "c", "book", "train"):
        cluster.put(a_kin_owner(kin, name))
    for pod, card in HOMES.items():
        cluster.put(a_kin_pod(kin, pod, kin.whole("server", card), f"node-{card // CARDS_PER_NODE}"))
    if kin.config is not None:
        cluster.put(a_config(kin.config, {kin.config_field[0]: kin.config_field[1]}))
    if plugin_pods:
        for number in range(2):
            cluster.put(a_plugin_pod(kin, number))
    return cluster


def a_kin_node(kin: Kin, name: str, first: int) -> Manifest:
    devices = [
        RegisteredDevice(
            card=card_id(number), slices_max=10, framebuffer_mib=CARD_MIB, core_percent=WHOLE,
            device_type="NVIDIA-NVIDIA A10", numa=0, is_healthy=True, index=number - first,
            mode="hami-core" if kin.name != "vgpu_manager" else None,
        )
        for number in range(first, first + CARDS_PER_NODE)
    ]  # fmt: skip
    allocatable = {
        "vke.volcengine.com/mgpu-core": str(WHOLE * CARDS_PER_NODE),
        "vke.volcengine.com/mgpu-memory": str(CARD_MIB * CARDS_PER_NODE),
    }
    return {
        "kind": "Node",
        "metadata": {
            "name": name, "resourceVersion": "1", "annotations": dict(kin.node_annotations(devices)),
            "labels": {"vke.node.gpu.schedule": "mgpu"} if kin.name == "mgpu" else {},
        },
        "status": {"allocatable": allocatable if kin.name == "mgpu" else {}},
    }  # fmt: skip


def a_kin_owner(kin: Kin, name: str, *, replicas: int = 2) -> Manifest:
    kind = KINDS.get(name, "Deployment")
    return {
        "kind": kind,
        "metadata": {"namespace": "team", "name": name, "resourceVersion": "7"},
        "spec": {
            **({"replicas": replicas} if kind == "Deployment" else {}),
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [_container(kin), {"name": "sidecar"}]},
            },
        },
    }


def a_kin_pod(kin: Kin, pod: str, share: SeatSlice, node: str) -> Manifest:
    name = pod.rsplit("-", 1)[0]
    container = _container(kin)
    _write_share(container, share)
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": "team", "name": pod, "resourceVersion": "3", "labels": {"app": name},
            "annotations": {**kin.pod_annotations([share]), **_quality(kin, share)},
            "ownerReferences": [{"kind": KINDS.get(name, "Deployment"), "name": name, "controller": True}],
        },
        "spec": {"nodeName": node, "containers": [container, {"name": "sidecar"}]},
        "status": {"phase": "Running", "containerStatuses": [{"ready": True}]},
    }  # fmt: skip


def a_plugin_pod(kin: Kin, number: int) -> Manifest:
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": "kube-system", "name": f"{kin.plugin}-{number}", "resourceVersion": "5",
            "ownerReferences": [{"kind": "DaemonSet", "name": kin.plugin, "controller": True}],
        },
        "spec": {"nodeName": f"node-{number}", "containers": [{"name": "device-plugin"}]},
        "status": {"phase": "Running", "containerStatuses": [{"ready": True}]},
    }  # fmt: skip


def carried_out(kin: Kin, cluster: StandingCluster, rendered_changes: Iterable[object], moves: Iterable[Move]) -> None:
    """Writes changes, and lets each moved pod sit where the stage wants it."""
    for change in rendered_changes:
        found = cluster.get(change.kind, change.namespace, change.name)  # type: ignore[attr-defined]
        assert found is not None
        set_field(found, change.field, change.new)  # type: ignore[attr-defined]
    for move in moves:
        for share in move.new:
            number = 0 if share.card is None else int(share.card[-12:])
            node = share.node or f"node-{number // CARDS_PER_NODE}"
            cluster.put(a_kin_pod(kin, move.pod, share, node))


def _quality(kin: Kin, share: SeatSlice) -> Mapping[str, str]:
    if kin.name != "mgpu" or share.priority is None:
        return {}
    return {"katalyst.kubewharf.io/qos_level": share.priority}


def _container(kin: Kin) -> Manifest:
    return {"name": "server", "resources": {"limits": dict(kin.limits)}}


def _write_share(container: Manifest, share: SeatSlice) -> None:
    """What of a share stands in the pod itself."""
    limits = container["resources"]["limits"]
    if share.resource is not None:
        limits.clear()
        limits[share.resource] = str(share.core_percent)
        if share.framebuffer_mib:
            limits["vke.volcengine.com/mgpu-memory"] = str(share.framebuffer_mib)
    elif share.priority is not None and "volcano.sh/vgpu-number" in limits:
        container["env"] = [{"name": "CUDA_TASK_PRIORITY", "value": share.priority}]
    elif share.priority is not None:
        limits["nvidia.com/priority"] = share.priority
