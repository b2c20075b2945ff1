"""A fleet in parts, so that a history larger than memory is looked at piece by piece.

A part holds whole workloads and whole cards: whoever ever shared a card, or belongs to one workload, stays together,
for that is what a profile is made from. What a fleet shares beyond that (hazards, companions) is learned from the
figures of all parts (`analyzer.profile`). A source's own step is read off those rows of a node that lie in one part.
Called by the front door, which hands over the history of one part after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fleet.inventory import CardId, Grant, Inventory
from fleet.usage import CardGrid, History, Key, SliceGrid, UsageGrid


def inventory_parts(inventory: Inventory, slices_max: int) -> Iterator[Inventory]:
    """Cuts an inventory into parts of about equal size, in the order of their first workloads.

    Args:
        inventory: what stands there; cards granted to nobody go with the last part.
        slices_max: grants per part, at least 1; more only where more belong together.

    Yields:
        At least one part; together they hold every card and every grant once.
    """
    together = _together(inventory.grants)
    chosen: list[Grant] = []
    taken: set[CardId] = set()
    for number, grants in enumerate(together):
        chosen += grants
        if len(chosen) >= slices_max and number + 1 < len(together):
            cards = {grant.card for grant in chosen}
            yield _part(inventory, chosen, cards)
            taken |= cards
            chosen = []
    yield _part(inventory, chosen, {card.card for card in inventory.cards} - taken)


def _together(grants: Sequence[Grant]) -> list[list[Grant]]:
    """Grants linked by workloads and cards, each set in the inventory's order, by the first name in it."""
    root: dict[str, str] = {}

    def root_of(name: str) -> str:
        while root.setdefault(name, name) != name:
            root[name] = name = root[root[name]]
        return name

    for grant in grants:
        # A workload's name has slashes and no blank, so that a card's never equals it.
        one, other = sorted((root_of(grant.workload_id), root_of(f"card {grant.card}")))
        root[one] = other
    linked: dict[str, list[Grant]] = defaultdict(list)
    for grant in grants:
        linked[root_of(grant.workload_id)].append(grant)
    return sorted(linked.values(), key=lambda found: min(grant.workload_id for grant in found))


def _part(inventory: Inventory, grants: Sequence[Grant], cards: set[CardId]) -> Inventory:
    chosen = set(map(id, grants))
    kept = tuple(card for card in inventory.cards if card.card in cards)
    nodes = {card.node for card in kept} | {grant.node for grant in grants}
    return replace(
        inventory,
        cards=kept,
        nodes=tuple(node for node in inventory.nodes if node.node in nodes),
        grants=tuple(grant for grant in inventory.grants if id(grant) in chosen),
    )


def history_part(history: History, part: Inventory) -> History:
    """The history of one part: rows of its cards and of its pods, also under names that no grant explains.

    The one part of a small fleet is the history itself.

    Args:
        history: of the whole fleet.
        part: one of `inventory_parts` of its inventory.
    """
    if len(part.grants) == len(history.inventory.grants):
        return history
    cards = {card.card for card in part.cards} | {grant.card for grant in part.grants}
    pods = {grant.pod_id for grant in part.grants}
    slices: SliceGrid = _rows(
        history.slices, [row for row, key in enumerate(history.slices.keys) if key.card in cards or key.pod_id in pods]
    )
    own: CardGrid | None = None
    if history.cards is not None:
        own = _rows(history.cards, [row for row, key in enumerate(history.cards.keys) if key.card in cards])
    return History(inventory=part, slices=slices, cards=own)


def _rows(grid: UsageGrid[Key], rows: Sequence[int]) -> UsageGrid[Key]:
    picked = np.array(rows, np.int64)
    mean = {measure: values[picked] for measure, values in grid.mean.items()}
    return replace(
        grid,
        keys=tuple(grid.keys[row] for row in rows),
        mean=mean,
        # Where peaks are the means themselves they are not copied twice.
        peak={
            measure: mean[measure] if values is grid.mean.get(measure) else values[picked]
            for measure, values in grid.peak.items()
        },
    )
