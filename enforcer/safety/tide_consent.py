"""What a person sees of a tide when approving it, and what of that counts; the guard asks before and during a night."""

from __future__ import annotations

from collections.abc import Iterable

from enforcer.record.plan_store import Approval
from fleet.decisions import Plan, RecommendationKind
from fleet.errors import Refused
from fleet.sentences import listed, sentence

_NAMED_MAX = 3


def check_staged(plan: Plan) -> None:
    """Refuse a schedule that is not what the stages of its plan show.

    Raises:
        Refused: a workload of it stands in no stage of the tide, or its windows differ: a night has one.
    """
    staged = {name for entry in plan.stages if entry.stage in plan.tide_stages for name in entry.recommendations}
    shown = {
        workload
        for entry in plan.recommendations
        if entry.id in staged and entry.kind is RecommendationKind.TIDE
        for workload in entry.workloads
    }
    loose = sorted({entry.workload for entry in plan.schedule} - shown)
    if loose or not shown:
        raise Refused(sentence("guard.tide_unstaged", plan=plan.plan_id, workloads=listed(loose, _NAMED_MAX)))
    windows = sorted({f"{entry.start}-{entry.end} {entry.time_zone}" for entry in plan.schedule})
    if len(windows) > 1:
        raise Refused(sentence("guard.tide_windows", plan=plan.plan_id, windows=listed(windows, _NAMED_MAX)))


def given_in_time(plan: Plan, approvals: Iterable[Approval]) -> list[Approval]:
    """Approvals of a plan before it expired: nobody can approve it later but who makes the object by hand."""
    return [entry for entry in approvals if entry.plan_id == plan.plan_id and entry.at < plan.expires_at]


def claimed_by_night(plan: Plan) -> int:
    """Cards that the schedule says are freed."""
    return len({card for entry in plan.schedule for card in entry.frees})
