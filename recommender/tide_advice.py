"""The tide told to people: who may step back after a plan, and one recommendation for each who does.

Called by `planner`, after everything else has its place: replicas that share a card by then free none by leaving.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.decisions import Recommendation, RecommendationKind
from fleet.money.book import Prices
from fleet.money.saving import saving_of
from fleet.profiles import Profiles
from fleet.sentences import Sentence, Value, sentence
from fleet.usage import History
from recommender.demand import Demand
from recommender.harm.risk import level_of
from recommender.permits import Permits
from recommender.placement import Arrangement, rows_by_workload
from recommender.proposals import confidence_of
from recommender.scene import evidence_of
from recommender.tide import Candidate, Ebb, Tide, tide_of


def plan_tide(
    demand: Demand, history: History, permits: Permits, arrangement: Arrangement, *, violation_ratio_max: float
) -> Tide | None:
    """The tide of a cluster after a plan; None where no window frees a card.

    Args:
        demand: live slices and their series.
        history: history they come from.
        permits: who may step back.
        arrangement: who sits where after the plan.
        violation_ratio_max: harm that a service may be foretold by stepping back, 0-1.
    """
    return tide_of(
        demand,
        _candidates(demand, permits, arrangement),
        since=history.slices.since,
        time_zone=history.inventory.time_zone,
        violation_ratio_max=violation_ratio_max,
        held_by={seat.card: len(seat.rows) for seat in arrangement.seats},
        node_of={seat.card: seat.node for seat in arrangement.seats},
    )


def tide_recommendations(
    tide: Tide, demand: Demand, history: History, profiles: Profiles, prices: Prices
) -> tuple[Recommendation, ...]:
    """One recommendation per workload that steps back; nothing is saved by it but hours for other work."""
    profile_of = {profile.workload: profile for profile in profiles.workloads}
    rows_of = rows_by_workload(demand)
    told = []
    for number, ebb in enumerate(tide.ebbs, start=1):
        evidence = evidence_of(rows_of[ebb.workload], demand, history, profile_of.get(ebb.workload), None)
        told.append(
            Recommendation(
                id=f"tide-{number:04d}",
                kind=RecommendationKind.TIDE,
                workloads=(ebb.workload,),
                pods=tuple(sorted({demand.grants[row].pod_id for row in ebb.rows})),
                cards_freed=0,
                saving_per_week=saving_of((), prices),
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
                told=(_told(tide, ebb),),
            )
        )
    return tuple(told)


def _candidates(demand: Demand, permits: Permits, arrangement: Arrangement) -> Sequence[Candidate]:
    stays_alone = {
        seat.rows[0]
        for seat in arrangement.seats
        if len(seat.rows) == 1 and demand.grants[seat.rows[0]].card == seat.card
    }
    rows_of = rows_by_workload(demand)
    carved = {item.workload for item in arrangement.carved}
    return [
        Candidate(
            workload=name,
            rows=tuple(rows_of[name]),
            free_rows=tuple(row for row in rows_of[name] if row in stays_alone),
            replicas_min=max(1, permits.cases[name].warm_replicas),
            autoscaler=permits.cases[name].autoscaler,
        )
        for name in sorted(permits.kinds)
        if RecommendationKind.TIDE in permits.kinds[name] and name not in carved
    ]


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
