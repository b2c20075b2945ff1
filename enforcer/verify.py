"""Says after days what a plan was worth: cards and money really saved, harm really done, against what it promised.

Harm is judged by what a real cluster shows, where measured use ends at what a card and a grant can give: summed SM
activity of high and normal priority that fills a shared card though no pod fills it alone, framebuffer that fills a
slice. It is the rule of `fleet.sharing`, read off what was served where that one is read off what was asked for. Who
has a whole card to itself is never harmed by sharing. A window is judged where compute of the pod and of all that share
its card is known: counters that fail a check of the analyzer count as not collected. Workloads that the plan left alone
are the control. The command line hands in the warehouse as `Measurements`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from enforcer.judged_rows import JudgedRows, judged_rows
from enforcer.lent_turns import lent_cards
from enforcer.record.journal import RunRecord, StageRecord, StageState
from enforcer.record.savings import named_cards, planned_cards, promised_cards, stages_in_place
from enforcer.safety.harm_budget import Harm
from fleet.decisions import FreedCard, Plan, RecommendationKind, Saving
from fleet.errors import NotEnoughData, Refused
from fleet.inventory import CardId, WorkloadId
from fleet.money.prices import PriceBook
from fleet.money.saving import cards_in, saved, saving_between
from fleet.outcomes import Outcome, WorkloadOutcome
from fleet.priority_holds import Holders, broken_needs, contending
from fleet.schema import Measure
from fleet.sentences import Sentence
from fleet.settings.settings import Settings
from fleet.sharing import ACTIVE_RATIO_MIN, CONTENTION_RATIO_MAX, sum_by_card
from fleet.units import MIB, format_time
from fleet.usage import Float32, History, SliceGrid

FULL_CARD_RATIO = 0.995
"""Summed SM activity from which a shared card is taken for contended: measured use ends at the card, and noise is half
a percent."""

FILLING_RATIO = 1.0 / CONTENTION_RATIO_MAX
"""SM activity from which a pod fills a card alone and its neighbours ask for no more than noise: pods share a card in
proportion to demand and nobody asks for more than one card, so a pod that waits for others is served less."""

FULL_CACHE_RATIO = 0.999
"""Usage of a pre-allocated KV cache from which a server is taken to want more framebuffer."""

_CELLS_AT_ONCE = 1_000_000
_CAUSES = ("contention", "short", "full")

HARM = frozenset({Measure.SM_ACTIVE, Measure.DUTY_CYCLE, Measure.FRAMEBUFFER_USED, Measure.KV_CACHE_USAGE})
"""Measures of slices that say what was harmed."""


class Measurements(Protocol):
    """What was measured."""

    def believed(self, since: datetime, until: datetime) -> History:
        """Usage and grants between two moments, as far as they are believed (`analyzer.survey.as_believed`).

        Of usage it has at least `HARM` of slices.

        Raises:
            NotEnoughData: nothing was collected in that time.
            Unavailable: what keeps it can't be reached.
        """
        ...


def verify(
    plan: Plan,
    runs: Sequence[RunRecord],
    measurements: Measurements,
    *,
    now: datetime,
    settings: Settings,
    harm_ratio_max: float | None = None,
    undone: frozenset[str] = frozenset(),
    holders: Holders | None = None,
) -> Outcome:
    """Measure what became of a plan, beside what it promised; `enforcer.record.verdict` judges it.

    Args:
        settings: all settings, with the entries of the price book's file: each freed card is worth its own price in
            the measured hours, and the verdict is final after `enforcer.verify_days`.
        harm_ratio_max: violated share of its active time that each service may suffer, 0-1; None for no budgets.
        undone: recommendations that were taken back one by one.
        holders: what holds low priority back now: where the plan counts on more, that is broken, and low priority that
            nothing holds is judged as an equal. None where nobody can say.

    Returns:
        The outcome; interim while fewer days have passed. A card that a workload of before took again
        counts as given back; one that new work found free counts as saved, because it had to be bought otherwise.

    Raises:
        Refused: the plan is not applied.
        NotEnoughData: nothing was collected since.
    """
    applied = [record for run in runs for record in run.records.values() if record.state is StageState.PROMOTED]
    if not applied:
        raise Refused(f"cannot verify plan {plan.plan_id}: no stage of it is applied")
    since = max(record.applied_at for record in applied if record.applied_at is not None)
    days = timedelta(days=settings.enforcer.verify_days)
    until = min(now, since + days)
    if until <= since:
        raise NotEnoughData(f"cannot verify plan {plan.plan_id}: it was applied at {format_time(since)}, just now")
    history = measurements.believed(since, until)
    stages = sorted(stages_in_place(plan, planned_cards(plan), applied))
    promised, named = promised_cards(plan, stages), named_cards(plan, stages)
    granted_before = frozenset(card for run in runs for card in run.cards_granted)
    if any(part.card is not None for record in applied for move in record.moves for part in move.old):
        emptied, taken = emptied_cards(applied, granted_before, plan), _held(applied) - granted_before
    else:
        named = _stand_ins(history, named, plan, {move.pod_id for record in applied for move in record.moves})
        emptied = frozenset(card.card for card in named)
        taken = {card.replaced_by for card in named if card.replaced_by is not None}
    given_back = _given_back(history, emptied, since, until)
    book = PriceBook(settings, history.inventory.nodes)
    known = {card.card: card for card in history.inventory.cards}
    planned = {card.card: card.saving_per_week for card in named}

    def value(card: str, instead: str | None) -> Saving:
        """A card that left the inventory with its node keeps the price that it had when the plan was made."""
        if card not in known or (instead is not None and instead not in known):
            return planned.get(CardId(card), Saving(amortised=None, marginal=None))
        return saving_between(
            known[CardId(card)], book, since, until, instead=None if instead is None else known[CardId(instead)]
        )

    free = _free_cards(emptied - given_back, taken, named, value)
    realised = tuple(card for card in free if not card.is_spare)
    changed = {move.workload for record in applied for move in record.moves}
    standing = {name for stage in plan.stages if stage.stage in stages for name in stage.recommendations}
    rows = judged_rows(history, contending(plan, holders))
    windows = _windows(history.slices, rows)
    services = _by_workload(plan, history.slices, rows, windows, changed)
    return Outcome(
        plan_id=plan.plan_id,
        measured_at=now,
        since=since,
        until=until,
        is_final=until >= since + days,
        promised_cards_freed=cards_in(promised),
        realised_cards_freed=cards_in(realised),
        promised_saving_per_week=saved(promised),
        realised_saving_per_week=saved(realised),
        promised_violation_ratio=plan.totals.predicted_violation_ratio,
        control_violation_ratio=_control(plan, rows, windows, changed),
        coverage_ratio=_coverage(history, rows),
        given_back=len(given_back),
        workloads=_with_wakes(services, plan, standing - undone, applied, history),
        spare_cards=len(free) - len(realised),
        harm_budget_ratio=harm_ratio_max,
        restored=tuple(sorted(_taken_back(plan, runs, undone, changed))),
        stages=tuple(stages),
        realised=realised,
        broken=() if holders is None else _broken(plan, standing - undone, holders, measurements, history, now),
        lent=tuple(lent_cards(plan, standing - undone, history.slices, rows)),
    )


def _broken(
    plan: Plan, chosen: Collection[str], holders: Holders, measurements: Measurements, judged: History, now: datetime
) -> tuple[Sentence, ...]:
    """What the plan counts on and is gone, among workloads that are still there: those of now, where that is known."""
    found = broken_needs(plan, chosen, holders, _living(judged))
    if not found or judged.inventory.as_of >= now:
        return found
    try:
        latest = measurements.believed(max(judged.inventory.as_of, now - timedelta(days=1)), now)
    except NotEnoughData:
        return found
    return broken_needs(plan, chosen, holders, _living(latest))


def _living(history: History) -> frozenset[WorkloadId]:
    return frozenset(grant.workload_id for grant in history.inventory.live_grants())


def harm_by_workload(history: History) -> dict[WorkloadId, Harm]:
    """What every workload suffered in a history, as far as that is believed, by the rule above."""
    rows = judged_rows(history)
    windows = _windows(history.slices, rows)
    return {workload: _suffered(windows, own) for workload, own in _rows_of(rows).items()}


def emptied_cards(applied: Iterable[StageRecord], granted_before: frozenset[str], plan: Plan) -> frozenset[str]:
    """Cards that applied stages left to nobody: held by moved pods before, by no pod of the plan's placement after."""
    records = list(applied)
    left = {part.card for record in records for move in record.moves for part in move.old if part.card is not None}
    entered = {part.card for record in records for move in record.moves for part in move.new}
    held = _held(records)
    moved = {move.pod_id for record in records for move in record.moves}
    staying = {
        card.card for card in plan.placement for part in card.slices if part.pod_id not in moved and card.card in left
    }
    return frozenset(left & granted_before) - held - staying - (entered & held)


