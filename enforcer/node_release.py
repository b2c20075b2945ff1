"""Hands an emptied node over to what owns its machine, so that it leaves the cluster and the bill.

The node is cordoned and marked, and pods that pass get time to end; Karpenter's consolidation and Cluster Autoscaler
then take a node on which nothing is left, in their own time and by their own budgets. Of Cluster API one replica fewer
is asked, and this machine is named as the one to go. Machines of nobody stay cordoned until people take them. What is
rendered is carried out, watched and taken back like a stage of any plan (`enforcer.rollout.departure`). No Node is ever
deleted: where no finalizer holds it the machine would run on. Pure.

Sources: kubernetes-sigs/karpenter:pkg/controllers/disruption (types.go, emptiness.go),
kubernetes/autoscaler:cluster-autoscaler/FAQ.md, kubernetes-sigs/cluster-api:internal/controllers/machineset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from enforcer.backend import NodeStep, RenderedStage
from enforcer.backends.node_pin import node_of
from enforcer.backends.stage import field_changes, owner_field_changes
from enforcer.disruption import disruptions_allowed, selects
from enforcer.machines import (
    CAPACITY_TYPE_LABEL,
    DELETE_MACHINE_ANNOTATION,
    POOL_LABEL,
    SCALE_DOWN_DISABLED_ANNOTATION,
    STAY_ANNOTATION,
    Machine,
)
from enforcer.manifest import Manifest
from enforcer.node_plan import PlanPlace, plan_of_node
from enforcer.seat import is_over, is_passing
from enforcer.snapshot import Snapshot
from fleet.decisions import Plan
from fleet.errors import Refused
from fleet.node_changes import NodeRelease
from fleet.sentences import Sentence, first_of, sentence
from fleet.settings.settings import Settings

RELEASED_ANNOTATION = "gputide.io/released-to"
"""On a node that was handed over: its owner, as `enforcer.backend.NodeOwner` says it."""
_MIRROR = "kubernetes.io/config.mirror"
_SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_CARDS = ("nvidia.com/gpu", "amd.com/gpu", "huawei.com/Ascend910", "gpu.intel.com/xe")
_CARD_LABELS = ("nvidia.com/gpu.product", "karpenter.k8s.aws/instance-gpu-name")
_DEPLOYMENT_LABEL = "cluster.x-k8s.io/deployment-name"


def release_plan(release: NodeRelease, place: PlanPlace, now: datetime, settings: Settings) -> Plan:
    """The sealed plan of one stage that releases a node."""
    return plan_of_node(release, sentence("node_release", node=release.node), place, now, settings)


def render_release(plan_id: str, release: NodeRelease, machine: Machine, snapshot: Snapshot) -> RenderedStage:
    """The one stage of a plan that releases a node.

    Args:
        plan_id: of that plan.
        machine: of the node.

    Raises:
        Refused: there is no such node, pods with cards stay on it, or its owner would not take it.
    """
    name, node = release.node, node_of(snapshot, release.node)
    seats = snapshot.seats
    staying = [pod for pod in map("/".join, snapshot.holders(name)) if pod not in seats or not seats[pod].is_passing]
    if staying:
        raise Refused(sentence("release.refused", node=name, why=sentence("release.serves", pod=staying[0])))
    why = (*_stays(node), *machine.stays)
    if why:
        raise Refused(sentence("release.refused", node=name, why=first_of(why)))
    fields = {"spec.unschedulable": "true", f"metadata.annotations[{RELEASED_ANNOTATION}]": machine.owner.value}
    changes = owner_field_changes(node, fields, plan_id, "")
    if machine.scaled is not None and machine.manifest is not None:
        # The mark comes first: the controller chooses when the number of replicas falls.
        mark = f"metadata.annotations[{DELETE_MACHINE_ANNOTATION}]"
        changes += field_changes(machine.manifest, {mark: "gputide"}, "")
        replicas = int((machine.scaled.get("spec") or {}).get("replicas", 1))
        changes += field_changes(machine.scaled, {"spec.replicas": str(replicas - 1)}, "")
    return RenderedStage(
        stage=1,
        changes=tuple(changes),
        moves=(),
        warnings=(),
        node_steps=(NodeStep(node=name, departure=machine.departure(name)),),
    )


def why_held(
    node: Manifest, pods: Sequence[Manifest], budgets: Sequence[Manifest], *, lastingly: bool = False
) -> list[Sentence]:
    """What keeps a node from leaving, one sentence each: who it still serves first.

    Args:
        pods: all of the cluster.
        budgets: PodDisruptionBudgets of the cluster.
        lastingly: pods that pass (`enforcer.seat.is_passing`) do not count: once no new ones come, the last one ends.
    """
    here = [
        pod
        for pod in pods
        if pod["spec"].get("nodeName") == node["metadata"]["name"]
        and not (is_over(pod) or (lastingly and is_passing(pod)))
    ]
    found = [sentence("release.serves", pod=_pod_id(pod)) for pod in here if is_serving(pod)]
    found += _stays(node)
    for pod in here:
        annotations = pod["metadata"].get("annotations") or {}
        if _MIRROR in annotations:
            continue
        # Karpenter takes a duration, too, which counts from the pod's start; one that is over is waited for no longer.
        if annotations.get(STAY_ANNOTATION, "false") != "false":
            found.append(sentence("release.pod_marked", pod=_pod_id(pod), mark=STAY_ANNOTATION))
        if annotations.get(_SAFE_TO_EVICT) == "false":
            found.append(sentence("release.pod_marked", pod=_pod_id(pod), mark=f"{_SAFE_TO_EVICT}=false"))
        for budget in budgets:
            if selects(budget, pod) and not disruptions_allowed(budget, [one for one in pods if selects(budget, one)]):
                found.append(
                    sentence("release.budget", pod=_pod_id(pod), budget=str(budget["metadata"]["name"]))
                )  # fmt: skip
    return found


def is_serving(pod: Manifest) -> bool:
    """Whether a pod would be missed on another node: it is neither a DaemonSet's nor a mirror of the kubelet's own."""
    metadata = pod["metadata"]
    if is_over(pod) or _MIRROR in (metadata.get("annotations") or {}):
        return False
    return not any(one.get("kind") == "DaemonSet" for one in metadata.get("ownerReferences") or ())


def replacement(machines: Iterable[Manifest], old: Manifest | None, newest: str) -> Manifest | None:
    """A machine that came since one was released, in its place, and not known to be cheaper; None where none did.

    Args:
        machines: all of its kind.
        old: the one that was released; None where nobody knows it any more, so that there is nothing to compare.
        newest: as in `Departure`.
    """
    later = (one for one in machines if str(one["metadata"].get("creationTimestamp") or "") > newest)
    return None if old is None else next((one for one in later if replaces(one, old)), None)


def replaces(new: Manifest, old: Manifest) -> bool:
    """Whether a machine that came meanwhile stands for the one that leaves and is not known to be cheaper.

    One without cards does not, and one is cheaper with fewer cards of the same model and capacity type in the same
    pool. Of Machines, which show no cards, those of the same MachineDeployment do.
    """
    if new["kind"] == "Machine":
        of_new, of_old = (_label(one, _DEPLOYMENT_LABEL) for one in (new, old))
        return of_new is not None and of_new == of_old
    cards, before = _cards(new), _cards(old)
    if not cards:
        return False
    is_alike = all(_label(new, label) == _label(old, label) for label in (POOL_LABEL, CAPACITY_TYPE_LABEL))
    is_known = any(_label(new, label) == _label(old, label) is not None for label in _CARD_LABELS)
    return not (cards < before and is_alike and is_known)


def _cards(machine: Manifest) -> int:
    """Cards of a Node or NodeClaim; of one that is not there yet, those that pods ask it for."""
    status, spec = machine.get("status") or {}, machine.get("spec") or {}
    amounts: Mapping[str, object] = status.get("capacity") or (spec.get("resources") or {}).get("requests") or {}
    return sum(int(str(amounts[name])) for name in _CARDS if str(amounts.get(name, "")).isdigit())


def _stays(node: Manifest) -> list[Sentence]:
    """Marks by which somebody wants a node to stay."""
    annotations = node["metadata"].get("annotations") or {}
    marks = [mark for mark in (STAY_ANNOTATION, SCALE_DOWN_DISABLED_ANNOTATION) if annotations.get(mark) == "true"]
    return [sentence("release.node_marked", mark=mark) for mark in marks]


def _label(manifest: Manifest, label: str) -> str | None:
    found: str | None = (manifest["metadata"].get("labels") or {}).get(label)
    return found


def _pod_id(pod: Manifest) -> str:
    return f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"
