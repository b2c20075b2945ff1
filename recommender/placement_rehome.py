"""Places of workloads that fit a cheaper card: the last step of an arrangement. Called by `planner`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from fleet.decisions import RecommendationKind
from fleet.inventory import WorkloadId
from recommender.advice.case import Permits
from recommender.placement import Arrangement, moves_left
from recommender.problem import PlanningProblem
from recommender.rehome import rehome
from recommender.seating import NodeRoom, Seat


def with_cheaper_cards(problem: PlanningProblem, permits: Permits, arrangement: Arrangement) -> Arrangement:
    """The arrangement with every workload that fits a cheaper free card on it, as far as the moves go."""
    demand, inventory = problem.demand, problem.inventory
    held = {seat.card for seat in arrangement.seats}
    free = [card for card in inventory.cards if card.card not in held]
    price = {
        name: found for name, card in problem.cards.items() if (found := problem.prices.of(card).amortised) is not None
    }
    done = rehome(
        demand,
        _candidates(problem, permits, arrangement),
        free,
        price_per_hour=price,
        headroom_ratio=problem.settings.recommender.framebuffer_headroom_ratio,
        room=NodeRoom(inventory, demand.grants),
        moves_max=moves_left(problem, arrangement),
    )
    if not done:
        return arrangement
    target = {row: card for item in done for row, card in item.targets.items()}
    seats = [seat for seat in arrangement.seats if not set(seat.rows) & set(target)]
    seats += [Seat(card=card.card, node=card.node, rows=(row,)) for row, card in target.items()]
    return replace(arrangement, seats=tuple(sorted(seats, key=lambda seat: seat.card)), rehomed=done)


def _candidates(
    problem: PlanningProblem, permits: Permits, arrangement: Arrangement
) -> dict[WorkloadId, Sequence[int]]:
    """Workloads whose every pod keeps its whole card, and keeps it alone."""
    crowd = Counter(seat.rows for seat in arrangement.seats)
    alone = {rows[0] for rows in crowd if len(rows) == 1}
    carved = {item.workload for item in arrangement.carved}
    stays = {seat.rows[0] for seat in arrangement.seats if problem.demand.grants[seat.rows[0]].card == seat.card}
    return {
        name: rows
        for name, rows in problem.rows_of.items()
        if RecommendationKind.REHOME in permits.kinds.get(name, ())
        and name not in arrangement.cuts
        and name not in carved
        and all(row in alone and row in stays for row in rows)
    }
