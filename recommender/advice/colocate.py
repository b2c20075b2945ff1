"""Co-locate: let long work of low priority use what services leave of a card. Listed in `rules.RULES`."""

from __future__ import annotations

from fleet.decisions import RecommendationKind, Refusal
from fleet.inventory import Priority
from recommender.advice.case import Case, untouchable

PRIORITY_LEVELS_MIN = 2


class ColocateRule:
    """Low priority shares a card with high or normal priority, and yields to it."""

    kind = RecommendationKind.COLOCATE

    def applies(self, case: Case) -> bool:
        """Work of low priority."""
        return case.priority is Priority.LOW

    def refusal(self, case: Case) -> Refusal | None:
        """Needs a backend that tells priorities apart."""
        general = untouchable(case)
        if general is not None:
            return general
        if case.capability.priority_levels < PRIORITY_LEVELS_MIN:
            return case.refuse(
                self.kind,
                "backend_has_no_priority",
                f"backend {case.capability.backend} has priority_levels={case.capability.priority_levels}",
                backend=case.capability.backend,
            )
        return None
