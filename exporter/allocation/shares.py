"""What a pod's annotations say that it was granted, of every backend that writes such annotations, in one shape.

Pure; the grammars stand on the ground floor. Called by `pods`, which decides whether they are to be
trusted.

Sources: Project-HAMi/HAMi:pkg/util/types.go, Project-HAMi/volcano-vgpu-device-plugin:pkg/util/types.go,
coldzerofear/vgpu-manager:pkg/util, kai-scheduler/KAI-Scheduler:pkg/common/constants/constants.go,
NexusGPU/tensor-fusion:pkg/constants/constants.go.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from exporter.allocation.records import CardShare, ContainerNeeds, GroupShare
from fleet.errors import Corrupt
from fleet.grammars.device_ids import is_card_uuid
from fleet.grammars.hami import (
    DEVICES_ALLOCATED_ANNOTATION,
    VGPU_NODE_ANNOTATION,
    DeviceGrant,
    containers_of_parts,
    parse_devices_allocated,
)
from fleet.grammars.kai import RESERVED_CARD_ANNOTATION, kai_groups, parse_kai_share
from fleet.grammars.mgpu import INDEX_ANNOTATION_PREFIX
from fleet.grammars.mig import MIG_ALLOCATIONS_ANNOTATION, parse_mig_allocations
from fleet.grammars.tensor_fusion import GPU_IDS_ANNOTATION, parse_tensor_fusion
from fleet.grammars.vendors import VENDOR_DEVICES, parse_vendor_allocations
from fleet.grammars.vgpumanager import REAL_ALLOCATED_ANNOTATION, parse_vgpu_allocation
from fleet.grammars.volcano import IDS_ANNOTATION, parse_volcano_ids
from fleet.units import MIB

_Grant = TypeVar("_Grant")

_HAMI_PHASE = "hami.io/bind-phase"
_VOLCANO_PHASE = "volcano.sh/bind-phase"
_VOLCANO_NODE = "volcano.sh/vgpu-node"
_FAILED = "failed"
_VENDOR_ANNOTATIONS = frozenset(device.allocated_annotation for device in VENDOR_DEVICES if device.allocated_annotation)
_GRANT_ANNOTATIONS = _VENDOR_ANNOTATIONS | {
    DEVICES_ALLOCATED_ANNOTATION, IDS_ANNOTATION, REAL_ALLOCATED_ANNOTATION, GPU_IDS_ANNOTATION,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedShares:
    """What annotations say; whether it is so, their reader decides.

    Attributes:
        shares: per container and card.
        groups: per container, shares of KAI's groups.
        node: node that the scheduler chose; None where it is not said.
        has_failed: binding, or handing out, is said to have failed.
    """

    shares: tuple[CardShare, ...] = ()
    groups: tuple[GroupShare, ...] = ()
    node: str | None = None
    has_failed: bool = False


def annotated_shares(
    annotations: Mapping[str, str], labels: Mapping[str, str], containers: Sequence[ContainerNeeds], inits: int
) -> AnnotatedShares:
    """Reads all annotations that speak of granted cards.

    Args:
        containers: what its containers ask for, init containers first.
        inits: how many of them are init containers.

    Raises:
        Corrupt: one of them is not the grammar, larger than its bounds, or speaks of more containers than there are.
    """
    shares: list[CardShare] = []
    names = [container.container for container in containers]
    node, has_failed = None, False
    hami = annotations.get(DEVICES_ALLOCATED_ANNOTATION)
    others = parse_vendor_allocations(annotations) if not _VENDOR_ANNOTATIONS.isdisjoint(annotations) else ()
    if hami is not None or others:
        if hami is not None:
            shares += _granted(parse_devices_allocated(hami), containers, inits, annotations)
        for other in others:
            shares += [
                CardShare(
                    container=container,
                    card=sys.intern(grant.card),
                    framebuffer_bytes=None if grant.framebuffer_mib is None else grant.framebuffer_mib * MIB,
                    compute_ratio=grant.compute_ratio,
                    mig_profile=None,
                )
                for container, grants in _named_parts(other.containers, containers, inits)
                for grant in grants
            ]
        node, has_failed = annotations.get(VGPU_NODE_ANNOTATION), annotations.get(_HAMI_PHASE) == _FAILED
    if (volcano := annotations.get(IDS_ANNOTATION)) is not None:
        shares += _granted(parse_volcano_ids(volcano), containers, inits, {})
        node, has_failed = annotations.get(_VOLCANO_NODE), annotations.get(_VOLCANO_PHASE) == _FAILED
    if (vgpu := annotations.get(REAL_ALLOCATED_ANNOTATION)) is not None:
        shares += _named(vgpu, names)
    shares += _fused(annotations, names, inits)
    return AnnotatedShares(
        shares=tuple(shares),
        groups=_group_shares(annotations, labels, names, inits),
        node=node or None,
        has_failed=has_failed,
    )


def reserved_cards(annotations: Mapping[str, str], labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Group and card that a reservation pod of KAI's stands for; empty where it does not say, or not in the grammar."""
    card = annotations.get(RESERVED_CARD_ANNOTATION, "")
    if not is_card_uuid(card):
        return ()
    try:
        return tuple((sys.intern(group), sys.intern(card)) for group in kai_groups(labels))
    except Corrupt:
        return ()


