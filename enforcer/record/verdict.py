"""The one judgement of an applied plan: was a service harmed over its budget, and were the promised cards freed?

Exit status and tables of `verify`, the report's headline, the banner of the pages and the messages all come from
`verdict_of`; a test holds them together. Harm leads wherever a service is over its budget, otherwise the saving leads.
Each sentence is a message id with values (`fleet.sentences`); its texts stand in the catalogues of `dashboards.words`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fleet.documents import document, outcome_document
from fleet.inventory import WorkloadId
from fleet.outcomes import Outcome, WorkloadOutcome
from fleet.sentences import Sentence, sentence

ACTIVE_WINDOWS_MIN = 100
"""Active windows from which a rate of harm is judged. With fewer, a single violated window is more than 1 %, which is
the whole of the default budget (`guard.harm_ratio_max`)."""


class Standing(StrEnum):
    """How a service stands with its harm budget."""

    OVER_BUDGET = "over_budget"
    WITHIN_BUDGET = "within_budget"
    """Within it, or no budget is kept."""
    TOO_FEW_WINDOWS = "too_few_windows"
    """It was active in fewer than `ACTIVE_WINDOWS_MIN` windows: neither over its budget nor fine."""
    UNMEASURED = "unmeasured"


class Level(StrEnum):
    """What a verdict says of harm."""

    HARMED = "harmed"
    """At least one service is over its harm budget."""
    MORE_THAN_PREDICTED = "more_than_predicted"
    AS_PREDICTED = "as_predicted"
    TOO_FEW_WINDOWS = "too_few_windows"
    """Something was measured, but in fewer than `ACTIVE_WINDOWS_MIN` windows."""
    UNMEASURED = "unmeasured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a plan, or of the part of it that changed some services.

    Attributes:
        plan_id: plan.
        level: what it says of harm.
        is_final: False while the measured span is shorter than `enforcer.verify_days`.
        days: measured span.
        services_changed: services that the plan changed.
        over_budget: services over their harm budget, the most harmed first.
        services_too_few_windows: services that were measured in too few windows to be judged.
        services_restored: services of the plan that were taken back.
        harm_budget_ratio: violated share of active time that a service may suffer, 0-1; None where no budget is kept.
        observed_ratio: violated share of the active time of all its services, 0-1; None where it is not judged.
        predicted_ratio: the same as predicted, 0-1.
        cards_promised: whole cards; None of a part of a plan, because cards are measured for the whole plan alone.
        cards_freed: whole cards, measured; None of a part of a plan.
        cards_spare: freed cards kept as spares, in neither of the two.
    """

    plan_id: str
    level: Level
    is_final: bool
    days: float
    services_changed: int
    over_budget: tuple[WorkloadOutcome, ...]
    services_too_few_windows: int
    services_restored: int
    harm_budget_ratio: float | None
    observed_ratio: float | None
    predicted_ratio: float
    cards_promised: int | None
    cards_freed: int | None
    cards_spare: int

    @property
    def is_harmed(self) -> bool:
        """Whether a service is over its harm budget: `verify` then exits 1, and every headline leads with it."""
        return self.level is Level.HARMED


def standing_of(service: WorkloadOutcome, budget_ratio: float | None) -> Standing:
    """How one service stands with its harm budget.

    Args:
        service: what happened to it.
        budget_ratio: violated share of active time that it may suffer, 0-1; None where no budget is kept.
    """
    if service.violation_ratio is None:
        return Standing.UNMEASURED
    if service.active_steps < ACTIVE_WINDOWS_MIN:
        return Standing.TOO_FEW_WINDOWS
    is_over = budget_ratio is not None and service.violation_ratio > budget_ratio
    return Standing.OVER_BUDGET if is_over else Standing.WITHIN_BUDGET


def verdict_of(outcome: Outcome, *, part: Callable[[WorkloadId], bool] | None = None) -> Verdict:
    """The verdict on a plan.

    Args:
        outcome: what was measured of it.
        part: judges only the services that it picks, such as those of a team; None for the whole plan.
    """
    services = tuple(one for one in outcome.workloads if part is None or part(one.workload))
    standings = [standing_of(one, outcome.harm_budget_ratio) for one in services]
    over = [one for one, how in zip(services, standings, strict=True) if how is Standing.OVER_BUDGET]
    windows = sum(one.active_steps for one in services if one.violation_ratio is not None)
    observed, predicted = _ratios(services)
    if part is None:
        predicted = outcome.promised_violation_ratio
        observed = observed if outcome.realised_violation_ratio is None else outcome.realised_violation_ratio
    is_judged = observed is not None and windows >= ACTIVE_WINDOWS_MIN
    return Verdict(
        plan_id=outcome.plan_id,
        level=Level.HARMED if over else _level(observed, predicted, is_judged=is_judged),
        is_final=outcome.is_final,
        days=round((outcome.until - outcome.since).total_seconds() / 86400, 1),
        services_changed=len(services),
        over_budget=tuple(sorted(over, key=_ratio_of, reverse=True)),
        services_too_few_windows=standings.count(Standing.TOO_FEW_WINDOWS),
        services_restored=len([one for one in outcome.restored if part is None or part(one)]),
        harm_budget_ratio=outcome.harm_budget_ratio,
        observed_ratio=observed if is_judged else None,
        predicted_ratio=predicted,
        cards_promised=outcome.promised_cards_freed if part is None else None,
        cards_freed=outcome.realised_cards_freed if part is None else None,
        cards_spare=outcome.spare_cards if part is None else 0,
    )


