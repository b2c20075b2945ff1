"""What came true: the funnel from found to realised, the saving of each week, and what the harm budget has left.

Everything is counted in whole freed cards. Called by the savings page and the weekly report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal

from dashboards.queries import PlanEntry
from fleet.decisions import RiskLevel, Saving
from fleet.inventory import WorkloadId
from fleet.outcomes import Outcome
from fleet.settings import RiskSettings

STEPS = ("found", "accepted", "applied", "verified", "realised")
_WEEK = timedelta(days=7)


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
    """What a service was promised at worst, and what it got.

    Attributes:
        workload: service.
        plan_id: plan that touched it last.
        budget_ratio: harm preset of that plan, 0-1.
        predicted_ratio: foretold, 0-1.
        violation_ratio: measured, 0-1; None where nothing was collected.
        cause: most frequent cause.
    """

    workload: WorkloadId
    plan_id: str
    budget_ratio: float
    predicted_ratio: float
    violation_ratio: float | None
    cause: str | None

    @property
    def burn_ratio(self) -> float | None:
        """Share of the budget that is spent; over 1 is broken; None where nothing was collected."""
        return None if self.violation_ratio is None else self.violation_ratio / self.budget_ratio


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


def harm_budgets(entries: Sequence[PlanEntry], outcomes: Sequence[Outcome]) -> tuple[HarmBudget, ...]:
    """Harm per changed service against its newest plan's preset, the most burnt budget first."""
    risks = {entry.plan.plan_id: entry.plan.risk for entry in entries}
    budgets: dict[WorkloadId, HarmBudget] = {}
    for outcome in outcomes:
        risk = risks.get(outcome.plan_id)
        if risk is None:
            continue
        for item in outcome.workloads:
            budgets.setdefault(
                item.workload,
                HarmBudget(
                    workload=item.workload,
                    plan_id=outcome.plan_id,
                    budget_ratio=violation_ratio_max(risk),
                    predicted_ratio=item.predicted_violation_ratio,
                    violation_ratio=item.violation_ratio,
                    cause=item.cause,
                ),
            )
    return tuple(sorted(budgets.values(), key=lambda budget: (-(budget.burn_ratio or 0.0), budget.workload)))


def violation_ratio_max(risk: RiskLevel) -> float:
    """The violation that a preset accepts, 0-1."""
    return RiskSettings(preset=risk).violation_ratio_limit


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
