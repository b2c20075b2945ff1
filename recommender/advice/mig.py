"""MIG: a pod that needs a part of its card gets an instance, walled off by hardware. Listed in `rules.RULES`."""

from __future__ import annotations

from collections import Counter

from fleet.catalogue import CardModel, find_model
from fleet.decisions import RecommendationKind, Refusal
from fleet.workload_kinds import JOB_KINDS
from recommender.advice.case import DAY_SECONDS, Case, untouchable, untrusted
from recommender.mig.advice import DAYS_MIN
from recommender.mig.geometry import profile_framebuffer_bytes


class MigRule:
    """Pods of one card, whole or an instance, on a model that MIG cuts; which instance is told by `mig.advice`."""

    kind = RecommendationKind.MIG

    def applies(self, case: Case) -> bool:
        """Where the backend cuts by MIG: all but work that would be lost by a restart."""
        return case.capability.cuts_by_mig and case.workload_kind not in JOB_KINDS

    def refusal(self, case: Case) -> Refusal | None:
        """An instance is a wall: what it must hold has to show, and on several days."""
        general = untouchable(case) or untrusted(case, self.kind)
        if general is not None:
            return general
        return self._refuse_shape(case) or self._refuse_need(case)

    def _refuse_shape(self, case: Case) -> Refusal | None:
        pod, most = Counter(grant.pod for grant in case.grants).most_common(1)[0]
        if most > 1:
            return case.refuse(
                self.kind,
                "multi_card",
                f"pod {pod} holds {most} slices; an instance is all it could get",
                pod=pod,
                slices=most,
            )
        names = sorted({grant.card_model for grant in case.grants})
        if len(names) > 1:
            return case.refuse(
                self.kind,
                "several_card_models",
                f"its replicas run on {', '.join(names)} with one pod template",
                card_models=", ".join(names),
            )
        model = find_model(names[0])
        if model is None or model.mig is None:
            return case.refuse(
                self.kind, "no_mig", f"{names[0]} is no card model that is known to be cut by MIG", card_model=names[0]
            )
        if (smallest := min(grant.framebuffer_bytes for grant in case.grants)) < _most_bytes(model):
            return case.refuse(
                self.kind,
                "unlike_its_model",
                f"a card of {smallest} bytes is no {model.name}: its instances are larger",
                card_model=model.name,
            )
        if case.neighbours and not all(grant.mig_profile for grant in case.grants):
            return case.refuse(
                self.kind,
                "shares_already",
                f"it shares its card with {case.neighbours[0]}, but not by MIG",
                neighbour=case.neighbours[0],
            )
        return None

    def _refuse_need(self, case: Case) -> Refusal | None:
        if not case.has_need:
            return case.refuse(
                self.kind,
                "preallocation_hides_need",
                "its server takes its framebuffer at start and reports no KV-cache usage, so what it needs is unknown",
            )
        if case.video_ratio_max > case.settings.analyzer.idle_ratio_max:
            return case.refuse(
                self.kind,
                "video_engines",
                f"its video engines work up to {case.video_ratio_max:.0%}; few instances have any",
                video_ratio=round(case.video_ratio_max, 4),
            )
        if case.seen_seconds < DAYS_MIN * DAY_SECONDS:
            return case.refuse(
                self.kind,
                "history_too_short",
                f"seen for {case.seen_seconds / DAY_SECONDS:.1f} days; a day is foretold from others, so {DAYS_MIN} "
                "are needed",
                seen_days=round(case.seen_seconds / DAY_SECONDS, 1),
                needed_days=DAYS_MIN,
            )
        return None


def _most_bytes(model: CardModel) -> int:
    """Framebuffer of the model's largest instance."""
    profiles = () if model.mig is None else model.mig.profiles
    return max((profile_framebuffer_bytes(model, profile) for profile in profiles), default=0)
