"""The weekly report as one record (`gputide.report/v1`): the answer first, then what it stands on.

Pure: what is known comes in, the record goes out, its sentences in the language that was asked for; `report.text`
writes it as HTML, Markdown, CSV or JSON. Savings are counted in whole freed cards that were measured, never in smaller
requests. A team's report holds what is the team's alone: totals of the cluster, such as freed cards, are left out of
it, because nobody measured which part is whose. Called by `gputide report`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from dashboards.access.namespace_cut import cut_plan, cut_profiles, namespace_of
from dashboards.queries import LedgerEntry, PlanEntry
from dashboards.report.done import DoneItem, TopWorkload, WeekTold, data_notes, refused_in, top_workloads
from dashboards.report.week_measured import MeasuredWeek
from dashboards.report.weeks import WeekFacts
from dashboards.view_models.quotas import TeamQuota, team_quotas
from dashboards.view_models.rows import RefusalGroup
from dashboards.view_models.tenants import Tenant, tenants
from dashboards.words.advice import headline_words, remark_words
from dashboards.words.bill import bill_words
from enforcer.record.billed import PlanBill
from enforcer.record.harm import HarmBudget, harm_budgets, leading_verdict
from enforcer.record.savings import SavingsStep, savings_steps, week_start
from enforcer.record.verdict import Level, Verdict, verdict_of
from fleet.inventory import Quota
from fleet.money.charges import MeasuredHours, Owner
from fleet.money.cost_days import CostDays
from fleet.money.prices import Prices
from fleet.money.unit_costs import UnitCost
from fleet.money.week_hours import WASTED, WeekHours, part_of
from fleet.outcomes import Outcome
from fleet.profiles import CardState, HourMeasure, Profiles
from fleet.words import Language, Words

REPORT_SCHEMA = "gputide.report/v1"
WEEKS_MEAN = 4
_WEEK = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class DayHours:
    """The card hours of a day by what became of them.

    Attributes:
        start: start of the day, UTC; the first may begin within its day.
        hours_of_day: how many of its hours are counted, 1-24.
    """

    start: datetime
    hours_of_day: float
    card_hours: tuple[tuple[HourMeasure, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edition:
    """Whom a report is for.

    Attributes:
        team: namespace to cut it to; None for the cluster.
        measured: hours and electricity of the same; None where nothing was collected over the week.
        base_url: address of the web app, for links; None for none.
        units: what requests or tokens of workloads cost over the week.
        bills: what became of applied plans on the provider's bill; none where none was imported.
        days: card hours of the last four weeks; None where no card was known.
    """

    language: Language = Language.EN
    team: str | None = None
    measured: MeasuredWeek | None = None
    base_url: str | None = None
    quotas: tuple[Quota, ...] = ()
    units: tuple[UnitCost, ...] = ()
    bills: tuple[PlanBill, ...] = ()
    days: CostDays | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFigure:
    """A figure of the week, beside last week's and the mean of the four weeks before.

    Attributes:
        name: `freed`, `wasted` or `harm`; `idle_hours`, `low_priority`, `energy` or `carbon` in the detail.
        unit: `cards`, a currency, `ratio`, `hours`, `kwh` or `kg`.
        value: this week; None where nothing is known.
        last_week: the week before; None where there was no report.
        mean_four_weeks: mean of the known ones of the four weeks before; None where there is none.
        basis: what it stands on, or why it is unknown; empty for the three figures.
    """

    name: str
    unit: str
    value: Decimal | None
    last_week: Decimal | None
    mean_four_weeks: Decimal | None
    basis: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamLine:
    """One team in the table of teams.

    Attributes:
        tenant: its card hours by measure.
        kwh: electricity of the week by use, with overhead; None where unknown.
        quota: cards that its quotas allow, and hold; None where no quota counts its cards.
    """

    tenant: Tenant
    kwh: float | None
    quota: TeamQuota | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanForecast:
    """What was predicted of a plan, and what was observed.

    Attributes:
        since: moment of apply, UTC.
        cards_promised: whole cards.
        cards_freed: whole cards, measured.
        harm_predicted: violated share of active time, 0-1.
        harm_observed: the same, measured; None where it is not judged.
        stands: `final`, `interim` or `undone`.
    """

    plan_id: str
    since: datetime
    cards_promised: int
    cards_freed: int
    harm_predicted: float
    harm_observed: float | None
    level: Level
    stands: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPlan:
    """What waits for a decision."""

    plan_id: str
    cards_freed: int
    moves: int
    predicted_violation_ratio: float
    low_priority_gpu_hours_per_week: float
    saving: str
    expires_at: datetime
    is_expired: bool
    surge: tuple[str, ...]
    stages: tuple[str, ...]
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything a weekly report says.

    Attributes:
        headline: harm first where a service is over its budget; otherwise the one number that matters.
        verdict: the one that leads; None where no standing plan was verified.
        past_weeks: facts of earlier weeks, oldest first.
        funnel: found → realised.
        top: who leaves most unused, most first.
        refused: who is left alone, and why.
        next_plan: what waits for approval; None where nothing does.
        data_notes: incidents of data quality and withheld advice.
        coverage_ratio: 0-1.
        method: how it was counted.
        price_version: version of the price book; another one is another book.
        team: namespace that it is cut to; None for the cluster.
        detail_figures: idle and low-priority GPU-hours, electricity, carbon.
        teams: every team, the most wasteful first; of a team's report itself.
        forecasts: every plan that was measured, newest first; none in a team's report.
        harm_budgets: harm of every changed service against its budget, the most burnt first.
        base_url: address of the web app; None for no links.
        units: what a million requests or tokens of workloads cost, the dearest workload first.
        bill: what freed nodes took off the provider's bill; empty where none was imported, and in a team's report.
        days: card hours of each of the last days, oldest first; of the team, where it is cut to one.
    """

    title: str
    cluster: str
    created_at: datetime
    since: datetime
    until: datetime
    currency: str
    headline: str
    verdict: Verdict | None
    figures: tuple[ReportFigure, ...]
    week: WeekFacts
    past_weeks: tuple[WeekFacts, ...]
    funnel: tuple[SavingsStep, ...]
    top: tuple[TopWorkload, ...]
    done: tuple[DoneItem, ...]
    refused: tuple[RefusalGroup, ...]
    next_plan: NextPlan | None
    data_notes: tuple[str, ...]
    coverage_ratio: float
    method: str
    price_source: str
    price_version: str = ""
    language: Language = Language.EN
    team: str | None = None
    detail_figures: tuple[ReportFigure, ...] = ()
    teams: tuple[TeamLine, ...] = ()
    forecasts: tuple[PlanForecast, ...] = ()
    harm_budgets: tuple[HarmBudget, ...] = ()
    base_url: str | None = None
    units: tuple[UnitCost, ...] = ()
    bill: str = ""
    days: tuple[DayHours, ...] = ()


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
    edition: Edition | None = None,
) -> Report:
    """The report of the seven days before `now`.

    Args:
        outcomes: newest outcome of each applied plan, newest plan first.
        ledger: what was done, newest first.
        past_weeks: facts of earlier reports, in any order; of the team, where one is named.
        edition: whom it is for; None for the cluster, in English.
    """
    edition = edition if edition is not None else Edition()
    team, measured, words = edition.team, edition.measured, Words(language=edition.language)
    # Advice that names another team's workload is not shown to a team; what it did to the team's own services is.
    part = None if team is None else lambda workload: namespace_of(workload) == team
    budgets = tuple(one for one in harm_budgets(plans, outcomes) if part is None or part(one.workload))
    verdict = leading_verdict(plans, outcomes, part=part)
    past = tuple(sorted((week for week in past_weeks if week.week_start < week_start(now)), key=_start_of))
    every_team = () if measured is None else tenants(profiles, measured.hours)
    if team is not None:
        mine = frozenset({team})
        profiles = cut_profiles(profiles, mine)
        plans = [entry for entry in (replace(one, plan=cut_plan(one.plan, mine)) for one in plans) if _concerns(entry)]
        every_team = tuple(one for one in every_team if one.name == team)
    steps = savings_steps(plans, () if team is not None else outcomes)
    week = _facts(profiles, verdict, None if team is not None else steps[-1].cards, now, measured, team)
    newest = plans[0] if plans else None
    quota_of = team_quotas(edition.quotas)
    kwh_of = dict(measured.kwh_by_team) if measured is not None else {}
    return Report(
        title=words.in_english("report.title", title),
        cluster=profiles.cluster,
        created_at=now,
        since=now - _WEEK,
        until=now,
        currency=prices.currency,
        headline=_headline(profiles, week, newest, now, words, team, verdict),
        verdict=verdict,
        figures=_figures(week, past, prices.currency),
        week=week,
        past_weeks=past,
        funnel=tuple(step for step in steps if team is None or not step.is_measured),
        top=top_workloads(
            profiles,
            newest.plan if newest is not None else None,
            () if measured is None else measured.workloads,
            edition.language,
        )[:top],
        done=WeekTold(words, team).items(plans, outcomes, ledger, now),
        refused=refused_in(None if newest is None else newest.plan, words),
        next_plan=_next_plan(newest, now, words),
        data_notes=data_notes(profiles, words),
        coverage_ratio=profiles.coverage_ratio,
        method=words.say("report.small.method"),
        price_source=words.say("source.own" if prices.book.has_own_prices else "source.list"),
        price_version=prices.book.version,
        language=edition.language,
        team=team,
        detail_figures=_detail_figures(week, past, measured, words, team),
        teams=tuple(TeamLine(tenant=one, kwh=kwh_of.get(one.name), quota=quota_of.get(one.name)) for one in every_team),
        forecasts=_forecasts(plans, outcomes) if team is None else (),
        harm_budgets=budgets,
        base_url=edition.base_url,
        units=tuple(one for one in edition.units if team in (None, namespace_of(one.workload))),
        bill="" if team is not None else bill_words(edition.bills, edition.language),
        days=() if edition.days is None else _days(edition.days, team),
    )


