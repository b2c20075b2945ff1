"""Fewer cards: a pod of several cards gives back those that it never works on."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.decisions import Recommendation, RecommendationKind, Refusal
from fleet.inventory import WorkloadId
from fleet.money.saving import cards_in, saved
from fleet.sentences import sentence
from recommender.advice.case import SPAN_SLACK_RATIO, Case, untouchable, untrusted
from recommender.harm.risk import level_of
from recommender.solution import Draft, Solution, confidence_of


class FewerCards:
    """Every pod of a workload holds cards that did nothing in all that was seen; it asks for as many fewer.

    A spare card was never active, so, as for `reclaim`, all days of the week must have passed.
    """

    kind = RecommendationKind.FEWER_CARDS
    shares = False
    spares_critical = False

    def applies(self, case: Case) -> bool:
        """Workloads of which every pod works on some of its cards and leaves others alone (`case.spare_rows`)."""
        return bool(case.spare_rows)

    def refusal(self, case: Case) -> Refusal | None:
        """An idle card may still hold what a worker needs, and its counters may lie."""
        general = untouchable(case) or untrusted(case, self.kind) or case.refuse_short(self.kind, 7, SPAN_SLACK_RATIO)
        if general is not None:
            return general
        if any(grant.mig_profile for grant in case.grants):
            return case.refuse(self.kind, "mig")
        if case.spare_held_bytes > case.settings.analyzer.idle_held_bytes_min:
            limit_bytes = case.settings.analyzer.idle_held_bytes_min
            return case.refuse(self.kind, "framebuffer_held", held_bytes=case.spare_held_bytes, limit_bytes=limit_bytes)
        return None

    def propose(self, solution: Solution) -> Sequence[Draft]:
        """One stage in which pods ask for fewer cards."""
        names = sorted({solution.grants[row].workload_id for row in solution.arrangement.dropped})
        made = [_fewer(solution, number, name) for number, name in enumerate(names, start=1)]
        return [Draft(title=sentence("fewer_cards"), recommendations=made)] if made else []


def _fewer(solution: Solution, number: int, name: WorkloadId) -> Recommendation:
    rows = solution.problem.rows_of[name]
    dropped = [row for row in rows if row in solution.arrangement.dropped]
    freed = solution.freed({solution.grants[row].card for row in dropped} & solution.arrangement.freed)
    pods = solution.pods(rows)
    before, after = len(rows) // len(pods), (len(rows) - len(dropped)) // len(pods)
    evidence = solution.evidence(name)
    return Recommendation(
        id=f"fewer-cards-{number:04d}",
        kind=RecommendationKind.FEWER_CARDS,
        workloads=(name,),
        pods=pods,
        cards_freed=cards_in(freed),
        saving_per_week=saved(freed),
        freed=freed,
        risk_level=level_of(0.0, confidence_of(evidence)),
        confidence=confidence_of(evidence),
        evidence=evidence,
        why=(sentence("fewer_cards", pods=len(pods), before=before, after=after, cards=cards_in(freed)),),
    )
