"""The weekly report as one record (`gputide.report/v1`): the answer first, then what it stands on.

Pure: what is known comes in, the record goes out; `report_text` writes it as HTML, Markdown, CSV or JSON. Savings are
counted in whole freed cards that were measured, never in smaller requests. Called by `gputide report`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from dashboards.queries import LedgerEntry, PlanEntry, Prices
from dashboards.realised import FunnelStep, funnel, week_start
from dashboards.rows import RefusalGroup, fleet_headline, percent_words, refusal_groups, saving_words
from fleet.decisions import Plan, Recommendation
from fleet.inventory import CardId, CardModelName, WorkloadId
from fleet.outcomes import Outcome
from fleet.profiles import CardState, Profile, Profiles, WorkloadState
from fleet.units import format_count

REPORT_SCHEMA = "gputide.report/v1"
WEEKS_MEAN = 4
_WEEK = timedelta(days=7)
_QUIET = frozenset({WorkloadState.IDLE, WorkloadState.IDLE_HELD, WorkloadState.PARTLY_IDLE, WorkloadState.OVERSIZED})
_METHOD = (
    "A freed card is a whole card that no pod needs any more. Realised counts cards that were granted before a plan "
    "and to nobody over the measured days. Harm is the share of active time of changed workloads in which their card "
    "was contended, their grant too small or the framebuffer full. A week has 168 hours; amortised money takes the "
    "full price of a card hour, marginal what stops being paid at once."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekFacts:
    """What one week is remembered by; the report of a later week takes it from this one.

    Attributes:
        week_start: Monday 00:00 UTC.
        cards_freed: realised, whole cards.
        wasted_per_week: price of idle-held and unallocated cards; None where nothing is priced.
        violation_ratio: harm of changed workloads, 0-1; None where nothing was measured.
        cards_by_state: cards by state word.
    """

    week_start: datetime
    cards_freed: int
    wasted_per_week: Decimal | None
    violation_ratio: float | None
    cards_by_state: tuple[tuple[CardState, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFigure:
    """One of the three figures, beside last week's and the mean of the four weeks before.

    Attributes:
        name: `freed`, `wasted` or `harm`.
        unit: `cards`, a currency, or `ratio`.
        value: this week; None where nothing is known.
        last_week: the week before; None where there was no report.
        mean_four_weeks: mean of the known ones of the four weeks before; None where there is none.
    """

    name: str
    unit: str
    value: Decimal | None
    last_week: Decimal | None
    mean_four_weeks: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopWorkload:
    """One line of the top list: who holds cards that it does not use.

    Attributes:
        workload: who.
        owner: its namespace.
        state: state word.
        cards: cards that it holds.
        unused_cards: of those, compute that it leaves unused at its p95, in cards.
        unused_per_week: price of that; None where a model has no price.
        advice: id of the recommendation that would mend it; None where there is none.
        reason: one sentence.
    """

    workload: WorkloadId
    owner: str
    state: WorkloadState
    cards: int
    unused_cards: float
    unused_per_week: Decimal | None
    advice: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneItem:
    """A plan that was touched this week, in two sentences: what was done, and how it went."""

    plan_id: str
    at: datetime
    done: str
    went: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPlan:
    """What waits for a decision."""

    plan_id: str
    cards_freed: int
    moves: int
    predicted_violation_ratio: float
    saving: str
    expires_at: datetime
    is_expired: bool
    stages: tuple[str, ...]
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything a weekly report says.

    Attributes:
        title: headline of the document.
        cluster: cluster.
        created_at: when, UTC.
        since: start of the week that it tells of.
        until: end of it.
        currency: ISO 4217.
        headline: the sentence with the one number that matters.
        figures: freed, wasted, harm.
        week: this week's facts.
        past_weeks: facts of earlier weeks, oldest first.
        funnel: found → realised.
        top: who leaves most unused, most first.
        done: plans of the week.
        refused: who is left alone, and why.
        next_plan: what waits for approval; None where nothing does.
        data_notes: incidents of data quality and withheld advice.
        coverage_ratio: 0-1.
        method: how it was counted.
        price_source: where prices come from.
    """

    title: str
    cluster: str
    created_at: datetime
    since: datetime
    until: datetime
    currency: str
    headline: str
    figures: tuple[ReportFigure, ...]
    week: WeekFacts
    past_weeks: tuple[WeekFacts, ...]
    funnel: tuple[FunnelStep, ...]
    top: tuple[TopWorkload, ...]
    done: tuple[DoneItem, ...]
    refused: tuple[RefusalGroup, ...]
    next_plan: NextPlan | None
    data_notes: tuple[str, ...]
    coverage_ratio: float
    method: str
    price_source: str


