"""What the ports answer, as JSON objects: base units, UTC in ISO 8601, absent is null."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from dashboards.queries import (
    Freshness,
    LedgerEntry,
    PlanEntry,
    RolloutProgress,
    UndoPreview,
    WorkloadHistory,
)
from dashboards.view_models.health import LagChain
from dashboards.view_models.quotas import QuotaUse
from enforcer.preview import ObjectDiff
from fleet.documents import document, iso
from fleet.money.budgets import BudgetStatus
from fleet.money.unit_costs import UnitCost
from fleet.money.week_hours import Measures, WeekHours
from fleet.sentences import Sentence


def freshness_answer(found: Freshness) -> dict[str, Any]:
    """Coverage and age."""
    return {
        "coverage_ratio": found.coverage_ratio,
        "newest_at": _moment(found.newest_at),
        "age_seconds": found.age_seconds,
        "interval_seconds": found.interval_seconds,
        "is_doubtful": found.is_doubtful,
    }


def history_answer(found: WorkloadHistory) -> dict[str, Any]:
    """One value per time in every list."""
    answer: dict[str, Any] = document(found)
    return answer


def summary_answer(entry: PlanEntry) -> dict[str, Any]:
    """A plan in a list."""
    plan = entry.plan
    return {
        "plan_id": plan.plan_id,
        "created_at": iso(plan.created_at),
        "expires_at": iso(plan.expires_at),
        "risk": plan.risk.value,
        "currency": plan.currency,
        "totals": document(plan.totals),
        "status": entry_answer(entry),
    }


def entry_answer(entry: PlanEntry) -> dict[str, Any]:
    """What people decided about a plan, and what became of it."""
    return {
        "approved_stages": list(entry.approved_stages),
        "approved_by": list(entry.approved_by),
        "approvals_missing": list(entry.approvals_missing),
        "applied_stages": list(entry.applied_stages),
        "applied_at": _moment(entry.applied_at),
        "undone_at": _moment(entry.undone_at),
        "apply_refusal": _english(entry.apply_refusal),
        "approve_refusal": _english(entry.approve_refusal),
        "undo_refusal": _english(entry.undo_refusal),
    }


def _english(said: Sentence | str | None) -> str | None:
    return None if said is None else str(said)


def object_answer(found: ObjectDiff) -> dict[str, Any]:
    """One object before and after."""
    return {
        "kind": found.kind,
        "namespace": found.namespace,
        "name": found.name,
        "recommendation": found.recommendation,
        "before": found.before,
        "after": found.after,
        "refusal": _english(found.refusal),
        "way": None if found.way is None else found.way.value,
    }


def progress_answer(found: RolloutProgress) -> dict[str, Any]:
    """Where a rollout stands."""
    return {
        "phase": found.phase.value,
        "is_running": found.is_running,
        "done": found.done,
        "total": found.total,
        "objects": [document(replace(item, detail=str(item.detail))) for item in found.objects],
        "watch_seconds_left": found.watch_seconds_left,
        "message": str(found.said or ""),
    }


def undo_answer(found: UndoPreview) -> dict[str, Any]:
    """What an undo would do."""
    return {**document(replace(found, keeps=())), "keeps": [str(one) for one in found.keeps]}


def ledger_answer(entry: LedgerEntry) -> dict[str, Any]:
    """One line of the ledger."""
    return {**document(replace(entry, detail="")), "detail": str(entry.detail)}


def lag_answer(found: LagChain) -> dict[str, Any]:
    """How far behind each step is, and which holds the rest up."""
    return {**document(found), "limit_seconds": found.limit_seconds, "cause": found.cause.value}


def quota_answer(found: QuotaUse) -> dict[str, Any]:
    """One quota, and what becomes of it; amounts in the resource's unit, use in cards."""
    return {**document(found), "left": found.left, "used_ratio": found.used_ratio, "is_underused": found.is_underused}


def budget_answer(found: BudgetStatus, currency: str) -> dict[str, Any]:
    """One budget of this month."""
    return {**document(found), "currency": currency}


def unit_cost_answer(found: UnitCost, currency: str) -> dict[str, Any]:
    """What a workload's requests or tokens cost over the last week."""
    per_million = None if found.per_million is None else str(found.per_million)
    return {**document(found), "per_million": per_million, "currency": currency}


def week_answer(week: WeekHours) -> dict[str, Any]:
    """Card hours by tenant and measure, with their cost."""
    return {
        "since": iso(week.since),
        "until": iso(week.until),
        "currency": week.currency,
        "tenants": {name: _measures(measures) for name, measures in week.tenants.items()},
        "rest": _measures(week.rest),
        "total": _measures(week.total),
    }


def _measures(measures: Measures) -> dict[str, Any]:
    return {
        measure.value: {
            "card_hours": round(hours.card_hours, 6),
            "cost": None if hours.cost is None else str(hours.cost),
        }
        for measure, hours in measures.items()
    }


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else iso(moment)