def _held(applied: Iterable[StageRecord]) -> set[str]:
    """Cards that moved pods hold now, as far as the API names them."""
    last = {move.pod_id: move.new for record in applied for move in record.moves}
    return {part.card for slices in last.values() for part in slices if part.card is not None}


def _free_cards(
    emptied: Iterable[str], taken: Iterable[str], named: Sequence[FreedCard], value: Callable[[str, str | None], Saving]
) -> tuple[FreedCard, ...]:
    """Measured free cards with what each saves; as many as were taken instead of others are not counted.

    Args:
        taken: cards that nobody held before and that pods of the plan hold now.
        value: what a card saves, and the card that is used instead.
    """
    spare = {card.card for card in named if card.is_spare}
    counted = {card.card for card in named if card.replaced_by is None}
    # Cards that the plan does not count are those that others replace.
    free = sorted(emptied, key=lambda card: (card in spare, card in counted, card))
    instead = dict(zip(free, sorted(taken), strict=False))
    return tuple(
        FreedCard(
            card=CardId(card),
            saving_per_week=value(card, instead.get(card)),
            is_spare=card in spare,
            replaced_by=None if card not in instead else CardId(instead[card]),
        )
        for card in free
    )


def _taken_back(
    plan: Plan, runs: Sequence[RunRecord], undone: frozenset[str], changed: set[WorkloadId]
) -> set[WorkloadId]:
    """Workloads whose stage was restored, and those whose recommendation was undone."""
    restored = {
        move.workload
        for run in runs
        for record in run.records.values()
        if record.state in (StageState.RESTORED, StageState.UNDONE)
        for move in record.moves
    }
    return (restored - changed) | {name for one in plan.recommendations if one.id in undone for name in one.workloads}


