"""Off-peak pair: workloads that are busy at different hours share a card."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.decisions import RecommendationKind, Refusal
from recommender.advice.case import Case, untouchable
from recommender.advice.joining import joins
from recommender.solution import Draft, Solution

PAIR_DAYS_MIN = 3
"""Days of history before an hour of the day is a habit."""


class OffpeakPair:
    """Workloads with promised quiet hours; two of them pair where the hours of one are the other's busy ones."""

    kind = RecommendationKind.OFFPEAK_PAIR
    shares = True
    spares_critical = False

    def applies(self, case: Case) -> bool:
        """Workloads whose profile promises off-peak hours."""
        return case.profile is not None and bool(case.profile.off_peak_hours) and not case.is_hard

    def refusal(self, case: Case) -> Refusal | None:
        """A habit needs days."""
        return untouchable(case) or case.refuse_short(self.kind, PAIR_DAYS_MIN)

    def propose(self, solution: Solution) -> Sequence[Draft]:
        """Pods that join cards in this way."""
        return joins(solution, self.kind)
