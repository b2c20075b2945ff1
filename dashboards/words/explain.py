"""One recommendation in plain words: why, on what evidence, and what would change the advice.

Called by `plan explain ID`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dashboards.words.advice import change_words, reason_words, state_words
from fleet.decisions import Evidence, Plan, Recommendation, RecommendationKind, Saving
from fleet.errors import Misconfigured
from fleet.inventory import LATENCY_CRITICAL_LABEL, OPT_OUT_LABEL
from fleet.profiles import Profiles
from fleet.units import GIB
from fleet.words import Words
from recommender.advice.register import ADVICE

_ADVICE_OF = {advice.kind: advice for advice in ADVICE}
_SHOWN_PODS = 5
_INFLATION = "latency_p99_inflation_ratio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A recommendation in words.

    Attributes:
        change_of_mind: what would change the advice, sentences.
        stage: number of its stage in the plan; None where it is in none.
        saving_per_week: money, in the plan's currency.
    """

    recommendation: Recommendation
    headline: str
    why: tuple[str, ...]
    change_of_mind: tuple[str, ...]
    stage: int | None
    evidence: Evidence
    saving_per_week: Saving
    currency: str


def explain(plan: Plan, profiles: Profiles, recommendation_id: str, words: Words) -> Explanation:
    """Explains one recommendation of a plan.

    Args:
        profiles: profiles of the same cluster; of a workload that has none the state is left out.

    Raises:
        Misconfigured: the plan has no such recommendation.
    """
    item = next((item for item in plan.recommendations if item.id == recommendation_id), None)
    if item is None:
        known = ", ".join(item.id for item in plan.recommendations[:3]) or "none"
        raise Misconfigured(
            f"cannot explain {recommendation_id!r}: plan {plan.short_id or '(unsealed)'} holds "
            f"{len(plan.recommendations)} recommendations, such as {known}"
        )
    why = (
        reason_words(item, words.language),
        words.say(f"meaning.{item.kind.value}"),
        *_states(item, profiles, words),
        *policy_words(plan, item.workloads, words),
        _evidence(item, words),
        _cards(plan, item, words),
        *_windows(plan, item, words),
        *_harm(item, words),
        _saving(item, plan.currency, words),
    )
    return Explanation(
        recommendation=item,
        headline=_headline(item, words),
        why=tuple(text for text in why if text),
        change_of_mind=(
            change_words(item, words.language),
            *_knobs(plan, item, words),
            words.say("explain.confidence", confidence_ratio=item.confidence),
        ),
        stage=next((stage.stage for stage in plan.stages if item.id in stage.recommendations), None),
        evidence=item.evidence,
        saving_per_week=item.saving_per_week,
        currency=plan.currency,
    )


def policy_words(plan: Plan, workloads: Collection[str], words: Words) -> tuple[str, ...]:
    """Which policies decided what for some workloads of a plan, a sentence each."""
    return tuple(
        words.say("explain.policy", policy=one.policy, field=one.field, value=one.value, workload=one.workload)
        for one in plan.policies or ()
        if one.workload in workloads
    )


def _headline(item: Recommendation, words: Words) -> str:
    if item.kind is RecommendationKind.TIDE:
        freed = words.say("explain.frees_in_hours")
    elif item.cards_freed:
        freed = words.say("explain.frees", cards=item.cards_freed)
    else:
        freed = words.say("explain.frees_none")
    return words.say(f"headline.{item.kind.value}", workloads=", ".join(item.workloads), freed=freed)


def _states(item: Recommendation, profiles: Profiles, words: Words) -> tuple[str, ...]:
    return tuple(
        words.say(
            "explain.state",
            workload=profile.workload,
            state=words.code("state", profile.state.value),
            why=state_words(profile, words.language),
        )
        for profile in profiles.workloads
        if profile.workload in item.workloads
    )


def _evidence(item: Recommendation, words: Words) -> str:
    seen = item.evidence
    return words.say(
        "explain.evidence",
        days=round((seen.until - seen.since).total_seconds() / 86400, 1),
        samples=seen.samples,
        coverage_ratio=seen.coverage_ratio,
        counters=", ".join(seen.counters),
        numbers="; ".join(f"{name.replace('_', ' ')} {_shown(name, value)}" for name, value in seen.numbers),
    )


def _shown(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{value / GIB:.2f} GiB"
    if name == _INFLATION:
        return f"{value:.2f} ×"
    return f"{value:.2%}" if name.endswith("_ratio") else f"{value:g}"


def _cards(plan: Plan, item: Recommendation, words: Words) -> str:
    """Where its pods are after the plan: on how many cards, of which model and instance, and beside what."""
    pods = set(item.pods)
    placed = [card for card in plan.placement if any(part.pod_id in pods for part in card.slices)]
    if not placed:
        return ""
    own = {part.mig_profile for card in placed for part in card.slices if part.pod_id in pods and part.mig_profile}
    beside = sorted({str(part.workload) for card in placed for part in card.slices} - set(item.workloads))
    where = words.say(
        "explain.cards", cards=len(placed), models=", ".join(sorted({card.card_model for card in placed}))
    )
    if own:
        where = words.say("explain.instances", where=where, profiles=", ".join(sorted(own)))
    if not beside:
        return words.say("explain.alone", where=where)
    names = ", ".join(beside[:_SHOWN_PODS])
    more = len(beside) - _SHOWN_PODS
    return words.say("explain.beside_more" if more > 0 else "explain.beside", where=where, names=names)


def _windows(plan: Plan, item: Recommendation, words: Words) -> tuple[str, ...]:
    """The hours of a tide."""
    return tuple(
        words.say(
            "explain.window",
            workload=each.workload,
            replicas=each.replicas,
            start=each.start,
            end=each.end,
            time_zone=each.time_zone,
            cards=len(each.frees),
        )
        for each in plan.schedule
        if item.kind is RecommendationKind.TIDE and each.workload in item.workloads
    )


def _harm(item: Recommendation, words: Words) -> tuple[str, ...]:
    risk = {"confidence_ratio": item.confidence, "risk": words.code("risk", item.risk_level.value)}
    if item.violation_ratio:
        code = "explain.late" if item.kind is RecommendationKind.SLEEP else "explain.harm"
        harm = words.say(code, violation_ratio=item.violation_ratio, **risk)
    else:
        harm = words.say("explain.no_harm", **risk)
    inflation = dict(item.evidence.numbers).get(_INFLATION)
    return (harm,) if inflation is None else (harm, words.say("explain.inflation", inflation=inflation))


def _saving(item: Recommendation, currency: str, words: Words) -> str:
    if item.low_priority_gpu_hours_per_week:
        return words.say("explain.room", hours=round(item.low_priority_gpu_hours_per_week))
    amount = item.saving_per_week.amortised
    if amount is None:
        return words.say("explain.no_price")
    return words.say("explain.saving", amount=amount, currency=currency) if amount else ""


def _knobs(plan: Plan, item: Recommendation, words: Words) -> tuple[str, ...]:
    """What its owner or the operator can say against it, by the names of labels and settings."""
    advice = _ADVICE_OF[item.kind]
    knobs = [words.say("explain.preset", preset=plan.risk.value)] if advice.shares else []
    if advice.spares_critical:
        knobs.append(words.say("explain.critical_spared", label=LATENCY_CRITICAL_LABEL))
    elif not item.kind.ends_pods:
        knobs.append(words.say("explain.critical_kept", label=LATENCY_CRITICAL_LABEL))
    return (*knobs, words.say("explain.opt_out", label=OPT_OUT_LABEL))
