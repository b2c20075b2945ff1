"""One recommendation in plain words: why, on what evidence, and what would change its mind.

Called by the front door (`explain ID`) and the plan page.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.decisions import Evidence, Plan, Recommendation, RecommendationKind, Saving
from fleet.errors import Misconfigured
from fleet.profiles import Profiles
from fleet.units import GIB

_SHOWN_PODS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A recommendation, told.

    Attributes:
        recommendation: which.
        headline: one line.
        why: paragraphs, plain sentences.
        change_of_mind: what would change the advice, plain sentences.
        stage: number of its stage in the plan; None where it is in none.
        evidence: the numbers it stands on.
        saving_per_week: money, in the plan's currency.
        currency: ISO 4217.
    """

    recommendation: Recommendation
    headline: str
    why: tuple[str, ...]
    change_of_mind: tuple[str, ...]
    stage: int | None
    evidence: Evidence
    saving_per_week: Saving
    currency: str


def explain(plan: Plan, profiles: Profiles, recommendation_id: str) -> Explanation:
    """Explains one recommendation of a plan.

    Args:
        plan: the plan.
        profiles: profiles of the same cluster; a workload that has none is told without its state.
        recommendation_id: id within the plan.

    Raises:
        Misconfigured: the plan has no such recommendation.
    """
    found = next((item for item in plan.recommendations if item.id == recommendation_id), None)
    if found is None:
        known = ", ".join(item.id for item in plan.recommendations[:3]) or "none"
        raise Misconfigured(
            f"cannot explain {recommendation_id!r}: plan {plan.plan_id or '(unsealed)'} holds "
            f"{len(plan.recommendations)} recommendations, such as {known}"
        )
    stage = next((stage.stage for stage in plan.stages if found.id in stage.recommendations), None)
    return Explanation(
        recommendation=found,
        headline=_headline(found),
        why=tuple(
            text for text in (found.reason, _state(found, profiles), _evidence(found), _cards(plan, found)) if text
        ),
        change_of_mind=(
            found.change_of_mind,
            f"Confidence is {found.confidence:.0%}; it grows with days and coverage of the history.",
        ),
        stage=stage,
        evidence=found.evidence,
        saving_per_week=found.saving_per_week,
        currency=plan.currency,
    )


def _headline(item: Recommendation) -> str:
    verb = {
        RecommendationKind.RECLAIM: "Give back the idle cards of",
        RecommendationKind.SLICE: "Grant a slice of a card to",
        RecommendationKind.OVERSUBSCRIBE: "Let bursts share cards with",
        RecommendationKind.COLOCATE: "Put low priority beside services:",
        RecommendationKind.OFFPEAK_PAIR: "Pair by busy hours:",
    }.get(item.kind, f"{item.kind.value}:")
    freed = "no card by itself" if not item.cards_freed else f"{item.cards_freed} cards"
    return f"{verb} {', '.join(item.workloads)} (frees {freed})"


def _state(item: Recommendation, profiles: Profiles) -> str:
    sentences = [
        f"{profile.workload} is {profile.state.value}: {profile.reason}"
        for profile in profiles.workloads
        if profile.workload in item.workloads
    ]
    return " ".join(sentences)


def _evidence(item: Recommendation) -> str:
    seen = item.evidence
    days = (seen.until - seen.since).total_seconds() / 86400
    numbers = "; ".join(f"{name.replace('_', ' ')} {_shown(name, value)}" for name, value in seen.numbers)
    return (
        f"Seen for {days:.1f} days in {seen.samples} samples with {seen.coverage_ratio:.1%} coverage, by "
        f"{', '.join(seen.counters)}: {numbers}."
    )


def _shown(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{value / GIB:.2f} GiB"
    return f"{value:.2%}" if name.endswith("_ratio") else f"{value:g}"


def _cards(plan: Plan, item: Recommendation) -> str:
    if item.kind is RecommendationKind.RECLAIM:
        return ""
    pods = set(item.pods)
    beside: set[str] = set()
    cards = 0
    for placed in plan.placement:
        if any(part.pod_id in pods for part in placed.slices):
            cards += 1
            beside |= {str(part.workload) for part in placed.slices if part.workload not in item.workloads}
    names = ", ".join(sorted(beside)[:_SHOWN_PODS]) + (" and others" if len(beside) > _SHOWN_PODS else "")
    neighbours = f" beside {names}" if beside else " alone"
    return f"After the plan these pods sit on {cards} cards{neighbours}."
