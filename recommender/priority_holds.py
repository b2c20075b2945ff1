"""What holds each workload of low priority back, wherever the plan may put it. Called by `permits`."""

from __future__ import annotations

from collections import defaultdict

from fleet.capabilities.capability import Capabilities
from fleet.inventory import CardModelName, Grant, Inventory, Priority, WorkloadId
from fleet.priority_holds import Hold, Holders, hold_of
from fleet.servers import replays_graphs
from recommender.demand import Demand


def holds_of(
    demand: Demand, inventory: Inventory, capability: Capabilities, holders: Holders
) -> dict[WorkloadId, Hold]:
    """The hold on every workload of which all pods have low priority.

    A pod may come to any card of its model, so what counts must hold on all nodes that have some.
    """
    nodes: dict[CardModelName, set[str]] = defaultdict(set)
    grants_of: dict[WorkloadId, list[Grant]] = defaultdict(list)
    for card in inventory.cards:
        nodes[card.card_model].add(card.node)
    for grant in demand.grants:
        nodes[grant.card_model].add(grant.node)
        grants_of[grant.workload_id].append(grant)
    found: dict[WorkloadId, Hold] = {}
    for name, grants in grants_of.items():
        if any(grant.priority is not Priority.LOW for grant in grants):
            continue
        on = {node for grant in grants for node in nodes[grant.card_model]}
        servers = [grant.server for grant in grants]
        found[name] = hold_of(capability, holders, on, next(filter(replays_graphs, servers), servers[0]))
    return found
