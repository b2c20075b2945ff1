"""One node as its sources tell of it: cards, manifests, kubelet rows; builders for the tests of attribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from exporter.allocation.manifest import Shared
from exporter.allocation.records import OwnerLinkRecord
from exporter.attribution.cards import KnownCard, KnownInstance
from exporter.attribution.cgroup import CgroupPlace, Occupant
from exporter.attribution.pods import PodFacts, pod_facts
from exporter.attribution.records import AttributedSlice, Attribution, FindingKind, NodeView
from exporter.kubelet.pod_resources import ClaimRow, ContainerRow, DeviceRow, PodRow
from fleet.inventory import Card, CardId, CardModelName

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
BOUND = "2026-03-04T11:00:00Z"
NODE = "node-1"
GIB = 2**30
CARD_BYTES = 80 * GIB
MODEL = CardModelName("NVIDIA H100 80GB HBM3")


def card_id(number: int) -> CardId:
    return CardId(f"GPU-{UUID(int=number)}")


def instance_id(number: int) -> str:
    return f"MIG-{UUID(int=number)}"


def uid(number: int) -> str:
    return str(UUID(int=1000 + number))


def container_id(number: int) -> str:
    return f"{number:064x}"


def known(number: int, *instances: KnownInstance) -> KnownCard:
    card = Card(card=card_id(number), card_model=MODEL, framebuffer_bytes=CARD_BYTES, node=NODE, cluster="c")
    return KnownCard(card=card, index=number, minor=number, instances=instances)


def row(pod: str, *containers: ContainerRow, namespace: str = "team") -> PodRow:
    return PodRow(namespace=namespace, pod=pod, containers=containers)


def handed(*ids: str, container: str = "main", resource: str = "nvidia.com/gpu") -> ContainerRow:
    return ContainerRow(container=container, devices=(DeviceRow(resource=resource, ids=ids),))


def given_claim(device: str, *, claim: str = "gpu", driver: str = "gpu.nvidia.com") -> ContainerRow:
    claim_row = ClaimRow(claim=claim, namespace="team", driver=driver, pool=NODE, device=device)
    return ContainerRow(container="main", claims=(claim_row,))


def manifest(
    pod: str,
    number: int,
    *,
    namespace: str = "team",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    resources: Mapping[str, str] | None = None,
    containers: Sequence[str] = ("main",),
    inits: Sequence[str] = (),
    claims: Mapping[str, str] | None = None,
    owner: OwnerLinkRecord | None = None,
    phase: str = "Running",
    node: str | None = NODE,
    bound_at: str = BOUND,
) -> dict[str, Any]:
    owners = [] if owner is None else [{"uid": owner.uid, "kind": owner.kind, "name": owner.name, "controller": True}]
    limits = {"nvidia.com/gpu": "1"} if resources is None else dict(resources)
    asked = {"limits": limits, "requests": {"cpu": "2", "memory": "4Gi"}, "claims": [{"name": n} for n in claims or ()]}
    return {
        "metadata": {
            "namespace": namespace,
            "name": pod,
            "uid": uid(number),
            "annotations": dict(annotations or {}),
            "labels": dict(labels or {}),
            "ownerReferences": owners,
        },
        "spec": {
            "nodeName": node,
            "initContainers": [{"name": name, "resources": asked} for name in inits],
            "containers": [{"name": name, "resources": asked} for name in containers],
            "resourceClaims": [{"name": n, "resourceClaimName": claim} for n, claim in (claims or {}).items()],
        },
        "status": {
            "phase": phase,
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": bound_at}],
            "containerStatuses": [
                {"name": name, "containerID": f"containerd://{container_id(10 * number + place)}"}
                for place, name in enumerate(containers)
            ],
        },
    }


def facts(pod: str, number: int, **more: Any) -> PodFacts:
    found = pod_facts(manifest(pod, number, **more), Shared())
    assert found is not None
    return found


def hami(*parts: str, device_type: str = "NVIDIA") -> dict[str, str]:
    """Annotations of HAMi's scheduler; each part is one container's `card,MiB,cores` entries with blanks between."""
    text = "".join(
        "".join(
            f"{card},{device_type},{mib},{cores}:" for card, mib, cores in (entry.split(",") for entry in part.split())
        )
        + ";"
        for part in parts
    )
    return {"hami.io/vgpu-devices-allocated": text, "hami.io/vgpu-node": NODE}


def view(
    *,
    cards: Sequence[KnownCard] | None = None,
    rows: Sequence[PodRow] | None = (),
    pods: Sequence[PodFacts] | None = (),
    allocatable: Sequence[str] | None = (),
    **more: Any,
) -> NodeView:
    return NodeView(
        cluster="c",
        node=NODE,
        cards=tuple(cards) if cards is not None else (known(0), known(1)),
        rows=None if rows is None else tuple(rows),
        pods=None if pods is None else tuple(pods),
        allocatable=None if allocatable is None else (DeviceRow(resource="nvidia.com/gpu", ids=tuple(allocatable)),),
        owners=more.pop("owners", {}),
        **more,
    )


def place(number: int, container: int | None = 0) -> CgroupPlace:
    """Where a process of a pod's container runs."""
    if container is None:
        return CgroupPlace(pod_uid=uid(number), container_id=None, occupant=Occupant.POD)
    return CgroupPlace(
        pod_uid=uid(number), container_id=container_id(10 * number + container), occupant=Occupant.CONTAINER
    )


def told(attribution: Attribution) -> list[tuple[str, str, CardId, float]]:
    """Pod, container, card and GiB of every slice."""
    return [
        (
            found.grant.pod,
            found.grant.container,
            found.grant.card,
            found.grant.framebuffer_granted_bytes / GIB,
        )
        for found in attribution.slices
    ]


def only(attribution: Attribution) -> AttributedSlice:
    (found,) = attribution.slices
    return found


def odd(attribution: Attribution) -> set[FindingKind]:
    return {finding.kind for finding in attribution.findings}
