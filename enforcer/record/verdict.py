"""The one judgement of an applied plan: was a service harmed over its budget, and were the promised cards freed?

Exit status and tables of `verify`, the report's headline, the banner of the pages and the messages all come from
`verdict_of`; a test holds them together. Harm leads wherever a service is over its budget, otherwise the saving leads.
Each sentence is a message id with values (`fleet.sentences`); its texts are in the catalogues of `dashboards.words`.

A rate of harm is a share of active windows, so few windows say little. Each rate is judged by its 95 % interval
(`harm_interval`): a service is over its budget when the whole interval lies above the budget, within it when the whole
interval lies at or below it, and is not decided yet while the budget lies inside; more windows narrow the interval.
Harm counts however few windows show it; that there was none is said where at least half of the pods could be judged.
The rate of a whole plan is compared with its prediction when its interval lies above the budget or is no wider than it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fleet.documents import document, outcome_document
from fleet.inventory import WorkloadId
from fleet.outcomes import LentCardOutcome, Outcome, WorkloadOutcome
from fleet.priority_holds import UNHELD_STRICT
from fleet.sentences import Sentence, listed, sentence

_NAMED_MAX = 3
_Z = 1.96
"""Standard normal quantile of a two-sided 95 % interval."""


class Standing(StrEnum):
    """How a service stands with its harm budget."""

    OVER_BUDGET = "over_budget"
    WITHIN_BUDGET = "within_budget"
    """Within it, or no budget is kept."""
    UNDECIDED = "undecided"
    """Its budget lies inside the interval of its rate: it is neither over its budget nor within it."""
    UNMEASURED = "unmeasured"
    RESTORED = "restored"
    """Taken back since: what it suffered was true, and is over."""

    @property
    def is_judged(self) -> bool:
        """Whether it is known how much it suffers, or suffered."""
        return self not in (Standing.UNDECIDED, Standing.UNMEASURED)


class Level(StrEnum):
    """What a verdict says of harm."""

    HARMED = "harmed"
    """At least one service is over its harm budget."""
    MORE_THAN_PREDICTED = "more_than_predicted"
    AS_PREDICTED = "as_predicted"
    UNDECIDED = "undecided"
    """The interval of the plan's rate is wider than the harm budget and does not lie above it."""
    UNMEASURED = "unmeasured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a plan, or of the part of it that changed some services.

    Attributes:
        is_final: False while the measured span is shorter than `enforcer.verify_days`.
        over_budget: services over their harm budget in the measured span, the most harmed first; also those that were
            taken back since.
        pods: pods that its services had since.
        pods_unjudged: those (`namespace/pod`) whose harm could not be judged, see `WorkloadOutcome.unjudged_pods`.
        reclaimed: workloads of the plan that were reclaimed.
        woken: those that somebody started again: harm of the plan, whatever they suffered.
        wakes_predicted: how many the plan expected within seven days.
        services_undecided: services whose budget lies inside the interval of their rate.
        services_restored: services of the plan that were taken back.
        harm_budget_ratio: violated share of active time that a service may suffer, 0-1; None where no budget is kept.
        active_windows: windows in which a pod of its services was active, summed over pods.
        observed_ratio: violated share of them, 0-1; None where it is not judged. Services of low priority give way by
            design and count only where the plan changed no others.
        predicted_ratio: the same as predicted, 0-1.
        cards_promised: whole cards; None of a part of a plan, because cards are measured for the whole plan alone.
        cards_freed: whole cards, measured; None of a part of a plan.
        cards_spare: freed cards kept as spares, in neither of the two.
        broken: what the plan counts on and is no longer there; empty of a part of a plan.
        lent: cards on which the plan has pods lend each other framebuffer; empty of a part of a plan.
    """

    plan_id: str
    level: Level
    is_final: bool
    days: float
    services_changed: int
    over_budget: tuple[WorkloadOutcome, ...]
    services_undecided: int
    services_restored: int
    harm_budget_ratio: float | None
    active_windows: int
    observed_ratio: float | None
    predicted_ratio: float
    cards_promised: int | None
    cards_freed: int | None
    cards_spare: int
    broken: tuple[Sentence, ...] = ()
    lent: tuple[LentCardOutcome, ...] = ()
    pods: int = 0
    pods_unjudged: tuple[str, ...] = ()
    reclaimed: int = 0
    woken: tuple[WorkloadId, ...] = ()
    wakes_predicted: float = 0.0

    @property
    def is_harmed(self) -> bool:
        """Whether a service is over its harm budget: every headline then leads with it."""
        return self.level is Level.HARMED

    @property
    def needs_hands(self) -> bool:
        """Whether a service is over its harm budget, or what the plan counts on is gone: `verify` then exits 1."""
        return self.is_harmed or bool(self.broken)


def harm_interval(ratio: float, windows: int) -> tuple[float, float]:
    """95 % interval of a rate of harm, each end 0-1: the Wilson score interval.

    It takes windows for independent. Harm comes in bursts, so the true interval is wider.

    Source: E. B. Wilson, Probable Inference, the Law of Succession, and Statistical Inference, J. Am. Stat. Assoc. 22
    (1927); recommended for few observations by L. D. Brown, T. T. Cai and A. DasGupta, Interval Estimation for a
    Binomial Proportion, Statistical Science 16 (2001).

    Args:
        ratio: violated share of active windows, 0-1.
    """
    if not windows:
        return 0.0, 1.0
    spread = _Z * math.sqrt(ratio * (1.0 - ratio) / windows + (_Z / (2.0 * windows)) ** 2)
    centre, scale = ratio + _Z**2 / (2.0 * windows), 1.0 + _Z**2 / windows
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def standing_of(service: WorkloadOutcome, budget_ratio: float | None) -> Standing:
    """How one service stands with its harm budget, by the interval of its rate.

    Args:
        budget_ratio: violated share of active time that it may suffer, 0-1; None where no budget is kept.
    """
    if service.violation_ratio is None:
        return Standing.UNMEASURED
    low, high = harm_interval(service.violation_ratio, service.active_steps)
    if budget_ratio is not None and low > budget_ratio:
        return Standing.OVER_BUDGET
    if 2 * len(service.unjudged_pods) > service.pods:
        return Standing.UNMEASURED
    return Standing.WITHIN_BUDGET if budget_ratio is None or high <= budget_ratio else Standing.UNDECIDED


def standing_in(outcome: Outcome, service: WorkloadOutcome) -> Standing:
    """How a service of a plan stands now: one that was taken back is restored, whatever it suffered before."""
    if service.workload in outcome.restored:
        return Standing.RESTORED
    return standing_of(service, outcome.harm_budget_ratio)


def verdict_of(outcome: Outcome, *, part: Callable[[WorkloadId], bool] | None = None) -> Verdict:
    """The verdict on a plan.

    Args:
        part: judges only the services that it picks, such as those of a team; None for the whole plan. A part that
            holds all services of the plan is the whole plan.
    """
    services = tuple(one for one in outcome.workloads if part is None or part(one.workload))
    restored = [one for one in outcome.restored if part is None or part(one)]
    is_whole = len(services) == len(outcome.workloads) and len(restored) == len(outcome.restored)
    budget = outcome.harm_budget_ratio
    standings = [standing_of(one, budget) for one in services]
    over = [one for one, how in zip(services, standings, strict=True) if how is Standing.OVER_BUDGET]
    windows, observed, predicted = _pooled(services)
    if is_whole:
        predicted = outcome.promised_violation_ratio
    is_judged = bool(over) or (observed is not None and _is_judged(observed, windows, budget))
    chances = [one.wake_chance for one in services if one.wake_chance is not None]
    pods = sum(one.pods for one in services)
    unjudged = tuple(f"{one.workload.split('/')[0]}/{pod}" for one in services for pod in one.unjudged_pods)
    level = Level.HARMED if over else _level(observed, predicted, is_judged=is_judged)
    if level is Level.AS_PREDICTED and 2 * len(unjudged) > pods:
        level = Level.UNMEASURED
    return Verdict(
        plan_id=outcome.plan_id,
        level=level,
        is_final=outcome.is_final,
        days=round((outcome.until - outcome.since).total_seconds() / 86400, 1),
        services_changed=len(services),
        over_budget=tuple(sorted(over, key=_ratio_of, reverse=True)),
        services_undecided=standings.count(Standing.UNDECIDED),
        services_restored=len(restored),
        harm_budget_ratio=budget,
        active_windows=windows,
        observed_ratio=observed if is_judged and level is not Level.UNMEASURED else None,
        predicted_ratio=predicted,
        cards_promised=outcome.promised_cards_freed if is_whole else None,
        cards_freed=outcome.realised_cards_freed if is_whole else None,
        cards_spare=outcome.spare_cards if is_whole else 0,
        broken=outcome.broken if is_whole else (),
        lent=outcome.lent if is_whole else (),
        pods=pods,
        pods_unjudged=unjudged,
        reclaimed=len(chances),
        woken=tuple(one.workload for one in services if one.is_woken),
        wakes_predicted=round(sum(chances), 2),
    )


def verdict_document(outcome: Outcome, text: str) -> dict[str, Any]:
    """The document of `verify` (`gputide.outcome/v1`): the verdict and its text, then services by standing and rate."""
    verdict, measured = verdict_of(outcome), outcome_document(outcome)
    judged = {"text": text, **document(verdict)}
    for service, row in zip(outcome.workloads, measured["workloads"], strict=True):
        row["standing"] = standing_in(outcome, service).value
        row["violation_interval"] = (
            None
            if service.violation_ratio is None
            else list(harm_interval(service.violation_ratio, service.active_steps))
        )
    return {"schema": measured.pop("schema"), "verdict": judged, **measured}


def headline(verdict: Verdict) -> tuple[Sentence, ...]:
    """The sentences that lead wherever a plan is spoken of."""
    lead = _harm(verdict) if verdict.is_harmed else (*_cards(verdict), *_harm(verdict))
    if verdict.woken:
        woken = sentence(
            "verdict.woken",
            count=verdict.reclaimed,
            woken=len(verdict.woken),
            predicted=verdict.wakes_predicted,
            names=listed(verdict.woken, _NAMED_MAX),
        )
        lead = (woken, *lead)
    if verdict.pods_unjudged:
        names, count = listed(verdict.pods_unjudged, _NAMED_MAX), len(verdict.pods_unjudged)
        lead = (*lead, sentence("verdict.pods_unjudged", count=count, of=verdict.pods, names=names))
    return lead


def sentences(verdict: Verdict) -> tuple[Sentence, ...]:
    """All that a verdict says, the headline first."""
    found = list(headline(verdict))
    later = [one for one in verdict.broken if one.code == UNHELD_STRICT]
    equals = [one for one in verdict.broken if one.code != UNHELD_STRICT]
    for code, gone in (("verdict.needs_broken_equals", equals), ("verdict.needs_broken", later)):
        if gone:
            found.append(sentence(code, why=listed(gone, _NAMED_MAX, clauses=True)))
    for worst in verdict.over_budget[:1]:
        found.append(
            sentence(
                "verdict.worst_service",
                workload=worst.workload,
                observed_ratio=round(_ratio_of(worst), 9),
                budget_ratio=verdict.harm_budget_ratio or 0.0,
            )
        )
        found += _cards(verdict)
    if verdict.cards_spare:
        found.append(sentence("verdict.cards_spare", count=verdict.cards_spare))
    if verdict.services_undecided and verdict.level is not Level.UNDECIDED:
        found.append(sentence("verdict.services_undecided", count=verdict.services_undecided))
    if verdict.reclaimed and not verdict.woken:
        found.append(sentence("verdict.none_woken", count=verdict.reclaimed, predicted=verdict.wakes_predicted))
    found += _lending(verdict.lent)
    found.append(
        sentence("verdict.measured_final" if verdict.is_final else "verdict.measured_interim", count=verdict.days)
    )
    return tuple(found)


def _harm(verdict: Verdict) -> tuple[Sentence, ...]:
    if verdict.level is Level.UNMEASURED:
        return (sentence("verdict.harm_unmeasured"),)
    if verdict.level is Level.UNDECIDED:
        return (sentence("verdict.harm_undecided", count=verdict.active_windows),)
    ratios = {"observed_ratio": round(verdict.observed_ratio or 0.0, 9), "predicted_ratio": verdict.predicted_ratio}
    if not verdict.is_harmed:
        return (sentence(f"verdict.harm_{verdict.level.value}", **ratios),)
    over = sentence(
        "verdict.harm_over_budget", over=len(verdict.over_budget), changed=verdict.services_changed, **ratios
    )
    restored = verdict.services_restored
    return (over, sentence("verdict.services_restored", restored=restored)) if restored else (over,)


def _lending(lent: Sequence[LentCardOutcome]) -> Iterator[Sentence]:
    """How often lent framebuffer changed hands, beside what the plan said; the worst card where that is too often."""
    rates = {one: one.switches_per_day for one in lent if one.switches_per_day is not None}
    over = [one for one in rates if one.is_over]
    if over:
        worst = max(over, key=lambda one: rates[one] / max(one.predicted_switches_per_day, 1e-9))
        yield sentence(
            "verdict.lending_over",
            over=len(over),
            cards=len(rates),
            card=worst.card or "",
            observed=round(rates[worst], 2),
            predicted=worst.predicted_switches_per_day,
        )
    elif rates:
        mean = sum(one.predicted_switches_per_day for one in rates) / len(rates)
        yield sentence(
            "verdict.lending_kept", observed=round(sum(rates.values()) / len(rates), 2), predicted=round(mean, 2)
        )
    unmeasured = sum(one.card is not None and one.switches_per_day is None for one in lent)
    if unmeasured:
        yield sentence("verdict.lending_unmeasured", count=unmeasured)
    if apart := sorted({str(name) for one in lent if one.card is None for name in one.workloads}):
        yield sentence("verdict.lending_apart", count=len(apart))


def _cards(verdict: Verdict) -> tuple[Sentence, ...]:
    if verdict.cards_freed is None or verdict.cards_promised is None:
        return ()
    return (sentence("verdict.cards_freed", freed=verdict.cards_freed, promised=verdict.cards_promised),)


def _level(observed: float | None, predicted: float, *, is_judged: bool) -> Level:
    """What is said of harm where no service is over its budget; ratios are compared as they are shown."""
    if observed is None:
        return Level.UNMEASURED
    if not is_judged:
        return Level.UNDECIDED
    return Level.AS_PREDICTED if round(observed, 4) <= round(predicted, 4) else Level.MORE_THAN_PREDICTED


def _is_judged(ratio: float, windows: int, budget_ratio: float | None) -> bool:
    """Whether the rate of a plan is known well enough: surely above the budget, or to within the budget's width."""
    low, high = harm_interval(ratio, windows)
    return budget_ratio is None or low > budget_ratio or high - low <= budget_ratio


def _pooled(services: Sequence[WorkloadOutcome]) -> tuple[int, float | None, float]:
    """Active windows of some services, and the violated share of them, observed and predicted."""
    known = [one for one in services if one.violation_ratio is not None]
    known = [one for one in known if not one.is_low_priority] or known
    if not known:
        return 0, None, max((one.predicted_violation_ratio for one in services), default=0.0)
    windows = sum(one.active_steps for one in known)
    return (
        windows,
        sum(_ratio_of(one) * one.active_steps for one in known) / max(1, windows),
        sum(one.predicted_violation_ratio * one.active_steps for one in known) / max(1, windows),
    )


def _ratio_of(service: WorkloadOutcome) -> float:
    return service.violation_ratio or 0.0