def speaks_of_grants(annotations: Mapping[str, str]) -> bool:
    """Whether a backend has written on the pod what it granted, by whatever name its resources go.

    The names of HAMi's resources are its administrator's to choose; those of its annotations are not.
    """
    return not _GRANT_ANNOTATIONS.isdisjoint(annotations) or any(
        key.startswith(INDEX_ANNOTATION_PREFIX) for key in annotations
    )


def _named_parts(
    parts: Sequence[Sequence[_Grant]], containers: Sequence[ContainerNeeds], inits: int
) -> list[tuple[str, Sequence[_Grant]]]:
    """What was granted with the name of its container.

    Raises:
        Corrupt: for more containers than there are.
    """
    numbers = containers_of_parts(parts, [bool(container.devices) for container in containers], inits)
    return [(containers[number].container, part) for number, part in zip(numbers, parts, strict=True)]


def _granted(
    parts: Sequence[Sequence[DeviceGrant]],
    containers: Sequence[ContainerNeeds],
    inits: int,
    annotations: Mapping[str, str],
) -> list[CardShare]:
    profiles = _profiles(annotations)
    return [
        CardShare(
            container=container,
            card=sys.intern(grant.card),
            framebuffer_bytes=grant.framebuffer_mib * MIB or None,
            compute_ratio=_ratio(grant.core_percent),
            mig_profile=profiles.get((number, place, grant.card)),
        )
        for number, (container, grants) in enumerate(_named_parts(parts, containers, inits))
        for place, grant in enumerate(grants)
    ]


def _named(text: str, containers: Sequence[str]) -> list[CardShare]:
    parts = parse_vgpu_allocation(text)
    if stranger := next((part.container for part in parts if part.container not in containers), None):
        raise Corrupt(f"cannot read what container {stranger} was granted: the pod has none of this name")
    return [
        CardShare(
            container=sys.intern(part.container),
            card=sys.intern(grant.card),
            framebuffer_bytes=grant.framebuffer_mib * MIB or None,
            compute_ratio=_ratio(grant.core_percent),
            mig_profile=None,
        )
        for part in parts
        for grant in part.grants
    ]


def _group_shares(
    annotations: Mapping[str, str], labels: Mapping[str, str], containers: Sequence[str], inits: int
) -> tuple[GroupShare, ...]:
    share = parse_kai_share(annotations, labels)
    if share is None or not (share.groups or share.on_cards) or len(containers) <= inits:
        return ()
    container = share.container or containers[inits]
    if container not in containers:
        raise Corrupt(f"cannot read what container {container} was granted: the pod has none of this name")
    mib = share.framebuffer_mib
    return (
        GroupShare(
            container=sys.intern(container),
            groups=tuple(sys.intern(group) for group in share.groups),
            framebuffer_bytes=None if mib is None else mib * MIB,
            ratio=share.ratio,
            is_capped=share.is_capped,
            cards=tuple(sys.intern(card) for card in share.on_cards),
        ),
    )


def _fused(annotations: Mapping[str, str], containers: Sequence[str], inits: int) -> list[CardShare]:
    """What TensorFusion gave."""
    share = parse_tensor_fusion(annotations)
    if share is None or len(containers) <= inits:
        return []
    container = share.container or containers[inits]
    if container not in containers:
        raise Corrupt(f"cannot read what container {container} was granted: the pod has none of this name")
    return [
        CardShare(
            container=sys.intern(container),
            card=sys.intern(card),
            framebuffer_bytes=share.framebuffer_bytes,
            compute_ratio=share.compute_ratio,
            mig_profile=None,
        )
        for card in share.cards
    ]


def _profiles(annotations: Mapping[str, str]) -> dict[tuple[int, int, str], str]:
    """Profiles of MIG instances by container, place among its devices, and card."""
    text = annotations.get(MIG_ALLOCATIONS_ANNOTATION)
    if text is None:
        return {}
    return {
        (part.container_index, part.device_index, part.card): sys.intern(part.profile)
        for part in parse_mig_allocations(text)
    }


def _ratio(core_percent: int) -> float | None:
    """A limit of 0 is none; HAMi clamps what lies above a whole card."""
    return min(core_percent, 100) / 100 if core_percent else None
