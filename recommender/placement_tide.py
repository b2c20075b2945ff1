"""Workloads that may scale in at quiet hours, once every pod has its place. Called by `planner`.

Replicas that share a card by then free none when they stop.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.decisions import RecommendationKind
from recommender.advice.case import Permits
from recommender.placement import Arrangement
from recommender.problem import PlanningProblem
from recommender.tide import Candidate, Tide, tide_of


def plan_tide(problem: PlanningProblem, permits: Permits, arrangement: Arrangement) -> Tide | None:
    """The tide of a cluster after a plan; None where no window frees a card."""
    demand, history = problem.demand, problem.history
    return tide_of(
        demand,
        _candidates(problem, permits, arrangement),
        since=history.slices.since,
        time_zone=history.inventory.time_zone,
        violation_ratio_max=problem.violation_limits[problem.settings.risk.preset],
        held_by={seat.card: len(seat.rows) for seat in arrangement.seats},
        node_of={seat.card: seat.node for seat in arrangement.seats},
    )


def _candidates(problem: PlanningProblem, permits: Permits, arrangement: Arrangement) -> Sequence[Candidate]:
    stays_alone = {
        seat.rows[0]
        for seat in arrangement.seats
        if len(seat.rows) == 1 and problem.demand.grants[seat.rows[0]].card == seat.card
    }
    carved = {item.workload for item in arrangement.carved}
    return [
        Candidate(
            workload=name,
            rows=tuple(problem.rows_of[name]),
            free_rows=tuple(row for row in problem.rows_of[name] if row in stays_alone),
            replicas_min=max(1, permits.cases[name].warm_replicas),
            autoscaler=permits.cases[name].autoscaler,
        )
        for name in sorted(permits.kinds)
        if RecommendationKind.TIDE in permits.kinds[name] and name not in carved
    ]
