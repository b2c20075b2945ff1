"""Looks after pods that were just changed: are they ready, do they restart, do they run out of framebuffer?

Called by the rollout after the canary and after each stage. Not to be confused with `verify`, which says after days
what a plan was worth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from enforcer.cluster import ClusterReader, FollowingReader
from enforcer.manifest import Manifest
from enforcer.seat import seat_of_pod

_LISTED_FROM = 10
"""From so many pods of a namespace on, all of it is listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHealth:
    """How one pod is.

    Attributes:
        pod_id: `namespace/pod`.
        is_ready: every container is ready.
        restarts: container restarts since the pod was made.
        is_oom_killed: a container's last end was for want of memory.
        framebuffer_used_ratio: used / granted, 0-1; None where nothing measures it.
        violation_ratio: violated share of the watch, 0-1; None where nothing measures it.
        is_preempted: the scheduler made it give way to another.
        cards: cards that it holds, as far as its annotations say so.
        objections: what else is measured that speaks against it, one sentence each.
    """

    pod_id: str
    is_ready: bool
    restarts: int
    is_oom_killed: bool
    framebuffer_used_ratio: float | None = None
    violation_ratio: float | None = None
    is_preempted: bool = False
    cards: tuple[str, ...] = ()
    objections: tuple[str, ...] = ()


class Signals(Protocol):
    """Says how pods are."""

    def health(self, pods: Sequence[str]) -> tuple[PodHealth, ...]:
        """Health of pods (`namespace/pod`); a pod that is gone is left out.

        Raises:
            Unavailable: what measures can't be reached.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPolicy:
    """What is too much.

    Attributes:
        restarts_max: container restarts.
        violation_ratio_max: violated share of the watch, 0-1.
        framebuffer_used_ratio_max: used / granted, 0-1; servers that pre-allocate stay below it too.
    """

    restarts_max: int = 0
    violation_ratio_max: float = 0.05
    framebuffer_used_ratio_max: float = 0.995


class ClusterSignals:
    """What the cluster itself knows of its pods (the port `Signals`): readiness, restarts, kills.

    Args:
        reader: the cluster.
    """

    def __init__(self, reader: ClusterReader) -> None:
        self._reader = reader

    def health(self, pods: Sequence[str]) -> tuple[PodHealth, ...]:
        """Health of pods; see the port."""
        found = []
        spaces = Counter(pod_id.partition("/")[0] for pod_id in pods)
        # Who follows what goes on has all pods at hand; of another, a list pays where many are asked for.
        is_cheap = isinstance(self._reader, FollowingReader)
        known = {
            namespace: {pod["metadata"]["name"]: pod for pod in self._reader.list_objects("Pod", namespace)}
            for namespace, count in spaces.items()
            if is_cheap or count >= _LISTED_FROM
        }
        for pod_id in pods:
            namespace, _, name = pod_id.partition("/")
            listed = known.get(namespace)
            manifest = self._reader.get("Pod", namespace, name) if listed is None else listed.get(name)
            if manifest is not None:
                seat = seat_of_pod(manifest)
                found.append(
                    PodHealth(
                        pod_id=pod_id,
                        is_ready=seat.is_ready,
                        restarts=seat.restarts,
                        is_oom_killed=seat.is_oom_killed,
                        is_preempted=_is_preempted(manifest),
                        cards=tuple(dict.fromkeys(part.card for part in seat.slices if part.card)),
                    )
                )
        return tuple(found)


def _is_preempted(pod: Manifest) -> bool:
    """Whether the scheduler took the pod's place for another (kubernetes/api:core/v1/types.go, DisruptionTarget)."""
    told = pod.get("status", {}).get("conditions") or ()
    return any(
        entry.get("type") == "DisruptionTarget" and entry.get("reason") == "PreemptionByScheduler" for entry in told
    )


def complaints(health: Sequence[PodHealth], pods: Sequence[str], policy: WatchPolicy) -> tuple[str, ...]:
    """What speaks against keeping a change.

    Args:
        health: as measured.
        pods: pods that should be there.
        policy: what is too much.

    Returns:
        One sentence per pod and complaint; empty where all is well.
    """
    known = {entry.pod_id: entry for entry in health}
    found = [f"{pod} is gone" for pod in pods if pod not in known]
    for entry in health:
        found += [f"{entry.pod_id}: {objection}" for objection in entry.objections]
        if entry.is_preempted:
            found.append(f"{entry.pod_id} was pre-empted by the scheduler")
        elif entry.is_oom_killed:
            found.append(f"{entry.pod_id} was killed for want of memory")
        elif entry.restarts > policy.restarts_max:
            found.append(
                f"{entry.pod_id} restarted {entry.restarts} times (enforcer.watch_restarts_max={policy.restarts_max})"
            )
        elif not entry.is_ready:
            found.append(f"{entry.pod_id} is not ready")
        if entry.framebuffer_used_ratio is not None and (
            entry.framebuffer_used_ratio > policy.framebuffer_used_ratio_max
        ):
            found.append(f"{entry.pod_id} uses {entry.framebuffer_used_ratio:.1%} of its framebuffer grant")
        if entry.violation_ratio is not None and entry.violation_ratio > policy.violation_ratio_max:
            found.append(
                f"{entry.pod_id} was violated in {entry.violation_ratio:.1%} of the watch "
                f"(enforcer.watch_violation_ratio_max={policy.violation_ratio_max})"
            )
    return tuple(found)
