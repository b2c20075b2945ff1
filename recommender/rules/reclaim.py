"""Reclaim: give back cards that a workload holds and does not use. Listed in `rules.RULES`."""

from __future__ import annotations

from fleet.decisions import RecommendationKind, Refusal
from fleet.inventory import Priority
from fleet.profiles import WorkloadState
from fleet.workload_kinds import SERVICE_KINDS
from recommender.rules.case import DAY_SECONDS, Case, untouchable, untrusted

SERVICE_IDLE_DAYS_MIN = 7
"""Days a service must have been silent: of those silent for one to seven days, more than half wake up again."""
_IDLE = frozenset({WorkloadState.IDLE, WorkloadState.IDLE_HELD})


class ReclaimRule:
    """Stop what is idle: notebooks and jobs after the idle time, services only after a silent week."""

    kind = RecommendationKind.RECLAIM

    def applies(self, case: Case) -> bool:
        """Workloads that the analyzer calls idle."""
        return case.profile is not None and case.profile.state in _IDLE

    def refusal(self, case: Case) -> Refusal | None:
        """Standby is idle by right; a service of high priority is sliced instead."""
        general = untouchable(case) or untrusted(case, self.kind)
        if general is not None:
            return general
        if case.is_latency_critical:
            return case.refuse(self.kind, "latency_critical", "labelled latency-critical: it may share, but stays up")
        if case.warm_replicas:
            return case.refuse(
                self.kind,
                "warm_standby",
                f"{case.warm_replicas} replicas are to stay warm: it may share, but stays up",
                replicas=case.warm_replicas,
            )
        return self._refuse_service(case)

    def _refuse_service(self, case: Case) -> Refusal | None:
        if case.workload_kind not in SERVICE_KINDS:
            return None
        if case.priority is Priority.HIGH:
            return case.refuse(
                self.kind, "high_priority_service", "an idle service of high priority may be a standby: it may share"
            )
        since = None if case.profile is None else case.profile.idle_since
        # Never active within the history: as long idle as it was seen.
        idle_seconds = case.seen_seconds if since is None else (case.now - since).total_seconds()
        if idle_seconds < SERVICE_IDLE_DAYS_MIN * DAY_SECONDS:
            return case.refuse(
                self.kind,
                "idle_too_short",
                f"idle for {idle_seconds / DAY_SECONDS:.1f} days; a service must be silent for "
                f"{SERVICE_IDLE_DAYS_MIN} days",
                idle_days=round(idle_seconds / DAY_SECONDS, 1),
                needed_days=SERVICE_IDLE_DAYS_MIN,
            )
        return self._refuse_doubtful(case)

    def _refuse_doubtful(self, case: Case) -> Refusal | None:
        """A service that is likely to be asked for again shares a card; stopped, its next request would fail."""
        confidence = 0.0 if case.profile is None else case.profile.confidence
        least = case.settings.recommender.reclaim_confidence_min
        if confidence >= least:
            return None
        return case.refuse(
            self.kind,
            "likely_to_wake",
            f"of services like it {confidence:.0%} stayed idle for the week after; "
            f"recommender.reclaim_confidence_min={least:g} wants more",
            confidence=round(confidence, 4),
            confidence_min=least,
        )
