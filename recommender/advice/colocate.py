"""Co-locate: let long work of low priority use what services leave of a card.

That it yields is promised only where something holds it back (`fleet.priority_holds`); elsewhere it contends as an
equal, is packed as one, and the advice says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.decisions import RecommendationKind, Refusal
from fleet.inventory import Priority
from recommender.advice.case import Case, untouchable
from recommender.advice.joining import joins
from recommender.solution import Draft, Solution

PRIORITY_LEVELS_MIN = 2


class Colocate:
    """Low priority shares a card with high or normal priority, and yields to it where that is enforced."""

    kind = RecommendationKind.COLOCATE
    shares = True
    spares_critical = False

    def applies(self, case: Case) -> bool:
        """Work of low priority."""
        return case.priority is Priority.LOW

    def refusal(self, case: Case) -> Refusal | None:
        """Needs a backend that distinguishes priorities."""
        general = untouchable(case)
        if general is not None:
            return general
        if case.capability.priority_levels < PRIORITY_LEVELS_MIN:
            return case.refuse(
                self.kind,
                "backend_has_no_priority",
                backend=case.capability.backend,
                levels=case.capability.priority_levels,
            )
        return None

    def propose(self, solution: Solution) -> Sequence[Draft]:
        """Pods that join cards in this way."""
        return joins(solution, self.kind)