def _days(found: CostDays, team: str | None) -> tuple[DayHours, ...]:
    """Whole days and the one in progress; what nobody was granted is no team's."""
    kept = found if team is None else found.of({Owner.NAMESPACE: team})
    ends = (*kept.starts[1:], kept.until)
    return tuple(
        DayHours(
            start=start,
            hours_of_day=(end - start).total_seconds() / 3600,
            card_hours=tuple((measure, one.card_hours) for measure, one in day.items() if one.card_hours),
        )
        for start, end, day in zip(kept.starts, ends, kept.per_day(), strict=True)
    )


def _concerns(entry: PlanEntry) -> bool:
    return bool(entry.plan.recommendations or entry.plan.refused)


def _facts(
    profiles: Profiles,
    verdict: Verdict | None,
    cards_freed: int | None,
    now: datetime,
    measured: MeasuredWeek | None,
    team: str | None,
) -> WeekFacts:
    counts = Counter(card.state for card in profiles.cards)
    wasted = None if measured is None else _wasted(measured.hours, team)
    return WeekFacts(
        week_start=week_start(now),
        cards_freed=cards_freed,
        wasted_per_week=None if wasted is None else wasted.cost,
        violation_ratio=None if verdict is None else verdict.observed_ratio,
        cards_by_state=tuple((state, counts[state]) for state in CardState),
        idle_gpu_hours=None if wasted is None else round(wasted.card_hours, 1),
        low_priority_gpu_hours=None if measured is None else measured.low_priority_gpu_hours,
        kwh=None if measured is None else measured.kwh,
        kg_co2=None if measured is None else measured.kg_co2,
    )


