"""Cuts a fleet into parts that can be described one by one, in any process.

A part holds whole workloads and whole cards: slices that ever shared a card, or belong to one workload, stay together,
because a profile is made from them. Called for `analyzer.profile`, and by a back-test that tries some of a fleet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fleet.inventory import Card, CardId, Grant, Inventory, WorkloadId
from fleet.linked_cards import linked_workloads
from fleet.usage import CardGrid, CardKey, History, Key, SliceGrid, SliceKey, UsageGrid


def inventory_parts(inventory: Inventory, slices_max: int) -> Iterator[Inventory]:
    """Cuts an inventory into parts of about equal size, in the order of their first workloads.

    Args:
        inventory: what stands there; cards granted to nobody go with the last part.
        slices_max: grants per part, at least 1; more only where more belong together.

    Yields:
        At least one part; together they hold every card and every grant once.
    """
    together = _together(inventory.grants)
    part_of: dict[int, int] = {}
    home_of: dict[CardId, int] = {}
    last = held = 0
    for number, linked in enumerate(together, start=1):
        part_of.update((id(grant), last) for grant in linked)
        home_of.update((grant.card, last) for grant in linked)
        held += len(linked)
        if held >= slices_max and number < len(together):
            last, held = last + 1, 0
    grants: list[list[Grant]] = [[] for _ in range(last + 1)]
    for grant in inventory.grants:
        grants[part_of[id(grant)]].append(grant)
    cards: list[list[Card]] = [[] for _ in grants]
    for card in inventory.cards:
        cards[home_of.get(card.card, last)].append(card)
    place = {node.node: number for number, node in enumerate(inventory.nodes)}
    for own, held_cards in zip(grants, cards, strict=True):
        yield _part(inventory, own, held_cards, place)


def sampled_inventory(inventory: Inventory, slices_max: int) -> Inventory:
    """Whole workloads of an inventory with all that share their cards, picked by chance; the same ones every time.

    Args:
        slices_max: live grants that are kept, unless more belong together; an inventory of no more stays whole.
    """
    live = set(map(id, inventory.live_grants()))
    if len(live) <= slices_max:
        return inventory
    together = _together(inventory.grants)
    chosen: list[Grant] = []
    kept = 0
    generator = np.random.default_rng(len(together))
    for number in generator.permutation(len(together)):
        chosen += together[number]
        kept += sum(id(grant) in live for grant in together[number])
        if kept >= slices_max:
            break
    wanted, names = set(map(id, chosen)), {grant.card for grant in chosen}
    return _part(
        inventory,
        [grant for grant in inventory.grants if id(grant) in wanted],
        [card for card in inventory.cards if card.card in names],
        {node.node: number for number, node in enumerate(inventory.nodes)},
    )


def _together(grants: Sequence[Grant]) -> list[list[Grant]]:
    """Grants linked by workloads and cards, each set in the inventory's order, by the first name in it."""
    cards_of: dict[WorkloadId, set[CardId]] = defaultdict(set)
    for grant in grants:
        cards_of[grant.workload_id].add(grant.card)
    linked = linked_workloads(cards_of)
    number_of = {name: number for number, names in enumerate(linked) for name in names}
    together: list[list[Grant]] = [[] for _ in linked]
    for grant in grants:
        together[number_of[grant.workload_id]].append(grant)
    return together


def _part(inventory: Inventory, grants: Sequence[Grant], cards: Sequence[Card], place: dict[str, int]) -> Inventory:
    """These grants and cards with their nodes, each of which has a place in the whole."""
    nodes = {card.node for card in cards} | {grant.node for grant in grants}
    return replace(
        inventory,
        cards=tuple(cards),
        nodes=tuple(inventory.nodes[number] for number in sorted(place[node] for node in nodes if node in place)),
        grants=tuple(grants),
    )


def history_part(history: History, part: Inventory) -> History:
    """The history of one part: rows of its cards and of its pods, also under names that no grant explains.

    The one part of a small fleet is the history itself.
    """
    if len(part.grants) == len(history.inventory.grants):
        return history
    cards = () if history.cards is None else history.cards.keys
    ((slice_rows, card_rows),) = rows_of_parts([part], history.slices.keys, cards)
    slices: SliceGrid = _rows(history.slices, slice_rows)
    own: CardGrid | None = None
    if history.cards is not None:
        own = _rows(history.cards, card_rows)
    return History(inventory=part, slices=slices, cards=own)


def rows_of_parts(
    parts: Sequence[Inventory], slices: Sequence[SliceKey], cards: Sequence[CardKey]
) -> list[tuple[list[int], list[int]]]:
    """Rows of each part in the grids of slices and of cards, ascending; one may count for several parts."""
    by_card: dict[CardId, list[int]] = defaultdict(list)
    by_pod: dict[str, list[int]] = defaultdict(list)
    for number, part in enumerate(parts):
        for card in {card.card for card in part.cards} | {grant.card for grant in part.grants}:
            by_card[card].append(number)
        for pod in {grant.pod_id for grant in part.grants}:
            by_pod[pod].append(number)
    found: list[tuple[list[int], list[int]]] = [([], []) for _ in parts]
    for row, slice_key in enumerate(slices):
        for number in {*by_card.get(slice_key.card, ()), *by_pod.get(slice_key.pod_id, ())}:
            found[number][0].append(row)
    for row, card_key in enumerate(cards):
        for number in by_card.get(card_key.card, ()):
            found[number][1].append(row)
    return found


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
