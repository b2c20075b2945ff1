"""Tide: replicas step back in the hours in which fewer carry the load. Listed in `rules.RULES`."""

from __future__ import annotations

from collections import Counter

from fleet.decisions import RecommendationKind, Refusal
from fleet.inventory import AUTOSCALED_LABEL, Priority
from recommender.advice.case import DAY_SECONDS, Case, untouchable, untrusted
from recommender.replica_counts import LOOK_BACK_DAYS
from recommender.tide import DAYS_MIN

SCALED_KINDS = frozenset({"Deployment", "StatefulSet"})
"""Kinds of owners whose replicas can be counted up and down."""
SCALINGS_MIN = 4
"""Changes of the number of replicas in a week from which somebody else is taken to scale: up and down on two days."""


class TideRule:
    """Services of several replicas with whole cards, where nobody asked for all of them to stay up."""

    kind = RecommendationKind.TIDE

    def applies(self, case: Case) -> bool:
        """Services of two replicas and more; work of low priority is what the tide makes room for."""
        return (
            case.workload_kind in SCALED_KINDS
            and len({grant.pod_id for grant in case.grants}) > 1
            and case.priority is not Priority.LOW
        )

    def refusal(self, case: Case) -> Refusal | None:
        """A habit needs days, and who must answer at once keeps its replicas."""
        general = untouchable(case) or untrusted(case, self.kind)
        if general is not None:
            return general
        if case.is_latency_critical:
            return case.refuse(self.kind, "latency_critical", "labelled latency-critical: all its replicas stay up")
        return self._scaled_already(case) or self._stays(case)

    def _scaled_already(self, case: Case) -> Refusal | None:
        """Never against whoever counts the replicas already: of an autoscaler that is known the bound is lowered."""
        autoscaler = case.autoscaler
        if autoscaler is not None:
            least = max(1, case.warm_replicas)
            if autoscaler.replicas_min > least:
                return None
            return case.refuse(
                self.kind,
                "autoscaled",
                f"its {autoscaler.kind.value} scales it between {autoscaler.replicas_min} and "
                f"{autoscaler.replicas_max} replicas: no bound is left to lower",
                scaler=autoscaler.kind.value,
            )
        if case.has_flag(AUTOSCALED_LABEL):
            return case.refuse(self.kind, "autoscaled", f"a pod carries {AUTOSCALED_LABEL}: its autoscaler decides")
        if case.scalings >= SCALINGS_MIN:
            return case.refuse(
                self.kind,
                "autoscaled",
                f"its replicas were counted up or down {case.scalings} times in the last {LOOK_BACK_DAYS} days: an "
                "autoscaler or a person does so already",
                scalings=case.scalings,
                days=LOOK_BACK_DAYS,
            )
        return None

    def _stays(self, case: Case) -> Refusal | None:
        """Whose cards would not fall free, who is to stay warm, and who was not seen for long enough."""
        pod, most = Counter(grant.pod for grant in case.grants).most_common(1)[0]
        if most > 1:
            detail = f"pod {pod} holds {most} slices; only pods with one step back"
            return case.refuse(self.kind, "multi_card", detail, pod=pod, slices=most)
        if any(grant.mig_profile for grant in case.grants):
            return case.refuse(self.kind, "mig", "a pod holds a MIG instance: its card does not fall free")
        replicas = len({grant.pod_id for grant in case.grants})
        if case.warm_replicas >= replicas:
            return case.refuse(
                self.kind,
                "warm_replicas",
                f"{case.warm_replicas} replicas are to stay warm, and it has {replicas}",
                replicas=case.warm_replicas,
            )
        if case.seen_seconds < DAYS_MIN * DAY_SECONDS:
            return case.refuse(
                self.kind,
                "history_too_short",
                f"seen for {case.seen_seconds / DAY_SECONDS:.1f} days; hours of a day need {DAYS_MIN}",
                seen_days=round(case.seen_seconds / DAY_SECONDS, 1),
                needed_days=DAYS_MIN,
            )
        return None
