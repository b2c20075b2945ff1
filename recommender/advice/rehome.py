"""Re-home: a workload moves to a free card of a cheaper model on which it still fits. Listed in `rules.RULES`."""

from __future__ import annotations

from collections import Counter

from fleet.decisions import RecommendationKind, Refusal
from fleet.workload_kinds import JOB_KINDS
from recommender.advice.case import Case, untouchable, untrusted


class RehomeRule:
    """Workloads on whole cards of one model; whether there is a cheaper card that fits is told by `rehome`."""

    kind = RecommendationKind.REHOME

    def applies(self, case: Case) -> bool:
        """One card a pod, whole, and not work that would be lost by a restart."""
        cards = Counter(grant.pod_id for grant in case.grants)
        return (
            case.workload_kind not in JOB_KINDS
            and max(cards.values()) == 1
            and len({grant.card_model for grant in case.grants}) == 1
            and not any(grant.mig_profile for grant in case.grants)
        )

    def refusal(self, case: Case) -> Refusal | None:
        """What another card does to a service is told by data sheets only; who must answer fast is left where it is."""
        general = untouchable(case) or untrusted(case, self.kind)
        if general is not None:
            return general
        if case.is_latency_critical:
            return case.refuse(self.kind, "latency_critical", "labelled latency-critical: it keeps its card model")
        if not case.has_need:
            return case.refuse(
                self.kind,
                "preallocation_hides_need",
                "its server takes its framebuffer at start and reports no KV-cache usage, so what it needs is unknown",
            )
        if case.video_ratio_max > case.settings.analyzer.idle_ratio_max:
            return case.refuse(
                self.kind,
                "video_engines",
                f"its video engines work up to {case.video_ratio_max:.0%}; not every model has them",
                video_ratio=round(case.video_ratio_max, 4),
            )
        return None
