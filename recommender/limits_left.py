"""Core limits that a plan set beside low priority, once low priority has left: lifted, or at least named.

Such limits let a gate hold low priority (`recommender.core_limits`); afterwards they only slow the pods above it.
Called by `planner`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fleet.capabilities.capability import SHARED_PERCENT_MAX, Capabilities
from fleet.decisions import RecommendationKind, Refusal
from fleet.inventory import PLAN_LABEL, Priority, WorkloadId
from recommender.advice.case import Permits
from recommender.cuts import Cut
from recommender.demand import Demand
from recommender.placement import Arrangement, moves_left
from recommender.problem import PlanningProblem


def with_limits_lifted(problem: PlanningProblem, permits: Permits, arrangement: Arrangement) -> Arrangement:
    """The arrangement in which services burst again that a plan limited beside low priority, once it has left them.

    Their pods are made anew where they are, as far as the moves go and no service misses one for it.
    """
    if not problem.asks_for(RecommendationKind.SLICE):
        return arrangement
    demand, cuts, left = problem.demand, dict(arrangement.cuts), moves_left(problem, arrangement)
    for name in _limited_alone(demand, arrangement, problem.capability):
        case, rows = permits.cases[name], problem.rows_of[name]
        size_bytes = max(grant.framebuffer_granted_bytes for grant in case.grants)
        fits = all(2 * size_bytes <= grant.framebuffer_bytes for grant in case.grants)
        has_gap = not fits and not case.spares_one if case.can_surge else case.must_gap
        may = RecommendationKind.SLICE in permits.kinds.get(name, ()) and not case.is_hard
        is_ours = all(grant.label(PLAN_LABEL) for grant in case.grants)
        if not (may and is_ours) or (has_gap and not problem.settings.guard.gaps_allowed):
            continue
        if left is not None and (left := left - case.pods) < 0:
            break
        cuts[name] = Cut(
            framebuffer_bytes=size_bytes,
            compute_ratio=None,
            shown_bytes=int(np.nanmax(demand.need_bytes[rows])),
            is_hard=False,
        )
    return replace(arrangement, cuts=cuts)


def limits_left(
    demand: Demand, permits: Permits, arrangement: Arrangement, capability: Capabilities
) -> tuple[Refusal, ...]:
    """Workloads that keep a core limit although they have their cards to themselves, which the plan does not lift."""
    return tuple(
        permits.cases[name].refuse(RecommendationKind.SLICE, "limit_stays", percent=percent)
        for name, percent in _limited_alone(demand, arrangement, capability).items()
    )


def _limited_alone(demand: Demand, arrangement: Arrangement, capability: Capabilities) -> dict[WorkloadId, int]:
    """Workloads above low priority whose pods all have a core limit, and a card to themselves; percent, sorted."""
    if not capability.gates_priority_by_cores:
        return {}
    alone = {seat.rows[0] for seat in arrangement.seats if len(seat.rows) == 1}
    percents: dict[WorkloadId, list[int]] = {}
    for row, grant in enumerate(demand.grants):
        is_left = row in alone and grant.priority is not Priority.LOW and grant.workload_id not in arrangement.cuts
        percent = round(grant.compute_granted_ratio * 100) if is_left and grant.mig_profile is None else 100
        percents.setdefault(grant.workload_id, []).append(percent)
    return {
        name: max(found)
        for name, found in sorted(percents.items())
        if all(1 <= percent <= SHARED_PERCENT_MAX for percent in found)
    }
