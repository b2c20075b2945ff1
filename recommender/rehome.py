"""Cheaper cards that workloads still fit on, after everything else has its place.

A workload whose pods each hold a whole card may move to cards that are free then, of another model, if each card costs
less than the card that its pod leaves, has the framebuffer, is not older, and leaves room by its data sheet: the
largest use of the old card, times how much faster that is by half-precision performance or by framebuffer bandwidth,
whichever is worse. Two cards of one model may differ in price: node, label, cluster and contract decide. All pods of a
workload move or none, because they have one template. Called by `planner`; pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from fleet.catalogue import CardModel, find_model
from fleet.inventory import Card, CardId, CardModelName, WorkloadId
from recommender.bin_cards import NodeRoom
from recommender.demand import Demand

LOAD_MAX = 0.7
"""Largest predicted use of the new card by a pod, 0-1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehoming:
    """One workload on cheaper cards.

    Attributes:
        targets: new card of each of its rows.
        slowdown: how much faster the old model is by its data sheet, at least 1 where the new one is slower.
        load_max: largest predicted use of a new card, 0-1.
        node_left: node that it helps to leave whole, on a card of the same model elsewhere; empty for cheaper cards.
    """

    workload: WorkloadId
    source_model: CardModelName
    target_model: CardModelName
    targets: Mapping[int, Card]
    slowdown: float
    load_max: float
    node_left: str = ""


def rehome(
    demand: Demand,
    candidates: Mapping[WorkloadId, Sequence[int]],
    free: Sequence[Card],
    *,
    price_per_hour: Mapping[CardId, Decimal],
    headroom_ratio: float,
    room: NodeRoom,
    moves_max: int | None,
) -> tuple[Rehoming, ...]:
    """Which workloads move to which cheaper cards; those that save most per hour choose first.

    Args:
        demand: live slices and their series.
        candidates: rows of each workload that may move; every pod holds one whole card.
        free: cards that no pod holds after the plan.
        price_per_hour: amortised price of every card; a card that is absent has none, and is neither left nor taken.
        headroom_ratio: kept free above the largest need of framebuffer.
        room: CPU and host memory that the nodes have left; what is taken of it is booked.
        moves_max: most pods that may move, None for any number.
    """
    left: dict[CardModelName, list[Card]] = defaultdict(list)
    priced = [card for card in free if card.card in price_per_hour]
    for card in sorted(priced, key=lambda card: (price_per_hour[card.card], card.node, card.card)):
        left[card.card_model].append(card)
    offers = sorted(
        (
            offer
            for name, rows in candidates.items()
            for cards in left.values()
            if (offer := _offer(demand, name, rows, cards, price_per_hour, headroom_ratio)) is not None
        ),
        key=lambda offer: (-offer.saved_per_hour_max, offer.workload, offer.target_model),
    )
    done: dict[WorkloadId, Rehoming] = {}
    moves = 0
    for offer in offers:
        if offer.workload in done or (moves_max is not None and moves + len(offer.rows) > moves_max):
            continue
        targets = _take(demand, offer.rows, left[offer.target_model], price_per_hour, room)
        if targets is None:
            continue
        moves += len(offer.rows)
        taken = {card.card for card in targets.values()}
        left[offer.target_model] = [card for card in left[offer.target_model] if card.card not in taken]
        done[offer.workload] = Rehoming(
            workload=offer.workload,
            source_model=demand.grants[offer.rows[0]].card_model,
            target_model=offer.target_model,
            targets=targets,
            slowdown=offer.slowdown,
            load_max=offer.load_max,
        )
    return tuple(done[name] for name in sorted(done))


def _take(
    demand: Demand, rows: Sequence[int], cards: Sequence[Card], price_per_hour: Mapping[CardId, Decimal], room: NodeRoom
) -> dict[int, Card] | None:
    """The cheapest card for each row that costs less than the row's own, on a node with room for its pod.

    Rows on the cheapest cards choose first, because fewest cards cost less than theirs.

    Returns:
        A card per row; None, and nothing booked, where some row finds none.
    """
    tried = room.copy()
    taken: dict[int, Card] = {}
    left = list(cards)
    for row in sorted(rows, key=lambda row: (price_per_hour[demand.grants[row].card], row)):
        grant = demand.grants[row]
        paid = price_per_hour[grant.card]
        found = next(
            (card for card in left if price_per_hour[card.card] < paid and tried.admit(card.node, [grant])), None
        )
        if found is None:
            return None
        left.remove(found)
        taken[row] = found
    room.book(tried)
    return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """A workload and a model that it fits on; it saves at most what the cheapest cards of the model save."""

    workload: WorkloadId
    rows: Sequence[int]
    target_model: CardModelName
    slowdown: float
    load_max: float
    saved_per_hour_max: Decimal


def _offer(
    demand: Demand,
    name: WorkloadId,
    rows: Sequence[int],
    cards: Sequence[Card],
    price_per_hour: Mapping[CardId, Decimal],
    headroom_ratio: float,
) -> _Offer | None:
    """What a workload saves on the cards of one model, cheapest first; None where it can't move there."""
    source, target = demand.grants[rows[0]].card_model, cards[0].card_model
    paid = [price for row in rows if (price := price_per_hour.get(demand.grants[row].card)) is not None]
    slowdown = slowdown_of(find_model(source), find_model(target))
    if source == target or slowdown is None or len(paid) < len(rows) or len(cards) < len(rows):
        return None
    if price_per_hour[cards[0].card] >= min(paid):
        return None
    compute = demand.compute[list(rows)]
    need = demand.need_bytes[list(rows)]
    if not np.isfinite(compute).any() or not np.isfinite(need).any():
        return None
    load = float(np.nanmax(compute)) * slowdown
    held = float(np.nanmax(need)) * (1.0 + headroom_ratio)
    if load > LOAD_MAX or held > min(card.framebuffer_bytes for card in cards):
        return None
    asked = sum((price_per_hour[card.card] for card in cards[: len(rows)]), Decimal(0))
    return _Offer(
        workload=name, rows=rows, target_model=target, slowdown=slowdown, load_max=load,
        saved_per_hour_max=sum(paid, Decimal(0)) - asked,
    )  # fmt: skip


def slowdown_of(source: CardModel | None, target: CardModel | None) -> float | None:
    """How much faster the source is than the target by their data sheets.

    Returns:
        The larger of the ratios of half-precision performance and of framebuffer bandwidth; None where one of them
        isn't known or the target is older, by its compute capability.
    """
    if source is None or target is None:
        return None
    if source.compute_capability is None or target.compute_capability is None:
        return None
    if target.compute_capability < source.compute_capability:
        return None
    if not (source.half_tflops and target.half_tflops):
        return None
    if not (source.bandwidth_bytes_per_second and target.bandwidth_bytes_per_second):
        return None
    return max(
        source.half_tflops / target.half_tflops, source.bandwidth_bytes_per_second / target.bandwidth_bytes_per_second
    )
