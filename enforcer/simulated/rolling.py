"""What the controllers of a simulated cluster do next for an owner whose template or size changed.

Pure: one step at a time, over what is known of its pods. A Deployment rolls by maxSurge and maxUnavailable, a
StatefulSet from its highest ordinal down to its partition, a LeaderWorkerSet likewise by its groups, a DaemonSet by
maxUnavailable; each step is taken as soon as the one before it allows.

Source: kubernetes:pkg/controller/deployment/rolling.go (reconcileNewReplicaSet, cleanupUnhealthyReplicas,
scaleDownOldReplicaSetsForRollingUpdate), kubernetes:pkg/controller/statefulset/stateful_set_control.go,
kubernetes:pkg/controller/daemon/update.go, kubernetes:pkg/controller/controller_utils.go (ActivePodsWithRanks),
kubernetes-sigs/lws:pkg/controllers/leaderworkerset_controller.go (rollingUpdateParameters).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enforcer.disruption import scaled

_DEFAULT_BOUND = "25%"


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingPod:
    """What a controller knows of one of its pods.

    Attributes:
        is_current: made from the owner's template as it stands.
        is_available: ready for as long as its ReplicaSet asks.
        going: its place among those that go first when there are too many.
    """

    name: str
    is_current: bool
    is_ready: bool
    is_available: bool
    going: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingStep:
    """What is done at once.

    Attributes:
        make: pods that are made from the owner's template, or, where it is paused, from the one before.
    """

    drop: tuple[str, ...] = ()
    make: int = 0

    @property
    def is_nothing(self) -> bool:
        """Nothing is to be done before something else happens."""
        return not self.drop and self.make <= 0


def deployment_step(spec: Mapping[str, Any], wanted: int, pods: Sequence[RollingPod]) -> RollingStep:
    """The next step of a Deployment that wants `wanted` pods."""
    old = sorted((pod for pod in pods if not pod.is_current), key=lambda pod: pod.going)
    current = sorted((pod for pod in pods if pod.is_current), key=lambda pod: pod.going)
    if spec.get("paused"):
        return _to_size(wanted, (*old, *current))
    strategy = spec.get("strategy", {})
    if strategy.get("type") == "Recreate":
        return RollingStep(drop=tuple(pod.name for pod in old)) if old else _to_size(wanted, current)
    surge, unavailable = _bounds(strategy.get("rollingUpdate") or {}, wanted)
    excess = len(pods) - wanted - surge
    if excess > 0:
        return RollingStep(drop=tuple(pod.name for pod in (*old, *current)[:excess]))
    if not old:
        return _to_size(wanted, current)
    room = min(wanted + surge - len(pods), wanted - len(current))
    if room > 0:
        return RollingStep(make=room)
    least = wanted - unavailable
    spare = len(pods) - least - sum(not pod.is_available for pod in current)
    broken = [pod.name for pod in old if not pod.is_available]
    if spare > 0 and broken:
        return RollingStep(drop=tuple(broken[:spare]))
    spare = sum(pod.is_available for pod in pods) - least
    healthy = [pod.name for pod in old if pod.is_available]
    return RollingStep(drop=tuple(healthy[: max(0, spare)]))


def stateful_step(spec: Mapping[str, Any], wanted: int, pods: Sequence[RollingPod]) -> RollingStep:
    """The next step of a StatefulSet; `pods` are in the order of their ordinals."""
    if len(pods) > wanted:
        return RollingStep(drop=tuple(pod.name for pod in pods[wanted:]))
    if len(pods) < wanted:
        return RollingStep(make=wanted - len(pods))
    strategy = spec.get("updateStrategy", {})
    if strategy.get("type") == "OnDelete":
        return RollingStep()
    if spec.get("podManagementPolicy") != "Parallel" and not all(pod.is_available for pod in pods):
        # Also a pod that never becomes ready is waited for: an undo of a bad template must evict it.
        return RollingStep()
    partition = int((strategy.get("rollingUpdate") or {}).get("partition", 0))
    for ordinal in range(len(pods) - 1, partition - 1, -1):
        if not pods[ordinal].is_current:
            return RollingStep(drop=(pods[ordinal].name,))
        if not pods[ordinal].is_available:
            return RollingStep()
    return RollingStep()


def group_step(spec: Mapping[str, Any], wanted: int, pods: Sequence[RollingPod]) -> RollingStep:
    """The next step of a LeaderWorkerSet of groups of one pod; `pods` are in the order of their groups.

    As a StatefulSet, but that as many groups go at once as may be unavailable.
    """
    if len(pods) != wanted:
        return RollingStep(drop=tuple(pod.name for pod in pods[wanted:]), make=wanted - len(pods))
    rolling = spec.get("updateStrategy", {}).get("rollingUpdate") or {}
    bound = max(1, scaled(rolling.get("maxUnavailable", 1), wanted, up=False))
    spare = bound - sum(pod.is_current and not pod.is_available for pod in pods)
    old = [pod.name for pod in reversed(pods[int(rolling.get("partition", 0)) :]) if not pod.is_current]
    return RollingStep(drop=tuple(old[: max(0, spare)]))


def daemon_step(spec: Mapping[str, Any], wanted: int, pods: Sequence[RollingPod]) -> RollingStep:
    """The next step of a DaemonSet, without surge."""
    if len(pods) != wanted:
        return _to_size(wanted, sorted(pods, key=lambda pod: pod.going))
    strategy = spec.get("updateStrategy", {})
    if strategy.get("type") == "OnDelete":
        return RollingStep()
    bound = (strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1)
    old = [pod for pod in pods if not pod.is_current]
    broken = [pod.name for pod in old if not pod.is_available]
    spare = scaled(bound, wanted, up=True) - sum(not pod.is_available for pod in pods)
    healthy = [pod.name for pod in old if pod.is_available]
    return RollingStep(drop=(*broken, *healthy[: max(0, spare)]))


def _to_size(wanted: int, pods: Sequence[RollingPod]) -> RollingStep:
    """As many pods as are wanted; those that go first stand first."""
    return RollingStep(drop=tuple(pod.name for pod in pods[: max(0, len(pods) - wanted)]), make=wanted - len(pods))


def _bounds(rolling: Mapping[str, Any], wanted: int) -> tuple[int, int]:
    """Pods too many and pods too few that a roll may have."""
    surge = scaled(rolling.get("maxSurge", _DEFAULT_BOUND), wanted, up=True)
    unavailable = scaled(rolling.get("maxUnavailable", _DEFAULT_BOUND), wanted, up=False)
    return (surge, unavailable) if surge or unavailable else (0, 1)
