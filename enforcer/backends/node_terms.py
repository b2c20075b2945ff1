"""Node affinity that lets the scheduler look at the planned nodes alone.

A scheduler that asks an extender about cards offers it only some of a large cluster's nodes (of more than a hundred, by
its `percentageOfNodesToScore`), and a pod that may use one card finds its node among them or waits for the next try.
Terms by the node's name are known before any node is looked at, so these nodes are always offered. What the owner's
user asked of nodes counts as well: each term of theirs holds on each planned node. Pure.

Source: kubernetes:pkg/scheduler/schedule_one.go (numFeasibleNodesToFind), kubernetes:pkg/scheduler/framework/plugins/
nodeaffinity (PreFilter by metadata.name), kubernetes:pkg/apis/core/validation (one name in a field selector).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from enforcer.admission import PREVIOUS_ANNOTATION
from enforcer.kinds.register import pod_templates
from enforcer.manifest import Manifest, field_of, template_of

_TERMS = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
TERMS_PATH = f"spec.template.spec.{_TERMS}"

NODES_MAX = 500
"""Most terms that a template is given; one that is spread wider than that finds its nodes by itself."""

_NAME = "metadata.name"


def node_terms(owner: Manifest, nodes: Iterable[str]) -> dict[str, str | None]:
    """The field of a template by which its pods come to these nodes only; none where there would be too many terms.

    Args:
        owner: the owner, with the template where a Deployment has it.
        nodes: nodes on which its pods sit after the stage.
    """
    names = sorted(set(nodes))
    own = _wished(owner)
    if not names or len(names) * max(1, len(own)) > NODES_MAX:
        return {}
    terms = [_on_node(term, name) for term in own or [{}] for name in names]
    return {TERMS_PATH: json.dumps(terms, sort_keys=True)}


def _on_node(term: Mapping[str, Any], name: str) -> dict[str, Any]:
    by_name = {"key": _NAME, "operator": "In", "values": [name]}
    return {**term, "matchFields": [*(term.get("matchFields") or ()), by_name]}


def _wished(owner: Manifest) -> list[dict[str, Any]]:
    """The terms that the user wrote: those of before our first plan, where one has changed them."""
    text = field_of(owner, TERMS_PATH)
    # The values before stand at the owner's own paths, of which there are several where it has several templates.
    body = template_of(owner)
    own = {TERMS_PATH, *(template.place(TERMS_PATH) for template in pod_templates(owner) if template.body == body)}
    for path, value in _previous(owner).items():
        if path in own:
            text = value if isinstance(value, str) else None
    try:
        found = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return [term for term in found if isinstance(term, dict)] if isinstance(found, list) else []


def _previous(owner: Manifest) -> Mapping[str, Any]:
    try:
        found = json.loads(field_of(owner, f"metadata.annotations[{PREVIOUS_ANNOTATION}]") or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
