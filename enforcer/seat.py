"""Where a pod sits and what it was granted there, in the words of HAMi: the common ground of plan and cluster.

Read from pods as they are, made from the plan as they shall be; `backend_hami` compares the two, the rollout waits
until they are the same, the ledger keeps the old ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enforcer.cluster import DELETION_COST_ANNOTATION
from enforcer.manifest import Manifest
from fleet.grammar import DEVICES_ALLOCATED_ANNOTATION, parse_devices_allocated
from fleet.inventory import WorkloadId

COUNT_RESOURCE = "nvidia.com/gpu"
FRAMEBUFFER_RESOURCE = "nvidia.com/gpumem"
FRAMEBUFFER_PERCENT_RESOURCE = "nvidia.com/gpumem-percentage"
CORES_RESOURCE = "nvidia.com/gpucores"
PRIORITY_RESOURCE = "nvidia.com/priority"
PRIORITY_ENV = "CUDA_TASK_PRIORITY"
CORE_POLICY_ENV = "GPU_CORE_UTILIZATION_POLICY"
USE_CARD_ANNOTATION = "nvidia.com/use-gpuuuid"
AVOID_CARD_ANNOTATION = "nvidia.com/nouse-gpuuuid"
USE_MODEL_ANNOTATION = "nvidia.com/use-gputype"
AVOID_MODEL_ANNOTATION = "nvidia.com/nouse-gputype"

WHOLE_CORE_PERCENT = 100
"""Cores of a whole card; on HAMi a grant of all of them keeps everybody else off the card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatSlice:
    """One container's share of one card.

    Attributes:
        container: container.
        card: UUID.
        framebuffer_mib: framebuffer granted, MiB.
        core_percent: compute granted, percent; 0 is no limit, 100 keeps others off.
        priority: value of `nvidia.com/priority`, None where none is set.
    """

    container: str
    card: str
    framebuffer_mib: int
    core_percent: int
    priority: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeat:
    """Where one pod sits.

    Attributes:
        namespace: namespace.
        pod: name.
        workload: owner.
        node: node; None while the pod is pending.
        slices: its shares, sorted by container and card; empty while pending.
        is_ready: every container is ready.
        restarts: container restarts since the pod was made.
        is_oom_killed: a container's last end was for want of memory.
        resource_version: version of the pod.
        deletion_cost: its place in the order of a scale-in, None where none is set.
    """

    namespace: str
    pod: str
    workload: WorkloadId
    node: str | None
    slices: tuple[SeatSlice, ...]
    is_ready: bool
    restarts: int
    is_oom_killed: bool
    resource_version: str
    deletion_cost: str | None

    @property
    def pod_id(self) -> str:
        """`namespace/pod`."""
        return f"{self.namespace}/{self.pod}"

    @property
    def cards(self) -> tuple[str, ...]:
        """Cards it sits on, sorted."""
        return tuple(sorted({part.card for part in self.slices}))


def owner_of_pod(pod: Mapping[str, Any]) -> WorkloadId:
    """The workload that owns a pod; the pod itself where nobody does."""
    metadata = pod["metadata"]
    for reference in metadata.get("ownerReferences", ()):
        return WorkloadId(f"{metadata['namespace']}/{reference['kind']}/{reference['name']}")
    return WorkloadId(f"{metadata['namespace']}/Pod/{metadata['name']}")


def seat_of_pod(pod: Manifest) -> PodSeat:
    """Read the seat of a pod from its manifest.

    Raises:
        Corrupt: its allocation annotation is not HAMi's grammar.
    """
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    text = metadata.get("annotations", {}).get(DEVICES_ALLOCATED_ANNOTATION, "")
    slices: list[SeatSlice] = []
    for container, grants in zip(spec["containers"], parse_devices_allocated(text), strict=False):
        priority = container.get("resources", {}).get("limits", {}).get(PRIORITY_RESOURCE)
        slices += [
            SeatSlice(
                container=container["name"],
                card=grant.card,
                framebuffer_mib=grant.framebuffer_mib,
                core_percent=grant.core_percent,
                priority=priority,
            )
            for grant in grants
        ]
    containers = status.get("containerStatuses", ())
    return PodSeat(
        namespace=metadata["namespace"],
        pod=metadata["name"],
        workload=owner_of_pod(pod),
        node=spec.get("nodeName"),
        slices=tuple(sorted(slices, key=lambda part: (part.container, part.card))),
        is_ready=bool(containers) and all(entry.get("ready", False) for entry in containers),
        restarts=sum(entry.get("restartCount", 0) for entry in containers),
        is_oom_killed=any(
            entry.get("lastState", {}).get("terminated", {}).get("reason") == "OOMKilled" for entry in containers
        ),
        resource_version=metadata.get("resourceVersion", ""),
        deletion_cost=metadata.get("annotations", {}).get(DELETION_COST_ANNOTATION),
    )


def seats_by_workload(seats: Iterable[PodSeat]) -> dict[WorkloadId, list[PodSeat]]:
    """Seats per workload, pods in the order given."""
    found: dict[WorkloadId, list[PodSeat]] = {}
    for seat in seats:
        found.setdefault(seat.workload, []).append(seat)
    return found


def same_slices(first: Sequence[SeatSlice], second: Sequence[SeatSlice]) -> bool:
    """Whether two seats are the same place with the same grant, in whatever order they are listed."""
    return sorted(map(_slice_key, first)) == sorted(map(_slice_key, second))


def _slice_key(part: SeatSlice) -> tuple[str, str, int, int, str]:
    # An exclusive grant has the card to itself: how many MiB the node registers for it makes no difference.
    framebuffer_mib = 0 if part.core_percent == WHOLE_CORE_PERCENT else part.framebuffer_mib
    return part.container, part.card, framebuffer_mib, part.core_percent, part.priority or ""