def verdict_document(outcome: Outcome, text: str) -> dict[str, Any]:
    """The document of `verify` (`gputide.outcome/v1`): the verdict, with its text, then all services with standing."""
    verdict, measured = verdict_of(outcome), outcome_document(outcome)
    judged = {"text": text, **document(verdict)}
    for service, row in zip(outcome.workloads, measured["workloads"], strict=True):
        row["standing"] = standing_of(service, outcome.harm_budget_ratio).value
    return {"schema": measured.pop("schema"), "verdict": judged, **measured}


def headline(verdict: Verdict) -> tuple[Sentence, ...]:
    """The sentences that lead wherever a plan is spoken of."""
    return _harm(verdict) if verdict.is_harmed else (*_cards(verdict), *_harm(verdict))


def sentences(verdict: Verdict) -> tuple[Sentence, ...]:
    """All that a verdict says, the headline first."""
    found = list(headline(verdict))
    for worst in verdict.over_budget[:1]:
        found.append(
            sentence(
                "verdict.worst_service",
                workload=worst.workload,
                observed_ratio=round(_ratio_of(worst), 6),
                budget_ratio=verdict.harm_budget_ratio or 0.0,
            )
        )
        found += _cards(verdict)
    if verdict.cards_spare:
        found.append(sentence("verdict.cards_spare", spare=verdict.cards_spare))
    if verdict.services_too_few_windows and verdict.level is not Level.TOO_FEW_WINDOWS:
        found.append(
            sentence(
                "verdict.services_too_few_windows",
                services=verdict.services_too_few_windows,
                windows_min=ACTIVE_WINDOWS_MIN,
            )
        )
    found.append(
        sentence("verdict.measured_final" if verdict.is_final else "verdict.measured_interim", days=verdict.days)
    )
    return tuple(found)


def _harm(verdict: Verdict) -> tuple[Sentence, ...]:
    if verdict.level is Level.UNMEASURED:
        return (sentence("verdict.harm_unmeasured"),)
    if verdict.level is Level.TOO_FEW_WINDOWS:
        return (sentence("verdict.harm_too_few_windows", windows_min=ACTIVE_WINDOWS_MIN),)
    ratios = {"observed_ratio": round(verdict.observed_ratio or 0.0, 6), "predicted_ratio": verdict.predicted_ratio}
    if not verdict.is_harmed:
        return (sentence(f"verdict.harm_{verdict.level.value}", **ratios),)
    over = sentence(
        "verdict.harm_over_budget", over=len(verdict.over_budget), changed=verdict.services_changed, **ratios
    )
    restored = verdict.services_restored
    return (over, sentence("verdict.services_restored", restored=restored)) if restored else (over,)


def _cards(verdict: Verdict) -> tuple[Sentence, ...]:
    if verdict.cards_freed is None or verdict.cards_promised is None:
        return ()
    return (sentence("verdict.cards_freed", freed=verdict.cards_freed, promised=verdict.cards_promised),)


def _level(observed: float | None, predicted: float, *, is_judged: bool) -> Level:
    """What is said of harm where no service is over its budget; ratios are compared as they are shown."""
    if observed is None:
        return Level.UNMEASURED
    if not is_judged:
        return Level.TOO_FEW_WINDOWS
    return Level.AS_PREDICTED if round(observed, 4) <= round(predicted, 4) else Level.MORE_THAN_PREDICTED


def _ratios(services: Sequence[WorkloadOutcome]) -> tuple[float | None, float]:
    """Violated share of the active time of some services, observed and predicted."""
    known = [one for one in services if one.violation_ratio is not None]
    if not known:
        return None, max((one.predicted_violation_ratio for one in services), default=0.0)
    windows = max(1, sum(one.active_steps for one in known))
    return (
        sum(_ratio_of(one) * one.active_steps for one in known) / windows,
        sum(one.predicted_violation_ratio * one.active_steps for one in known) / windows,
    )


def _ratio_of(service: WorkloadOutcome) -> float:
    return service.violation_ratio or 0.0
