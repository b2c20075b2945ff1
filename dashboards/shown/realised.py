"""What came true: the funnel from found to realised, the saving of each week, and what the harm budget has left.

Everything is counted in whole freed cards. Called by the savings page and the weekly report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal

from dashboards.queries import PlanEntry
from enforcer.record.verdict import Standing, Verdict, standing_of, verdict_of
from fleet.decisions import Saving
from fleet.inventory import WorkloadId
from fleet.outcomes import Outcome, WorkloadOutcome

STEPS = ("found", "accepted", "applied", "verified", "realised")
_WEEK = timedelta(days=7)
_JUDGED = frozenset({Standing.OVER_BUDGET, Standing.WITHIN_BUDGET})


@dataclass(frozen=True, slots=True, kw_only=True)
class FunnelStep:
    """One step of the funnel.

    Attributes:
        name: a word of `STEPS`.
        cards: whole cards.
        amortised_per_week: their price; None where nothing is priced.
        plans: plans that count in it.
    """

    name: str
    cards: int
    amortised_per_week: Decimal | None
    plans: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekRealised:
    """What one week realised, over the measured spans that fall into it.

    Attributes:
        start: Monday 00:00 UTC.
        cards: freed cards on average over the week.
        amortised: money of the week; None where nothing is priced.
        marginal: cash of the week; None where unknown.
    """

    start: datetime
    cards: float
    amortised: Decimal | None
    marginal: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmBudget:
    """What a service may suffer, and what it suffered.

    Attributes:
        workload: service.
        plan_id: newest plan that changed it and could judge it; the newest that changed it where none could.
        standing: how it stands with its budget.
        budget_ratio: violated share of active time that it may suffer, 0-1; None where no budget is kept.
        predicted_ratio: the same as predicted, 0-1.
        violation_ratio: the same as observed, 0-1; None where it is not judged.
        cause: most frequent cause.
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
        """Share of the budget that is spent; over 1 is broken; None where it is not judged or no budget is kept."""
        if self.violation_ratio is None or self.budget_ratio is None:
            return None
        return self.violation_ratio / self.budget_ratio


def counted_plans(entries: Sequence[PlanEntry]) -> tuple[PlanEntry, ...]:
    """Plans that the funnel counts: the newest, and every older one that somebody approved; no card is found twice."""
    return tuple(entry for place, entry in enumerate(entries) if place == 0 or entry.approved_stages)


def funnel(entries: Sequence[PlanEntry], outcomes: Sequence[Outcome]) -> tuple[FunnelStep, ...]:
    """Found → accepted → applied → verified → realised.

    A plan that was undone counts as applied and verified, and realises nothing from then on.

    Args:
        entries: plans, newest first.
        outcomes: newest outcome of each applied plan.
    """
    counted = counted_plans(entries)
    measured = {outcome.plan_id: outcome for outcome in outcomes}
    steps: dict[str, list[tuple[str, int, Decimal | None]]] = {name: [] for name in STEPS}
    for entry in counted:
        plan = entry.plan
        steps["found"].append((plan.plan_id, plan.totals.cards_freed, plan.totals.saving_per_week.amortised))
        for name, stages in (("accepted", entry.approved_stages), ("applied", _once_applied(entry))):
            share = _share(entry, stages)
            if stages:
                steps[name].append((plan.plan_id, share[0], share[1]))
        outcome = measured.get(plan.plan_id)
        if outcome is None:
            continue
        if outcome.is_final:
            promised = outcome.promised_saving_per_week.amortised
            steps["verified"].append((plan.plan_id, outcome.promised_cards_freed, promised))
        if entry.undone_at is None:
            realised = outcome.realised_saving_per_week.amortised
            steps["realised"].append((plan.plan_id, outcome.realised_cards_freed, realised))
    return tuple(_step(name, steps[name]) for name in STEPS)


def realised_weeks(outcomes: Sequence[Outcome], *, now: datetime, weeks: int) -> tuple[WeekRealised, ...]:
    """Realised saving of the last weeks, oldest first; a span counts with the share of the week that it covers.

    Only measured spans count: nothing is carried forward beyond what `verify` saw.
    """
    this_week = week_start(now)
    starts = [this_week - _WEEK * (weeks - 1 - place) for place in range(weeks)]
    return tuple(_week(start, outcomes) for start in starts)


def week_start(moment: datetime) -> datetime:
    """Monday 00:00 UTC of a moment's week."""
    day = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day - timedelta(days=day.weekday())


def standing_outcomes(entries: Sequence[PlanEntry], outcomes: Sequence[Outcome]) -> Iterator[tuple[Outcome, Outcome]]:
    """Outcomes of plans that were not undone, each whole and with the services that count with it alone.

    A service counts with the newest of them that could judge it; one that none could judge with the newest that
    changed it.
    """
    not_undone = {entry.plan.plan_id for entry in entries if entry.undone_at is None}
    standing = [outcome for outcome in outcomes if outcome.plan_id in not_undone]
    counts_with: dict[WorkloadId, str] = {}
    for may_be_unjudged in (False, True):
        for outcome in standing:
            for one in outcome.workloads:
                if may_be_unjudged or standing_of(one, outcome.harm_budget_ratio) in _JUDGED:
                    counts_with.setdefault(one.workload, outcome.plan_id)
    for outcome in standing:
        kept = tuple(one for one in outcome.workloads if counts_with[one.workload] == outcome.plan_id)
        yield outcome, replace(outcome, workloads=kept)


