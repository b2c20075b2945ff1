"""One recommendation in plain words: why, on what evidence, and what would change its mind.

Called by the front door (`plan explain ID`) and the plan page.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.decisions import Evidence, Plan, Recommendation, RecommendationKind, Saving
from fleet.errors import Misconfigured
from fleet.inventory import LATENCY_CRITICAL_LABEL, OPT_OUT_LABEL
from fleet.profiles import Profiles
from fleet.units import GIB
from recommender.advice.register import ADVICE

_SHOWN_PODS = 5
_INFLATION = "latency_p99_inflation_ratio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A recommendation, explained.

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
        profiles: profiles of the same cluster; a workload that has none is explained without its state.
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
    told = (
        found.reason,
        _ADVICE_OF[found.kind].meaning,
        _state(found, profiles),
        _evidence(found),
        _cards(plan, found),
        _window(plan, found),
        _harm(found),
        _saving(found, plan.currency),
    )
    return Explanation(
        recommendation=found,
        headline=_headline(found),
        why=tuple(text for text in told if text),
        change_of_mind=(
            found.change_of_mind,
            *_knobs(plan, found),
            f"Confidence is {found.confidence:.0%}; it grows with days and coverage of the history.",
        ),
        stage=stage,
        evidence=found.evidence,
        saving_per_week=found.saving_per_week,
        currency=plan.currency,
    )


_ADVICE_OF = {advice.kind: advice for advice in ADVICE}


def _headline(item: Recommendation) -> str:
    freed = "no card by itself" if not item.cards_freed else _count(item.cards_freed, "card")
    if item.kind is RecommendationKind.TIDE:
        freed = "cards in these hours only"
    return f"{_ADVICE_OF[item.kind].headline} {', '.join(item.workloads)} (frees {freed})"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _window(plan: Plan, item: Recommendation) -> str:
    """The hours of a tide; it is run by the schedule, not by a stage."""
    windows = [
        f"{each.workload} keeps {_count(each.replicas, 'replica')} from {each.start} to {each.end} ({each.time_zone}), "
        f"which leaves {_count(len(each.frees), 'card')} to others"
        for each in plan.schedule
        if item.kind is RecommendationKind.TIDE and each.workload in item.workloads
    ]
    return f"Every day {'; '.join(windows)}." if windows else ""


def _harm(item: Recommendation) -> str:
    ratio = item.violation_ratio
    harm = f"Predicted harm is {ratio:.2%} of its active time" if ratio else "No harm is predicted"
    text = f"{harm}; at a confidence of {item.confidence:.0%} its risk is {item.risk_level.value}."
    inflation = dict(item.evidence.numbers).get(_INFLATION)
    if inflation is None:
        return text
    return (
        f"{text} Of a hundred of its requests the slowest is predicted to take {inflation:.2f} times as long as alone."
    )


def _saving(item: Recommendation, currency: str) -> str:
    if item.low_priority_gpu_hours_per_week:
        return f"It makes room for {item.low_priority_gpu_hours_per_week:.0f} GPU hours a week of other work."
    amount = item.saving_per_week.amortised
    if amount is None:
        return "What that saves is unknown: no price for its cards (set one with `gputide cost prices set`)."
    return f"That saves {amount:,.2f} {currency} a week at the full price of its cards." if amount else ""


def _knobs(plan: Plan, item: Recommendation) -> tuple[str, ...]:
    """What its owner or the operator can say against it, by the names of labels and settings."""
    knobs = []
    if _ADVICE_OF[item.kind].shares:
        knobs.append(f"A stricter risk.preset (now {plan.risk.value}) keeps more apart.")
    if _ADVICE_OF[item.kind].spares_critical:
        knobs.append(f"Labelled {LATENCY_CRITICAL_LABEL} it would be left out of this.")
    elif not item.kind.ends_pods:
        knobs.append(
            f"Labelled {LATENCY_CRITICAL_LABEL} it gets this only while its P99 latency stays within "
            "risk.latency_inflation_max times that alone."
        )
    knobs.append(f"With {OPT_OUT_LABEL} nothing of it is touched.")
    return tuple(knobs)


def _state(item: Recommendation, profiles: Profiles) -> str:
    sentences = [
        f"{profile.workload} is {profile.state.value}: {profile.reason.rstrip('.')}."
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
    if name == _INFLATION:
        return f"{value:.2f} times"
    return f"{value:.2%}" if name.endswith("_ratio") else f"{value:g}"


def _cards(plan: Plan, item: Recommendation) -> str:
    """Where its pods are after the plan: how many cards, of which model and cut, and beside whom."""
    pods = set(item.pods)
    seats = [placed for placed in plan.placement if any(part.pod_id in pods for part in placed.slices)]
    if not seats:
        return ""
    beside = {str(part.workload) for placed in seats for part in placed.slices if part.workload not in item.workloads}
    profiles = sorted(
        {part.mig_profile for placed in seats for part in placed.slices if part.pod_id in pods and part.mig_profile}
    )
    names = ", ".join(sorted(beside)[:_SHOWN_PODS]) + (" and others" if len(beside) > _SHOWN_PODS else "")
    models = ", ".join(sorted({placed.card_model for placed in seats}))
    cut = f" in instances {', '.join(profiles)}" if profiles else ""
    neighbours = f" beside {names}" if beside else " alone"
    return f"After the plan these pods sit on {_count(len(seats), 'card')} ({models}){cut}{neighbours}."
