"""Neighbouring nodes as one group: what a square of the card map is where a cluster has thousands of nodes.

Nodes of one card model are taken in the order of their names, which is how racks and pools are distinguished in
practice: a group ends where the stem of the name changes (`a100-012-` of `a100-012-0345`), unless it is still small,
and where it is full. A group is called by its first node; an address may name any node of it, so links outlive new
nodes. Pure; called by `card_map` and `pages.fleet`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from fleet.profiles import CardProfile

GROUP_NODES_MIN = 16
GROUP_NODES_MAX = 64
_STEM = re.compile(r"[^-._]*$")
"""The last part of a node's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Some neighbouring nodes with cards of one model.

    Attributes:
        name: its first node.
    """

    name: str
    card_model: str
    nodes: tuple[str, ...]


def node_groups(cards: Sequence[CardProfile]) -> tuple[NodeGroup, ...]:
    """Every node of every model in one group, by model and name."""
    found: list[NodeGroup] = []
    pairs = sorted({(card.card_model, card.node) for card in cards})
    for model, members in groupby(pairs, key=lambda pair: pair[0]):
        run: list[str] = []
        for _, node in members:
            if run and (len(run) >= GROUP_NODES_MAX or (len(run) >= GROUP_NODES_MIN and _stem(node) != _stem(run[-1]))):
                found.append(NodeGroup(name=run[0], card_model=model, nodes=tuple(run)))
                run = []
            run.append(node)
        found.append(NodeGroup(name=run[0], card_model=model, nodes=tuple(run)))
    return tuple(found)


def group_with(groups: Sequence[NodeGroup], node: str) -> NodeGroup | None:
    """The first group that a node is in; None where it is in none."""
    return next((group for group in groups if node in group.nodes), None)


def _stem(node: str) -> str:
    return _STEM.sub("", node)
