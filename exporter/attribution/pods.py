"""What the API server says of a pod on this node that its exporter must know: the scheduler's record, and more.

The scheduler layer's record holds what annotations grant; a node's exporter also joins processes by container ids,
cards by their number, which mGPU writes, and MIG instances by the UUIDs that HAMi's plugin fills in. Pure; called once
per change of a pod.

Source: kubernetes/api:core/v1/types.go (ContainerStatus).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.allocation.manifest import Shared, mapping, objects, quantity, text, texts
from exporter.allocation.pods import pod_record
from exporter.allocation.records import PodRecord
from exporter.attribution.cgroup import container_id_of_status
from fleet.errors import Corrupt
from fleet.grammars.mgpu import (
    CORES_RESOURCE,
    FRAMEBUFFER_RESOURCE,
    INDEX_ANNOTATION_PREFIX,
    RECLAIMED_CORES_RESOURCE,
    parse_card_indexes,
)
from fleet.grammars.mig import MIG_ALLOCATIONS_ANNOTATION, parse_mig_allocations
from fleet.units import MIB

_CONTAINERS_MAX = 1024
_STATUS_LISTS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerIdentity:
    """One container as the runtime knows it.

    Attributes:
        container_id: id, 64 hexadecimal digits.
    """

    container: str
    container_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerIndexes:
    """Cards of one container by their number on the node, as mGPU hands them out.

    Attributes:
        framebuffer_bytes: framebuffer of each card, bytes; None for whole cards.
        compute_ratio: share of each card's compute, 0-1.
    """

    container: str
    indexes: tuple[int, ...]
    framebuffer_bytes: int | None
    compute_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerInstance:
    """A MIG instance that HAMi made for one container."""

    container: str
    card: str
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """One pod of this node that has to do with cards.

    Attributes:
        identities: ids of its containers that have been started; a restart gives a new one.
        indexes: mGPU's cards per container.
        instances: MIG instances that HAMi has made for it.
        is_unreadable: an annotation of mGPU's, or of HAMi's on MIG instances, is not the grammar.
    """

    record: PodRecord
    identities: tuple[ContainerIdentity, ...] = ()
    indexes: tuple[ContainerIndexes, ...] = ()
    instances: tuple[ContainerInstance, ...] = ()
    is_unreadable: bool = False


def pod_facts(manifest: Mapping[str, object], shared: Shared) -> PodFacts | None:
    """Reads a pod's manifest; None for a pod that has nothing to do with cards."""
    record = pod_record(manifest, shared)
    if record is None:
        return None
    status = mapping(manifest.get("status"))
    identities = [
        ContainerIdentity(container=text(entry.get("name")), container_id=container_id)
        for key in _STATUS_LISTS
        for entry in objects(status.get(key))[:_CONTAINERS_MAX]
        if (container_id := container_id_of_status(text(entry.get("containerID")))) is not None
    ]
    annotations = texts(mapping(manifest.get("metadata")).get("annotations"))
    indexes: tuple[ContainerIndexes, ...] = ()
    instances: tuple[ContainerInstance, ...] = ()
    is_unreadable = False
    # Annotations outlive what they grant; they speak only while the pod lives on its node.
    if record.node is not None and not record.is_over:
        try:
            indexes = _indexes(manifest, annotations)
            instances = _instances(annotations, record)
        except Corrupt:
            is_unreadable = True
    return PodFacts(
        record=record, identities=tuple(identities), indexes=indexes, instances=instances, is_unreadable=is_unreadable
    )


def _instances(annotations: Mapping[str, str], record: PodRecord) -> tuple[ContainerInstance, ...]:
    value = annotations.get(MIG_ALLOCATIONS_ANNOTATION)
    if value is None:
        return ()
    return tuple(
        ContainerInstance(
            container=record.containers[allocation.container_index].container,
            card=allocation.card,
            instance=allocation.instance,
        )
        for allocation in parse_mig_allocations(value)
        if allocation.instance is not None and allocation.container_index < len(record.containers)
    )


def _indexes(manifest: Mapping[str, object], annotations: Mapping[str, str]) -> tuple[ContainerIndexes, ...]:
    """What mGPU granted; a key ends in the container's name, or in its number."""
    found = []
    containers = objects(mapping(manifest.get("spec")).get("containers"))[:_CONTAINERS_MAX]
    for number, container in enumerate(containers):
        name = text(container.get("name"))
        value = annotations.get(f"{INDEX_ANNOTATION_PREFIX}{name}") or annotations.get(
            f"{INDEX_ANNOTATION_PREFIX}{number}"
        )
        if value is None:
            continue
        indexes = parse_card_indexes(value)
        limits = mapping(mapping(container.get("resources")).get("limits"))
        mib = quantity(limits.get(FRAMEBUFFER_RESOURCE))
        percent = quantity(limits.get(CORES_RESOURCE, limits.get(RECLAIMED_CORES_RESOURCE)))
        found.append(
            ContainerIndexes(
                container=name,
                indexes=indexes,
                # Both are of the container as a whole, and the same of each of its cards.
                framebuffer_bytes=None if mib is None else int(mib * MIB / len(indexes)),
                compute_ratio=1.0 if percent is None else min(1.0, percent / 100 / len(indexes)),
            )
        )
    return tuple(found)
