"""What was done in the week, and how it went: each plan that was touched, in two sentences.

Called by `report`, whose language and team it tells in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dashboards.access.cut import namespace_of
from dashboards.queries import LedgerEntry, PlanEntry
from dashboards.words.advice import verdict_words
from dashboards.words.report import Words
from enforcer.record.verdict import verdict_of
from fleet.outcomes import Outcome

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
    """Tells of the plans of the week.

    Attributes:
        words: the language.
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
        who = say("done.by", who=say("list").join(entry.approved_by)) if entry.approved_by else ""
        actions = say("list").join(
            say("done.action", count=times, action=self.words.code("action", action))
            for action, times in Counter(line.action for line in lines).most_common(5)
        )
        done = say("done.stages", all=len(entry.plan.stages), count=count or say("done.no_stage")) + who
        done += f"{say('open')}{actions}{say('close')}" if actions else ""
        return DoneItem(
            plan_id=entry.plan.plan_id,
            at=lines[0].at if lines else entry.applied_at or now,
            done=done + say("stop"),
            went=self._went(entry, outcome),
        )

    def _went(self, entry: PlanEntry, outcome: Outcome | None) -> str:
        say = self.words.say
        if entry.undone_at is not None:
            return say("went.undone", day=f"{entry.undone_at:%Y-%m-%d}")
        if outcome is None:
            return say("went.unverified")
        part = None if self.team is None else lambda workload: namespace_of(workload) == self.team
        return verdict_words(verdict_of(outcome, part=part), self.words.language)