def _wasted(hours: WeekHours, team: str | None) -> MeasuredHours:
    return part_of(hours.total if team is None else hours.tenants.get(team, {}), WASTED)


def _headline(
    profiles: Profiles,
    week: WeekFacts,
    newest: PlanEntry | None,
    now: datetime,
    words: Words,
    team: str | None,
    verdict: Verdict | None,
) -> str:
    harm = "" if verdict is None or not verdict.is_harmed else headline_words(verdict, words.language)
    if harm and team is not None:
        return harm
    waiting = newest.plan.totals.cards_freed if newest is not None and _is_waiting(newest, now) else 0
    if week.cards_freed:
        more = words.say("report.headline.more", count=waiting) if waiting else ""
        text = words.say("report.headline.freed", cards=words.cards(week.cards_freed)) + more
    elif waiting:
        text = words.say("report.headline.would", cards=words.cards(waiting))
    else:
        counts = dict(week.cards_by_state)
        idle = counts.get(CardState.IDLE_HELD, 0) + counts.get(CardState.FREE, 0)
        key = "report.headline.idle" if team is None else "report.headline.team_idle"
        text = words.say(key, cards=words.cards(idle), all=len(profiles.cards))
    return words.sentences(*filter(None, (harm, text + words.say("mark.stop"))))


def _figures(week: WeekFacts, past: Sequence[WeekFacts], currency: str) -> tuple[ReportFigure, ...]:
    return (
        _figure("freed", "cards", week, past, lambda facts: facts.cards_freed),
        _figure("wasted", currency, week, past, lambda facts: facts.wasted_per_week),
        _figure("harm", "ratio", week, past, lambda facts: facts.violation_ratio),
    )


