"""What a person sees of a tide when approving it, and what of that counts; the guard asks before and during a night."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from enforcer.record.plan_store import Approval
from fleet.decisions import Plan, Recommendation, RecommendationKind, ScheduledReplicas
from fleet.errors import Refused
from fleet.inventory import WorkloadId
from fleet.sentences import listed, sentence
from fleet.units import format_time

_CLOCKS_DIFFER_MAX = timedelta(minutes=5)
"""How far ahead of the cluster's the clock may be by which a plan was made."""

_NAMED_MAX = 3


def check_staged(plan: Plan) -> None:
    """Refuse a schedule that is not what the stages of its plan show.

    Raises:
        Refused: a workload of it stands in no stage of the tide, or twice; hours, zone or replicas are others than
            those of its recommendation; or windows differ: a night has one.
    """
    tides = plan.tide_stages
    staged = {name for entry in plan.stages if entry.stage in tides for name in entry.recommendations}
    shown: dict[WorkloadId, list[Recommendation]] = defaultdict(list)
    for entry in plan.recommendations:
        if entry.id in staged and entry.kind is RecommendationKind.TIDE:
            for workload in entry.workloads:
                shown[workload].append(entry)
    loose = sorted({entry.workload for entry in plan.schedule} - shown.keys())
    if loose or not shown:
        raise Refused(sentence("guard.tide_unstaged", plan=plan.plan_id, workloads=listed(loose, _NAMED_MAX)))
    windows = sorted({f"{entry.start}-{entry.end} {entry.time_zone}" for entry in plan.schedule})
    if len(windows) > 1:
        raise Refused(sentence("guard.tide_windows", plan=plan.plan_id, windows=listed(windows, _NAMED_MAX)))
    times = Counter(entry.workload for entry in plan.schedule)
    other = sorted(
        {
            entry.workload
            for entry in plan.schedule
            if times[entry.workload] > 1 or not _is_as_shown(entry, shown[entry.workload])
        }
    )
    if other:
        raise Refused(sentence("guard.tide_differs", plan=plan.plan_id, workloads=listed(other, _NAMED_MAX)))


def _is_as_shown(entry: ScheduledReplicas, shown: Sequence[Recommendation]) -> bool:
    """Whether a service scales in as the one recommendation says that a person read."""
    played = {"start": entry.start, "end": entry.end, "time_zone": entry.time_zone, "replicas": str(entry.replicas)}
    said = [{name: str(value) for name, value in why.values} for one in shown for why in one.why]
    return len(said) == 1 and played.items() <= said[0].items()


def check_history(plan: Plan, coverage_ratio_min: float, age_max: timedelta) -> None:
    """Refuse a plan for what it was made from.

    Args:
        age_max: how old its newest sample may have been when it was made.

    Raises:
        Refused: from too little or too old a history.
    """
    history = plan.history
    if history.coverage_ratio < coverage_ratio_min:
        coverage, limit = f"{history.coverage_ratio:.3f}", str(coverage_ratio_min)
        raise Refused(sentence("guard.tide_coverage_low", plan=plan.plan_id, coverage=coverage, limit=limit))
    age = plan.created_at - history.until
    if age > age_max:
        seconds, limit = f"{age.total_seconds():.0f}", f"{age_max.total_seconds():.0f}"
        ended = format_time(history.until)
        raise Refused(sentence("guard.tide_history_old", plan=plan.plan_id, ended=ended, seconds=seconds, limit=limit))


def check_age(plan: Plan, now: datetime, age_max: timedelta) -> None:
    """Refuse a plan for when it was made.

    Raises:
        Refused: too long ago, or in the future.
    """
    age = now - plan.created_at
    if age < -_CLOCKS_DIFFER_MAX:
        made = format_time(plan.created_at)
        raise Refused(sentence("guard.tide_of_future", plan=plan.plan_id, made=made, now=format_time(now)))
    if age > age_max:
        raise Refused(sentence("guard.tide_expired", plan=plan.plan_id, days=str(age.days), limit=str(age_max.days)))


def given_in_time(plan: Plan, approvals: Iterable[Approval]) -> list[Approval]:
    """Approvals of a plan before it expired: nobody can approve it later but who makes the object by hand."""
    return [entry for entry in approvals if entry.plan_id == plan.plan_id and entry.at < plan.expires_at]


def claimed_by_night(plan: Plan) -> int:
    """Cards that the schedule says are freed."""
    return len({card for entry in plan.schedule for card in entry.frees})
