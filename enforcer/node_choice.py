"""On which nodes a pod may run by its own word, and whether a node has what it asks for.

Pure. The scheduler decides in the end; a move to a node that it would never take wastes minutes, and a pod that
admission pinned to one would wait for good, so relief and admission look first. A pod's word are its node selector,
its required node affinity and the taints that it tolerates. What it only prefers, and what it wants of other pods, is
left to the scheduler.

Source: kubernetes/api:core/v1/types.go (NodeSelector, Taint, Toleration),
kubernetes:staging/src/k8s.io/component-helpers/scheduling/corev1/nodeaffinity,
kubernetes:staging/src/k8s.io/component-helpers/resource/helpers.go (PodRequests),
kubernetes:pkg/scheduler/framework/plugins/noderesources/fit.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from enforcer.manifest import Manifest
from fleet.selectors import requirement_holds
from fleet.units import parse_quantity

_Amounts = dict[str, Decimal]
_NOTHING = Decimal(0)
_KEEPS_OFF = frozenset({"NoSchedule", "NoExecute"})


def may_run_on(pod: Manifest, node: Manifest) -> bool:
    """Whether a pod may run on a node by its own word."""
    return chooses(pod["spec"], node) and _tolerates(pod["spec"], node)


def chooses(spec: Mapping[str, Any], node: Manifest) -> bool:
    """Whether selector and affinity of a pod or a template allow a node, whatever its taints."""
    metadata = node["metadata"]
    labels: Mapping[str, str] = metadata.get("labels") or {}
    wanted: Mapping[str, str] = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return _has_affinity(spec, labels, str(metadata["name"]))


def why_node_closed(node: Manifest) -> str | None:
    """Why a node takes no new pods, as the end of a sentence about it; None where nothing is known against it."""
    if node["metadata"].get("deletionTimestamp") is not None:
        return "is being deleted"
    if (node.get("spec") or {}).get("unschedulable"):
        return "is cordoned"
    conditions = (node.get("status") or {}).get("conditions") or ()
    is_ready = all(one.get("status") == "True" for one in conditions if one.get("type") == "Ready")
    return None if is_ready else "is not ready"


def nodes_for(pod: Manifest, nodes: Mapping[str, Manifest]) -> frozenset[str]:
    """Names of the nodes that a pod may run on."""
    return frozenset(name for name, node in nodes.items() if may_run_on(pod, node))


def why_no_room(pod: Manifest, node: Manifest, others: Iterable[Manifest]) -> str | None:
    """Why a node has less left than a pod asks for, in words; None where nothing is known against it.

    Of resources that the node does not list, such as those that an extender keeps the books of, nothing is known.

    Raises:
        Misconfigured: an amount is no quantity.
    """
    offered = (node.get("status") or {}).get("allocatable") or {}
    booked: _Amounts = {}
    for other in others:
        _add(booked, _requests(other))
    for name, amount in _requests(pod).items():
        left = parse_quantity(str(offered[name])) - booked.get(name, _NOTHING) if name in offered else amount
        if amount and amount > left:
            short = f"{max(left, _NOTHING).normalize():f} {name} left of the {amount.normalize():f} it asks for"
            return f"node {node['metadata']['name']} has {short}"
    return None


def _requests(pod: Manifest) -> _Amounts:
    """What the scheduler books for a pod, by resource; the pod is one of `pods`."""
    spec = pod["spec"]
    running: _Amounts = {}
    for container in spec["containers"]:
        _add(running, _amounts(container.get("resources")))
    sidecars: _Amounts = {}
    most: _Amounts = {}
    for container in spec.get("initContainers") or ():
        own = _amounts(container.get("resources"))
        if container.get("restartPolicy") == "Always":
            _add(running, own)
            _add(sidecars, own)
            own = {}
        _add(own, sidecars)
        most = {name: max(most.get(name, own.get(name, _NOTHING)), own.get(name, _NOTHING)) for name in {**most, **own}}
    found = {name: max(running.get(name, _NOTHING), most.get(name, _NOTHING)) for name in {**running, **most}}
    found |= _amounts(spec.get("resources"))
    _add(found, {name: parse_quantity(str(amount)) for name, amount in (spec.get("overhead") or {}).items()})
    return {**found, "pods": Decimal(1)}


def _amounts(resources: Mapping[str, Any] | None) -> _Amounts:
    """Requests; where there is a limit alone, it counts as one, as the server fills it in."""
    found = resources or {}
    texts = {**(found.get("limits") or {}), **(found.get("requests") or {})}
    return {name: parse_quantity(str(amount)) for name, amount in texts.items()}


def _add(total: _Amounts, more: Mapping[str, Decimal]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, _NOTHING) + amount


def _has_affinity(spec: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    terms: Iterable[Mapping[str, Any]] = required.get("nodeSelectorTerms") or ()
    return any(_fits(term, labels, name) for term in terms)


def _fits(term: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        # An empty term selects nothing.
        return False
    return all(requirement_holds(entry, labels.get(str(entry.get("key")))) for entry in expressions) and all(
        entry.get("key") == "metadata.name" and requirement_holds(entry, name) for entry in fields
    )


def _tolerates(spec: Mapping[str, Any], node: Manifest) -> bool:
    tolerations = spec.get("tolerations") or ()
    taints = [taint for taint in node.get("spec", {}).get("taints") or () if taint.get("effect") in _KEEPS_OFF]
    return all(any(_is_for(entry, taint) for entry in tolerations) for taint in taints)


def _is_for(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    is_any = bool(toleration.get("operator", "Equal") == "Exists")
    if not toleration.get("key"):
        return is_any
    is_key = bool(toleration.get("key") == taint.get("key"))
    return is_key and (is_any or str(toleration.get("value") or "") == str(taint.get("value") or ""))
