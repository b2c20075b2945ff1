"""On which nodes a pod may run by its own word: node selector, required node affinity, and the taints it tolerates.

Pure. The scheduler decides in the end; a move to a node that it would never take wastes minutes, and a pod that
admission pinned to one would wait for good, so relief and admission look first. What a pod only prefers, and what it
wants of other pods, is left to the scheduler.

Source: kubernetes/api:core/v1/types.go (NodeSelector, Taint, Toleration),
kubernetes:staging/src/k8s.io/component-helpers/scheduling/corev1/nodeaffinity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from enforcer.manifest import Manifest
from fleet.selectors import requirement_holds

_KEEPS_OFF = frozenset({"NoSchedule", "NoExecute"})


def may_run_on(pod: Manifest, node: Manifest) -> bool:
    """Whether a pod may run on a node by its own word.

    Args:
        pod: the pod; where it runs now does not matter.
    """
    spec, metadata = pod["spec"], node["metadata"]
    labels: Mapping[str, str] = metadata.get("labels") or {}
    wanted: Mapping[str, str] = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return _has_affinity(spec, labels, str(metadata["name"])) and _tolerates(spec, node)


def nodes_for(pod: Manifest, nodes: Mapping[str, Manifest]) -> frozenset[str]:
    """Names of the nodes that a pod may run on."""
    return frozenset(name for name, node in nodes.items() if may_run_on(pod, node))


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
