"""Tide: replicas scale in during the hours in which fewer carry the load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fleet.decisions import Recommendation, RecommendationKind, Refusal
from fleet.inventory import AUTOSCALED_LABEL, Priority
from fleet.money.saving import saved
from fleet.sentences import Sentence, Value, sentence
from recommender.advice.case import Case, untouchable, untrusted
from recommender.harm.risk import level_of
from recommender.replica_counts import LOOK_BACK_DAYS
from recommender.solution import Draft, Solution, confidence_of
from recommender.tide import DAYS_MIN, Ebb, Tide

SCALED_KINDS = frozenset({"Deployment", "StatefulSet"})
"""Kinds of owners whose replicas can be counted up and down."""
SCALINGS_MIN = 4
"""Changes of the number of replicas in a week from which somebody else is taken to scale: up and down on two days."""


class TideAdvice:
    """Services of several replicas with whole cards, where nobody asked for all of them to stay up."""

    kind = RecommendationKind.TIDE
    shares = False
    spares_critical = True

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
            return case.refuse(self.kind, "latency_critical")
        return self._scaled_already(case) or self._stays(case)

    def _scaled_already(self, case: Case) -> Refusal | None:
        """Never against what counts the replicas already: of an autoscaler that is known the bound is lowered."""
        autoscaler = case.autoscaler
        if autoscaler is not None:
            least = max(1, case.warm_replicas)
            if autoscaler.replicas_min > least:
                return None
            return case.refuse(
                self.kind,
                "autoscaled",
                scaler=autoscaler.kind.value,
                replicas_min=autoscaler.replicas_min,
                replicas_max=autoscaler.replicas_max,
            )
        if case.has_flag(AUTOSCALED_LABEL):
            return case.refuse(self.kind, "autoscaled")
        if case.scalings >= SCALINGS_MIN:
            return case.refuse(self.kind, "autoscaled", scalings=case.scalings, days=LOOK_BACK_DAYS)
        return None

    def _stays(self, case: Case) -> Refusal | None:
        """Whose cards would not be freed, who is to stay warm, and who was not seen for long enough."""
        pod, most = Counter(grant.pod for grant in case.grants).most_common(1)[0]
        if most > 1:
            return case.refuse(self.kind, "multi_card", pod=pod, slices=most)
        if any(grant.mig_profile for grant in case.grants):
            return case.refuse(self.kind, "mig")
        replicas = len({grant.pod_id for grant in case.grants})
        if case.warm_replicas >= replicas:
            return case.refuse(self.kind, "warm_replicas", replicas=case.warm_replicas)
        return case.refuse_short(self.kind, DAYS_MIN)

    def propose(self, solution: Solution) -> Sequence[Draft]:
        """One recommendation per workload that scales in, in a stage that `gputide run tide` plays once approved."""
        tide = solution.tide
        if tide is None:
            return []
        made = [_ebb(solution, tide, number, ebb) for number, ebb in enumerate(tide.ebbs, start=1)]
        return [Draft(title=sentence("tide"), recommendations=made)] if made else []


def _ebb(solution: Solution, tide: Tide, number: int, ebb: Ebb) -> Recommendation:
    evidence = solution.evidence(ebb.workload)
    return Recommendation(
        id=f"tide-{number:04d}",
        kind=RecommendationKind.TIDE,
        workloads=(ebb.workload,),
        pods=solution.pods(ebb.rows),
        cards_freed=0,
        saving_per_week=saved(()),
        risk_level=level_of(ebb.violation_ratio, confidence_of(evidence)),
        confidence=confidence_of(evidence),
        evidence=evidence,
        violation_ratio=ebb.violation_ratio,
        low_priority_gpu_hours_per_week=7.0 * tide.hours * len(ebb.frees),
        why=(_why(tide, ebb),),
    )


def _why(tide: Tide, ebb: Ebb) -> Sentence:
    scaler = ebb.autoscaler
    more: dict[str, Value] = {}
    if scaler is not None:
        more = {"scaler": scaler.kind.value, "replicas_min": scaler.replicas_min}
    return sentence(
        "tide" if scaler is None else "tide_scaler",
        start=f"{tide.start_hour:02d}:00",
        end=f"{(tide.start_hour + tide.hours) % 24:02d}:00",
        time_zone=tide.time_zone,
        replicas_all=ebb.replicas_all,
        replicas=ebb.replicas,
        load_max_cards=round(float(ebb.load_max), 2),
        cards=len(ebb.frees),
        hours=tide.hours,
        **more,
    )
