"""Core limits that a plan set beside low priority, once low priority has left: lifted, or at least named.

Such limits let a gate hold low priority (`recommender.core_limits`); afterwards they only slow the pods above it.
Low priority comes and goes: a limit that went with it would restart the pods above it twice a day. Called by `planner`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta

import numpy as np

from fleet.capabilities.capability import SHARED_PERCENT_MAX, Capabilities
from fleet.decisions import RecommendationKind, Refusal
from fleet.inventory import CORE_LIMIT_LABEL, Grant, Priority, WorkloadId
from recommender.advice.case import Permits
from recommender.cuts import Cut
from recommender.demand import Demand
from recommender.placement import Arrangement, moves_left
from recommender.problem import PlanningProblem

LEFT = timedelta(days=7)
"""How long low priority must have been away from all cards of a service: work that comes again does so in a week."""


def with_limits_lifted(problem: PlanningProblem, permits: Permits, arrangement: Arrangement) -> Arrangement:
    """The arrangement in which services burst again that a plan limited beside low priority, once it has left them.

    Their pods are made anew where they are, as far as the moves go and no service misses one for it.
    """
    if not problem.asks_for(RecommendationKind.SLICE):
        return arrangement
    demand, cuts, left = problem.demand, dict(arrangement.cuts), moves_left(problem, arrangement)
    limited = _limited_alone(demand, arrangement, problem.capability)
    beside_low = _beside_low(problem, limited)
    for name in limited:
        case, rows = permits.cases[name], problem.rows_of[name]
        size_bytes = max(grant.framebuffer_granted_bytes for grant in case.grants)
        fits = all(2 * size_bytes <= grant.framebuffer_bytes for grant in case.grants)
        has_gap = not fits and not case.spares_one if case.can_surge else case.must_gap
        may = RecommendationKind.SLICE in permits.kinds.get(name, ()) and not case.is_hard
        if not may or name in beside_low or not all(_is_ours(grant) for grant in case.grants):
            continue
        if (has_gap and not problem.settings.guard.gaps_allowed) or (left is not None and case.pods > left):
            continue
        left = None if left is None else left - case.pods
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


def _is_ours(grant: Grant) -> bool:
    """Whether a plan set the limit that a pod has, and holds it to that: tenants and people give shares as well.

    What a tenant writes there lifts a limit of its own, on a card that it has for itself.
    """
    return grant.label(CORE_LIMIT_LABEL) == str(round(grant.compute_granted_ratio * 100))


def _beside_low(problem: PlanningProblem, names: Collection[WorkloadId]) -> Collection[WorkloadId]:
    """Those of some workloads that had low priority on a card of theirs within `LEFT`; all where that is not known."""
    inventory = problem.inventory
    since = inventory.as_of - LEFT
    if problem.history.slices.since > since:
        return names
    late = [grant for grant in inventory.grants if grant.ended_at is None or grant.ended_at > since] if names else ()
    cards = {grant.card for grant in late if grant.priority is Priority.LOW}
    return {grant.workload_id for grant in late if grant.card in cards}


def _limited_alone(demand: Demand, arrangement: Arrangement, capability: Capabilities) -> dict[WorkloadId, int]:
    """Workloads above low priority whose pods all have a core limit, and a card to themselves; percent, sorted."""
    if not capability.gates_priority_by_cores:
        return {}
    # One that comes to a card of its own, or to an instance, has all of it.
    alone = {seat.rows[0]: seat.card for seat in arrangement.seats if len(seat.rows) == 1}
    changed = arrangement.cuts.keys() | {item.workload for item in arrangement.carved}
    percents: dict[WorkloadId, list[int]] = {}
    for row, grant in enumerate(demand.grants):
        is_alone = alone.get(row) == grant.card and grant.workload_id not in changed
        is_left = is_alone and grant.priority is not Priority.LOW
        percent = round(grant.compute_granted_ratio * 100) if is_left and grant.mig_profile is None else 100
        percents.setdefault(grant.workload_id, []).append(percent)
    return {
        name: max(found)
        for name, found in sorted(percents.items())
        if all(1 <= percent <= SHARED_PERCENT_MAX for percent in found)
    }
