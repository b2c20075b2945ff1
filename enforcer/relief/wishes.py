"""What the owners of pods asked for, and how a pod can change its card: the facts that every move is held against.

Read from the API server, never from what agents report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from enforcer.cluster import ClusterReader
from enforcer.manifest import Manifest, field_of
from enforcer.ownership import controller_of, workload_of_pod
from enforcer.relief.relief_journal import Manner
from enforcer.wishes import Wishes, wishes_in
from fleet.inventory import ISOLATION_LABEL, LATENCY_CRITICAL_LABEL, OPT_OUT_LABEL, WorkloadId, is_yes

_KNOWN_OWNERS = frozenset({"Deployment", "StatefulSet", "DaemonSet", "Job", "Notebook"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Movable:
    """How one pod can change its card.

    Attributes:
        maker: ReplicaSet that takes a warm replica over; empty for a restart.
        is_isolated: it shares a card with nobody.
        why: why it must stay, or can only be restarted; empty for a warm move.
    """

    manner: Manner | None
    maker: str
    uid: str
    workload: WorkloadId
    is_isolated: bool
    why: str


def owner_of(pod: Manifest, reader: ClusterReader) -> tuple[WorkloadId, Manifest | None]:
    """The workload that a pod belongs to, and its object where it is of a kind that may be asked for.

    Raises:
        Unavailable: the cluster can't be reached.
    """
    workload = workload_of_pod(pod, {})
    namespace, kind, name = str(workload).split("/", 2)
    return workload, reader.get(kind, namespace, name) if kind in _KNOWN_OWNERS else None


def has_opted_out(pod: Manifest, reader: ClusterReader) -> bool:
    """Whether a pod, or its owner, wants to be left alone.

    Raises:
        Unavailable: the cluster can't be reached.
    """
    return is_yes(_wishes(pod, reader).of(OPT_OUT_LABEL, pod, owner_of(pod, reader)[1]))


def movable(pod: Manifest, reader: ClusterReader, *, restarts: bool) -> Movable:
    """How a pod can change its card.

    Raises:
        Unavailable: the cluster can't be reached.
    """
    workload, owner = owner_of(pod, reader)
    metadata, spec = pod["metadata"], pod["spec"]
    wishes = _wishes(pod, reader)
    controller = controller_of(pod)

    def answer(manner: Manner | None, why: str = "", maker: str = "") -> Movable:
        return Movable(
            manner=manner,
            maker=maker,
            uid=str(metadata.get("uid", "")),
            workload=workload,
            is_isolated=wishes.of(ISOLATION_LABEL, pod, owner) == "hard",
            why=why,
        )

    opt_out, critical = wishes.of(OPT_OUT_LABEL, pod, owner), wishes.of(LATENCY_CRITICAL_LABEL, pod, owner)
    if is_yes(opt_out):
        return answer(None, f"it has {OPT_OUT_LABEL}={opt_out}")
    if metadata.get("deletionTimestamp") is not None:
        return answer(None, "it is going already")
    if controller is None:
        return answer(None, "nobody would make it anew")
    if controller[0] not in ("ReplicaSet", "StatefulSet"):
        return answer(None, f"a {controller[0]} makes it, whose work would be lost")
    single = _why_single(controller[0], owner, spec)
    if single is None:
        return answer(Manner.WARM, maker=controller[1])
    if is_yes(critical):
        return answer(None, f"it has {LATENCY_CRITICAL_LABEL}={critical} and can't have a second replica: {single}")
    if not restarts:
        return answer(None, f"it can't have a second replica: {single} (relief.restarts_pods=false)")
    return answer(Manner.RESTART, single)


def _wishes(pod: Manifest, reader: ClusterReader) -> Wishes:
    return wishes_in(reader, pod["metadata"].get("namespace"))


def _why_single(maker: str, owner: Manifest | None, spec: Mapping[str, Any]) -> str | None:
    """Why there can't be two of a pod at once; None where there can."""
    if maker == "StatefulSet":
        return "a StatefulSet's pod has a name of its own"
    if owner is not None and field_of(owner, "spec.strategy.type") == "Recreate":
        return "its Deployment's strategy is Recreate"
    claimed = [volume.get("name") for volume in spec.get("volumes") or () if "persistentVolumeClaim" in volume]
    if claimed:
        return f"its volume {str(claimed[0])[:63]} may be claimed once only"
    return None
