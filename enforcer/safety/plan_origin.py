"""Says no to a plan for when it was made, and from what. Called by the guard."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from enforcer.record.plan_status import unrelieved_harm
from fleet.decisions import Plan
from fleet.errors import Refused
from fleet.sentences import sentence
from fleet.units import format_percent, format_time


def check_made(
    plan: Plan, now: datetime, *, coverage_ratio_min: float, history_age_max: timedelta, relief_lock: Path | None
) -> None:
    """Refuse a plan that is too old, or knew too little.

    Args:
        history_age_max: how old its newest sample may be now.
        relief_lock: file that a running relief holds; None where plans need none.

    Raises:
        Refused: expired, made from too little or too old a history, or counting on relief that does not run.
    """
    if now >= plan.expires_at:
        ended = format_time(plan.expires_at)
        raise Refused(sentence("guard.expired", plan=plan.plan_id, ended=ended, now=format_time(now)))
    if plan.history.coverage_ratio < coverage_ratio_min:
        coverage, limit = f"{plan.history.coverage_ratio:.3f}", str(coverage_ratio_min)
        raise Refused(sentence("guard.coverage_low", plan=plan.plan_id, coverage=coverage, limit=limit))
    harm = None if relief_lock is None else unrelieved_harm(plan, relief_lock)
    if harm is not None:
        raise Refused(sentence("guard.relief_off", plan=plan.plan_id, harm=format_percent(harm, digits=1)))
    age = now - plan.history.until
    if age > history_age_max:
        seconds, limit = f"{age.total_seconds():.0f}", f"{history_age_max.total_seconds():.0f}"
        ended = format_time(plan.history.until)
        raise Refused(sentence("guard.history_old", plan=plan.plan_id, ended=ended, seconds=seconds, limit=limit))
