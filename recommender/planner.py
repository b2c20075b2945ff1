"""From a history and its profiles to one consistent plan: rules, then packing, then seats, proposals and stages.

No recommendation contradicts another, because all are read off one placement; every pod that lives stands in that
placement exactly once, unless it is given back. Once every pod has its place, workloads move to cheaper cards that fit,
as far as the moves go, and the tide is planned: which workloads may scale in at quiet hours. Replicas that share a card
by then free none when they stop. Called by `gputide plan make` and by `backtest`; pure: the same arguments give the
same plan, byte for byte.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from analyzer.trust import without_compute
from fleet.capabilities.register import Capabilities
from fleet.decisions import (
    FrontierPoint,
    HistorySpan,
    Plan,
    Recommendation,
    RecommendationKind,
    Refusal,
    RiskLevel,
    Totals,
    Withheld,
)
from fleet.gpu_policy import FIELDS, PolicyDecision, deciders
from fleet.inventory import Grant, WorkloadId
from fleet.money.prices import PriceBook
from fleet.money.saving import cards_in, saved
from fleet.profiles import Profiles
from fleet.relief.rules import LOAD_BYTES_PER_SECOND
from fleet.settings.settings import Settings
from fleet.tiers import Tier
from fleet.usage import History
from recommender.advice.case import Permits
from recommender.bin_cards import NodeRoom, Seat
from recommender.consolidate import Group, violation_of_seats
from recommender.demand import Demand, demand_of
from recommender.limits_left import limits_left, with_limits_lifted
from recommender.mig.placement import mig_violation_ratio, with_mig_instances
from recommender.naive import NAIVE_RULES, SUM_OF_MAXIMA, naive_packing
from recommender.node_terms import node_terms
from recommender.past_outcomes import OwnPast
from recommender.permits import permits_of
from recommender.placement import Arrangement, moves_left, moves_of, placement_of
from recommender.preset_packings import Packing, PresetPackings
from recommender.problem import PlanningProblem, PlanScope, inputs_digest
from recommender.proposals import propose
from recommender.rehome import rehome
from recommender.sleep_seats import plan_sleep
from recommender.solution import Solution
from recommender.tide import Candidate, Tide, tide_of
from recommender.whole_nodes import gathered

_PLANNED_SECTIONS = ("cluster", "analyzer", "risk", "plan", "recommender", "prices")


def make_plan(
    history: History,
    profiles: Profiles,
    *,
    settings: Settings,
    capability: Capabilities,
    now: datetime,
    scope: PlanScope | None = None,
    past: OwnPast | None = None,
) -> Plan:
    """Makes the plan for one cluster.

    Args:
        history: inventory and usage; only what was known at `history.inventory.as_of`.
        profiles: the analyzer's answer on the same history.
        settings: settings; `risk.preset` is the harm that may be predicted.
        capability: what the backend enforces.
        now: moment of the plan, UTC.
        scope: which advice is asked for; all unless given.
        past: what earlier plans and measured pairs taught; None where there are none.

    Returns:
        The plan, with an empty `plan_id`: `fleet.documents.seal_plan` gives it one before it is kept.
    """
    level = settings.risk.preset
    return make_plans(
        history, profiles, settings=settings, capability=capability, now=now, scope=scope, past=past, levels=(level,)
    )[level]


def make_plans(
    history: History,
    profiles: Profiles,
    *,
    settings: Settings,
    capability: Capabilities,
    now: datetime,
    levels: Sequence[RiskLevel],
    scope: PlanScope | None = None,
    past: OwnPast | None = None,
    is_trial: bool = False,
) -> dict[RiskLevel, Plan]:
    """The plans that `make_plan` makes at several presets, packed once; arguments as there.

    Args:
        is_trial: makes what is judged of a plan alone: without the tide, other points of the frontier, what is proven
            of it, and the digest of what it was made from.
        levels: presets; `risk.preset` of the settings is the one that `risk.violation_ratio_max` is the limit of.
    """
    disbelieved = {f"{one.namespace}/{pod}" for one in profiles.workloads for pod in one.disbelieved_pods}
    history = without_compute(history, disbelieved)
    demand = demand_of(history)
    problem = PlanningProblem(
        history=history,
        profiles=profiles,
        demand=demand,
        terms=node_terms(history.inventory, demand.grants, capability),
        settings=settings,
        capability=capability,
        prices=PriceBook(settings, history.inventory.nodes).at(now),
        now=now,
        scope=scope or PlanScope(),
        past=past or OwnPast(),
    )
    permits = permits_of(problem)
    packings = PresetPackings(problem, permits)
    return {level: _plan(problem.at(level), permits, packings.of(level), is_trial=is_trial) for level in levels}


def _plan(problem: PlanningProblem, permits: Permits, packing: Packing, *, is_trial: bool) -> Plan:
    """The plan of one preset."""
    history, settings, capability, now = problem.history, problem.settings, problem.capability, problem.now
    demand = problem.demand
    arrangement = _on_other_cards(problem, permits, packing.arrangement)
    frontier = () if is_trial else _frontier(problem, packing, arrangement)
    asks_tide = problem.asks_for(RecommendationKind.TIDE) and not is_trial
    tide = plan_tide(problem, permits, arrangement) if asks_tide else None
    sleep = plan_sleep(problem, permits, arrangement)
    solution = Solution(problem=problem, permits=permits, arrangement=arrangement, tide=tide, sleeping=sleep.seats)
    recommendations, stages = propose(solution)
    stays = limits_left(demand, permits, arrangement, capability)
    limit = problem.violation_limits[settings.risk.preset]
    forecast = arrangement.violation_ratio + mig_violation_ratio(demand, arrangement)
    return Plan(
        plan_id="",
        created_at=now,
        expires_at=now + timedelta(seconds=settings.plan.expires_seconds),
        cluster=history.inventory.cluster,
        history=HistorySpan(
            since=history.slices.since, until=history.slices.until, coverage_ratio=problem.profiles.coverage_ratio
        ),
        inputs_sha256="" if is_trial else inputs_digest(history, settings, capability, problem.past),
        settings=_printed(settings),
        risk=settings.risk.preset,
        backend=capability.backend,
        currency=settings.prices.currency,
        totals=replace(
            _totals(solution, recommendations, forecast, _unrelieved(problem, packing, arrangement)),
            shift_ratio=None if is_trial else problem.shift_ratio,
            shifted_violation_ratio=None if is_trial else _shifted(problem, packing, arrangement),
        ),
        recommendations=recommendations,
        refused=_sorted(permits.refused + arrangement.refused + sleep.refused + stays),
        withheld=_withheld(problem, permits, frontier),
        placement=placement_of(demand, arrangement, history.inventory, capability),
        schedule=() if tide is None else tide.schedule,
        stages=stages,
        frontier=frontier,
        freed_nodes=solution.freed_nodes,
        calibration_ratio=problem.past.expected(forecast) / forecast if forecast > 0 else 1.0,
        backtested=problem.past.backtested(forecast, limit),
        policies=_policies(demand.grants),
    )


def _policies(grants: Sequence[Grant]) -> tuple[PolicyDecision, ...] | None:
    """What policies decided for the workloads of some grants; None for nothing."""
    found = {
        PolicyDecision(workload=grant.workload_id, field=FIELDS[label], value=grant.label(label) or "", policy=policy)
        for grant in grants
        for label, policy in deciders(dict(grant.labels)).items()
    }
    return tuple(sorted(found, key=lambda one: (one.workload, one.field, one.policy, one.value))) or None


def _unrelieved(problem: PlanningProblem, packing: Packing, arrangement: Arrangement) -> float | None:
    """What scenarios forecast should relief not run, 0-1; None where the plan counts on none."""
    if problem.past.relief_moves_max is None:
        return None
    groups = tuple(replace(group, contention_left=1.0) for group in packing.chosen.groups)
    return violation_of_seats(replace(packing.chosen, groups=groups), _seat_of(arrangement))


def _shifted(problem: PlanningProblem, packing: Packing, arrangement: Arrangement) -> float:
    """What scenarios forecast for days on which the whole fleet is so many times as busy, 0-1."""
    return violation_of_seats(packing.chosen, _seat_of(arrangement), times=problem.shift_ratio)


def _seat_of(arrangement: Arrangement) -> dict[int, int]:
    return {row: number for number, seat in enumerate(arrangement.seats) for row in seat.rows}


def _totals(
    solution: Solution, recommendations: Sequence[Recommendation], forecast: float, unrelieved: float | None
) -> Totals:
    """Sums of the plan; spare cards come off the freed ones, and nothing is saved by them.

    Args:
        forecast: violation by scenarios alone: by sharing, if any pod moves, and by instances that are too small, 0-1.
        unrelieved: the same without relief, where the plan counts on it.
    """
    past = solution.problem.past
    arrangement, cards = solution.arrangement, solution.problem.cards
    free = [card for item in recommendations for card in item.freed if not card.is_spare]
    taken = [card.replaced_by for card in free if card.replaced_by is not None]
    busy = {seat.node for seat in arrangement.seats} | {cards[card].node for card in solution.spare}
    return Totals(
        cards_before=len(arrangement.cards_before),
        cards_after=len(arrangement.seats),
        cards_freed=cards_in(free),
        spare_cards=len(solution.spare),
        surge_cards=len(arrangement.surge_cards),
        nodes_freed=len({grant.node for grant in solution.grants} - busy),
        framebuffer_bytes_freed=sum(cards[card.card].framebuffer_bytes for card in free)
        - sum(cards[card].framebuffer_bytes for card in taken),
        low_priority_gpu_hours_per_week=sum(
            (item.low_priority_gpu_hours_per_week for item in recommendations), start=0.0
        ),
        saving_per_week=saved(free),
        predicted_violation_ratio=past.expected(forecast),
        predicted_violation_interval=past.interval(forecast),
        unrelieved_violation_ratio=unrelieved,
        relief_moves_per_pod_day=past.moves_per_pod_day(forecast),
        moves=moves_of(solution.problem.demand, arrangement),
    )


def _on_other_cards(problem: PlanningProblem, permits: Permits, arrangement: Arrangement) -> Arrangement:
    """The arrangement with instances of cut cards, cheaper cards, what is freed gathered on nodes, no old limits."""
    if problem.asks_for(RecommendationKind.MIG):
        arrangement = with_mig_instances(problem, permits, arrangement)
    if problem.asks_for(RecommendationKind.REHOME):
        arrangement = with_cheaper_cards(problem, permits, arrangement)
        alone = _candidates(problem, permits, arrangement)
        arrangement = gathered(problem, problem.paid_nodes.keys(), arrangement, alone)
    return with_limits_lifted(problem, permits, arrangement)


def _frontier(problem: PlanningProblem, packing: Packing, arrangement: Arrangement) -> tuple[FrontierPoint, ...]:
    """The presets and the naive rules, judged on the same scenarios.

    Naive rules count contention alone, and leave services without a pod while they change cards.
    """
    demand, preset = problem.demand, problem.settings.risk.preset
    # Instances and cheaper cards are the same in every preset.
    beside = arrangement.cards_freed - packing.arrangement.cards_freed
    points = [
        FrontierPoint(
            label=str(level.value),
            cards_freed=seats.cards_freed + beside,
            violation_ratio=seats.violation_ratio,
            is_chosen=level is preset,
            cards_beyond_max=packing.beyond() if level is preset else None,
        )
        for level, seats in packing.presets.items()
    ]
    stayed = {row for seat in arrangement.seats for row in seat.rows}
    given_back = len({grant.card for row, grant in enumerate(demand.grants) if row not in stayed} & arrangement.freed)
    for rule in NAIVE_RULES:
        freed, bad, active = given_back, 0.0, packing.chosen.choice.resting_active
        for group in packing.chosen.groups:
            bin_of, _ = naive_packing(rule, demand, group.rows, group.problem.capacity_bytes)
            bins = int(bin_of.max(initial=-1)) + 1
            freed += _freed_of(demand, group, bins)
            harm = group.harm_of(bin_of, bins)
            bad += float(harm.violated.sum()) / group.points
            active += float(harm.active.sum()) / group.points
        points.append(FrontierPoint(label=rule, cards_freed=freed, violation_ratio=bad / active if active > 0 else 0.0))
    return tuple(replace(point, violation_ratio=problem.past.expected(point.violation_ratio)) for point in points)


def _freed_of(demand: Demand, group: Group, bins: int) -> int:
    """Cards that a group leaves; none where its pods share more closely today than they were packed: they stay."""
    return max(0, len({demand.grants[int(row)].card for row in group.rows}) - bins)


def _withheld(problem: PlanningProblem, permits: Permits, points: Sequence[FrontierPoint]) -> tuple[Withheld, ...]:
    limit = problem.violation_limits[problem.settings.risk.preset]
    peaks = next((point for point in points if point.label == SUM_OF_MAXIMA), None)
    own: tuple[Withheld, ...] = ()
    if peaks is not None and peaks.violation_ratio > limit:
        own = (
            Withheld(
                kind=RecommendationKind.OVERSUBSCRIBE,
                reason="peaks_break_preset",
                values=(("violation_ratio", round(peaks.violation_ratio, 6)), ("limit_ratio", limit)),
            ),
        )
    rate = _broken_rate(problem)
    if problem.asks_for(RecommendationKind.TIDE) and rate is not None:
        allowed = problem.settings.low_priority.evictions_per_hour_max
        values = (("evictions_per_hour", round(rate, 4)), ("limit_per_hour", allowed))
        own += (Withheld(kind=RecommendationKind.TIDE, reason="nights_cut_short", values=values),)
    found = {(item.kind, item.reason): item for item in (*problem.profiles.withheld, *permits.withheld, *own)}
    return tuple(found[key] for key in sorted(found))


def _broken_rate(problem: PlanningProblem) -> float | None:
    """How often nights so far ended early, where that is more than work of low priority is promised."""
    rate = problem.past.night_evictions_per_hour
    return rate if rate is not None and rate > problem.settings.low_priority.evictions_per_hour_max else None


def _sorted(refused: Sequence[Refusal]) -> tuple[Refusal, ...]:
    return tuple(sorted(refused, key=lambda item: (item.workload, item.kind or "", item.reason)))


def _printed(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Settings that shape a plan, as dotted names and JSON values."""
    pairs = [("enforcer.backend", json.dumps(settings.enforcer.backend))]
    pairs.append(("guard.gaps_allowed", json.dumps(settings.guard.gaps_allowed)))
    for section in _PLANNED_SECTIONS:
        values = json.loads(getattr(settings, section).model_dump_json())
        pairs += [(f"{section}.{name}", json.dumps(value, sort_keys=True)) for name, value in values.items()]
    return tuple(sorted(pairs))


