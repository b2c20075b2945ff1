"""Oversubscribe: promise a card's compute more than once where peaks rarely meet."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.capabilities.register import CorePolicy
from fleet.decisions import RecommendationKind, Refusal
from recommender.advice.case import Case, untouchable
from recommender.advice.joining import joins
from recommender.solution import Draft, Solution


class Oversubscribe:
    """Slices whose peaks sum to more than a card may share it by bursting, unless one wants compute of its own."""

    kind = RecommendationKind.OVERSUBSCRIBE
    shares = True
    spares_critical = True

    def applies(self, case: Case) -> bool:
        """Every workload without a hard share: that is never promised twice."""
        return not case.is_hard

    def refusal(self, case: Case) -> Refusal | None:
        """Needs a backend that lets a pod use what its neighbours leave."""
        general = untouchable(case)
        if general is not None:
            return general
        if case.is_latency_critical:
            return case.refuse(self.kind, "latency_critical")
        if CorePolicy.BURST not in case.capability.core_policies:
            return case.refuse(
                self.kind,
                "backend_has_no_burst",
                backend=case.capability.backend,
                policies=", ".join(map(str, case.capability.core_policies)),
            )
        return None

    def propose(self, solution: Solution) -> Sequence[Draft]:
        """Pods that join cards in this way."""
        return joins(solution, self.kind)
