"""What nodes say of sharing their cards, where a backend has one way for all of a node's pods.

Some backends label a node with the core policy of all its pods, some know one size of card per node, and a person may
have put a node into a mode. A workload has one pod template, so its pods share only where all their nodes say the same.
Called by `permits`; pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet.capabilities.register import Capabilities, CorePolicy
from fleet.inventory import NODE_MODE_LABEL, Grant, Inventory
from fleet.node_changes import NodeMode
from fleet.sentences import Sentence, sentence
from fleet.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTerms:
    """On what terms pods share cards, node by node.

    Attributes:
        policies: core policy of all pods of a node; empty where every pod has its own.
        barred: nodes on which nobody shares, and why (messages `bar.CODE`).
    """

    policies: Mapping[str, CorePolicy]
    barred: Mapping[str, Sentence]

    def bar_of(self, nodes: Iterable[str]) -> Sentence | None:
        """Why pods on these nodes can't share, None where they can: they have one template, so one policy."""
        names = sorted(set(nodes))
        said = next((self.barred[name] for name in names if name in self.barred), None)
        if said is not None or len({self.policies.get(name) for name in names}) < 2:
            return said
        shown = ", ".join(f"{name}: {self.policies[name].value}" for name in names)
        return sentence("several_policies", policies=shown)


def node_terms(inventory: Inventory, grants: Iterable[Grant], capability: Capabilities) -> NodeTerms:
    """The terms of every node that holds or has cards.

    Args:
        grants: live grants, also on cards and nodes that nobody listed.
    """
    models: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for card in inventory.cards:
        models[card.node].add((card.card_model, card.framebuffer_bytes))
    for grant in grants:
        models[grant.node].add((grant.card_model, grant.framebuffer_bytes))
    barred: dict[str, Sentence] = {}
    if capability.one_size_per_node:
        for name, kinds in models.items():
            if len(kinds) > 1:
                shown = ", ".join(f"{model or '?'} ({size / GIB:.0f} GiB)" for model, size in sorted(kinds))
                barred[name] = sentence("several_sizes", node=name, cards=shown, backend=capability.backend)
    labels = {node.node: dict(node.labels) for node in inventory.nodes}
    for name in models:
        mode = labels.get(name, {}).get(NODE_MODE_LABEL)
        if mode == NodeMode.WHOLE or (mode == NodeMode.MIG and not capability.cuts_by_mig):
            barred[name] = sentence("node_mode", node=name, mode=mode)
    policies: dict[str, CorePolicy] = {}
    if capability.node_policy_label is not None:
        known = dict(capability.node_policies)
        usual = capability.node_policies[0][0]
        for name in models:
            value = labels.get(name, {}).get(capability.node_policy_label, usual)
            if value in known:
                policies[name] = known[value]
            else:
                barred[name] = sentence(
                    "unknown_policy",
                    node=name,
                    label=f"{capability.node_policy_label}={value[:63]}",
                    known=", ".join(known),
                )
    return NodeTerms(policies=policies, barred=barred)
