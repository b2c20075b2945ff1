"""Which nodes are paid for as a whole: there money is saved only once a whole node is gone, and then all of its price.

Called by the planner, which gathers what it frees on such nodes, and for what is said of a plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal

from fleet.inventory import Card, Inventory, Node
from fleet.money.prices import Prices
from fleet.settings.money import PriceBasis

_OWN_SCHEMES = frozenset(
    ("byoh", "harvester", "k3s", "kind", "kubevirt", "maas", "metal3", "nutanix", "proxmox", "rke2", "tinkerbell",
     "vsphere")
)  # fmt: skip
"""Schemes of ids by which nobody bills a node: of software for machines of one's own, or of the distribution alone.

Source: kubernetes-sigs/cluster-api:docs/book/src/reference/providers.md (providers), and k3s, RKE2 and kind themselves.
"""
_RESERVED_LABELS = (("karpenter.sh/capacity-type", "reserved"), ("eks.amazonaws.com/capacityType", "CAPACITY_BLOCK"))


def paid_nodes(inventory: Inventory, prices: Prices) -> dict[str, tuple[Card, ...]]:
    """Nodes that are rented whole, by name, with their cards.

    A rule of the price book says so by its `basis` (`rented`), also of a pool of nodes by `node_labels`; where none
    says anything, the source of the card, and last whether a provider of rented machines has an id of the node (of
    `vsphere`, `metal3`, `k3s` and the like nobody is billed by the node). What was bought or
    committed is paid with or without a node, and so is what was reserved.
    """
    cards_of: dict[str, list[Card]] = defaultdict(list)
    for card in inventory.cards:
        cards_of[card.node].append(card)
    return {
        node.node: tuple(cards_of[node.node])
        for node in inventory.nodes
        if cards_of[node.node] and _is_paid(node, cards_of[node.node], prices)
    }


def price_per_week(cards: Iterable[Card], prices: Prices) -> Decimal | None:
    """What a node with these cards costs a week; None where one of them has no price."""
    found = [prices.per_week(card) for card in cards]
    known = [price for price in found if price is not None]
    return sum(known, Decimal(0)).quantize(Decimal("0.01")) if found and len(known) == len(found) else None


def _is_paid(node: Node, cards: Iterable[Card], prices: Prices) -> bool:
    if any(pair in node.labels for pair in _RESERVED_LABELS):
        return False
    bases = {prices.of(card).basis for card in cards}
    if bases == {None}:
        return node.provider_id is not None and node.provider_id.partition("://")[0] not in _OWN_SCHEMES
    return bases == {PriceBasis.RENTED}
