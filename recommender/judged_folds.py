"""The days after a cut, and how plans and naive rules fared on them.

A fold cuts a history: plans are made from what was known at the cut, and the following days are played with
`fleet.sharing`. As in `verify`, a window is judged where compute of the pod and of all that share its card is known and
believed. Called by `backtest`; pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from analyzer.profile import profile_fleet
from analyzer.survey import as_believed
from fleet.capabilities.register import Capabilities, CorePolicy
from fleet.decisions import Plan, RiskLevel, Totals
from fleet.inventory import Priority
from fleet.lending import Residency, paging_bytes_per_second
from fleet.priority_holds import contending
from fleet.relief.rules import ReliefRules
from fleet.settings.settings import Settings
from fleet.sharing import ACTIVE_RATIO_MIN, Seats, fare, sum_by_card
from fleet.usage import CardGrid, Float32, History
from recommender.demand import Demand, demand_of, touched
from recommender.past_outcomes import OwnPast
from recommender.planner import make_plans
from recommender.simulate.play import play
from recommender.simulate.stage import JUDGED_KINDS, Stage, cut_history, opening_of_plan, seats_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestScore:
    """How one rule did in one fold.

    Attributes:
        fold: number, from 1.
        rule: preset or naive rule.
        since: first judged moment.
        until: end of the judged days.
        cards_after: cards after the rule.
        saved_ratio: 1 - after / before.
        violation_ratio: violated active steps / active steps, realised; None where none could be judged.
        contention_ratio: of them contended, likewise.
        framebuffer_ratio: of them short of framebuffer or on a full card, likewise.
        predicted_violation_ratio: what the plan said before, None for naive rules.
        predicted_violation_interval: between which it said that nine of ten such plans stay; None for naive rules, and
            where the days before held no trial.
        shifted_violation_ratio: what it said of days on which the whole fleet gets as busy as companies' launches make
            it; None for naive rules and trials.
        lost_work_ratio: demand that did not fit / demand, as far as it is known.
        moves: moves that relief made; 0 where the plan counts on none.
        spare_cards: cards of `cards_after` that relief used beyond the plan's at its peak.
        active_steps: active pod-steps that were judged: what the ratios of violation are shares of.
        unjudged_pods: pods of which over half of the steps could not be judged: compute counters of the pod, or of
            another that the rule puts on its card, are missing or fail a check.
    """

    fold: int
    rule: str
    since: datetime
    until: datetime
    cards_before: int
    cards_after: int
    saved_ratio: float
    violation_ratio: float | None
    contention_ratio: float | None
    framebuffer_ratio: float | None
    predicted_violation_ratio: float | None
    predicted_violation_interval: tuple[float, float] | None
    shifted_violation_ratio: float | None
    lost_work_ratio: float
    active_steps: int
    unjudged_pods: int
    moves: int = 0
    spare_cards: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """The judged days: what pods really did, and on which cards they began.

    Attributes:
        past: what was known at the cut.
        lived: steps in which each pod had the grant that it had at the cut, (rows, steps).
        touches: steps in which pods did anything at all, where that matters, (rows, steps).
        measured_bytes_per_second: how fast lent framebuffer moves, as a probe measured it; None where none did.
    """

    number: int
    past: Demand
    coming: Demand
    lived: NDArray[np.bool_]
    judged: NDArray[np.int64]
    whole: NDArray[np.float64]
    since: datetime
    until: datetime
    touches: NDArray[np.bool_]
    measured_bytes_per_second: float | None


Rule = Callable[[Demand, Demand, NDArray[np.int64], float], tuple[NDArray[np.int32], NDArray[np.float64]]]
"""Packs rows of one card model: demand known at the cut, demand to come (for hindsight alone), the rows, framebuffer of
a card, bytes; returns bin of each row, (n,), and framebuffer granted to each, bytes, (n,)."""


def part_until(history: History, start: int, stop: int) -> History:
    """What was known at the end of step `stop`, from step `start` on."""
    moment = history.slices.since + timedelta(seconds=history.slices.step_seconds * stop)
    cards: CardGrid | None = None
    if history.cards is not None:
        step = history.slices.step_seconds / history.cards.step_seconds
        cards = history.cards.between(round(start * step), round(stop * step))
    slices = history.slices.between(start, stop)
    return History(inventory=history.inventory.known_at(moment), slices=slices, cards=cards)


def _relieved(
    score: BacktestScore, stage: Stage, plan: Plan, relief: ReliefRules, capability: Capabilities
) -> BacktestScore:
    """What relief left of the harm, and what it took."""
    if score.violation_ratio is None:
        return score
    opening = opening_of_plan(stage, plan, measured_bytes_per_second=capability.spill_bytes_per_second)
    played = play(stage, opening, relief)
    active = max(1.0, float(played.active_steps.sum()))
    return replace(
        score,
        cards_before=played.cards_before,
        cards_after=played.cards_peak,
        saved_ratio=played.saved_ratio,
        violation_ratio=played.violation_ratio,
        contention_ratio=float(played.contended_steps.sum()) / active,
        framebuffer_ratio=float(played.framebuffer_steps.sum()) / active,
        lost_work_ratio=max(0.0, 1.0 - played.served / played.asked) if played.asked > 0 else 0.0,
        moves=played.moves,
        spare_cards=max(0, played.cards_peak - played.cards_opening),
    )


def fold_of(
    known: History, history: History, cut: int, end: int, *, number: int, settings: Settings, capability: Capabilities
) -> Fold:
    """The days from step `cut` to step `end` of a history, and what is judged of them.

    Args:
        known: what was known at the cut.
        history: holds the judged days as well.
        number: of the fold, from 1.
    """
    now = known.inventory.as_of
    future = part_until(history, cut, end)
    past, shown = demand_of(known), demand_of(replace(future, inventory=known.inventory))
    lived = _lived(shown, history, now)
    is_measured = np.isfinite(past.compute).any(axis=1) | np.isfinite(shown.compute).any(axis=1)
    is_kept = np.array([grant.workload_kind in JUDGED_KINDS for grant in shown.grants], bool)
    believed = replace(as_believed(future, settings.analyzer), inventory=known.inventory)
    coming = _as_lived(demand_of(believed), lived)
    return Fold(
        number=number,
        past=past,
        coming=coming,
        lived=lived,
        judged=np.flatnonzero(is_kept & is_measured & lived.any(axis=1)),
        whole=np.array([grant.framebuffer_bytes for grant in coming.grants], float),
        since=now,
        until=future.slices.until,
        touches=touched(believed) if capability.can_lend else np.zeros(coming.compute.shape, bool),
        measured_bytes_per_second=capability.spill_bytes_per_second,
    )


def judged_presets(
    fold: Fold,
    known: History,
    history: History,
    settings: Settings,
    capability: Capabilities,
    past: OwnPast,
    relief: ReliefRules | None,
    *,
    is_trial: bool,
) -> list[BacktestScore]:
    """What the plan of each preset did, made at the cut, with relief where plans count on it.

    Args:
        history: holds the judged days as well.
    """
    now = known.inventory.as_of
    profiles = profile_fleet(known, settings=settings.analyzer, now=now)
    plans = make_plans(
        known,
        profiles,
        settings=settings,
        capability=capability,
        now=now,
        past=past,
        levels=tuple(RiskLevel),
        is_trial=is_trial,
    )
    scores = [
        _score(fold, preset.value, *seats_of(plan, fold.coming), _promises(plan, fold.coming), totals=plan.totals)
        for preset, plan in plans.items()
    ]
    if relief is None:
        return scores
    stage = cut_history(as_believed(history, settings.analyzer), cut=fold.since, until=fold.until)
    return [
        _relieved(score, stage, plan, relief, capability) for score, plan in zip(scores, plans.values(), strict=True)
    ]


def judged_rules(fold: Fold, rules: Mapping[str, Rule]) -> list[BacktestScore]:
    """How other rules fared with the same pods, by name."""
    everything = np.full(len(fold.coming.grants), np.inf)
    nothing = _Promises(is_low=_is_low(fold.coming), most=np.ones(len(fold.coming.grants)))
    return [_score(fold, name, *_ruled(rule, fold), everything, nothing, totals=None) for name, rule in rules.items()]


def _lived(coming: Demand, history: History, now: datetime) -> NDArray[np.bool_]:
    """Steps in which the pods of the cut had the grants that they had then: remade ones are other pods."""
    ends = {
        (grant.pod_id, grant.container, grant.card, grant.started_at): grant.ended_at
        for grant in history.inventory.grants
    }
    lived = np.ones(coming.compute.shape, bool)
    for row, grant in enumerate(coming.grants):
        end = ends.get((grant.pod_id, grant.container, grant.card, grant.started_at))
        if end is not None:
            # A step that the end falls into was not lived through.
            lived[row, max(0, int((end - now).total_seconds() // coming.step_seconds)) :] = False
    return lived


def _as_lived(coming: Demand, lived: NDArray[np.bool_]) -> Demand:
    return replace(
        coming,
        compute=np.where(lived, coming.compute, np.float32(np.nan)),
        used_bytes=np.where(lived, coming.used_bytes, np.float32(np.nan)),
        need_bytes=np.where(lived, coming.need_bytes, np.float32(np.nan)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promises:
    """Who gives way, and who is limited beside low priority so that it does.

    Attributes:
        is_low: row of low priority that others' demand comes before, (rows,).
        most: limit of each row's compute, share of a card, (rows,); 1 for none.
    """

    is_low: NDArray[np.bool_]
    most: NDArray[np.float64]


def _promises(plan: Plan, coming: Demand) -> _Promises:
    equals = contending(plan)
    is_equal = np.array([grant.workload_id in equals for grant in coming.grants], bool)
    limited = {
        part.workload: part.compute_ratio
        for card in plan.placement
        if len({part.priority is Priority.LOW for part in card.slices}) == 2
        for part in card.slices
        if part.core_policy is CorePolicy.HARD and part.compute_ratio is not None
    }
    most = np.array([limited.get(grant.workload_id, 1.0) for grant in coming.grants], float)
    return _Promises(is_low=_is_low(coming) & ~is_equal, most=most)


def _is_low(coming: Demand) -> NDArray[np.bool_]:
    return np.array([grant.priority is Priority.LOW for grant in coming.grants], bool)


def _ruled(rule: Rule, fold: Fold) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    past, judged, whole = fold.past, fold.judged, fold.whole
    where = np.arange(len(past.grants), dtype=np.int64)
    granted = whole.copy()
    by_model: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in judged:
        grant = past.grants[int(row)]
        by_model[grant.card_model, grant.framebuffer_bytes].append(int(row))
    offset = len(where)
    for model in sorted(by_model):
        rows = np.array(by_model[model], np.int64)
        bin_of, sizes = rule(past, fold.coming, rows, float(whole[rows[0]]))
        where[rows] = offset + bin_of
        granted[rows] = sizes
        offset += int(bin_of.max()) + 1
    return where, granted


def _score(
    fold: Fold,
    rule: str,
    where: NDArray[np.int64],
    granted: NDArray[np.float64],
    kept_bytes: NDArray[np.float64],
    promises: _Promises,
    *,
    totals: Totals | None,
) -> BacktestScore:
    coming, judged = fold.coming, fold.judged
    numbers, card = np.unique(where[judged], return_inverse=True)
    card = card.reshape(-1).astype(np.int64)
    capacity = np.zeros(len(numbers))
    np.maximum.at(capacity, card, fold.whole[judged])
    is_low, most = promises.is_low[judged], promises.most[judged]
    seats = Seats(
        card=card,
        framebuffer_granted_bytes=granted[judged],
        compute_granted_ratio=most,
        is_hard=most < 1.0,
        is_low=is_low,
        kept_bytes=kept_bytes[judged],
        capacity_bytes=capacity,
    )
    demand = coming.compute[judged]
    played = fare(demand, coming.need_bytes[judged], seats)
    lived = fold.lived[judged]
    is_unknown = lived & np.isnan(demand)
    unknown = (is_unknown & ~is_low[:, None]).astype(np.float32)
    is_judged = lived & ~is_unknown & ~(sum_by_card(unknown, card, len(numbers)) > 0)[card]
    counted = played.active & ~is_low[:, None] & is_judged
    active = int(counted.sum())
    waits = float((_waits(fold, seats) * (counted & ~played.violated)).sum())

    def share(hit: NDArray[np.bool_], waited: float) -> float | None:
        if not active and is_unknown.any():
            return None
        return (int((hit & counted).sum()) + waited) / max(1, active)

    asked = float(np.nan_to_num(demand[~is_low]).sum())
    served = float(np.nan_to_num(played.served_ratio[~is_low]).sum())
    return BacktestScore(
        fold=fold.number,
        rule=rule,
        since=fold.since,
        until=fold.until,
        cards_before=len(judged),
        cards_after=len(numbers),
        saved_ratio=1.0 - len(numbers) / max(1, len(judged)),
        violation_ratio=share(played.violated, waits),
        contention_ratio=share(played.contention, 0.0),
        framebuffer_ratio=share(played.short | played.full, waits),
        predicted_violation_ratio=None if totals is None else totals.predicted_violation_ratio,
        predicted_violation_interval=None if totals is None else totals.predicted_violation_interval,
        shifted_violation_ratio=None if totals is None else totals.shifted_violation_ratio,
        lost_work_ratio=max(0.0, 1.0 - served / asked) if asked > 0 else 0.0,
        active_steps=active,
        unjudged_pods=int((2 * is_judged.sum(axis=1) < lived.sum(axis=1)).sum()),
    )


def _waits(fold: Fold, seats: Seats) -> Float32:
    """Share of each step in which judged pods wait for lent framebuffer to come back, 0-1, (judged, steps)."""
    coming, rows = fold.coming, fold.judged
    found = np.zeros((len(rows), coming.steps), np.float32)
    if not np.isfinite(seats.kept_bytes).any():
        return found
    rates = np.array(
        [paging_bytes_per_second(coming.grants[int(row)].card_model, fold.measured_bytes_per_second) for row in rows]
    )
    works = (np.nan_to_num(coming.compute[rows]) > ACTIVE_RATIO_MIN) | fold.touches[rows]
    held, residency = np.nan_to_num(coming.need_bytes[rows]).astype(float), Residency(len(rows))
    for step in range(coming.steps):
        turn = residency.turn(step, works[:, step], held[:, step], seats.kept_bytes, seats.card, seats.capacity_bytes)
        # Pods stand on their cards before the first step.
        if step:
            found[:, step] = np.minimum(1.0, turn.waits_bytes / rates / coming.step_seconds)
    return found
