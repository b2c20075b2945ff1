"""Tide: replicas scale in during the hours in which fewer carry the load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fleet.decisions import Recommendation, RecommendationKind, Refusal
from fleet.inventory import AUTOSCALED_LABEL, Priority
from fleet.money.saving import saved
from fleet.sentences import Sentence, Value, sentence
from recommender.advice.case import DAY_SECONDS, Case, untouchable, untrusted
from recommender.harm.risk import level_of
from recommender.replica_counts import LOOK_BACK_DAYS
from recommender.scene import Draft, Scene, confidence_of
from recommender.tide import DAYS_MIN, Ebb, Tide

SCALED_KINDS = frozenset({"Deployment", "StatefulSet"})
"""Kinds of owners whose replicas can be counted up and down."""
SCALINGS_MIN = 4
"""Changes of the number of replicas in a week from which somebody else is taken to scale: up and down on two days."""


class TideAdvice:
    """Services of several replicas with whole cards, where nobody asked for all of them to stay up."""

    kind = RecommendationKind.TIDE
    headline = "Scale in at quiet hours:"
    meaning = (
        "In hours in which fewer replicas carry the load the others stop, come up again when the hours end, and "
        "other work has their cards meanwhile."
    )
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
            detail = f"pod {pod} holds {most} slices; only pods with one scale in"
            return case.refuse(self.kind, "multi_card", detail, pod=pod, slices=most)
        if any(grant.mig_profile for grant in case.grants):
            return case.refuse(self.kind, "mig", "a pod holds a MIG instance: its card is not freed")
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

    def propose(self, scene: Scene) -> Sequence[Draft]:
        """One recommendation per workload that scales in; the schedule carries them out, no stage."""
        tide = scene.tide
        if tide is None:
            return []
        made = [_ebb(scene, tide, number, ebb) for number, ebb in enumerate(tide.ebbs, start=1)]
        return [Draft(title="", recommendations=made)]


def _ebb(scene: Scene, tide: Tide, number: int, ebb: Ebb) -> Recommendation:
    evidence = scene.evidence(ebb.workload)
    return Recommendation(
        id=f"tide-{number:04d}",
        kind=RecommendationKind.TIDE,
        workloads=(ebb.workload,),
        pods=scene.pods(ebb.rows),
        cards_freed=0,
        saving_per_week=saved(()),
        risk_level=level_of(ebb.violation_ratio, confidence_of(evidence)),
        confidence=confidence_of(evidence),
        reason=_reason(tide, ebb),
        change_of_mind=(
            f"A day on which it needs more than {ebb.replicas} of its replicas in that window, an autoscaler "
            "that wants more, or gputide.io/min-replicas-warm."
        ),
        evidence=evidence,
        violation_ratio=ebb.violation_ratio,
        low_priority_gpu_hours_per_week=7.0 * tide.hours * len(ebb.frees),
        sentences=(_told(tide, ebb),),
    )


def _reason(tide: Tide, ebb: Ebb) -> str:
    until = (tide.start_hour + tide.hours) % 24
    carried = "1 carries" if ebb.replicas == 1 else f"{ebb.replicas} carry"
    freed = "1 card is" if len(ebb.frees) == 1 else f"{len(ebb.frees)} cards are"
    scaler = ebb.autoscaler
    if scaler is not None:
        return (
            f"From {tide.start_hour:02d}:00 to {until:02d}:00 ({tide.time_zone}) all its replicas together never "
            f"needed more than {ebb.load_max:.2f} cards: {carried} that. Its {scaler.kind.value} keeps at least "
            f"{scaler.replicas_min} replicas; with that bound lowered to {ebb.replicas} it scales in as far as "
            f"demand lets it, and {freed} free for other work for {tide.hours} hours a day."
        )
    return (
        f"From {tide.start_hour:02d}:00 to {until:02d}:00 ({tide.time_zone}) all its {ebb.replicas_all} replicas "
        f"together never needed more than {ebb.load_max:.2f} cards: {carried} that, and {freed} free for other work "
        f"for {tide.hours} hours a day."
    )


def _told(tide: Tide, ebb: Ebb) -> Sentence:
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
