"""From a history and its profiles to one consistent plan: rules, then packing, then seats, proposals and stages.

No recommendation contradicts another, because all are read off one placement; every pod that lives stands in that
placement exactly once, unless it is given back. Called by the front door and by `backtest`; pure: the same arguments
give the same plan, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from fleet.capabilities.register import Capabilities, Division
from fleet.decisions import FrontierPoint, HistorySpan, Plan, RecommendationKind, Refusal, RiskLevel, Withheld
from fleet.money.book import PriceBook, Prices
from fleet.profiles import Profiles
from fleet.settings.settings import Settings
from fleet.sharing import ACTIVE_RATIO_MIN
from fleet.usage import CardGrid, History, SliceGrid
from recommender.consolidate import Group, Point, choose
from recommender.demand import Demand, demand_of
from recommender.frontier_points import limits_of, points_of, proven_beyond, tiers_of
from recommender.harm.interference import Interference
from recommender.harm.pair_guard import pair_guard
from recommender.latency.guard import latency_guard
from recommender.mig.placement import mig_violation_ratio, with_mig_instances
from recommender.naive import NAIVE_RULES, SUM_OF_MAXIMA, naive_packing
from recommender.node_terms import NodeTerms, node_terms
from recommender.past_outcomes import OwnPast
from recommender.permits import Permits, permits_of
from recommender.placement import Arrangement, arrange, moves_of, placement_of, totals_of
from recommender.placement_nodes import NodePoint, choose_nodes, node_points
from recommender.placement_rehome import with_cheaper_cards
from recommender.proposals import propose
from recommender.replica_counts import scalings
from recommender.scene import scene_of
from recommender.tide_advice import plan_tide, tide_recommendations

_PLANNED_SECTIONS = ("cluster", "analyzer", "risk", "plan", "recommender", "prices")


def make_plan(
    history: History,
    profiles: Profiles,
    *,
    settings: Settings,
    capability: Capabilities,
    now: datetime,
    only: RecommendationKind | None = None,
    max_moves: int | None = None,
    namespace: str | None = None,
    interference: Interference | None = None,
    past: OwnPast | None = None,
) -> Plan:
    """Makes the plan for one cluster.

    Args:
        history: inventory and usage; only what was known at `history.inventory.as_of`.
        profiles: the analyzer's answer on the same history.
        settings: settings; `risk.preset` is the harm that may be predicted.
        capability: what the backend enforces.
        now: moment of the plan, UTC.
        only: propose this kind alone.
        max_moves: most pods that may be restarted; None takes `plan.moves_max`.
        namespace: propose for this namespace alone.
        interference: what measured pairs teach; None where there are none.
        past: what earlier plans taught and did; None where there are none.

    Returns:
        The plan, with an empty `plan_id`: whoever keeps it seals it (`fleet.documents.seal_plan`).
    """
    past = past or OwnPast()
    calibration_ratio = past.calibration_ratio
    demand = demand_of(history)
    terms = node_terms(history.inventory, demand.grants, capability)
    limit = settings.plan.moves_max if max_moves is None else max_moves
    permits = permits_of(
        demand, profiles, settings=settings, capability=capability,
        terms=terms, now=now, only=only, namespace=namespace, moves_max=limit,
        scalings=scalings(history.inventory.grants, now=now, since=history.slices.since, own=past.scalings),
    )  # fmt: skip
    preset = settings.risk.preset
    resting = _resting_active(demand, permits)
    limits = limits_of(settings.risk)
    chosen, schemes, arrangement, beyond = _packed(
        demand, history, permits, terms, interference, settings, capability, only, limit, calibration_ratio
    )
    prices = PriceBook(settings, history.inventory.nodes).at(now)
    arrangement = _on_other_cards(
        demand, history, permits, arrangement, prices, settings, capability, terms, only, limit
    )
    points_shown = _calibrated(
        _frontier(demand, {**schemes, preset: chosen}, preset, arrangement, resting, beyond=beyond),
        calibration_ratio,
    )
    recommendations, stages = propose(
        scene_of(demand, history, profiles, permits, arrangement, prices, admits_pods=capability.admits_pods)
    )
    tide = None
    if only in (None, RecommendationKind.TIDE):
        tide = plan_tide(demand, history, permits, arrangement, violation_ratio_max=limits[preset])
    if tide is not None:
        recommendations += tide_recommendations(tide, demand, history, profiles, prices)
    low_hours = sum((item.low_priority_gpu_hours_per_week for item in recommendations), start=0.0)
    violation = _violation_ratio(demand, chosen, arrangement, calibration_ratio)
    return Plan(
        plan_id="",
        created_at=now,
        expires_at=now + timedelta(seconds=settings.plan.expires_seconds),
        cluster=history.inventory.cluster,
        history=HistorySpan(
            since=history.slices.since, until=history.slices.until, coverage_ratio=profiles.coverage_ratio
        ),
        inputs_sha256=inputs_digest(history, settings, capability, interference, calibration_ratio),
        settings=_printed(settings),
        risk=preset,
        backend=capability.backend,
        currency=settings.prices.currency,
        totals=totals_of(demand, history.inventory, arrangement, settings, prices, violation, low_hours),
        recommendations=recommendations,
        refused=_sorted(permits.refused + arrangement.refused),
        withheld=_withheld(profiles, permits, points_shown, limits[preset]),
        placement=placement_of(demand, arrangement, history.inventory),
        schedule=() if tide is None else tide.schedule,
        stages=stages,
        frontier=points_shown,
        calibration_ratio=calibration_ratio,
    )


def _packed(
    demand: Demand,
    history: History,
    permits: Permits,
    terms: NodeTerms,
    interference: Interference | None,
    settings: Settings,
    capability: Capabilities,
    only: RecommendationKind | None,
    moves_max: int | None,
    calibration_ratio: float,
) -> tuple[Point, dict[RiskLevel, Point], Arrangement, int | None]:
    """The packing that is taken, that of every preset, its seats, and how many cards more any other could free."""
    resting = _resting_active(demand, permits)
    if capability.division in (Division.REPLICAS, Division.EQUAL_PARTS):
        chosen, schemes, arrangement = _on_shared_nodes(
            demand, history, permits, terms, interference, settings, capability, moves_max, resting, calibration_ratio
        )
        return chosen, schemes, arrangement, None
    points = points_of(demand, permits, settings, capability, resting, calibration_ratio)
    schemes = {
        level: choose(points, violation_ratio_max=most / calibration_ratio, resting_active=resting)
        for level, most in limits_of(settings.risk).items()
    }
    chosen, arrangement = _seated(demand, history, permits, schemes, interference, settings, capability, only)
    return chosen, schemes, arrangement, proven_beyond(points, chosen)


def _violation_ratio(demand: Demand, chosen: Point, arrangement: Arrangement, calibration_ratio: float) -> float:
    """Predicted violation of the whole plan: by sharing, where somebody moves, and by instances that are too small."""
    sharing = chosen.choice.violation_ratio if arrangement.moves else 0.0
    return min(1.0, (sharing + mig_violation_ratio(demand, arrangement)) * calibration_ratio)


def _seated(
    demand: Demand,
    history: History,
    permits: Permits,
    schemes: Mapping[RiskLevel, Point],
    interference: Interference | None,
    settings: Settings,
    capability: Capabilities,
    only: RecommendationKind | None,
) -> tuple[Point, Arrangement]:
    """The packing that is taken, and its seats."""
    preset, limits = settings.risk.preset, limits_of(settings.risk)
    pairs = pair_guard(demand, history, interference)
    guard = latency_guard(demand, permits, inflation_max=settings.risk.latency_inflation_max)
    # Where one kind alone is asked for, cards shared in another way fall apart, and a stricter limit may leave more.
    asked = [level for level in RiskLevel if level is preset or (only is not None and limits[level] < limits[preset])]
    arrangements = {
        level: arrange(
            demand,
            history.inventory,
            permits,
            schemes[level].groups,
            schemes[level].choice,
            guard=guard,
            pairs=pairs,
            only=_only_sharing(only),
            adds_up_cores=capability.adds_up_cores,
        )
        for level in asked
    }
    best = max(arrangements, key=lambda level: arrangements[level].cards_freed)
    return schemes[best], arrangements[best]


def _on_other_cards(
    demand: Demand,
    history: History,
    permits: Permits,
    arrangement: Arrangement,
    prices: Prices,
    settings: Settings,
    capability: Capabilities,
    terms: NodeTerms,
    only: RecommendationKind | None,
    moves_max: int | None,
) -> Arrangement:
    """The arrangement with instances of cards that are cut by MIG, then with cheaper cards."""
    if only in (None, RecommendationKind.MIG):
        arrangement = with_mig_instances(
            demand,
            history.inventory,
            permits,
            arrangement,
            capability=capability,
            settings=settings,
            terms=terms,
            moves_max=None if moves_max is None else max(0, moves_max - moves_of(demand, arrangement)),
        )
    if only in (None, RecommendationKind.REHOME):
        arrangement = with_cheaper_cards(
            demand,
            history.inventory,
            permits,
            arrangement,
            prices=prices,
            headroom_ratio=settings.recommender.framebuffer_headroom_ratio,
            moves_max=None if moves_max is None else max(0, moves_max - moves_of(demand, arrangement)),
        )
    return arrangement


def inputs_digest(
    history: History,
    settings: Settings,
    capability: Capabilities,
    interference: Interference | None = None,
    calibration_ratio: float = 1.0,
) -> str:
    """SHA-256 of everything a plan is made from: inventory, usage, settings, backend, measured pairs, earlier plans."""
    digest = hashlib.sha256()
    digest.update(repr(history.inventory).encode())
    _digest_grid(digest.update, history.slices)
    if history.cards is not None:
        _digest_grid(digest.update, history.cards)
    digest.update(settings.model_dump_json().encode())
    digest.update(repr(capability).encode())
    digest.update(b"" if interference is None else repr(interference).encode())
    digest.update(b"" if calibration_ratio == 1.0 else repr(calibration_ratio).encode())
    return digest.hexdigest()


def _digest_grid(update: Callable[[bytes], None], grid: SliceGrid | CardGrid) -> None:
    update(repr((grid.keys, grid.since, grid.step_seconds, grid.steps)).encode())
    for table in (grid.mean, grid.peak):
        for measure in sorted(table):
            update(measure.value.encode())
            update(np.ascontiguousarray(table[measure]).tobytes())


def _on_shared_nodes(
    demand: Demand,
    history: History,
    permits: Permits,
    terms: NodeTerms,
    interference: Interference | None,
    settings: Settings,
    capability: Capabilities,
    moves_max: int | None,
    resting: float,
    calibration_ratio: float,
) -> tuple[Point, dict[RiskLevel, Point], Arrangement]:
    """The packing that is taken, that of every preset, and seats, where all cards of a node are shared alike."""
    pairs = pair_guard(demand, history, interference)
    points = node_points(
        tuple(tiers_of(demand, permits, settings, capability)),
        demand,
        history.inventory,
        permits,
        capability=capability,
        terms=terms,
        pairs=pairs,
        resting_active=resting,
    )
    schemes = {
        level: choose_nodes(points, violation_ratio_max=most / calibration_ratio)
        for level, most in limits_of(settings.risk).items()
    }
    guard = latency_guard(demand, permits, inflation_max=settings.risk.latency_inflation_max)

    def seated(chosen: NodePoint) -> Arrangement:
        return arrange(
            demand,
            history.inventory,
            permits,
            chosen.point.groups,
            chosen.point.choice,
            guard=guard,
            pairs=pairs,
            seating=chosen.seating,
        )

    chosen = schemes[settings.risk.preset]
    arrangement = seated(chosen)
    if moves_max is not None and moves_of(demand, arrangement) > moves_max:
        # Whoever moves aside was not counted when moves were shared out; with too many, nobody shares.
        chosen = points[-1]
        arrangement = seated(chosen)
    return chosen.point, {level: item.point for level, item in schemes.items()}, arrangement


def _resting_active(demand: Demand, permits: Permits) -> float:
    """How many pods outside every group are active on average."""
    packed = {member.row for member in permits.members}
    rows = [row for row, grant in enumerate(demand.grants) if row not in packed and grant.priority.value != "low"]
    if not rows:
        return 0.0
    compute = demand.compute[rows]
    seen = np.isfinite(compute).sum(axis=1)
    return float(((compute > ACTIVE_RATIO_MIN).sum(axis=1) / np.maximum(1, seen)).sum())


def _only_sharing(only: RecommendationKind | None) -> RecommendationKind | None:
    return None if only is RecommendationKind.RECLAIM else only


def _frontier(
    demand: Demand,
    schemes: dict[RiskLevel, Point],
    preset: RiskLevel,
    arrangement: Arrangement,
    resting: float,
    *,
    beyond: int | None,
) -> tuple[FrontierPoint, ...]:
    """The presets and the naive rules, judged on the same scenarios (naive rules: contention alone)."""
    points = []
    stayed = {row for seat in arrangement.seats for row in seat.rows}
    given_back = len({grant.card for row, grant in enumerate(demand.grants) if row not in stayed} & arrangement.freed)
    for level, scheme in schemes.items():
        freed = given_back + sum(
            _freed_of(demand, group, len(np.unique(bin_of)))
            for group, bin_of in zip(scheme.groups, scheme.choice.bin_of, strict=True)
        )
        points.append(
            FrontierPoint(
                label=str(level.value),
                cards_freed=arrangement.cards_freed if level is preset else freed,
                violation_ratio=scheme.choice.violation_ratio,
                is_chosen=level is preset,
                cards_beyond_max=beyond if level is preset else None,
            )
        )
    scheme = schemes[preset]
    for rule in NAIVE_RULES:
        freed, bad, active = given_back, 0.0, resting
        for group in scheme.groups:
            bin_of, _ = naive_packing(rule, demand, group.rows, group.problem.capacity_bytes)
            bins = int(bin_of.max(initial=-1)) + 1
            freed += _freed_of(demand, group, bins)
            harm = group.harm_of(bin_of, bins)
            bad += float(harm.violated.sum()) / group.points
            active += float(harm.active.sum()) / group.points
        points.append(FrontierPoint(label=rule, cards_freed=freed, violation_ratio=bad / active if active > 0 else 0.0))
    return tuple(points)


def _freed_of(demand: Demand, group: Group, bins: int) -> int:
    """Cards that a group leaves; none where its pods share more closely today than they were packed: they stay."""
    return max(0, len({demand.grants[int(row)].card for row in group.rows}) - bins)


def _calibrated(points: Sequence[FrontierPoint], ratio: float) -> tuple[FrontierPoint, ...]:
    return tuple(replace(point, violation_ratio=min(1.0, point.violation_ratio * ratio)) for point in points)


def _withheld(
    profiles: Profiles, permits: Permits, points: Sequence[FrontierPoint], limit: float
) -> tuple[Withheld, ...]:
    peaks = next((point for point in points if point.label == SUM_OF_MAXIMA), None)
    own: tuple[Withheld, ...] = ()
    if peaks is not None and peaks.violation_ratio > limit:
        detail = (
            f"even if pods shared a card only where their peaks so far fit together, {peaks.violation_ratio:.2%} of "
            f"active time would be violated, more than the {limit:.2%} that were asked for: services here rise above "
            f"their peaks too often; what is advised stays within, and leaves more cards whole"
        )
        own = (
            Withheld(
                kind=RecommendationKind.OVERSUBSCRIBE,
                reason="peaks_break_preset",
                detail=detail,
                values=(("violation_ratio", round(peaks.violation_ratio, 6)), ("limit_ratio", limit)),
            ),
        )
    found = {(item.kind, item.reason): item for item in (*profiles.withheld, *permits.withheld, *own)}
    return tuple(found[key] for key in sorted(found))


def _sorted(refused: Sequence[Refusal]) -> tuple[Refusal, ...]:
    return tuple(sorted(refused, key=lambda item: (item.workload, item.kind or "", item.reason)))


def _printed(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Settings that shape a plan, as dotted names and JSON values."""
    pairs = [("enforcer.backend", json.dumps(settings.enforcer.backend))]
    for section in _PLANNED_SECTIONS:
        values = json.loads(getattr(settings, section).model_dump_json())
        pairs += [(f"{section}.{name}", json.dumps(value, sort_keys=True)) for name, value in values.items()]
    return tuple(sorted(pairs))
