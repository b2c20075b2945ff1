"""Parts of the weekly report, in its language and for its team.

What was done in the week, each plan that was touched in two sentences; what the report leaves out and why; and who
holds cards and does not use them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from dashboards.access.namespace_cut import namespace_of
from dashboards.queries import LedgerEntry, PlanEntry
from dashboards.view_models.rows import RefusalGroup, refusal_groups
from dashboards.words.advice import reason_words, refusal_words, state_words, verdict_words
from enforcer.record.verdict import verdict_of
from fleet.decisions import Plan, Recommendation
from fleet.inventory import WorkloadId
from fleet.money.charges import Charge, MeasuredHours
from fleet.money.week_hours import NOT_USED, part_of
from fleet.outcomes import Outcome
from fleet.profiles import Profile, Profiles, WorkloadState
from fleet.words import Language, Words

_WEEK = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneItem:
    """A plan that was touched this week, in two sentences: what was done, and how it went."""

    plan_id: str
    at: datetime
    done: str
    went: str


@dataclass(frozen=True, slots=True)
class WeekTold:
    """Reports the plans of the week.

    Attributes:
        team: namespace that it is told to; None for the cluster.
    """

    words: Words
    team: str | None

    def items(
        self, plans: Sequence[PlanEntry], outcomes: Sequence[Outcome], ledger: Sequence[LedgerEntry], now: datetime
    ) -> tuple[DoneItem, ...]:
        """Plans that somebody touched, or that were measured, newest line first."""
        recent = [entry for entry in ledger if now - _WEEK < entry.at <= now and entry.plan_id]
        touched = dict.fromkeys([entry.plan_id for entry in recent])
        touched.update(dict.fromkeys(one.plan_id for one in outcomes if now - _WEEK < one.measured_at <= now))
        entries = {entry.plan.plan_id: entry for entry in plans if self.team is None or entry.plan.recommendations}
        measured = {outcome.plan_id: outcome for outcome in outcomes}
        return tuple(
            self._item(entries[plan_id], measured.get(plan_id), [e for e in recent if e.plan_id == plan_id], now)
            for plan_id in touched
            if plan_id in entries
        )

    def _item(self, entry: PlanEntry, outcome: Outcome | None, lines: Sequence[LedgerEntry], now: datetime) -> DoneItem:
        say, count = self.words.say, len([stage for stage in entry.plan.stages if stage.stage in entry.applied_stages])
        who = say("report.done.by", who=say("mark.list").join(entry.approved_by)) if entry.approved_by else ""
        actions = say("mark.list").join(
            say("report.done.action", count=times, action=self.words.code("action", action))
            for action, times in Counter(line.action for line in lines).most_common(5)
        )
        done = (
            say("report.done.stages", all=len(entry.plan.rollout_stages), count=count or say("report.done.no_stage"))
            + who
        )
        done += f"{say('mark.open')}{actions}{say('mark.close')}" if actions else ""
        return DoneItem(
            plan_id=entry.plan.plan_id,
            at=lines[0].at if lines else entry.applied_at or now,
            done=done + say("mark.stop"),
            went=self._went(entry, outcome),
        )

    def _went(self, entry: PlanEntry, outcome: Outcome | None) -> str:
        say = self.words.say
        if entry.undone_at is not None:
            return say("report.went.undone", day=f"{entry.undone_at:%Y-%m-%d}")
        if outcome is None:
            return say("report.went.unverified")
        part = None if self.team is None else lambda workload: namespace_of(workload) == self.team
        return verdict_words(verdict_of(outcome, part=part), self.words.language)


def refused_in(plan: Plan | None, words: Words) -> tuple[RefusalGroup, ...]:
    """Who a plan leaves alone, each reason with its example in the report's language; none without a plan."""
    groups = () if plan is None else refusal_groups(plan.refused)
    return tuple(replace(group, detail=refusal_words(group, words.language)) for group in groups)


def data_notes(profiles: Profiles, words: Words) -> tuple[str, ...]:
    """Counters that failed a cross-check, thin coverage, and advice that is withheld, one sentence each."""
    distrusted = Counter(finding.check for profile in profiles.workloads for finding in profile.trust)
    notes = [
        words.say("report.data.check", check=words.code("check", check), count=count)
        for check, count in distrusted.most_common()
    ]
    if profiles.coverage_ratio < 0.9:
        notes.append(words.say("report.data.coverage", ratio=words.percent(profiles.coverage_ratio, 1)))
    for item in profiles.withheld:
        kind, detail = words.code("kind", item.kind.value), refusal_words(item, words.language)
        notes.append(words.say("report.data.withheld", kind=kind, detail=detail))
    return tuple(notes)


_QUIET = frozenset({WorkloadState.IDLE, WorkloadState.IDLE_HELD, WorkloadState.PARTLY_IDLE, WorkloadState.OVERSIZED})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopWorkload:
    """One line of the top list: who holds cards that it does not use.

    Attributes:
        unused_card_hours: granted to it over the last seven days, and idle or unused.
        unused_cost: price of that; None where no card of it has a price.
        advice: id of the recommendation that would mend it; None where there is none.
    """

    workload: WorkloadId
    owner: str
    state: WorkloadState
    cards: int
    unused_card_hours: float
    unused_cost: Decimal | None
    advice: str | None
    reason: str


def top_workloads(
    profiles: Profiles, plan: Plan | None, charges: Sequence[Charge], language: Language = Language.EN
) -> tuple[TopWorkload, ...]:
    """Every trusted workload that leaves something unused, the dearest first.

    Args:
        plan: newest plan, whose advice is named; None where there is none.
        charges: card hours of the last seven days by workload.
    """
    advice: dict[WorkloadId, Recommendation] = {}
    for item in plan.recommendations if plan is not None else ():
        for workload in item.workloads:
            advice.setdefault(workload, item)
    measures = {charge.name: charge.measures for charge in charges}
    rows = [
        _top_row(profile, part_of(measures[profile.workload], NOT_USED), advice.get(profile.workload), language)
        for profile in profiles.workloads
        if profile.state in _QUIET and profile.is_trusted and profile.workload in measures
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.unused_cost or 0), -row.unused_card_hours, row.workload)))


def _top_row(profile: Profile, unused: MeasuredHours, item: Recommendation | None, language: Language) -> TopWorkload:
    return TopWorkload(
        workload=profile.workload,
        owner=profile.namespace,
        state=profile.state,
        cards=len(profile.cards),
        unused_card_hours=round(unused.card_hours, 1),
        unused_cost=unused.cost,
        advice=None if item is None else item.id,
        reason=state_words(profile, language) if item is None else reason_words(item, language),
    )
