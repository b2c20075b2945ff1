"""Turns a node's manifest into a record: its cards as device plugins register them, and in which ways they are shared.

Pure. Called by `exporter.allocation.state` once per node event.

Sources: Project-HAMi/HAMi:pkg/device/devices.go, docs/develop/protocol.md,
Project-HAMi/volcano-vgpu-device-plugin:pkg/util/util.go, coldzerofear/vgpu-manager:pkg/device,
NVIDIA/k8s-device-plugin:docs/gpu-feature-discovery/README.md, internal/lm, NVIDIA/mig-parted:deployments, Volcengine's
help pages on mGPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from exporter.allocation.manifest import (
    Shared,
    card_model_name,
    devices_of,
    labels_of,
    mapping,
    objects,
    quantity,
    text,
    texts,
)
from exporter.allocation.records import CardRecord, NodeRecord, SharingBackend
from fleet.catalogue import find_model
from fleet.errors import Corrupt
from fleet.grammars.hami import (
    DEVICE_CORDON_ANNOTATION,
    NODE_REGISTER_ANNOTATION,
    RegisteredDevice,
    parse_node_register,
)
from fleet.grammars.kai import is_ready
from fleet.grammars.metax import METAX_REGISTER_ANNOTATION, parse_metax_register
from fleet.grammars.vendors import VENDOR_DEVICES, VendorDevice
from fleet.grammars.vgpumanager import REGISTER_ANNOTATION as VGPU_MANAGER_REGISTER
from fleet.grammars.vgpumanager import parse_vgpu_register
from fleet.grammars.volcano import REGISTER_ANNOTATION as VOLCANO_REGISTER
from fleet.grammars.volcano import parse_volcano_register
from fleet.inventory import PROVIDER_ID_LENGTH_MAX, CardModelName
from fleet.units import MIB

_HANDSHAKE_GONE = "Deleted_"
_MGPU_LABEL = "vke.node.gpu.schedule"
_PRODUCT, _MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
_STRATEGY = "nvidia.com/gpu.sharing-strategy"
_MIG_STRATEGY, _MIG_CONFIG, _MIG_STATE = (
    "nvidia.com/mig.strategy",
    "nvidia.com/mig.config",
    "nvidia.com/mig.config.state",
)
_WHOLE, _MIG = "whole", "mig"
_LABELS_MAX, _LABELS_LENGTH_MAX = 256, 16384
_TAINTS_MAX = 64
_CARDS_MAX = 1024
_FRAMEBUFFER_BYTES_MAX = 2.0**50


@dataclass(frozen=True, slots=True, kw_only=True)
class _Register:
    """An annotation in which a device plugin lists cards.

    Attributes:
        handshake: annotation that names a plugin that is gone; None where there is none.
        is_scaled: amounts are multiplied by the node's oversubscription factor, and compute is percent; of other
            vendors' cards amounts are as they are, and compute is in units of their own.
    """

    annotation: str
    backend: SharingBackend
    parse: Callable[[str], tuple[RegisteredDevice, ...]]
    handshake: str | None = None
    is_scaled: bool = True


_REGISTERS: tuple[_Register, ...] = (
    _Register(
        annotation=NODE_REGISTER_ANNOTATION,
        backend=SharingBackend.HAMI,
        parse=parse_node_register,
        handshake="hami.io/node-handshake",
    ),
    *(
        _Register(
            annotation=device.register_annotation,
            backend=SharingBackend.HAMI,
            parse=(
                parse_metax_register
                if device.register_annotation == METAX_REGISTER_ANNOTATION
                else partial(parse_node_register, annotation=device.register_annotation)
            ),
            handshake=device.handshake_annotation,
            is_scaled=False,
        )
        for device in VENDOR_DEVICES
        if device.register_annotation is not None
    ),
    _Register(
        annotation=VOLCANO_REGISTER,
        backend=SharingBackend.VOLCANO,
        parse=parse_volcano_register,
        handshake="volcano.sh/node-vgpu-handshake",
    ),
    _Register(annotation=VGPU_MANAGER_REGISTER, backend=SharingBackend.VGPU_MANAGER, parse=parse_vgpu_register),
)


def node_record(
    manifest: Mapping[str, object], shared: Shared, device_resources: AbstractSet[str] = frozenset()
) -> NodeRecord:
    """Reads a node; one without cards has none in its record."""
    metadata, spec, status = (mapping(manifest.get(part)) for part in ("metadata", "spec", "status"))
    annotations, labels = texts(metadata.get("annotations")), texts(metadata.get("labels"))
    allocatable = mapping(status.get("allocatable"))
    product = labels.get(_PRODUCT, "")
    # Under the single MIG strategy these labels are of the instances, not of the cards.
    is_of_instances = "-MIG-" in product
    labelled = None if is_of_instances else _mib(labels.get(_MEMORY))
    name = text(metadata.get("name"))
    cards, unreadable = _cards(annotations, labelled)
    devices = devices_of(allocatable, device_resources)
    memory = quantity(allocatable.get("memory"))
    provider_id = text(spec.get("providerID"))
    return NodeRecord(
        node=name,
        cpu_cores=quantity(allocatable.get("cpu")),
        memory_bytes=None if memory is None else int(memory),
        taints=_taints(objects(spec.get("taints"))),
        labels=shared.labels(labels_of(labels, annotations, labels_max=_LABELS_MAX, length_max=_LABELS_LENGTH_MAX)),
        cards=cards,
        devices=tuple(sorted(devices.items())),
        sharing=_sharing(cards, devices, labels),
        card_model=card_model_name(product.removesuffix("-SHARED")) if product and not is_of_instances else None,
        framebuffer_bytes=labelled,
        mig_strategy=_short(labels.get(_MIG_STRATEGY)),
        mig_config=_short(labels.get(_MIG_CONFIG)),
        mig_state=_short(labels.get(_MIG_STATE)),
        unreadable=unreadable,
        numbered=tuple(_numbered_cards(name, mapping(status.get("capacity")))),
        caps_fractions=is_ready(objects(status.get("conditions"))),
        # Cloud controllers write it, once.
        provider_id=provider_id if 0 < len(provider_id) <= PROVIDER_ID_LENGTH_MAX else None,
    )


def whole_framebuffer(card_model: str, grantable_bytes: int | None, labelled_bytes: int | None) -> int | None:
    """Framebuffer of a whole card, from what is said of it.

    What a plugin registers is already multiplied by its oversubscription factor, so it counts only as far as the model
    can have it.

    Args:
        grantable_bytes: what the plugin registered.
        labelled_bytes: what gpu-feature-discovery says.

    Returns:
        Bytes; None where neither a label nor the catalogue knows the card.
    """
    if labelled_bytes is not None:
        return labelled_bytes
    model = find_model(card_model)
    if model is None:
        return None
    return model.framebuffer_bytes if grantable_bytes is None else min(grantable_bytes, model.framebuffer_bytes)


def _cards(annotations: Mapping[str, str], labelled: int | None) -> tuple[tuple[CardRecord, ...], int]:
    cordoned = frozenset(part.strip() for part in annotations.get(DEVICE_CORDON_ANNOTATION, "").split(","))
    cards: dict[str, CardRecord] = {}
    unreadable = 0
    for register in _REGISTERS:
        if register.annotation not in annotations:
            continue
        try:
            devices = register.parse(annotations[register.annotation])
        except Corrupt:
            unreadable += 1
            continue
        is_lost = annotations.get(register.handshake or "", "").startswith(_HANDSHAKE_GONE)
        for device in devices:
            cards.setdefault(device.card, _card(device, register, labelled, cordoned, is_lost=is_lost))
    return tuple(cards.values()), unreadable


def _card(
    device: RegisteredDevice, register: _Register, labelled: int | None, cordoned: frozenset[str], *, is_lost: bool
) -> CardRecord:
    model = card_model_name(device.device_type)
    grantable = device.framebuffer_mib * MIB or None
    compute = device.core_percent / 100 if register.is_scaled else 1.0
    return CardRecord(
        card=sys.intern(device.card),
        card_model=model,
        framebuffer_bytes=whole_framebuffer(model, grantable, labelled) if register.is_scaled else grantable,
        grantable_bytes=grantable,
        compute_ratio=compute if device.core_percent else None,
        slices_max=device.slices_max or None,
        mode=None if device.mode is None else sys.intern(device.mode),
        is_healthy=device.is_healthy and not is_lost,
        is_cordoned=device.card in cordoned,
        backend=register.backend,
    )


def _numbered_cards(node: str, capacity: Mapping[str, object]) -> Iterator[CardRecord]:
    """Cards that no annotation lists, where HAMi hands them out: it numbers as many as the capacity reports.

    Source: Project-HAMi/HAMi:pkg/device/<vendor>/device.go (GetNodeDevices).
    """
    for device in VENDOR_DEVICES:
        if device.numbered is None:
            continue
        count = _count_of(device, capacity)
        units = quantity(capacity.get(device.framebuffer_resource or "")) or 0.0
        framebuffer = units * (device.framebuffer_unit_bytes or 0) / max(1, count)
        whole = int(framebuffer) if 0 < framebuffer < _FRAMEBUFFER_BYTES_MAX else None
        for number in range(count):
            yield CardRecord(
                card=sys.intern(f"{node}{device.numbered}{number}"),
                card_model=CardModelName(device.name),
                framebuffer_bytes=whole,
                grantable_bytes=whole,
                compute_ratio=1.0,
                backend=SharingBackend.HAMI,
            )


def _count_of(device: VendorDevice, capacity: Mapping[str, object]) -> int:
    """Cards of a kind, from units of compute where cards are shared by them, else from the count."""
    cores = device.cores_per_card if device.core_resource in capacity else None
    offered = quantity(capacity.get(device.count_resource if cores is None else device.core_resource or ""))
    return 0 if offered is None else min(int(max(offered, 0.0) // (cores or 1)), _CARDS_MAX)


def _sharing(
    cards: Sequence[CardRecord], devices: Mapping[str, float], labels: Mapping[str, str]
) -> tuple[tuple[SharingBackend, str], ...]:
    found = {(card.backend, card.mode or "") for card in cards}
    if labels.get(_MGPU_LABEL) == "mgpu":
        found.add((SharingBackend.MGPU, ""))
    is_registered = any(card.card.startswith("GPU-") for card in cards)
    if not is_registered:
        # HAMi and vgpu-manager advertise the same resource names as NVIDIA's plugin does.
        found.update(
            (SharingBackend.NVIDIA, _nvidia_mode(resource, labels))
            for resource in devices
            if resource.startswith("nvidia.com/")
        )
    return tuple(sorted(found))


def _nvidia_mode(resource: str, labels: Mapping[str, str]) -> str:
    """How NVIDIA's plugin hands a resource out; empty where gpu-feature-discovery does not say."""
    if resource.startswith("nvidia.com/mig-") or "-MIG-" in labels.get(_PRODUCT, ""):
        return _MIG
    strategy = labels.get(_STRATEGY)
    if strategy is None:
        return ""
    return _WHOLE if strategy == "none" else sys.intern(strategy[:32])


def _taints(taints: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    found = sorted(
        f"{text(taint.get('key'))}={text(taint.get('value'))}:{text(taint.get('effect'))}" for taint in taints
    )
    return tuple(found[:_TAINTS_MAX])


def _mib(label: str | None) -> int | None:
    if label is None or not (label.isascii() and label.isdigit() and len(label) <= 9):
        return None
    return int(label) * MIB or None


def _short(label: str | None) -> str | None:
    return sys.intern(label[:63]) if label else None