def make_report(
    profiles: Profiles,
    plans: Sequence[PlanEntry],
    outcomes: Sequence[Outcome],
    ledger: Sequence[LedgerEntry],
    *,
    now: datetime,
    prices: Prices,
    past_weeks: Sequence[WeekFacts] = (),
    title: str = "GPU savings",
    top: int = 10,
) -> Report:
    """The report of the seven days before `now`.

    Args:
        profiles: newest analysis.
        plans: all plans, newest first.
        outcomes: newest outcome of each applied plan, newest plan first.
        ledger: what was done, newest first.
        now: moment of the report, UTC.
        prices: prices and their source.
        past_weeks: facts of earlier reports, in any order.
        title: headline of the document.
        top: length of the top list.
    """
    past = tuple(sorted((week for week in past_weeks if week.week_start < week_start(now)), key=_start_of))
    steps = funnel(plans, outcomes)
    week = _facts(profiles, outcomes, steps, prices, now)
    newest = plans[0] if plans else None
    return Report(
        title=title,
        cluster=profiles.cluster,
        created_at=now,
        since=now - _WEEK,
        until=now,
        currency=prices.currency,
        headline=_headline(profiles, week, newest, now),
        figures=_figures(week, past, prices.currency),
        week=week,
        past_weeks=past,
        funnel=steps,
        top=_top(profiles, newest.plan if newest is not None else None, prices)[:top],
        done=_done(plans, outcomes, ledger, now),
        refused=refusal_groups(newest.plan.refused) if newest is not None else (),
        next_plan=_next_plan(newest, now),
        data_notes=_data_notes(profiles),
        coverage_ratio=profiles.coverage_ratio,
        method=_METHOD,
        price_source=prices.source,
    )


def _facts(
    profiles: Profiles, outcomes: Sequence[Outcome], steps: Sequence[FunnelStep], prices: Prices, now: datetime
) -> WeekFacts:
    counts = Counter(card.state for card in profiles.cards)
    recent = [outcome for outcome in outcomes if outcome.until > now - _WEEK]
    harms = [outcome.realised_violation_ratio for outcome in recent if outcome.realised_violation_ratio is not None]
    return WeekFacts(
        week_start=week_start(now),
        cards_freed=steps[-1].cards,
        wasted_per_week=fleet_headline(profiles, prices).wasted_per_week,
        violation_ratio=max(harms) if harms else None,
        cards_by_state=tuple((state, counts[state]) for state in CardState),
    )


def _headline(profiles: Profiles, week: WeekFacts, newest: PlanEntry | None, now: datetime) -> str:
    waiting = newest.plan.totals.cards_freed if newest is not None and _is_waiting(newest, now) else 0
    more = f"; {format_count(waiting)} more would by the plan that waits for approval" if waiting else ""
    if week.cards_freed:
        return f"{_cards(week.cards_freed)} came free and stayed free{more}."
    if waiting:
        return f"{_cards(waiting)} would come free by the plan that waits for approval."
    counts = dict(week.cards_by_state)
    idle = counts.get(CardState.IDLE_HELD, 0) + counts.get(CardState.FREE, 0)
    return f"{_cards(idle)} of {format_count(len(profiles.cards))} stand idle, and no plan waits."


def _figures(week: WeekFacts, past: Sequence[WeekFacts], currency: str) -> tuple[ReportFigure, ...]:
    return (
        _figure("freed", "cards", week, past, [Decimal(facts.cards_freed) for facts in (week, *past)]),
        _figure("wasted", currency, week, past, [facts.wasted_per_week for facts in (week, *past)]),
        _figure("harm", "ratio", week, past, [_decimal(facts.violation_ratio) for facts in (week, *past)]),
    )


def _figure(
    name: str, unit: str, week: WeekFacts, past: Sequence[WeekFacts], values: Sequence[Decimal | None]
) -> ReportFigure:
    """`values` holds this week's value first, then one per past week, oldest first."""
    by_week = {facts.week_start: value for facts, value in zip(past, values[1:], strict=True)}
    before = [by_week.get(week.week_start - _WEEK * back) for back in range(1, WEEKS_MEAN + 1)]
    known = [value for value in before if value is not None]
    return ReportFigure(
        name=name,
        unit=unit,
        value=values[0],
        last_week=before[0],
        mean_four_weeks=sum(known, Decimal(0)) / len(known) if known else None,
    )


def _top(profiles: Profiles, plan: Plan | None, prices: Prices) -> tuple[TopWorkload, ...]:
    models = {card.card: card.card_model for card in profiles.cards}
    advice: dict[WorkloadId, Recommendation] = {}
    for item in plan.recommendations if plan is not None else ():
        for workload in item.workloads:
            advice.setdefault(workload, item)
    rows = [
        _top_row(profile, models, advice.get(profile.workload), prices)
        for profile in profiles.workloads
        if profile.state in _QUIET and profile.is_trusted
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.unused_per_week or 0), -row.unused_cards, row.workload)))