def _detail_figures(
    week: WeekFacts, past: Sequence[WeekFacts], measured: MeasuredWeek | None, words: Words, team: str | None
) -> tuple[ReportFigure, ...]:
    hours = "report.basis.idle_hours" if team is None else "report.basis.idle_hours_team"
    told = dict.fromkeys(("hours", "low", "kwh", "co2"), words.say("report.basis.none"))
    if measured is not None:
        known, grid = words.percent(measured.kwh_known_ratio, 0), measured.grid_kg_co2_per_kwh
        energy = words.say("report.basis.energy", ratio=known, pue=measured.pue)
        told = {
            "hours": words.say(hours),
            "low": words.say("report.basis.low_priority"),
            "kwh": words.say("report.basis.energy_none") if measured.kwh is None else energy,
            "co2": words.say("report.basis.carbon_none" if grid is None else "report.basis.carbon", grid=grid),
        }
    return (
        _figure("idle_hours", "hours", week, past, lambda facts: facts.idle_gpu_hours, told["hours"]),
        _figure("low_priority", "hours", week, past, lambda facts: facts.low_priority_gpu_hours, told["low"]),
        _figure("energy", "kwh", week, past, lambda facts: facts.kwh, told["kwh"]),
        _figure("carbon", "kg", week, past, lambda facts: facts.kg_co2, told["co2"]),
    )


def _forecasts(plans: Sequence[PlanEntry], outcomes: Sequence[Outcome]) -> tuple[PlanForecast, ...]:
    undone = {entry.plan.plan_id for entry in plans if entry.undone_at is not None}
    return tuple(
        PlanForecast(
            plan_id=outcome.plan_id,
            since=outcome.since,
            cards_promised=outcome.promised_cards_freed,
            cards_freed=outcome.realised_cards_freed,
            harm_predicted=verdict.predicted_ratio,
            harm_observed=verdict.observed_ratio,
            level=verdict.level,
            stands="undone" if outcome.plan_id in undone else "final" if outcome.is_final else "interim",
        )
        for outcome, verdict in zip(outcomes, map(verdict_of, outcomes), strict=True)
    )


def _figure(
    name: str,
    unit: str,
    week: WeekFacts,
    past: Sequence[WeekFacts],
    value: Callable[[WeekFacts], float | Decimal | None],
    basis: str = "",
) -> ReportFigure:
    by_week = {facts.week_start: _decimal(value(facts)) for facts in past}
    before = [by_week.get(week.week_start - _WEEK * back) for back in range(1, WEEKS_MEAN + 1)]
    known = [value for value in before if value is not None]
    return ReportFigure(
        name=name,
        unit=unit,
        value=_decimal(value(week)),
        last_week=before[0],
        mean_four_weeks=sum(known, Decimal(0)) / len(known) if known else None,
        basis=basis,
    )


def _next_plan(entry: PlanEntry | None, now: datetime, words: Words) -> NextPlan | None:
    if entry is None or not _is_undecided(entry):
        return None
    plan = entry.plan
    is_expired = now >= plan.expires_at
    stages = tuple(
        words.say(
            "report.next.stage", title=words.stage(one.title), cards=words.cards(one.cards_freed), moves=one.moves
        )
        for one in plan.stages
    )
    return NextPlan(
        plan_id=plan.plan_id,
        cards_freed=plan.totals.cards_freed,
        moves=plan.totals.moves,
        predicted_violation_ratio=plan.totals.predicted_violation_ratio,
        low_priority_gpu_hours_per_week=plan.totals.low_priority_gpu_hours_per_week,
        saving=words.saving(plan.totals.saving_per_week, plan.currency),
        expires_at=plan.expires_at,
        is_expired=is_expired,
        surge=remark_words(plan, words.language),
        stages=stages,
        command="gputide plan make" if is_expired else entry.approve_command,
    )


def _is_waiting(entry: PlanEntry, now: datetime) -> bool:
    return _is_undecided(entry) and now < entry.plan.expires_at


def _is_undecided(entry: PlanEntry) -> bool:
    if entry.is_tide_only:
        return not entry.approved_stages
    return not entry.applied_stages and entry.undone_at is None


def _start_of(week: WeekFacts) -> datetime:
    return week.week_start


def _decimal(value: float | Decimal | None) -> Decimal | None:
    return None if value is None else Decimal(str(value))
