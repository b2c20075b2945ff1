"""The news: made from the pages' ports, the budgets and the weekly report, pure.

A notice of the same news has the same key whenever it is made, so that it is sent once. A team's notices are made from
what is the team's: totals of the cluster stand in none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from urllib.parse import quote

from dashboards.access.namespace_cut import cut_plan_to, namespace_of, without_workloads
from dashboards.notify.message import Message
from dashboards.notify.team import Team
from dashboards.queries import LedgerEntry, PlanEntry
from dashboards.report.report import Report
from dashboards.report.text import report_lines
from dashboards.view_models.rows import money_words
from dashboards.words.advice import judged_words
from enforcer.record.harm import standing_outcomes
from enforcer.record.verdict import headline, sentences, verdict_of
from fleet.decisions import Plan, Recommendation
from fleet.inventory import WorkloadId
from fleet.money.budgets import BudgetState, BudgetStatus
from fleet.outcomes import Outcome
from fleet.settings.notify import NoticeTopic
from fleet.units import format_plan_id
from fleet.words import Language, Words

SHORTFALL_RATIO = 0.8
"""A plan whose realised cards are under this share of the promised ones is news."""
_TAKEN_BACK = ("undone", "restored", "taken back")


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """How news are written.

    Attributes:
        base_url: address of the web app; None for no links.
        team: who gets it, its own news alone; None for the whole fleet's.
    """

    base_url: str | None = None
    language: Language = Language.EN
    team: Team | None = None

    @property
    def words(self) -> Words:
        """The words of the language."""
        return Words(language=self.language)

    def is_told(self, workload: WorkloadId | str) -> bool:
        """Whether a workload may be named."""
        return self.team is None or self.team.owns(workload)


def notices(
    entries: Sequence[PlanEntry],
    outcomes: Sequence[Outcome],
    ledger: Sequence[LedgerEntry],
    *,
    now: datetime,
    since: datetime,
    telling: Telling,
) -> tuple[Message, ...]:
    """Everything about plans that people should hear, oldest first.

    Args:
        ledger: what was done, newest first.
        since: older deeds are no news any more.
    """
    if telling.team is not None:
        entries = tuple(replace(entry, plan=cut_plan_to(entry.plan, telling.is_told)) for entry in entries)
    found = [*_waiting(entries, now, telling), *_harms(entries, outcomes, telling, since)]
    found += _taken_back(entries, ledger, telling, since)
    return tuple(sorted(found, key=lambda message: (message.at, message.key)))


def budget_notices(
    statuses: Sequence[BudgetStatus], *, cluster: str, currency: str, now: datetime, ratio: float, telling: Telling
) -> tuple[Message, ...]:
    """Budgets that are nearly spent, spent, or predicted to be before the month ends; each once a month and state.

    Args:
        ratio: share of a budget from which on it is news, 0-1.
    """
    found = [_budget_notice(status, cluster, currency, now, ratio, telling) for status in statuses]
    return tuple(message for message in found if message is not None)


def report_notice(report: Report, *, base_url: str | None) -> Message:
    """The weekly report in five lines."""
    lines, words = report_lines(report), Words(language=report.language)
    return Message(
        key=f"report:{report.cluster}:{report.week.week_start:%Y-%m-%d}",
        topic=NoticeTopic.REPORT,
        title=lines[0],
        lines=lines[1:],
        link=_link(base_url, "/savings", report.cluster),
        link_text=words.say("notice.open_savings"),
        cluster=report.cluster,
        namespaces=(),
        workloads=(),
        at=report.created_at,
        language=report.language,
    )


def team_report_notice(report: Report, team: Team, *, base_url: str | None) -> Message | None:
    """What of the report concerns a team: its own totals, and its workloads that leave most unused; None without any.

    Args:
        base_url: address of the web app; None for no links.
    """
    words = Words(language=report.language)
    mine = [row for row in report.top if team.owns(row.workload)]
    if not mine:
        return None
    known = [row.unused_cost for row in mine if row.unused_cost is not None]
    money = money_words(sum(known, Decimal(0)) if known else None, report.currency)
    cards = words.cards(sum(row.cards for row in mine))
    lines = [words.say("notice.team_total", workloads=len(mine), cards=cards, money=money)]
    lines += [
        words.say(
            "notice.team_row", workload=row.workload, cards=words.cards(row.cards),
            money=money_words(row.unused_cost, report.currency), reason=row.reason,
        )
        for row in mine
    ]  # fmt: skip
    return Message(
        key=f"report:{report.cluster}:{team.name}:{report.week.week_start:%Y-%m-%d}",
        topic=NoticeTopic.REPORT,
        title=words.say("notice.team_title", title=report.title, team=team.name, until=f"{report.until:%Y-%m-%d}"),
        lines=tuple(lines),
        link=_link(base_url, "/workloads", report.cluster),
        link_text=words.say("notice.open_workloads"),
        cluster=report.cluster,
        namespaces=tuple(dict.fromkeys(row.owner for row in mine)),
        workloads=tuple(row.workload for row in mine),
        at=report.created_at,
        language=report.language,
    )


def _waiting(entries: Sequence[PlanEntry], now: datetime, telling: Telling) -> Iterator[Message]:
    """The newest plan alone: an older one is overtaken."""
    words = telling.words
    for entry in entries[:1]:
        plan = entry.plan
        decided = plan.tide_stages if entry.is_tide_only else set(plan.rollout_stages)
        is_open = decided.isdisjoint(entry.approved_stages) and not entry.applied_stages and entry.undone_at is None
        if not is_open or now >= plan.expires_at or not plan.stages:
            continue
        title = "notice.waits" if telling.team is None else "notice.waits_team"
        stages = [words.say("notice.stage", stage=one.stage, title=words.stage(one.title)) for one in plan.stages]
        first = words.say(
            "notice.waits_line", saving=words.saving(plan.totals.saving_per_week, plan.currency),
            harm=words.percent(plan.totals.predicted_violation_ratio), moves=plan.totals.moves,
            moment=words.moment(plan.expires_at),
        )  # fmt: skip
        yield Message(
            key=f"plan-waits:{plan.plan_id}",
            topic=NoticeTopic.PLAN,
            title=words.say(title, cluster=plan.cluster, cards=words.cards(plan.totals.cards_freed)),
            lines=(first, *stages, entry.approve_command),
            link=_link(telling.base_url, "/plan", plan.cluster, plan.plan_id),
            link_text=words.say("notice.review"),
            cluster=plan.cluster,
            namespaces=_namespaces(_workloads(plan.recommendations)),
            workloads=_workloads(plan.recommendations),
            at=plan.created_at,
            language=telling.language,
        )


def _harms(
    entries: Sequence[PlanEntry], outcomes: Sequence[Outcome], telling: Telling, since: datetime
) -> Iterator[Message]:
    words = telling.words
    plans = {entry.plan.plan_id: entry.plan for entry in entries}
    part = None if telling.team is None else telling.is_told
    for outcome, own in standing_outcomes(entries, outcomes):
        if outcome.measured_at < since:
            continue
        # Whether a service still is over its budget decides; the words are those on the whole plan, as `verify` has.
        verdict = verdict_of(outcome if verdict_of(own, part=part).is_harmed else own, part=part)
        # Cards are counted for the cluster alone: nobody measured which part is whose.
        is_short = outcome.is_final and outcome.realised_cards_freed < SHORTFALL_RATIO * outcome.promised_cards_freed
        if not verdict.is_harmed and not (is_short and telling.team is None):
            continue
        plan, lead = plans[outcome.plan_id], headline(verdict)
        undo = verdict.is_harmed and telling.team is None
        yield _of_plan(
            plan,
            tuple(sorted(one.workload for one in outcome.workloads if telling.is_told(one.workload))),
            f"{'plan-harms' if verdict.is_harmed else 'plan-saves-less'}:{outcome.plan_id}",
            f"{plan.cluster}{words.say('mark.between')}{judged_words(lead, telling.language)}",
            (
                judged_words(sentences(verdict)[len(lead) :], telling.language),
                *(
                    f"{one.workload}{words.say('mark.between')}{words.percent(one.violation_ratio)}"
                    for one in verdict.over_budget
                ),
                *((f"gputide undo --plan {format_plan_id(outcome.plan_id)}",) if undo else ()),
            ),
            outcome.measured_at,
            telling,
            leads=verdict.is_harmed,
        )


def _taken_back(
    entries: Sequence[PlanEntry], ledger: Sequence[LedgerEntry], telling: Telling, since: datetime
) -> Iterator[Message]:
    words = telling.words
    plans = {entry.plan.plan_id: entry.plan for entry in entries if entry.plan.recommendations}
    for line in ledger:
        if line.action not in _TAKEN_BACK or line.at < since or line.plan_id not in plans:
            continue
        plan = plans[line.plan_id]
        kept = line.detail if telling.team is None else without_workloads(line.detail, telling.is_told)
        detail = f"{words.say('mark.between')}{words.said(kept)}" if kept else ""
        title = words.say(
            "notice.taken_back", cluster=plan.cluster, subject=words.subject(line.subject), plan=line.plan_id,
            action=words.code("action", line.action),
        )  # fmt: skip
        yield _of_plan(
            plan,
            _workloads(plan.recommendations),
            f"taken-back:{line.plan_id}:{line.subject}:{line.action}:{line.at.isoformat()}",
            title,
            (words.say("notice.by", who=line.actor, moment=words.moment(line.at)) + detail,),
            line.at,
            telling,
        )


def _budget_notice(
    status: BudgetStatus, cluster: str, currency: str, now: datetime, ratio: float, telling: Telling
) -> Message | None:
    if telling.team is not None and not telling.team.owns_budget(status.kind, status.name):
        return None
    words = telling.words
    is_near = status.spent is not None and status.spent >= Decimal(str(ratio)) * status.per_month
    state = status.state.value if status.state in (BudgetState.OVER, BudgetState.FORECAST_OVER) else "near"
    if state == "near" and not is_near:
        return None
    spent = None if status.spent is None else float(status.spent / status.per_month)
    lines = [
        words.say(
            "notice.budget_line", spent=money_words(status.spent, currency),
            budget=money_words(status.per_month, currency), ratio=words.percent(spent, 0),
            forecast=money_words(status.forecast, currency),
        )
    ]  # fmt: skip
    if status.unpriced_card_hours:
        lines.append(words.say("notice.budget_unpriced", hours=round(status.unpriced_card_hours)))
    owner = words.say("report.of_team" if status.kind == "team" else "report.of_namespace", team=status.name)
    return Message(
        key=f"budget:{cluster}:{status.kind}:{status.name}:{now:%Y-%m}:{state}",
        topic=NoticeTopic.BUDGET,
        title=words.say(f"notice.budget_{state}", cluster=cluster, owner=owner),
        lines=(*lines, "gputide cost budgets"),
        link=_link(telling.base_url, "/tenants", cluster),
        link_text=words.say("notice.open_tenants"),
        cluster=cluster,
        namespaces=(status.name,),
        workloads=(),
        teams=(status.name,) if status.kind == "team" else (),
        at=now,
        language=telling.language,
    )


def _of_plan(
    plan: Plan,
    workloads: tuple[WorkloadId, ...],
    key: str,
    title: str,
    lines: tuple[str, ...],
    at: datetime,
    telling: Telling,
    *,
    leads: bool = False,
) -> Message:
    return Message(
        key=key,
        topic=NoticeTopic.HARM,
        title=title,
        lines=lines,
        link=_link(telling.base_url, "/plan", plan.cluster, plan.plan_id),
        link_text=telling.words.say("notice.open_plan"),
        cluster=plan.cluster,
        namespaces=_namespaces(workloads),
        workloads=workloads,
        at=at,
        language=telling.language,
        leads=leads,
    )


def _namespaces(workloads: Sequence[WorkloadId]) -> tuple[str, ...]:
    return tuple(sorted(set(map(namespace_of, workloads))))


def _workloads(items: Sequence[Recommendation]) -> tuple[WorkloadId, ...]:
    return tuple(sorted({workload for item in items for workload in item.workloads}))


def _link(base_url: str | None, page: str, cluster: str, plan_id: str | None = None) -> str | None:
    """A page of ours; names go in quoted, so that none becomes part of the address."""
    if base_url is None:
        return None
    more = "" if plan_id is None else f"&plan={quote(plan_id, safe='')}"
    return f"{base_url.rstrip('/')}{page}?cluster={quote(cluster, safe='')}{more}"
