"""Sleep: idle models give their card to others, with their weights in host memory, and wake on demand."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fleet.decisions import Recommendation, RecommendationKind, Refusal
from fleet.inventory import AUTOSCALED_LABEL
from fleet.money.saving import saved
from fleet.sentences import sentence
from fleet.sleeping import SLEEP_MODES
from fleet.workload_kinds import SERVICE_KINDS
from recommender.advice.case import Case, untouchable, untrusted
from recommender.harm.risk import level_of
from recommender.sleep_seats import SleepingSeat
from recommender.solution import Draft, Solution, confidence_of


class Sleep:
    """Services of one pod and one whole card, whose server can sleep; set up by hand, woken by `run router`."""

    kind = RecommendationKind.SLEEP
    shares = False
    spares_critical = True

    def applies(self, case: Case) -> bool:
        """Where somebody said how long requests may wait."""
        grant = case.grants[0]
        return (
            case.settings.recommender.sleep_wait_seconds is not None
            and grant.server in SLEEP_MODES
            and case.workload_kind in SERVICE_KINDS
            and len(case.grants) == 1
            and grant.mig_profile is None
        )

    def refusal(self, case: Case) -> Refusal | None:
        """Only where it is known how long it takes to wake, and how much framebuffer is needed then."""
        general = untouchable(case) or untrusted(case, self.kind)
        if general is not None:
            return general
        if case.is_latency_critical:
            return case.refuse(self.kind, "latency_critical")
        if case.isolation == "hard":
            return case.refuse(self.kind, "sleep_isolation")
        return case.refuse_barred(self.kind) or self._kept_awake(case) or self._unknown(case)

    def _kept_awake(self, case: Case) -> Refusal | None:
        """Whose replicas somebody counts or keeps warm: one pod is then not all that is asked, or must not rest."""
        if case.has_flag(AUTOSCALED_LABEL):
            return case.refuse(self.kind, "autoscaled")
        if case.warm_replicas:
            return case.refuse(self.kind, "warm_standby", replicas=case.warm_replicas)
        return None

    def _unknown(self, case: Case) -> Refusal | None:
        server = case.grants[0].server or ""
        if not SLEEP_MODES[server].is_timed:
            return case.refuse(self.kind, "wake_time_unknown", server=server)
        if not case.has_need or case.grants[0].kv_cache_pool_bytes is None:
            return case.refuse(self.kind, "preallocation_hides_need")
        if case.is_estimated:
            return case.refuse(self.kind, "pool_estimated")
        return None

    def propose(self, solution: Solution) -> Sequence[Draft]:
        """One recommendation per model, card by card, in no stage."""
        made = [
            _sleep(solution, number, seat, place)
            for number, (seat, place) in enumerate(
                ((seat, place) for seat in solution.sleeping for place in range(len(seat.models))), start=1
            )
        ]
        return [Draft(title=None, recommendations=made)] if made else []


def _sleep(solution: Solution, number: int, seat: SleepingSeat, place: int) -> Recommendation:
    model, nights = seat.models[place], seat.nights
    grant = solution.grants[model.row]
    name, mode = grant.workload_id, SLEEP_MODES[grant.server or ""]
    evidence, late = solution.evidence(name), float(nights.late_ratio[place])
    return Recommendation(
        id=f"sleep-{number:04d}",
        kind=RecommendationKind.SLEEP,
        workloads=(name,),
        pods=solution.pods([model.row]),
        cards_freed=0,
        saving_per_week=saved(()),
        risk_level=level_of(late, confidence_of(evidence)),
        confidence=confidence_of(evidence),
        evidence=evidence,
        violation_ratio=late,
        why=(
            sentence(
                "sleep",
                others=len(seat.models) - 1,
                card=seat.card.card,
                node=seat.card.node,
                limit_bytes=model.limit_bytes,
                wakes_per_day=round(float(nights.wakes_per_day[place]), 2),
                wait_seconds=round(float(nights.wait_seconds[place]), 2),
                late_ratio=round(late, 6),
                host_bytes=round(model.weights_bytes),
            ),
            sentence(
                "sleep_by_hand",
                needs=mode.needs,
                sleep=mode.sleep,
                wake=mode.wake,
                # A node has one factor, and with less than that some limit does not fit.
                scaling=max(
                    math.ceil(one.scaling * 100 - 1e-6) / 100
                    for one in solution.sleeping
                    if one.card.node == seat.card.node
                ),
                wait_seconds_max=round(model.wait_seconds_max, 2),
            ),
        ),
    )
