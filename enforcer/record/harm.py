"""Harm that the plans which stand did to each service, and the verdict that leads every page, report and message.

A plan that was undone harms nobody any more, and a service that several plans changed counts with one of them. Called
by the pages, the report, the messages, the series for Prometheus and `status`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from enforcer.record.savings import PlanRecord
from enforcer.record.verdict import Standing, Verdict, standing_in, standing_of, verdict_of
from fleet.inventory import WorkloadId
from fleet.outcomes import Outcome, WorkloadOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmBudget:
    """What a service may suffer, and what it suffered.

    Attributes:
        plan_id: newest plan that changed it and could judge it; the newest that changed it where none could.
        budget_ratio: violated share of active time that it may suffer, 0-1; None where no budget is kept.
        predicted_ratio: the same as predicted, 0-1.
        violation_ratio: the same as observed, 0-1; None where it is not judged.
    """

    workload: WorkloadId
    plan_id: str
    standing: Standing
    budget_ratio: float | None
    predicted_ratio: float
    violation_ratio: float | None
    cause: str | None

    @property
    def burn_ratio(self) -> float | None:
        """Share of the budget that is spent; over 1 is broken; None where it is not judged, kept or spent any more."""
        if self.violation_ratio is None or self.budget_ratio is None or self.standing is Standing.RESTORED:
            return None
        return self.violation_ratio / self.budget_ratio


def standing_outcomes(plans: Sequence[PlanRecord], outcomes: Sequence[Outcome]) -> Iterator[tuple[Outcome, Outcome]]:
    """Outcomes of plans that were not undone, each whole and with the services that count with it alone.

    A service counts with the newest of them that could judge it; one that none could judge with the newest that
    changed it.
    """
    not_undone = {one.plan.plan_id for one in plans if one.undone_at is None}
    standing = [outcome for outcome in outcomes if outcome.plan_id in not_undone]
    counts_with: dict[WorkloadId, str] = {}
    for may_be_unjudged in (False, True):
        for outcome in standing:
            for one in outcome.workloads:
                if may_be_unjudged or standing_of(one, outcome.harm_budget_ratio).is_judged:
                    counts_with.setdefault(one.workload, outcome.plan_id)
    for outcome in standing:
        kept = tuple(one for one in outcome.workloads if counts_with[one.workload] == outcome.plan_id)
        yield outcome, replace(outcome, workloads=kept)


def harm_budgets(plans: Sequence[PlanRecord], outcomes: Sequence[Outcome]) -> tuple[HarmBudget, ...]:
    """Harm of every service that a standing plan changed against its budget: over budget first, most spent first.

    A service that was restored comes last: it is over its budget no more.
    """
    of_plan = {one.plan.plan_id: one for one in plans}
    budgets = [
        _harm_budget(item, own, _undone_services(of_plan[own.plan_id], own))
        for _, own in standing_outcomes(plans, outcomes)
        for item in own.workloads
    ]
    places = {standing: place for place, standing in enumerate(Standing)}
    return tuple(sorted(budgets, key=lambda one: (places[one.standing], -(one.burn_ratio or 0.0), one.workload)))


def leading_verdict(
    plans: Sequence[PlanRecord], outcomes: Sequence[Outcome], *, part: Callable[[WorkloadId], bool] | None = None
) -> Verdict | None:
    """The verdict that leads a report or a page: of the whole standing plan with the most services still over budget.

    Args:
        plans: plans of one cluster, newest first.
        outcomes: newest outcome of each applied plan, newest first.
        part: judges only the services that it picks; None for all.

    Returns:
        Where no service is over its budget, the verdict on the newest standing plan of which what it counts on is
        gone, else on the newest; None where none was verified.
    """
    of_plan = {one.plan.plan_id: one for one in plans}
    judged = []
    for whole, own in standing_outcomes(plans, outcomes):
        restored = _undone_services(of_plan[own.plan_id], own)
        over = [one for one in verdict_of(own, part=part).over_budget if one.workload not in restored]
        judged.append((verdict_of(whole, part=part), len(over)))
    known = [(verdict, over) for verdict, over in judged if part is None or verdict.services_changed]
    return max(known, key=lambda one: (one[1], bool(one[0].broken)))[0] if known else None


def _undone_services(one: PlanRecord, outcome: Outcome) -> frozenset[WorkloadId]:
    """Services of stages and recommendations that were undone since the plan was measured."""
    stages = set(outcome.stages) - set(one.applied_stages)
    names = {name for stage in one.plan.stages if stage.stage in stages for name in stage.recommendations}
    undone = names | one.undone_recommendations
    taken_back = {name for item in one.plan.recommendations if item.id in undone for name in item.workloads}
    return frozenset(taken_back)


def _harm_budget(item: WorkloadOutcome, outcome: Outcome, restored: frozenset[WorkloadId]) -> HarmBudget:
    standing = Standing.RESTORED if item.workload in restored else standing_in(outcome, item)
    return HarmBudget(
        workload=item.workload,
        plan_id=outcome.plan_id,
        standing=standing,
        budget_ratio=outcome.harm_budget_ratio,
        predicted_ratio=item.predicted_violation_ratio,
        violation_ratio=item.violation_ratio if standing.is_judged else None,
        cause=item.cause,
    )