def _top_row(
    profile: Profile, models: dict[CardId, CardModelName], item: Recommendation | None, prices: Prices
) -> TopWorkload:
    used = profile.compute.p95 if profile.compute.p95 is not None else 1.0
    share = len(profile.idle_pods) / len(profile.pods) if profile.state is WorkloadState.PARTLY_IDLE else 1 - used
    weekly = [prices.per_card_week(models[card]) if card in models else None for card in profile.cards]
    known = [price for price in weekly if price is not None]
    return TopWorkload(
        workload=profile.workload,
        owner=profile.namespace,
        state=profile.state,
        cards=len(profile.cards),
        unused_cards=round(len(profile.cards) * share, 2),
        unused_per_week=sum(known, Decimal(0)) * Decimal(str(round(share, 4)))
        if known and len(known) == len(weekly)
        else None,
        advice=None if item is None else item.id,
        reason=profile.reason if item is None else item.reason,
    )


def _done(
    plans: Sequence[PlanEntry], outcomes: Sequence[Outcome], ledger: Sequence[LedgerEntry], now: datetime
) -> tuple[DoneItem, ...]:
    recent = [entry for entry in ledger if now - _WEEK < entry.at <= now and entry.plan_id]
    touched = dict.fromkeys([entry.plan_id for entry in recent])
    touched.update(dict.fromkeys(outcome.plan_id for outcome in outcomes if now - _WEEK < outcome.measured_at <= now))
    entries = {entry.plan.plan_id: entry for entry in plans}
    measured = {outcome.plan_id: outcome for outcome in outcomes}
    return tuple(
        _done_item(entries[plan_id], measured.get(plan_id), [e for e in recent if e.plan_id == plan_id], now)
        for plan_id in touched
        if plan_id in entries
    )


def _done_item(entry: PlanEntry, outcome: Outcome | None, lines: Sequence[LedgerEntry], now: datetime) -> DoneItem:
    count = len(entry.applied_stages)
    who = f", approved by {', '.join(entry.approved_by)}" if entry.approved_by else ""
    words = Counter(line.action.replace("_", " ") for line in lines)
    actions = ", ".join(f"{count}× {word}" for word, count in words.most_common(5))
    stand = f"Of its {len(entry.plan.stages)} stages {count or 'none'} stand in the cluster"
    done = f"{stand}{who}{f' ({actions})' if actions else ''}."
    if entry.undone_at is not None:
        went = f"It was undone on {entry.undone_at:%Y-%m-%d}, and saves nothing since."
    elif outcome is None:
        went = "It was not verified yet."
    else:
        came = (
            f"{format_count(outcome.realised_cards_freed)} of {_cards(outcome.promised_cards_freed)} promised came free"
        )
        went = (
            f"{came}, harm {percent_words(outcome.realised_violation_ratio)} against "
            f"{percent_words(outcome.promised_violation_ratio)} foretold{'' if outcome.is_final else ' (interim)'}."
        )
    return DoneItem(
        plan_id=entry.plan.plan_id, at=lines[0].at if lines else entry.applied_at or now, done=done, went=went
    )


def _next_plan(entry: PlanEntry | None, now: datetime) -> NextPlan | None:
    if entry is None or entry.applied_stages or entry.undone_at is not None:
        return None
    plan = entry.plan
    is_expired = now >= plan.expires_at
    return NextPlan(
        plan_id=plan.plan_id,
        cards_freed=plan.totals.cards_freed,
        moves=plan.totals.moves,
        predicted_violation_ratio=plan.totals.predicted_violation_ratio,
        saving=saving_words(plan.totals.saving_per_week, plan.currency),
        expires_at=plan.expires_at,
        is_expired=is_expired,
        stages=tuple(f"{stage.title}: {_cards(stage.cards_freed)}, {stage.moves} moves" for stage in plan.stages),
        command="gputide recommend" if is_expired else f"gputide plan approve --plan {plan.plan_id}",
    )


def _is_waiting(entry: PlanEntry, now: datetime) -> bool:
    return not entry.applied_stages and entry.undone_at is None and now < entry.plan.expires_at


def _data_notes(profiles: Profiles) -> tuple[str, ...]:
    distrusted = Counter(finding.check for profile in profiles.workloads for finding in profile.trust)
    notes = [f"{check.replace('_', ' ')}: {format_count(count)} workloads" for check, count in distrusted.most_common()]
    if profiles.coverage_ratio < 0.9:
        notes.append(f"coverage {percent_words(profiles.coverage_ratio, 1)} is under 90 %: figures may be too low")
    notes += [f"no advice on {item.kind.value.replace('_', ' ')}: {item.detail}" for item in profiles.withheld]
    return tuple(notes)


def _start_of(week: WeekFacts) -> datetime:
    return week.week_start


def _decimal(value: float | None) -> Decimal | None:
    return None if value is None else Decimal(str(value))


def _cards(count: int) -> str:
    return f"{format_count(count)} card{'' if count == 1 else 's'}"
