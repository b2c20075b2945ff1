"""Reclaim: give back cards that a workload holds and does not use."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.decisions import Recommendation, RecommendationKind, Refusal
from fleet.inventory import Priority, WorkloadId
from fleet.money.saving import cards_in, saved
from fleet.profiles import Profile, WorkloadState
from fleet.sentences import sentence
from fleet.settings.guard import WEEKDAYS
from fleet.workload_kinds import SERVICE_KINDS
from recommender.advice.case import DAY_SECONDS, Case, untouchable, untrusted
from recommender.harm.risk import level_of
from recommender.solution import Draft, Solution

_IDLE = frozenset({WorkloadState.IDLE, WorkloadState.IDLE_HELD})


class Reclaim:
    """Stop what is idle: after silence on every day of the week on which it worked before, and likely to stay so."""

    kind = RecommendationKind.RECLAIM
    shares = False
    spares_critical = True

    def applies(self, case: Case) -> bool:
        """Workloads that the analyzer calls idle."""
        return case.profile is not None and case.profile.state in _IDLE

    def refusal(self, case: Case) -> Refusal | None:
        """Standby is idle by right; a service of high priority is sliced instead."""
        general = untouchable(case) or untrusted(case, self.kind)
        if general is not None or case.profile is None:
            return general
        if case.is_latency_critical:
            return case.refuse(self.kind, "latency_critical")
        if case.warm_replicas:
            return case.refuse(self.kind, "warm_standby", replicas=case.warm_replicas)
        if case.workload_kind in SERVICE_KINDS and case.priority is Priority.HIGH:
            return case.refuse(self.kind, "high_priority_service")
        return self._refuse_short(case, case.profile) or self._refuse_doubtful(case, case.profile)

    def _refuse_short(self, case: Case, profile: Profile) -> Refusal | None:
        """A weekend is no sign: a workload that worked on a Monday must have been silent on the next one.

        One that was never seen to work must have been silent on all days of the week.
        """
        days = profile.active_weekdays or range(len(WEEKDAYS))
        missing = ", ".join(WEEKDAYS[day].capitalize() for day in days if day not in profile.silent_weekdays)
        if not missing:
            return None
        idle_days = case.seen_seconds / DAY_SECONDS
        if profile.active_weekdays and profile.idle_since is not None:
            idle_days = (case.now - profile.idle_since).total_seconds() / DAY_SECONDS
        return case.refuse(self.kind, "idle_too_short", idle_days=round(idle_days, 1), weekdays=missing)

    def _refuse_doubtful(self, case: Case, profile: Profile) -> Refusal | None:
        """A workload that is likely to be used again shares a card; stopped, its next user would find nothing."""
        least = case.settings.recommender.reclaim_confidence_min
        if profile.confidence >= least:
            return None
        return case.refuse(self.kind, "likely_to_wake", confidence=round(profile.confidence, 4), confidence_min=least)

    def propose(self, solution: Solution) -> Sequence[Draft]:
        """One stage that scales idle workloads to zero."""
        made = [_reclaim(solution, number, name) for number, name in enumerate(solution.permits.reclaimed, start=1)]
        return [Draft(title=sentence("reclaim"), recommendations=made)] if made else []


def _reclaim(solution: Solution, number: int, name: WorkloadId) -> Recommendation:
    rows = solution.problem.rows_of[name]
    freed = solution.freed({solution.grants[row].card for row in rows} & solution.arrangement.freed)
    profile = solution.problem.profile_of[name]
    return Recommendation(
        id=f"reclaim-{number:04d}",
        kind=RecommendationKind.RECLAIM,
        workloads=(name,),
        pods=solution.pods(rows),
        cards_freed=cards_in(freed),
        saving_per_week=saved(freed),
        freed=freed,
        risk_level=level_of(0.0, profile.confidence),
        confidence=profile.confidence,
        evidence=solution.evidence(name),
        why=(*profile.why, sentence("reclaim", cards=cards_in(freed))),
    )
