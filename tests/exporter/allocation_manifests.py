"""Builders of manifests as the API serves them, for tests of the scheduler layer."""

from __future__ import annotations

import json
from typing import Any

from exporter.allocation.manifest import Shared
from exporter.allocation.objects import key_of, record_of
from exporter.allocation.state import Allocation
from exporter.cluster.reader import Watched

Manifest = dict[str, Any]
MODEL = "NVIDIA A10"
CARD_MIB = 23_028
ALL = frozenset(Watched)


def card_id(number: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-000000000000"


def node(name: str = "n1", cards: int = 2, *, first: int = 0, scaling: float = 1.0, mode: str = "hami-core",
         annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None,
         allocatable: dict[str, str] | None = None) -> Manifest:  # fmt: skip
    """A node whose cards HAMi's plugin registered; none with `cards=0`."""
    register = [
        {"id": card_id(first + index), "index": index, "count": 10, "devmem": int(CARD_MIB * scaling), "devcore": 100,
         "type": f"NVIDIA-{MODEL}", "mode": mode, "health": True}
        for index in range(cards)
    ]  # fmt: skip
    hami = {"hami.io/node-nvidia-register": json.dumps(register)} if cards else {}
    offered = {"nvidia.com/gpu": str(10 * cards)} if cards else {}
    return {
        "metadata": {"name": name, "labels": labels or {}, "annotations": hami | (annotations or {})},
        "spec": {"taints": [{"key": "gpu", "value": "true", "effect": "NoSchedule"}]},
        "status": {"allocatable": {"cpu": "64", "memory": "512Gi", **offered, **(allocatable or {})}},
    }


def pod(name: str = "p1", *, on: str | None = "n1", granted: str | None = None, phase: str | None = None,
        resources: dict[str, str] | None = None, annotations: dict[str, str] | None = None,
        labels: dict[str, str] | None = None, owner: tuple[str, str, str] | None = None, namespace: str = "team",
        condition: dict[str, str] | None = None, containers: list[Manifest] | None = None,
        inits: list[Manifest] | None = None, init_statuses: list[Manifest] | None = None,
        uid: str = "", claims: list[Manifest] | None = None) -> Manifest:  # fmt: skip
    """A pod with one container that asks for a card; `granted` is HAMi's annotation, `owner` kind, name and UID."""
    limits = {"nvidia.com/gpu": "1"} if resources is None else resources
    hami = {} if granted is None else {"hami.io/vgpu-devices-allocated": granted, "hami.io/bind-phase": "success"}
    if granted is not None and on is not None:
        hami["hami.io/vgpu-node"] = on
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-12T08:30:04Z"}
    spec: Manifest = {
        "schedulerName": "hami-scheduler",
        "containers": containers or [container("main", limits)],
        "initContainers": inits or [],
    }
    if on is not None:
        spec["nodeName"] = on
    if claims:
        spec["resourceClaims"] = claims
    metadata: Manifest = {
        "namespace": namespace, "name": name, "uid": uid or f"uid-{name}", "labels": labels or {},
        "annotations": hami | (annotations or {}), "creationTimestamp": "2026-01-12T08:30:00Z",
    }  # fmt: skip
    if owner is not None:
        metadata["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "uid": owner[2], "controller": True}]
    conditions = [condition] if condition is not None else [bound] if on is not None else []
    status = {"phase": phase or ("Running" if on else "Pending"), "conditions": conditions}
    return {"metadata": metadata, "spec": spec, "status": {**status, "initContainerStatuses": init_statuses or []}}


def container(name: str, limits: dict[str, str], **more: Any) -> Manifest:
    return {"name": name, "resources": {"limits": limits, "requests": {"cpu": "2", "memory": "8Gi"}}, **more}


def owned(name: str, uid: str, owner: tuple[str, str, str], namespace: str = "team") -> Manifest:
    """An object of which only metadata are read, such as a ReplicaSet."""
    link = {"kind": owner[0], "name": owner[1], "uid": owner[2], "controller": True}
    return {"metadata": {"namespace": namespace, "name": name, "uid": uid, "ownerReferences": [link]}}


def grant(card: int, mib: int = 8000, cores: int = 30) -> str:
    return f"{card_id(card)},NVIDIA,{mib},{cores}:"


def take(allocation: Allocation, watched: Watched, manifest: Manifest) -> None:
    allocation.put(watched, key_of(manifest), record_of(watched, manifest, Shared()))


def drop(allocation: Allocation, watched: Watched, manifest: Manifest) -> None:
    allocation.put(watched, key_of(manifest), None)


def rows(allocation: Allocation, known: frozenset[Watched] = ALL) -> dict[str, dict[tuple[str, ...], float]]:
    """Every row by family and labels, all changes worked out."""
    while not allocation.settle(3):
        pass
    return {
        family.name: dict(zip(family.labels, family.values.tolist(), strict=True))
        for family in allocation.families(known)
    }


def of(*objects: tuple[Watched, Manifest]) -> dict[str, dict[tuple[str, ...], float]]:
    """The rows that objects stand for."""
    allocation = Allocation("c1")
    for watched, manifest in objects:
        take(allocation, watched, manifest)
    return rows(allocation)
