"""Slice: grant what a workload needs instead of a whole card, the base of all sharing. Listed in `rules.RULES`."""

from __future__ import annotations

from collections import Counter

from fleet.decisions import RecommendationKind, Refusal
from fleet.units import GIB
from recommender.advice.backend_shape import unshareable
from recommender.advice.case import Case, untouchable, untrusted

ISOLATIONS = frozenset({"soft", "hard"})


class SliceRule:
    """Every workload of one card per pod may be cut whose need shows and whose counters hold."""

    kind = RecommendationKind.SLICE

    def applies(self, case: Case) -> bool:
        """Every workload."""
        return True

    def refusal(self, case: Case) -> Refusal | None:
        """What can't be cut, and what must not be cut yet."""
        general = untouchable(case)
        if general is not None:
            return general
        return (
            self._refuse_shape(case)
            or unshareable(case, self.kind)
            or untrusted(case, self.kind)
            or self._refuse_need(case)
        )

    def _refuse_shape(self, case: Case) -> Refusal | None:
        if any(grant.mig_profile for grant in case.grants):
            return case.refuse(self.kind, "mig", "a pod holds a MIG instance; instances are not cut further")
        cards = Counter(grant.pod for grant in case.grants)
        pod, most = cards.most_common(1)[0]
        if most > 1:
            detail = f"pod {pod} holds {most} slices; only pods with one are cut"
            return case.refuse(self.kind, "multi_card", detail, pod=pod, slices=most)
        models = sorted({(grant.card_model, grant.framebuffer_bytes) for grant in case.grants})
        if len(models) > 1:
            names = ", ".join(f"{name or 'cards without a name'} ({size / GIB:.0f} GiB)" for name, size in models)
            detail = f"its replicas run on {names} with one pod template"
            return case.refuse(self.kind, "several_card_models", detail, card_models=names)
        if case.isolation not in ISOLATIONS:
            detail = f"isolation {case.isolation!r} is neither soft nor hard"
            return case.refuse(self.kind, "unknown_isolation", detail, isolation=case.isolation[:63])
        return None

    def _refuse_need(self, case: Case) -> Refusal | None:
        if not case.has_need:
            return case.refuse(
                self.kind,
                "preallocation_hides_need",
                "its server takes its framebuffer at start and reports no KV-cache usage, so what it needs is unknown",
            )
        return None