def _stand_ins(
    history: History, named: Sequence[FreedCard], plan: Plan, moved: Collection[str]
) -> tuple[FreedCard, ...]:
    """Cards that the scheduler emptied where the API names none: those of the plan's names, or others for them.

    Where a named card is held, another of its node and model is the one that was left: a card that nobody holds, that
    was not free before, and on which the plan has none but pods that it moved.
    """
    held = {grant.card for grant in history.inventory.live_grants()}
    kind_of = {card.card: (card.node, card.card_model) for card in history.inventory.cards}
    barred = held | {card.card for card in named} | {card.replaced_by for card in named}
    free = [
        card.card
        for card in plan.placement
        if card.card in kind_of and card.card not in barred and all(part.pod_id in moved for part in card.slices)
    ]
    found = []
    for card in named:
        kind = kind_of.get(card.card)
        other = next((one for one in free if kind_of[one] == kind), None) if card.card in held else None
        free = [one for one in free if one != other]
        found.append(card if other is None else replace(card, card=other))
    return tuple(found)


def _given_back(history: History, freed: frozenset[str], since: datetime, until: datetime) -> frozenset[str]:
    """Freed cards that a workload of before the plan takes again in the span, or still holds."""
    old_workloads = {grant.workload_id for grant in history.inventory.grants if grant.started_at < since}
    return frozenset(
        grant.card
        for grant in history.inventory.grants
        if grant.card in freed
        and grant.workload_id in old_workloads
        and (since <= grant.started_at < until or grant.ended_at is None)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Windows:
    """What became of every row in every step; all (rows, steps).

    Attributes:
        violated: surely so, whatever is not known of those that share the card.
        cause: of each violation, its place in `_CAUSES`.
        judged: compute of the row and of all that share its card is known.
    """

    active: NDArray[np.bool_]
    violated: NDArray[np.bool_]
    cause: NDArray[np.int8]
    judged: NDArray[np.bool_]


def _windows(grid: SliceGrid, rows: JudgedRows) -> _Windows:
    """Worked off some steps at a time, for each is judged by itself."""
    # A plane that lies in a file is mapped whenever it is asked for: once here, and not once for each piece.
    grid = replace(grid, mean={measure: values for measure, values in grid.mean.items() if measure in HARM}, peak={})
    at_once = max(1, _CELLS_AT_ONCE // max(1, len(rows.row)))
    pieces = [
        (grid.between(first, stop), replace(rows, lives=rows.lives[:, first:stop]))
        for first in range(0, max(1, grid.steps), at_once)
        for stop in [min(grid.steps, first + at_once)]
    ]
    has_sm = any(not np.isnan(_measured(*piece, Measure.SM_ACTIVE)).all() for piece in pieces)
    found = [_judged(*piece, Measure.SM_ACTIVE if has_sm else Measure.DUTY_CYCLE) for piece in pieces]
    return _Windows(
        active=np.concatenate([one.active for one in found], axis=1),
        violated=np.concatenate([one.violated for one in found], axis=1),
        cause=np.concatenate([one.cause for one in found], axis=1),
        judged=np.concatenate([one.judged for one in found], axis=1),
    )


def _judged(grid: SliceGrid, rows: JudgedRows, compute: Measure) -> _Windows:
    shape = (len(rows.row), grid.steps)
    use = _measured(grid, rows, compute)
    used = _measured(grid, rows, Measure.FRAMEBUFFER_USED)
    cache = _measured(grid, rows, Measure.KV_CACHE_USAGE)
    active = np.nan_to_num(use) > ACTIVE_RATIO_MIN
    cards = int(rows.card.max()) + 1 if len(rows.card) else 0
    is_shared = _sharers(rows, cards)[rows.card] > 1 if cards else np.zeros(shape, bool)
    asking = np.where(rows.is_low[:, None], 0, np.nan_to_num(use)).astype(np.float32)
    largest = np.zeros((cards, grid.steps), np.float32)
    np.maximum.at(largest, rows.card, asking)
    is_contended = (sum_by_card(asking, rows.card, cards) >= FULL_CARD_RATIO) & (largest < FILLING_RATIO)
    contention = is_shared & ~rows.is_low[:, None] & is_contended[rows.card]
    # A server that takes its share ahead fills it always; only its cache shows whether that is enough.
    fills = np.nan_to_num(used) >= rows.granted_bytes[:, None] - MIB
    wants = np.where(rows.preallocates[:, None], np.nan_to_num(cache) >= FULL_CACHE_RATIO, fills)
    short = wants & (rows.granted_bytes < rows.card_bytes - MIB)[:, None]
    # Grants that fit their card are short before the card is full.
    sizes = np.zeros(cards)
    sizes[rows.card] = rows.card_bytes
    granted = (rows.lives * rows.granted_bytes[:, None]).astype(np.float32)
    promised = sum_by_card(granted, rows.card, cards) > sizes[:, None] + MIB
    is_full = promised & (sum_by_card(used, rows.card, cards) >= sizes[:, None] - MIB)
    full = is_shared & is_full[rows.card]
    is_unknown = rows.lives & np.isnan(use)
    # Low priority gives way, so that others are judged without it.
    unknown = (is_unknown & ~rows.is_low[:, None]).astype(np.float32)
    return _Windows(
        active=active,
        violated=active & (contention | short | full),
        cause=np.where(contention, 0, np.where(short, 1, 2)).astype(np.int8),
        judged=rows.lives & ~is_unknown & ~(is_shared & (sum_by_card(unknown, rows.card, cards) > 0)[rows.card]),
    )


def _suffered(windows: _Windows, own: NDArray[np.int64]) -> Harm:
    """Harm of some rows in the steps that are judged, and no less than what is sure in all steps that are known."""
    judged, active, violated = windows.judged[own], windows.active[own], windows.violated[own]
    found = Harm(active_steps=int((active & judged).sum()), violated_steps=int((violated & judged).sum()))
    sure = Harm(active_steps=int(active.sum()), violated_steps=int(violated.sum()))
    return sure if (sure.ratio or 0.0) > (found.ratio or 0.0) else found


def _rows_of(rows: JudgedRows) -> dict[WorkloadId, NDArray[np.int64]]:
    found: dict[WorkloadId, list[int]] = {}
    for number, workload in enumerate(rows.workload):
        found.setdefault(workload, []).append(number)
    return {workload: np.array(own, np.int64) for workload, own in found.items()}


def _sharers(rows: JudgedRows, cards: int) -> Float32:
    """Pods that live on each card in each step, (cards, steps); containers of one pod count once."""
    pairs, pair_of = np.unique(np.stack([rows.card, rows.pod]), axis=1, return_inverse=True)
    lives = sum_by_card(rows.lives.astype(np.float32), pair_of.reshape(-1), pairs.shape[1]) > 0
    return sum_by_card(lives.astype(np.float32), pairs[0], cards)


def _measured(grid: SliceGrid, rows: JudgedRows, measure: Measure) -> Float32:
    values = grid.mean.get(measure)
    if values is None:
        return np.full((len(rows.row), grid.steps), np.nan, np.float32)
    return np.where(rows.lives, values[rows.row], np.nan).astype(np.float32)


def _by_workload(
    plan: Plan, grid: SliceGrid, rows: JudgedRows, windows: _Windows, changed: set[WorkloadId]
) -> tuple[WorkloadOutcome, ...]:
    predicted: dict[WorkloadId, float] = {}
    for entry in plan.recommendations:
        for workload in entry.workloads:
            predicted[workload] = max(entry.violation_ratio, predicted.get(workload, 0.0))
    of_workload = _rows_of(rows)
    found = []
    for workload in sorted(changed):
        own = of_workload.get(workload, np.array([], np.int64))
        harm, violated = _suffered(windows, own), windows.violated[own]
        counted = Counter(windows.cause[own][violated].tolist())
        ratio = 0.0 if harm.ratio is None and windows.judged[own].any() else harm.ratio
        of_pod = {grid.keys[rows.row[number]].pod: own[rows.pod[own] == rows.pod[number]] for number in own.tolist()}
        found.append(
            WorkloadOutcome(
                workload=workload,
                predicted_violation_ratio=predicted.get(workload, 0.0),
                violation_ratio=ratio,
                active_steps=harm.active_steps,
                cause=_CAUSES[counted.most_common(1)[0][0]] if ratio else None,
                is_low_priority=bool(len(own)) and bool(rows.is_low[own].all()),
                pods=len(of_pod),
                unjudged_pods=tuple(sorted(pod for pod, held in of_pod.items() if _is_unjudged(rows, windows, held))),
            )
        )
    return tuple(sorted(found, key=lambda entry: (-(entry.violation_ratio or 0.0), entry.workload)))


def _with_wakes(
    services: Iterable[WorkloadOutcome],
    plan: Plan,
    chosen: Collection[str],
    applied: Sequence[StageRecord],
    history: History,
) -> tuple[WorkloadOutcome, ...]:
    """The same, with what became of reclaims: a pod of the workload that began later was started by somebody else."""
    chances = {
        name: 1.0 - one.confidence
        for one in plan.recommendations
        if one.kind is RecommendationKind.RECLAIM and one.id in chosen
        for name in one.workloads
    }
    stopped = {move.workload: record.applied_at for record in applied for move in record.moves}
    woken = {
        grant.workload_id
        for grant in history.inventory.grants
        if grant.workload_id in chances and grant.started_at > (stopped.get(grant.workload_id) or history.slices.until)
    }
    return tuple(
        replace(one, wake_chance=chances.get(one.workload), is_woken=one.workload in woken) for one in services
    )


def _is_unjudged(rows: JudgedRows, windows: _Windows, own: NDArray[np.int64]) -> bool:
    """Whether over half of the windows that rows of a pod lived through can't be judged."""
    return 2 * int(windows.judged[own].sum()) < int(rows.lives[own].sum())


def _control(plan: Plan, rows: JudgedRows, windows: _Windows, changed: set[WorkloadId]) -> float | None:
    """Violated share of the active steps of untouched workloads of high and normal priority; None without any.

    Nights of the tide touch services that no stage moves.
    """
    of_tide = {name for one in plan.recommendations if one.kind is RecommendationKind.TIDE for name in one.workloads}
    is_own = np.array([workload not in changed | of_tide for workload in rows.workload], bool) & ~rows.is_low
    own = np.flatnonzero(is_own)
    if not windows.judged[own].any():
        return None
    return _suffered(windows, own).ratio or 0.0


def _coverage(history: History, rows: JudgedRows) -> float:
    measured = history.slices.mean.get(Measure.FRAMEBUFFER_USED)
    lived = int(rows.lives.sum())
    if measured is None or not lived:
        return 0.0
    return int((~np.isnan(measured[rows.row]) & rows.lives).sum()) / lived