def with_cheaper_cards(problem: PlanningProblem, permits: Permits, arrangement: Arrangement) -> Arrangement:
    """The arrangement with every workload that fits a cheaper free card on it, as far as the moves go."""
    demand, inventory = problem.demand, problem.inventory
    held = {seat.card for seat in arrangement.seats}
    free = [card for card in inventory.cards if card.card not in held]
    price = {
        name: found for name, card in problem.cards.items() if (found := problem.prices.of(card).amortised) is not None
    }
    done = rehome(
        demand,
        _candidates(problem, permits, arrangement),
        free,
        price_per_hour=price,
        headroom_ratio=problem.settings.recommender.framebuffer_headroom_ratio,
        room=NodeRoom(inventory, demand.grants),
        moves_max=moves_left(problem, arrangement),
    )
    if not done:
        return arrangement
    target = {row: card for item in done for row, card in item.targets.items()}
    seats = [seat for seat in arrangement.seats if not set(seat.rows) & set(target)]
    seats += [Seat(card=card.card, node=card.node, rows=(row,)) for row, card in target.items()]
    return replace(arrangement, seats=tuple(sorted(seats, key=lambda seat: seat.card)), rehomed=done)


def _candidates(
    problem: PlanningProblem, permits: Permits, arrangement: Arrangement
) -> dict[WorkloadId, Sequence[int]]:
    """Workloads whose every pod keeps its whole card, and keeps it alone."""
    crowd = Counter(seat.rows for seat in arrangement.seats)
    alone = {rows[0] for rows in crowd if len(rows) == 1}
    carved = {item.workload for item in arrangement.carved}
    stays = {seat.rows[0] for seat in arrangement.seats if problem.demand.grants[seat.rows[0]].card == seat.card}
    return {
        name: rows
        for name, rows in problem.rows_of.items()
        if RecommendationKind.REHOME in permits.kinds.get(name, ())
        and name not in arrangement.cuts
        and name not in carved
        and all(row in alone and row in stays for row in rows)
    }


