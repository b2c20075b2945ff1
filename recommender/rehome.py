"""Cheaper cards that workloads still fit on, after everything else has its place.

A workload whose pods each hold a whole card may move to cards that are free then, of a model that costs less, has the
framebuffer, is no older, and whose data sheet leaves it room: what it used of its card at most, times how much faster
that card is by half-precision performance or by bandwidth of the framebuffer, whichever is worse. All pods of a
workload move or none, for they have one template. Called by `planner`; pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from fleet.catalogue import CardModel, find_model
from fleet.inventory import Card, CardModelName, WorkloadId
from fleet.money.book import PriceBook
from recommender.demand import Demand
from recommender.seating import NodeRoom

LOAD_MAX = 0.7
"""Most that a pod may be foretold to use of its new card, 0-1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehoming:
    """One workload on cheaper cards.

    Attributes:
        workload: who.
        source_model: model it leaves.
        target_model: model it comes to.
        targets: new card of each of its rows.
        slowdown: how much faster the old model is by its data sheet, at least 1 where the new one is slower.
        load_max: most it is foretold to use of a new card, 0-1.
        saved_per_card_hour: difference of the prices, in the book's currency.
    """

    workload: WorkloadId
    source_model: CardModelName
    target_model: CardModelName
    targets: Mapping[int, Card]
    slowdown: float
    load_max: float
    saved_per_card_hour: Decimal


def rehome(
    demand: Demand,
    candidates: Mapping[WorkloadId, Sequence[int]],
    free: Sequence[Card],
    *,
    book: PriceBook,
    headroom_ratio: float,
    room: NodeRoom,
    moves_max: int | None,
) -> tuple[Rehoming, ...]:
    """Who moves to which cheaper card; those that save most per hour choose first.

    Args:
        demand: live slices and their series.
        candidates: rows of each workload that may move; every pod holds one whole card.
        free: cards that nobody holds after the plan.
        book: prices; models without one are never compared.
        headroom_ratio: kept free above the largest need of framebuffer.
        room: CPU and host memory that the nodes have left; what is taken of it is booked.
        moves_max: most pods that may move, None for any number.
    """
    left: dict[CardModelName, list[Card]] = defaultdict(list)
    for card in sorted(free, key=lambda card: (card.node, card.card)):
        left[card.card_model].append(card)
    offers = sorted(
        (
            offer
            for name, rows in candidates.items()
            for model in left
            if (offer := _offer(demand, name, tuple(rows), model, left[model], book, headroom_ratio)) is not None
        ),
        key=lambda offer: (-offer.saved_per_card_hour * len(offer.rows), offer.workload, offer.target_model),
    )
    done: dict[WorkloadId, Rehoming] = {}
    moves = 0
    for offer in offers:
        if offer.workload in done or (moves_max is not None and moves + len(offer.rows) > moves_max):
            continue
        taken = _take(demand, offer.rows, left[offer.target_model], room)
        if taken is None:
            continue
        moves += len(offer.rows)
        left[offer.target_model] = [card for card in left[offer.target_model] if card not in taken]
        done[offer.workload] = Rehoming(
            workload=offer.workload,
            source_model=demand.grants[offer.rows[0]].card_model,
            target_model=offer.target_model,
            targets=dict(zip(offer.rows, taken, strict=True)),
            slowdown=offer.slowdown,
            load_max=offer.load_max,
            saved_per_card_hour=offer.saved_per_card_hour,
        )
    return tuple(done[name] for name in sorted(done))


def _take(demand: Demand, rows: Sequence[int], cards: Sequence[Card], room: NodeRoom) -> list[Card] | None:
    """A card for each row, on nodes with room for its pod; None, and nothing booked, where there are too few."""
    if len(cards) < len(rows):
        return None
    tried = room.copy()
    taken: list[Card] = []
    for row in rows:
        grant = demand.grants[row]
        found = next((card for card in cards if card not in taken and tried.admit(card.node, [grant])), None)
        if found is None:
            return None
        taken.append(found)
    room.book(tried)
    return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """A workload and a model that it fits on."""

    workload: WorkloadId
    rows: tuple[int, ...]
    target_model: CardModelName
    slowdown: float
    load_max: float
    saved_per_card_hour: Decimal


def _offer(
    demand: Demand,
    name: WorkloadId,
    rows: tuple[int, ...],
    target: CardModelName,
    cards: Sequence[Card],
    book: PriceBook,
    headroom_ratio: float,
) -> _Offer | None:
    source = demand.grants[rows[0]].card_model
    old, new = book.amortised_per_hour(source), book.amortised_per_hour(target)
    slowdown = slowdown_of(find_model(source), find_model(target))
    if source == target or old is None or new is None or new >= old or slowdown is None:
        return None
    compute = demand.compute[list(rows)]
    need = demand.need_bytes[list(rows)]
    if not np.isfinite(compute).any() or not np.isfinite(need).any():
        return None
    load = float(np.nanmax(compute)) * slowdown
    held = float(np.nanmax(need)) * (1.0 + headroom_ratio)
    if load > LOAD_MAX or held > min(card.framebuffer_bytes for card in cards):
        return None
    return _Offer(
        workload=name, rows=rows, target_model=target, slowdown=slowdown, load_max=load, saved_per_card_hour=old - new
    )


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
        source.half_tflops / target.half_tflops,
        source.bandwidth_bytes_per_second / target.bandwidth_bytes_per_second,
    )
