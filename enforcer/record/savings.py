"""What was found, accepted, applied, verified and realised over all plans of a cluster: each card counts once.

Pages, report, API, messages and the series for Prometheus call `savings_steps` and `realised_of`; no other place adds
cards of several plans. A plan names its cards (`Recommendation.freed`), so a card that an undone plan and its successor
both free is one card, worth what the newest of them says. Where a backend leaves the choice of cards to the scheduler,
a name stands for a card that is really emptied elsewhere; two plans may then name different cards for the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from enforcer.record.journal import StageRecord
from enforcer.record.request_log import KeptRequest
from fleet.decisions import FreedCard, Plan
from fleet.inventory import CardId
from fleet.money.saving import cards_in, saved
from fleet.outcomes import Outcome

_WEEK = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """A plan with what became of it.

    Attributes:
        applied_stages: stages that stand in the cluster now.
        once_applied_stages: stages that stand in the cluster or stood there until they were undone.
        undone_recommendations: recommendations that were taken back one by one.
        request: its newest pull request, as it was seen last; None where none was sent.
    """

    plan: Plan
    approved_stages: tuple[int, ...] = ()
    applied_stages: tuple[int, ...] = ()
    once_applied_stages: tuple[int, ...] = ()
    undone_recommendations: frozenset[str] = frozenset()
    undone_at: datetime | None = None
    request: KeptRequest | None = None


class Step(StrEnum):
    """How far the saving of a card came."""

    FOUND = "found"
    """Freed by the newest plan, or by an older one that somebody approved."""
    ACCEPTED = "accepted"
    """Its stage was approved."""
    APPLIED = "applied"
    """Its stage stands in the cluster, or stood there until it was undone."""
    VERIFIED = "verified"
    """Measured to the end of `enforcer.verify_days`."""
    REALISED = "realised"
    """Measured to be free, by a plan that stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsStep:
    """One step of all plans together.

    Attributes:
        cards: whole cards, each once.
        amortised_per_week: their price; None where nothing is priced.
    """

    name: Step
    cards: int
    amortised_per_week: Decimal | None
    plans: tuple[str, ...]

    @property
    def is_measured(self) -> bool:
        """Whether it is measured of the cluster as a whole, and not read off plans."""
        return self.name in (Step.VERIFIED, Step.REALISED)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekRealised:
    """What one week realised, over the measured spans that fall into it.

    Attributes:
        cards: freed cards on average over the week.
        amortised: money of the week; None where nothing is priced.
        marginal: cash of the week; None where unknown.
    """

    start: datetime
    cards: float
    amortised: Decimal | None
    marginal: Decimal | None


def named_cards(plan: Plan, stages: Iterable[int]) -> tuple[FreedCard, ...]:
    """Cards that some stages of a plan free, spares included."""
    chosen = set(stages)
    names = {name for stage in plan.stages if stage.stage in chosen for name in stage.recommendations}
    return tuple(card for item in plan.recommendations if item.id in names for card in item.freed)


def promised_cards(plan: Plan, stages: Iterable[int]) -> tuple[FreedCard, ...]:
    """Cards that some stages of a plan free for good: without those that are kept as spares."""
    return tuple(card for card in named_cards(plan, stages) if not card.is_spare)


def planned_cards(plan: Plan) -> Mapping[str, frozenset[str]]:
    """Cards on which a plan places each pod that it changes, by the pod's `namespace/name`."""
    changed = {pod for entry in plan.recommendations for pod in entry.pods}
    found: dict[str, frozenset[str]] = {}
    for card in plan.placement:
        for part in card.slices:
            if part.pod_id in changed:
                found[part.pod_id] = found.get(part.pod_id, frozenset()) | {card.card}
    return found


def stages_in_place(plan: Plan, placed: Mapping[str, frozenset[str]], applied: Sequence[StageRecord]) -> frozenset[int]:
    """Stages that were promoted, and those whose pods earlier stages brought to their places already.

    A backend that gives a pod its slice and its card in one restart leaves later stages nothing to do and no record.

    Args:
        plan: the plan; its placement is not asked.
    """
    sits = {move.pod_id: {part.card for part in move.new} for record in applied for move in record.moves}
    pods_of = {entry.id: entry.pods for entry in plan.recommendations}
    found, tides = {record.stage for record in applied}, plan.tide_stages
    for entry in plan.stages:
        if entry.stage in tides:
            continue  # its pods stay where they are by day
        own = {pod for name in entry.recommendations for pod in pods_of.get(name, ())}
        if own and own <= sits.keys() and all(sits[pod] == placed.get(pod, frozenset()) for pod in own):
            found.add(entry.stage)
    return frozenset(found)


