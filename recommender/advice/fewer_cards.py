"""Fewer cards: a pod of several cards gives back those that it never works on. Listed in `rules.RULES`."""

from __future__ import annotations

from fleet.decisions import RecommendationKind, Refusal
from recommender.advice.case import DAY_SECONDS, SPAN_SLACK_RATIO, WEEK_SECONDS, Case, untouchable, untrusted


class FewerCardsRule:
    """Every pod of a workload holds cards that did nothing in all that was seen; it asks for as many fewer.

    A spare card was never active, so, as for `reclaim`, all days of the week must have passed.
    """

    kind = RecommendationKind.FEWER_CARDS

    def applies(self, case: Case) -> bool:
        """Workloads of which every pod works on some of its cards and leaves others alone (`case.spare_rows`)."""
        return bool(case.spare_rows)

    def refusal(self, case: Case) -> Refusal | None:
        """An idle card may still hold what a worker needs, and its counters may lie."""
        general = untouchable(case) or untrusted(case, self.kind)
        if general is not None:
            return general
        if case.seen_seconds < WEEK_SECONDS * SPAN_SLACK_RATIO:
            return case.refuse(
                self.kind,
                "history_too_short",
                f"seen for {case.seen_seconds / DAY_SECONDS:.1f} days: a card is spare when it did nothing for "
                f"{WEEK_SECONDS // DAY_SECONDS} days",
                seen_days=round(case.seen_seconds / DAY_SECONDS, 1),
                needed_days=WEEK_SECONDS // DAY_SECONDS,
            )
        if any(grant.mig_profile for grant in case.grants):
            return case.refuse(self.kind, "mig", "a pod holds a MIG instance; instances are not counted in cards")
        if case.spare_held_bytes > case.settings.analyzer.idle_held_bytes_min:
            return case.refuse(
                self.kind,
                "framebuffer_held",
                f"{case.spare_held_bytes} bytes are held on a card that does nothing: more than "
                f"analyzer.idle_held_bytes_min={case.settings.analyzer.idle_held_bytes_min}",
                held_bytes=case.spare_held_bytes,
            )
        return None
