"""Says after days what a plan was worth: cards and money really saved, harm really done, against what it promised.

Harm is what `enforcer.suffered` reads off the days since; workloads that the plan left alone are the control. The
command line hands in the warehouse as `Measurements`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from enforcer.lent_turns import lenders_of, unlent
from enforcer.record.journal import RunRecord, StageRecord, StageState
from enforcer.record.savings import named_cards, planned_cards, promised_cards, stages_in_place
from enforcer.suffered import HarmQuestion, PartHarm, Suffered, joined
from fleet.decisions import FreedCard, Plan, RecommendationKind, Saving
from fleet.errors import NotEnoughData, Refused
from fleet.inventory import CardId, Inventory, WorkloadId
from fleet.money.prices import PriceBook
from fleet.money.saving import cards_in, saved, saving_between
from fleet.outcomes import Outcome, WorkloadOutcome
from fleet.priority_holds import Holders, broken_needs, contending
from fleet.sentences import Sentence
from fleet.settings.settings import Settings
from fleet.units import format_time


class Measurements(Protocol):
    """What was measured."""

    def inventory(self, since: datetime, until: datetime) -> Inventory:
        """What stood there and who was granted what between two moments.

        Raises:
            NotEnoughData: nothing was collected in that time.
            Unavailable: what keeps it can't be reached.
        """
        ...

    def harm(self, since: datetime, until: datetime, question: HarmQuestion) -> tuple[Inventory, Sequence[PartHarm]]:
        """The same, and the question's answer by every part of the fleet (`analyzer.parts`).

        It is asked of usage as far as that is believed (`analyzer.survey.as_believed`).

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
    stages = sorted(stages_in_place(plan, planned_cards(plan), applied))
    standing = {name for stage in plan.stages if stage.stage in stages for name in stage.recommendations} - undone
    lenders = lenders_of(plan, standing)
    question = HarmQuestion(equals=contending(plan, holders), lenders=lenders)
    inventory, parts = measurements.harm(since, until, question)
    harm = joined(parts)
    promised, named = promised_cards(plan, stages), named_cards(plan, stages)
    granted_before = frozenset(card for run in runs for card in run.cards_granted)
    if any(part.card is not None for record in applied for move in record.moves for part in move.old):
        emptied, taken = emptied_cards(applied, granted_before, plan), _held(applied) - granted_before
    else:
        named = _stand_ins(inventory, named, plan, {move.pod_id for record in applied for move in record.moves})
        emptied = frozenset(card.card for card in named)
        taken = {card.replaced_by for card in named if card.replaced_by is not None}
    given_back = _given_back(inventory, emptied, since, until)
    free = _free_cards(emptied - given_back, taken, named, _values(inventory, named, settings, since, until))
    realised = tuple(card for card in free if not card.is_spare)
    changed = {move.workload for record in applied for move in record.moves}
    services = _by_workload(plan, harm.suffered, changed)
    # Nights of the tide touch services that no stage moves.
    of_tide = {name for one in plan.recommendations if one.kind is RecommendationKind.TIDE for name in one.workloads}
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
        control_violation_ratio=harm.violation_ratio_without(changed | of_tide),
        coverage_ratio=harm.coverage_ratio,
        given_back=len(given_back),
        workloads=_with_wakes(services, plan, standing, applied, inventory),
        spare_cards=len(free) - len(realised),
        harm_budget_ratio=harm_ratio_max,
        restored=tuple(sorted(_taken_back(plan, runs, undone, changed))),
        stages=tuple(stages),
        realised=realised,
        broken=() if holders is None else _broken(plan, standing, holders, measurements, inventory, now),
        lent=(*harm.lent, *unlent(lenders, harm.lent)),
    )


def _broken(
    plan: Plan, chosen: Collection[str], holders: Holders, measurements: Measurements, judged: Inventory, now: datetime
) -> tuple[Sentence, ...]:
    """What the plan counts on and is gone, among workloads that are still there: those of now, where that is known."""
    found = broken_needs(plan, chosen, holders, _living(judged))
    if not found or judged.as_of >= now:
        return found
    try:
        latest = measurements.inventory(max(judged.as_of, now - timedelta(days=1)), now)
    except NotEnoughData:
        return found
    return broken_needs(plan, chosen, holders, _living(latest))


def _living(inventory: Inventory) -> frozenset[WorkloadId]:
    return frozenset(grant.workload_id for grant in inventory.live_grants())


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


def _values(
    inventory: Inventory, named: Sequence[FreedCard], settings: Settings, since: datetime, until: datetime
) -> Callable[[str, str | None], Saving]:
    """What says what a card saves, and the card that is used instead."""
    book = PriceBook(settings, inventory.nodes)
    known = {card.card: card for card in inventory.cards}
    planned = {card.card: card.saving_per_week for card in named}

    def value(card: str, instead: str | None) -> Saving:
        """A card that left the inventory with its node keeps the price that it had when the plan was made."""
        if card not in known or (instead is not None and instead not in known):
            return planned.get(CardId(card), Saving(amortised=None, marginal=None))
        return saving_between(
            known[CardId(card)], book, since, until, instead=None if instead is None else known[CardId(instead)]
        )

    return value


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
    inventory: Inventory, named: Sequence[FreedCard], plan: Plan, moved: Collection[str]
) -> tuple[FreedCard, ...]:
    """Cards that the scheduler emptied where the API names none: those of the plan's names, or others for them.

    Where a named card is held, another of its node and model is the one that was left: a card that nobody holds, that
    was not free before, and on which the plan has none but pods that it moved.
    """
    held = {grant.card for grant in inventory.live_grants()}
    kind_of = {card.card: (card.node, card.card_model) for card in inventory.cards}
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


def _given_back(inventory: Inventory, freed: frozenset[str], since: datetime, until: datetime) -> frozenset[str]:
    """Freed cards that a workload of before the plan takes again in the span, or still holds."""
    old_workloads = {grant.workload_id for grant in inventory.grants if grant.started_at < since}
    return frozenset(
        grant.card
        for grant in inventory.grants
        if grant.card in freed
        and grant.workload_id in old_workloads
        and (since <= grant.started_at < until or grant.ended_at is None)
    )


def _by_workload(
    plan: Plan, suffered: Mapping[WorkloadId, Suffered], changed: set[WorkloadId]
) -> tuple[WorkloadOutcome, ...]:
    predicted: dict[WorkloadId, float] = {}
    for entry in plan.recommendations:
        for workload in entry.workloads:
            predicted[workload] = max(entry.violation_ratio, predicted.get(workload, 0.0))
    found = []
    for workload in changed:
        one = suffered.get(workload, Suffered())
        found.append(
            WorkloadOutcome(
                workload=workload,
                predicted_violation_ratio=predicted.get(workload, 0.0),
                violation_ratio=one.ratio,
                active_steps=one.steps.harm.active_steps,
                cause=one.cause if one.ratio else None,
                is_low_priority=one.is_low,
                pods=one.pods,
                unjudged_pods=one.unjudged_pods,
            )
        )
    return tuple(sorted(found, key=lambda entry: (-(entry.violation_ratio or 0.0), entry.workload)))


def _with_wakes(
    services: Iterable[WorkloadOutcome],
    plan: Plan,
    chosen: Collection[str],
    applied: Sequence[StageRecord],
    inventory: Inventory,
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
        for grant in inventory.grants
        if grant.workload_id in chances and grant.started_at > (stopped.get(grant.workload_id) or inventory.as_of)
    }
    return tuple(
        replace(one, wake_chance=chances.get(one.workload), is_woken=one.workload in woken) for one in services
    )
