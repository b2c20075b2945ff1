"""Which workloads hang together by the cards that they are on; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from fleet.inventory import CardId, WorkloadId


def linked_workloads(cards_of: Mapping[WorkloadId, Collection[CardId]]) -> list[tuple[WorkloadId, ...]]:
    """Sets of workloads that no card links to another set.

    Args:
        cards_of: the cards of each workload; one without cards is a set of its own.

    Returns:
        Each set sorted, the sets by their first names.
    """
    root: dict[WorkloadId, WorkloadId] = {}

    def root_of(name: WorkloadId) -> WorkloadId:
        while root.setdefault(name, name) != name:
            root[name] = name = root[root[name]]
        return name

    on_card: dict[CardId, WorkloadId] = {}
    for name, cards in cards_of.items():
        for card in cards:
            one, other = sorted((root_of(name), root_of(on_card.setdefault(card, name))))
            root[other] = one
    linked: dict[WorkloadId, list[WorkloadId]] = defaultdict(list)
    for name in sorted(cards_of):
        linked[root_of(name)].append(name)
    return [tuple(linked[name]) for name in sorted(linked)]
