"""Where a pod sits and what it was granted there: the common ground of plan and cluster.

Read from pods as they are, made from the plan as they shall be; the backends compare the two, the rollout waits until
they are the same, the ledger keeps the old ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enforcer.cluster import DELETION_COST_ANNOTATION
from enforcer.dialect import WHOLE_CORE_PERCENT, Dialect, SeatSlice
from enforcer.manifest import Manifest
from fleet.inventory import WorkloadId


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeat:
    """Where one pod sits.

    Attributes:
        slices: its shares, sorted by container and card; empty while pending.
        is_ready: every container is ready, and its readiness gates are open.
        is_oom_killed: a container's last end was for want of memory.
        deletion_cost: its place in the order of a scale-in, None where none is set.
        is_passing: as `is_passing` finds it.
        role: which of its owner's templates it is made from, as `enforcer.kinds` calls it; empty where there is one.
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
    role: str = ""
    is_passing: bool = False

    @property
    def pod_id(self) -> str:
        """`namespace/pod`."""
        return f"{self.namespace}/{self.pod}"

    @property
    def cards(self) -> tuple[str, ...]:
        """Cards it sits on, sorted; those that the API names."""
        return tuple(sorted({part.card for part in self.slices if part.card is not None}))


def owner_of_pod(pod: Mapping[str, Any]) -> WorkloadId:
    """The workload that owns a pod; the pod itself where nobody does."""
    metadata = pod["metadata"]
    for reference in metadata.get("ownerReferences", ()):
        return WorkloadId(f"{metadata['namespace']}/{reference['kind']}/{reference['name']}")
    return WorkloadId(f"{metadata['namespace']}/Pod/{metadata['name']}")


def seat_of_pod(pod: Manifest, dialect: Dialect) -> PodSeat:
    """Read the seat of a pod from its manifest.

    Raises:
        Corrupt: what was granted to it is not written in the dialect's grammar.
    """
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    slices = () if is_over(pod) else dialect.slices_of_pod(pod)
    containers = status.get("containerStatuses", ())
    return PodSeat(
        namespace=metadata["namespace"],
        pod=metadata["name"],
        workload=owner_of_pod(pod),
        node=spec.get("nodeName"),
        slices=tuple(sorted(slices, key=lambda part: (part.container, part.card or ""))),
        is_ready=is_ready(pod),
        restarts=sum(entry.get("restartCount", 0) for entry in containers),
        is_oom_killed=any(
            entry.get("lastState", {}).get("terminated", {}).get("reason") == "OOMKilled" for entry in containers
        ),
        resource_version=metadata.get("resourceVersion", ""),
        deletion_cost=metadata.get("annotations", {}).get(DELETION_COST_ANNOTATION),
        is_passing=is_passing(pod),
    )


def is_over(pod: Manifest) -> bool:
    """Whether a pod has ended: it holds nothing any more, whatever its annotations say."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_passing(pod: Manifest) -> bool:
    """Whether a pod ends by itself: it is being deleted, or is not started again once its work is done."""
    is_leaving = pod["metadata"].get("deletionTimestamp") is not None
    return is_leaving or pod["spec"].get("restartPolicy") in ("Never", "OnFailure")


def is_ready(pod: Manifest) -> bool:
    """Whether every container of a pod is ready, and whatever else its readiness gates ask for."""
    status = pod.get("status", {})
    containers = status.get("containerStatuses", ())
    is_gated = any(
        entry.get("type") == "Ready" and entry.get("status") != "True" for entry in status.get("conditions") or ()
    )
    return bool(containers) and not is_gated and all(entry.get("ready", False) for entry in containers)


def seats_by_workload(seats: Iterable[PodSeat]) -> dict[WorkloadId, list[PodSeat]]:
    """Seats per workload, pods in the order given."""
    found: dict[WorkloadId, list[PodSeat]] = {}
    for seat in seats:
        found.setdefault(seat.workload, []).append(seat)
    return found


def same_slices(first: Sequence[SeatSlice], second: Sequence[SeatSlice]) -> bool:
    """Whether two seats are the same place with the same grant, in whatever order they are listed."""
    return sorted(map(_slice_key, first)) == sorted(map(_slice_key, second))


def _slice_key(part: SeatSlice) -> tuple[str, ...]:
    # An exclusive grant has the card to itself: how many MiB the node registers for it makes no difference.
    framebuffer_mib = 0 if part.core_percent == WHOLE_CORE_PERCENT else part.framebuffer_mib
    place = part.card or "", part.node or "", part.resource or ""
    return part.container, *place, str(framebuffer_mib), str(part.core_percent), part.priority or ""
