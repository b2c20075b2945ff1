"""Places of workloads that fit a cheaper card: the last step of an arrangement. Called by `planner`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from fleet.decisions import RecommendationKind
from fleet.inventory import Inventory, WorkloadId
from fleet.money.book import Prices
from recommender.demand import Demand
from recommender.permits import Permits
from recommender.placement import Arrangement, cards_of, rows_by_workload
from recommender.rehome import rehome
from recommender.seating import NodeRoom, Seat


def with_cheaper_cards(
    demand: Demand,
    inventory: Inventory,
    permits: Permits,
    arrangement: Arrangement,
    *,
    prices: Prices,
    headroom_ratio: float,
    moves_max: int | None,
) -> Arrangement:
    """The arrangement with workloads on the cheaper free cards that they fit.

    Args:
        demand: live slices and their series.
        inventory: cards, also those that nobody holds, and nodes.
        permits: which workloads may move.
        arrangement: the places without this step.
        prices: what cards cost now.
        headroom_ratio: kept free above the largest need of framebuffer.
        moves_max: most pods that this may move, None for any number.
    """
    held = {seat.card for seat in arrangement.seats}
    free = [card for card in inventory.cards if card.card not in held]
    cards = cards_of(demand, inventory)
    price = {name: found for name, card in cards.items() if (found := prices.of(card).amortised) is not None}
    done = rehome(
        demand,
        _candidates(demand, permits, arrangement),
        free,
        price_per_hour=price,
        headroom_ratio=headroom_ratio,
        room=NodeRoom(inventory, demand.grants),
        moves_max=moves_max,
    )
    if not done:
        return arrangement
    target = {row: card for item in done for row, card in item.targets.items()}
    seats = [seat for seat in arrangement.seats if not set(seat.rows) & set(target)]
    seats += [Seat(card=card.card, node=card.node, rows=(row,)) for row, card in target.items()]
    return replace(arrangement, seats=tuple(sorted(seats, key=lambda seat: seat.card)), rehomed=done)


def _candidates(demand: Demand, permits: Permits, arrangement: Arrangement) -> dict[WorkloadId, Sequence[int]]:
    """Workloads whose every pod keeps its whole card, and keeps it alone."""
    crowd = Counter(seat.rows for seat in arrangement.seats)
    alone = {rows[0] for rows in crowd if len(rows) == 1}
    carved = {item.workload for item in arrangement.carved}
    stays = {seat.rows[0] for seat in arrangement.seats if demand.grants[seat.rows[0]].card == seat.card}
    return {
        name: rows
        for name, rows in rows_by_workload(demand).items()
        if RecommendationKind.REHOME in permits.kinds.get(name, ())
        and name not in arrangement.cuts
        and name not in carved
        and all(row in alone and row in stays for row in rows)
    }