def plan_tide(problem: PlanningProblem, permits: Permits, arrangement: Arrangement) -> Tide | None:
    """The tide of a cluster after a plan; None where no window frees a card, or its promise would not be kept."""
    if _broken_rate(problem) is not None:
        return None
    demand, history = problem.demand, problem.history
    return tide_of(
        demand,
        _tide_candidates(problem, permits, arrangement),
        since=history.slices.since,
        time_zone=history.inventory.time_zone,
        violation_ratio_max=problem.violation_limits[problem.settings.risk.preset],
        node_of={seat.card: seat.node for seat in arrangement.seats},
        window=problem.settings.recommender.tide_window,
    )


def _tide_candidates(problem: PlanningProblem, permits: Permits, arrangement: Arrangement) -> Sequence[Candidate]:
    stays_alone = {
        seat.rows[0]
        for seat in arrangement.seats
        if len(seat.rows) == 1 and problem.demand.grants[seat.rows[0]].card == seat.card
    }
    carved = {item.workload for item in arrangement.carved}
    # It is looked for; work on its cards gets the notice of the tier that nearly all work has; then weights are loaded.
    home_seconds = problem.settings.tide.interval_seconds + problem.settings.guarantees[Tier.BATCH].notice_seconds
    return [
        Candidate(
            workload=name,
            rows=tuple(problem.rows_of[name]),
            free_rows=tuple(row for row in problem.rows_of[name] if row in stays_alone),
            replicas_min=max(1, permits.cases[name].warm_replicas),
            autoscaler=permits.cases[name].autoscaler,
            absences=tuple(problem.past.absences.get(name, ())),
            home_seconds=home_seconds + _load_seconds(problem.demand, problem.rows_of[name]),
        )
        for name in sorted(permits.kinds)
        if RecommendationKind.TIDE in permits.kinds[name] and name not in carved
    ]


def _load_seconds(demand: Demand, rows: Sequence[int]) -> float:
    """How long a replica takes to load what it holds; what nobody measured counts as its whole card."""
    held = float(np.nan_to_num(demand.used_bytes[list(rows)]).max(initial=0.0)) or max(
        float(demand.grants[row].framebuffer_bytes) for row in rows
    )
    return held / LOAD_BYTES_PER_SECOND