def savings_steps(plans: Sequence[PlanRecord], outcomes: Sequence[Outcome]) -> tuple[SavingsStep, ...]:
    """Found → accepted → applied → verified → realised, each card once.

    A plan that was undone counts as applied and verified, and realises nothing from then on.
    """
    measured = {outcome.plan_id: outcome for outcome in outcomes}
    realised = realised_of(plans, outcomes)
    counted: dict[Step, dict[str, Sequence[FreedCard]]] = {step: {} for step in Step}
    for place, one in enumerate(plans):
        # What the tide frees by night saves no card; a yes to it alone accepts none.
        approved = set(one.approved_stages) - one.plan.tide_stages
        # A plan that nobody approved was made anew: only the newest of them can still be applied.
        if place and not approved:
            continue
        plan, outcome = one.plan, measured.get(one.plan.plan_id)
        counted[Step.FOUND][plan.plan_id] = promised_cards(plan, [stage.stage for stage in plan.stages])
        if approved:
            counted[Step.ACCEPTED][plan.plan_id] = promised_cards(plan, approved)
        if one.once_applied_stages:
            counted[Step.APPLIED][plan.plan_id] = promised_cards(plan, one.once_applied_stages)
        if outcome is not None and outcome.is_final:
            counted[Step.VERIFIED][plan.plan_id] = promised_cards(plan, outcome.stages)
        if plan.plan_id in realised:
            counted[Step.REALISED][plan.plan_id] = realised[plan.plan_id]
    return tuple(_step(step, cards) for step, cards in counted.items())


def realised_of(plans: Sequence[PlanRecord], outcomes: Sequence[Outcome]) -> dict[str, tuple[FreedCard, ...]]:
    """Cards that were measured to be free, by verified plan that stands: each with the newest plan that frees it.

    Stages and recommendations that were undone since the measurement count no more.
    """
    return _of_newest(plans, outcomes, lambda _, outcome: outcome.realised)


def expected_of(plans: Sequence[PlanRecord], outcomes: Sequence[Outcome]) -> dict[str, tuple[FreedCard, ...]]:
    """Cards that the measured stages were to free, counted as `realised_of` counts what they did free."""
    return _of_newest(plans, outcomes, lambda plan, outcome: promised_cards(plan, outcome.stages))


def _of_newest(
    plans: Sequence[PlanRecord], outcomes: Sequence[Outcome], cards_of: Callable[[Plan, Outcome], Iterable[FreedCard]]
) -> dict[str, tuple[FreedCard, ...]]:
    measured = {outcome.plan_id: outcome for outcome in outcomes}
    seen: set[CardId] = set()
    found: dict[str, tuple[FreedCard, ...]] = {}
    for one in plans:
        outcome = measured.get(one.plan.plan_id)
        if outcome is None or one.undone_at is not None:
            continue
        gone = seen | _taken_back(one, outcome)
        kept = [card for card in cards_of(one.plan, outcome) if card.card not in gone]
        seen |= {card.card for card in kept}
        found[outcome.plan_id] = tuple(kept)
    return found


def realised_weeks(outcomes: Sequence[Outcome], *, now: datetime, weeks: int) -> tuple[WeekRealised, ...]:
    """Realised saving of the last weeks, oldest first; a span counts with the share of the week that it covers.

    Only measured spans count: nothing is carried forward beyond what `verify` saw. A card that two plans freed counts
    with the newer of them from the moment at which that was applied.
    """
    spans = list(_spans(outcomes))
    this_week = week_start(now)
    starts = [this_week - _WEEK * (weeks - 1 - place) for place in range(weeks)]
    return tuple(_week(start, spans) for start in starts)


def week_start(moment: datetime) -> datetime:
    """Monday 00:00 UTC of a moment's week."""
    day = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day - timedelta(days=day.weekday())


def _taken_back(one: PlanRecord, outcome: Outcome) -> set[CardId]:
    """Cards of stages and recommendations of a plan that were measured in place and are not any more."""
    stages = set(outcome.stages) - set(one.applied_stages)
    cards = {card.card for card in named_cards(one.plan, stages)}
    undone = (item for item in one.plan.recommendations if item.id in one.undone_recommendations)
    return cards | {card.card for item in undone for card in item.freed}


def _step(name: Step, by_plan: Mapping[str, Sequence[FreedCard]]) -> SavingsStep:
    cards: dict[CardId, FreedCard] = {}
    for freed in by_plan.values():
        for card in freed:
            cards.setdefault(card.card, card)
    return SavingsStep(
        name=name,
        cards=cards_in(cards.values()),
        amortised_per_week=saved(cards.values()).amortised if by_plan else None,
        plans=tuple(by_plan),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    card: FreedCard
    since: datetime
    until: datetime


def _spans(outcomes: Sequence[Outcome]) -> Iterator[_Span]:
    """Spans in which each card was free, without overlaps."""
    taken_over: dict[CardId, datetime] = {}
    for outcome in sorted(outcomes, key=lambda one: one.since, reverse=True):
        for card in outcome.realised:
            until = min(outcome.until, taken_over.get(card.card, outcome.until))
            taken_over[card.card] = outcome.since
            if until > outcome.since:
                yield _Span(card=card, since=outcome.since, until=until)


def _week(start: datetime, spans: Sequence[_Span]) -> WeekRealised:
    shares = [(span.card, share) for span in spans if (share := _overlap(span, start)) > 0]
    savings = [(card.saving_per_week, share) for card, share in shares]
    return WeekRealised(
        start=start,
        cards=float(sum(share for card, share in shares if card.replaced_by is None)),
        amortised=_sum([one.amortised * share for one, share in savings if one.amortised is not None]),
        marginal=_sum([one.marginal * share for one, share in savings if one.marginal is not None]),
    )


def _overlap(span: _Span, start: datetime) -> Decimal:
    seconds = (min(span.until, start + _WEEK) - max(span.since, start)).total_seconds()
    return Decimal(max(0, round(seconds))) / Decimal(_WEEK.total_seconds())


def _sum(amounts: Sequence[Decimal]) -> Decimal | None:
    return sum(amounts, Decimal(0)) if amounts else None
