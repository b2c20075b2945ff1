"""What there is to tell: made from the pages' ports and the weekly report, pure.

A notice of the same news has the same key whenever it is made, so that it is told once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from urllib.parse import quote

from dashboards.notify.message import Message
from dashboards.notify.team import Team
from dashboards.queries import LedgerEntry, PlanEntry
from dashboards.realised import violation_ratio_max
from dashboards.report import Report
from dashboards.report_text import report_lines
from dashboards.rows import moment_words, money_words, percent_words, saving_words
from fleet.decisions import Plan, Recommendation
from fleet.inventory import WorkloadId
from fleet.outcomes import Outcome
from fleet.settings_notify import NoticeTopic
from fleet.units import format_count

SHORTFALL_RATIO = 0.8
"""A plan whose realised cards are under this share of the promised ones is told of."""
_TAKEN_BACK = ("undone", "restored", "taken back")


def notices(
    entries: Sequence[PlanEntry],
    outcomes: Sequence[Outcome],
    ledger: Sequence[LedgerEntry],
    *,
    now: datetime,
    since: datetime,
    base_url: str | None,
) -> tuple[Message, ...]:
    """Everything about plans that people should hear, oldest first.

    Args:
        entries: plans, newest first.
        outcomes: newest outcome of each applied plan.
        ledger: what was done, newest first.
        now: moment of looking, UTC.
        since: older deeds are not told any more.
        base_url: address of the web app; None for no links.
    """
    found = [*_waiting(entries, now, base_url), *_harms(entries, outcomes, base_url, since)]
    found += _taken_back(entries, ledger, base_url, since)
    return tuple(sorted(found, key=lambda message: (message.at, message.key)))


def report_notice(report: Report, *, base_url: str | None) -> Message:
    """The weekly report in five lines."""
    lines = report_lines(report)
    return Message(
        key=f"report:{report.cluster}:{report.week.week_start:%Y-%m-%d}",
        topic=NoticeTopic.REPORT,
        title=lines[0],
        lines=lines[1:],
        link=_link(base_url, "/savings", report.cluster),
        link_text="Open the savings page",
        cluster=report.cluster,
        namespaces=(),
        workloads=(),
        at=report.created_at,
    )


def team_report_notice(report: Report, team: Team, *, base_url: str | None) -> Message | None:
    """What of the report concerns a team: its workloads that leave most unused; None where there are none.

    Args:
        report: the whole report.
        team: who.
        base_url: address of the web app; None for no links.
    """
    mine = [row for row in report.top if team.is_concerned((row.owner,), (row.workload,))]
    if not mine:
        return None
    return Message(
        key=f"report:{report.cluster}:{team.name}:{report.week.week_start:%Y-%m-%d}",
        topic=NoticeTopic.REPORT,
        title=f"{report.title}: {team.name}, week to {report.until:%Y-%m-%d}",
        lines=tuple(
            f"{row.workload} holds {_cards(row.cards)}, "
            f"{money_words(row.unused_per_week, report.currency)} a week of them unused: {row.reason}"
            for row in mine
        ),
        link=_link(base_url, "/workloads", report.cluster),
        link_text="Open the workloads",
        cluster=report.cluster,
        namespaces=tuple(dict.fromkeys(row.owner for row in mine)),
        workloads=tuple(row.workload for row in mine),
        at=report.created_at,
    )


def _waiting(entries: Sequence[PlanEntry], now: datetime, base_url: str | None) -> Iterator[Message]:
    """The newest plan alone: an older one is overtaken."""
    for entry in entries[:1]:
        plan = entry.plan
        is_open = not entry.approved_stages and not entry.applied_stages and entry.undone_at is None
        if not is_open or now >= plan.expires_at or not plan.recommendations:
            continue
        yield Message(
            key=f"plan-waits:{plan.plan_id}",
            topic=NoticeTopic.PLAN,
            title=f"{plan.cluster}: a plan that frees {_cards(plan.totals.cards_freed)} waits for approval",
            lines=(
                (
                    f"saves {saving_words(plan.totals.saving_per_week, plan.currency)} a week, "
                    f"foretold harm {percent_words(plan.totals.predicted_violation_ratio)}, "
                    f"{format_count(plan.totals.moves)} moves; expires {moment_words(plan.expires_at)}"
                ),
                *(f"stage {stage.stage}: {stage.title}" for stage in plan.stages),
                f"gputide plan approve --plan {plan.plan_id}",
            ),
            link=_link(base_url, "/plan", plan.cluster, plan.plan_id),
            link_text="Review the plan",
            cluster=plan.cluster,
            namespaces=_namespaces(plan.recommendations),
            workloads=_workloads(plan.recommendations),
            at=plan.created_at,
        )


def _harms(
    entries: Sequence[PlanEntry], outcomes: Sequence[Outcome], base_url: str | None, since: datetime
) -> Iterator[Message]:
    plans = {entry.plan.plan_id: entry for entry in entries}
    for outcome in outcomes:
        entry = plans.get(outcome.plan_id)
        if entry is None or entry.undone_at is not None or outcome.measured_at < since:
            continue
        plan, harm = entry.plan, outcome.realised_violation_ratio
        limit = violation_ratio_max(plan.risk)
        if harm is not None and harm > limit:
            worst = [
                one for one in outcome.workloads if one.violation_ratio is not None and one.violation_ratio > limit
            ]
            yield _of_plan(
                plan,
                f"plan-harms:{plan.plan_id}",
                f"{plan.cluster}: plan {plan.plan_id} harms more than its risk allows",
                (
                    (
                        f"{percent_words(harm)} of the active time of changed services, "
                        f"{percent_words(plan.totals.predicted_violation_ratio)} foretold, "
                        f"{percent_words(limit)} allowed"
                    ),
                    *(f"{one.workload}: {percent_words(one.violation_ratio)}" for one in worst),
                    f"gputide undo --plan {plan.plan_id}",
                ),
                outcome.measured_at,
                base_url,
            )
        if outcome.is_final and outcome.realised_cards_freed < SHORTFALL_RATIO * outcome.promised_cards_freed:
            yield _of_plan(
                plan,
                f"plan-saves-less:{plan.plan_id}",
                f"{plan.cluster}: of {format_count(outcome.promised_cards_freed)} promised cards "
                f"{format_count(outcome.realised_cards_freed)} stayed free",
                (outcome.verdict,),
                outcome.measured_at,
                base_url,
            )


def _taken_back(
    entries: Sequence[PlanEntry], ledger: Sequence[LedgerEntry], base_url: str | None, since: datetime
) -> Iterator[Message]:
    plans = {entry.plan.plan_id: entry.plan for entry in entries}
    for line in ledger:
        if line.action not in _TAKEN_BACK or line.at < since or line.plan_id not in plans:
            continue
        detail = f": {line.detail}" if line.detail else ""
        yield _of_plan(
            plans[line.plan_id],
            f"taken-back:{line.plan_id}:{line.subject}:{line.action}:{line.at.isoformat()}",
            f"{plans[line.plan_id].cluster}: {line.subject} of plan {line.plan_id}: {line.action}",
            (f"by {line.actor} on {moment_words(line.at)}{detail}",),
            line.at,
            base_url,
        )


def _of_plan(plan: Plan, key: str, title: str, lines: tuple[str, ...], at: datetime, base_url: str | None) -> Message:
    return Message(
        key=key,
        topic=NoticeTopic.HARM,
        title=title,
        lines=lines,
        link=_link(base_url, "/plan", plan.cluster, plan.plan_id),
        link_text="Open the plan",
        cluster=plan.cluster,
        namespaces=_namespaces(plan.recommendations),
        workloads=_workloads(plan.recommendations),
        at=at,
    )


def _namespaces(items: Sequence[Recommendation]) -> tuple[str, ...]:
    """A workload is written `namespace/Kind/name`."""
    return tuple(sorted({workload.split("/", 1)[0] for item in items for workload in item.workloads}))


def _workloads(items: Sequence[Recommendation]) -> tuple[WorkloadId, ...]:
    return tuple(sorted({workload for item in items for workload in item.workloads}))


def _cards(count: int) -> str:
    return f"{format_count(count)} card{'' if count == 1 else 's'}"


def _link(base_url: str | None, page: str, cluster: str, plan_id: str | None = None) -> str | None:
    """A page of ours; names go in quoted, so that none becomes part of the address."""
    if base_url is None:
        return None
    more = "" if plan_id is None else f"&plan={quote(plan_id, safe='')}"
    return f"{base_url.rstrip('/')}{page}?cluster={quote(cluster, safe='')}{more}"
