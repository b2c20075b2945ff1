"""Node affinity that lets the scheduler look at one node alone: what a pod with a planned seat gets at admission.

A scheduler that asks an extender about cards offers it only some of a large cluster's nodes (of more than a hundred, by
its `percentageOfNodesToScore`), and a pod that may use one card finds its node among them or waits for the next try. A
term by the node's name is known before any node is looked at, so that node is always offered. What the pod's user asked
of nodes counts as well: each term of theirs holds on this node. Pure.

Source: kubernetes:pkg/scheduler/schedule_one.go (numFeasibleNodesToFind), kubernetes:pkg/scheduler/framework/plugins/
nodeaffinity (PreFilter by metadata.name), kubernetes:pkg/apis/core/validation (one name in a field selector),
kubernetes:pkg/controller/daemon/util (a DaemonSet's pod names its node in `matchFields`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enforcer.manifest import Manifest

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_NAME = "metadata.name"


def on_node(spec: Manifest, node: str) -> Manifest:
    """A pod's spec that lets it go to one node only, and there only if the user's own terms hold."""
    affinity = spec.get("affinity") or {}
    of_nodes = affinity.get("nodeAffinity") or {}
    by_name = _by_name(node)
    # A term without anything in it fits no node.
    own = [term for term in _terms(spec) if term] or [{}]
    terms = [{**term, "matchFields": [*(term.get("matchFields") or ()), by_name]} for term in own]
    required = {**(of_nodes.get(_REQUIRED) or {}), "nodeSelectorTerms": terms}
    return {**spec, "affinity": {**affinity, "nodeAffinity": {**of_nodes, _REQUIRED: required}}}


def off_node(spec: Manifest, node: str) -> Manifest:
    """A pod's spec without what `on_node` added."""
    by_name = _by_name(node)
    kept = []
    for term in _terms(spec):
        fields = list(term.get("matchFields") or ())
        if by_name in fields:
            fields.reverse()
            fields.remove(by_name)
            fields.reverse()
        rest = {key: value for key, value in term.items() if key != "matchFields"} | (
            {"matchFields": fields} if fields else {}
        )
        kept += [rest] if rest else []
    affinity = spec.get("affinity") or {}
    of_nodes = {key: value for key, value in (affinity.get("nodeAffinity") or {}).items() if key != _REQUIRED}
    if kept:
        of_nodes[_REQUIRED] = {"nodeSelectorTerms": kept}
    rest_of = {key: value for key, value in affinity.items() if key != "nodeAffinity"}
    rest_of |= {"nodeAffinity": of_nodes} if of_nodes else {}
    return {key: value for key, value in spec.items() if key != "affinity"} | ({"affinity": rest_of} if rest_of else {})


def may_go_to(spec: Mapping[str, Any], node: str) -> bool:
    """Whether a pod's own terms by the names of nodes leave it this one: a DaemonSet's pod has one node from its start.

    Terms by labels are not looked at.
    """
    terms = _terms(spec)
    return not terms or any(all(_fits(part, node) for part in term.get("matchFields") or ()) for term in terms)


def _by_name(node: str) -> dict[str, Any]:
    return {"key": _NAME, "operator": "In", "values": [node]}


def _terms(spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    return required.get("nodeSelectorTerms") or ()


def _fits(part: Mapping[str, Any], node: str) -> bool:
    is_named = node in (part.get("values") or ())
    return part.get("key") != _NAME or is_named == (part.get("operator") == "In")