def harm_budgets(entries: Sequence[PlanEntry], outcomes: Sequence[Outcome]) -> tuple[HarmBudget, ...]:
    """Harm of every service that a standing plan changed against its budget: over budget first, most spent first."""
    budgets = [_harm_budget(item, own) for _, own in standing_outcomes(entries, outcomes) for item in own.workloads]
    places = {standing: place for place, standing in enumerate(Standing)}
    return tuple(sorted(budgets, key=lambda one: (places[one.standing], -(one.burn_ratio or 0.0), one.workload)))


def leading_verdict(
    entries: Sequence[PlanEntry],
    outcomes: Sequence[Outcome],
    *,
    part: Callable[[WorkloadId], bool] | None = None,
) -> Verdict | None:
    """The verdict that leads a report or a page: of the whole standing plan with the most services still over budget.

    Args:
        entries: plans, newest first.
        outcomes: newest outcome of each applied plan, newest first.
        part: judges only the services that it picks; None for all.

    Returns:
        Where no service is over its budget, the verdict on the newest standing plan; None where none was verified.
    """
    judged = [
        (verdict_of(whole, part=part), len(verdict_of(own, part=part).over_budget))
        for whole, own in standing_outcomes(entries, outcomes)
    ]
    known = [(verdict, over) for verdict, over in judged if part is None or verdict.services_changed]
    return max(known, key=lambda one: one[1])[0] if known else None


def _harm_budget(item: WorkloadOutcome, outcome: Outcome) -> HarmBudget:
    standing = standing_of(item, outcome.harm_budget_ratio)
    return HarmBudget(
        workload=item.workload,
        plan_id=outcome.plan_id,
        standing=standing,
        budget_ratio=outcome.harm_budget_ratio,
        predicted_ratio=item.predicted_violation_ratio,
        violation_ratio=None if standing is Standing.TOO_FEW_WINDOWS else item.violation_ratio,
        cause=item.cause,
    )


def _once_applied(entry: PlanEntry) -> tuple[int, ...]:
    """Stages that stand in the cluster, or stood there until the plan was undone."""
    return entry.applied_stages or (entry.approved_stages if entry.undone_at is not None else ())


def _share(entry: PlanEntry, stages: Sequence[int]) -> tuple[int, Decimal | None]:
    """Cards and money of some stages of a plan; money of the recommendations that they hold."""
    chosen = [stage for stage in entry.plan.stages if stage.stage in set(stages)]
    if len(chosen) == len(entry.plan.stages):
        return entry.plan.totals.cards_freed, entry.plan.totals.saving_per_week.amortised
    names = {name for stage in chosen for name in stage.recommendations}
    money = [
        item.saving_per_week.amortised
        for item in entry.plan.recommendations
        if item.id in names and item.saving_per_week.amortised is not None
    ]
    return sum(stage.cards_freed for stage in chosen), sum(money, Decimal(0)) if money else None


def _step(name: str, parts: Sequence[tuple[str, int, Decimal | None]]) -> FunnelStep:
    money = [amount for _, _, amount in parts if amount is not None]
    return FunnelStep(
        name=name,
        cards=sum(cards for _, cards, _ in parts),
        amortised_per_week=sum(money, Decimal(0)) if money else None,
        plans=tuple(plan_id for plan_id, _, _ in parts),
    )


def _week(start: datetime, outcomes: Sequence[Outcome]) -> WeekRealised:
    shares = [(outcome, _overlap(outcome, start)) for outcome in outcomes]
    shares = [(outcome, share) for outcome, share in shares if share > 0]
    return WeekRealised(
        start=start,
        cards=float(sum(outcome.realised_cards_freed * share for outcome, share in shares)),
        amortised=_money(shares, "amortised"),
        marginal=_money(shares, "marginal"),
    )


def _overlap(outcome: Outcome, start: datetime) -> Decimal:
    seconds = (min(outcome.until, start + _WEEK) - max(outcome.since, start)).total_seconds()
    return Decimal(max(0, round(seconds))) / Decimal(_WEEK.total_seconds())


def _money(shares: Sequence[tuple[Outcome, Decimal]], basis: Literal["amortised", "marginal"]) -> Decimal | None:
    def of(saving: Saving) -> Decimal | None:
        return saving.amortised if basis == "amortised" else saving.marginal

    parts = [
        amount * share for outcome, share in shares if (amount := of(outcome.realised_saving_per_week)) is not None
    ]
    return sum(parts, Decimal(0)) if parts else None
