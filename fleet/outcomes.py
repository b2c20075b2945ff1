"""What was changed and what came of it: the enforcer's records.

A `Change` is one field of one object before and after; an `Outcome` holds what a plan promised against what the days
after it showed. `enforcer.record.verdict` judges it; both together are `gputide.outcome/v1`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from fleet.decisions import FreedCard, Saving
from fleet.inventory import CardId, WorkloadId
from fleet.sentences import Sentence


class ChangePhase(StrEnum):
    """Where a change stands."""

    INTENDED = "intended"
    APPLIED = "applied"
    WATCHED = "watched"
    PROMOTED = "promoted"
    RESTORED = "restored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field of one object, before and after.

    Attributes:
        kind: Kubernetes kind (`Deployment`, `Notebook`, `Node` …).
        namespace: namespace, empty for cluster-wide objects.
        field: path, for example `spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]`.
        old: value before as the API serialises it; None where the field was absent.
        new: value after; None removes the field.
        resource_version: version the change is conditional on.
        recommendation: id of the recommendation it carries out.
    """

    kind: str
    namespace: str
    name: str
    field: str
    old: str | None
    new: str | None
    resource_version: str
    recommendation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOutcome:
    """What happened to one changed workload.

    Attributes:
        predicted_violation_ratio: promised, 0-1.
        violation_ratio: measured since apply, 0-1, None where no window could be judged.
        active_steps: judged windows in which one of its pods was active, summed over pods.
        cause: most frequent cause (`contention`, `short`, `full`), None where there is no harm.
        is_low_priority: all its pods have low priority; they give way by design, so no prediction counts them.
        pods: how many it had since then.
        unjudged_pods: names of those of which over half of the windows can't be judged, because compute counters of the
            pod, or of another on its card, are missing or fail a check.
        wake_chance: of a workload that was reclaimed, how likely it was to be needed within seven days, 0-1, by the
            plan; None of others.
        is_woken: somebody started it again after it was reclaimed.
    """

    workload: WorkloadId
    predicted_violation_ratio: float
    violation_ratio: float | None
    active_steps: int
    cause: str | None
    is_low_priority: bool = False
    pods: int = 0
    unjudged_pods: tuple[str, ...] = ()
    wake_chance: float | None = None
    is_woken: bool = False


LENDING_OVER_RATIO = 1.2
"""Switches observed / predicted from which a card changed hands too often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LentCardOutcome:
    """How often framebuffer came back to pods of one card that lend it to each other.

    Attributes:
        card: None where its workloads are found on no card whose grants exceed it.
        predicted_switches_per_day: by the plan.
        switches_per_day: by who worked when; None where nothing shows that, or less than a day was seen.
        days: how long it was seen.
    """

    card: CardId | None
    workloads: tuple[WorkloadId, ...]
    predicted_switches_per_day: float
    switches_per_day: float | None
    days: float

    @property
    def is_over(self) -> bool:
        """Whether it changed hands over a fifth more often than predicted; one switch at an edge decides nothing."""
        found, predicted = self.switches_per_day, self.predicted_switches_per_day
        return found is not None and found > LENDING_OVER_RATIO * predicted and (found - predicted) * self.days >= 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a plan, promised against realised (`verify`).

    Attributes:
        since: moment of apply.
        until: end of the measured span.
        is_final: False while the span is shorter than `enforcer.verify_days`.
        realised_cards_freed: cards that are granted to nobody over the span and were granted before.
        promised_saving_per_week: money.
        realised_saving_per_week: money.
        promised_violation_ratio: 0-1.
        control_violation_ratio: of workloads that the plan did not touch; None where there are none.
        coverage_ratio: 0-1.
        given_back: cards that were free and are granted again.
        workloads: per changed workload, worst first.
        spare_cards: cards that are free besides, kept as spares and never promised.
        harm_budget_ratio: violated share of active time that a service may suffer, 0-1; None where no budget is kept.
        restored: workloads of the plan that were taken back.
        realised: cards that are free, with what each saves at its own price of the measured hours; those of
            `realised_cards_freed`, and those that others replace.
        broken: what the plan counts on and was no longer there when this was measured.
        lent: cards on which the plan has pods lend each other framebuffer.
    """

    plan_id: str
    measured_at: datetime
    since: datetime
    until: datetime
    is_final: bool
    promised_cards_freed: int
    realised_cards_freed: int
    promised_saving_per_week: Saving
    realised_saving_per_week: Saving
    promised_violation_ratio: float
    control_violation_ratio: float | None
    coverage_ratio: float
    given_back: int
    workloads: tuple[WorkloadOutcome, ...]
    spare_cards: int = 0
    harm_budget_ratio: float | None = None
    restored: tuple[WorkloadId, ...] = ()
    stages: tuple[int, ...] = ()
    realised: tuple[FreedCard, ...] = ()
    broken: tuple[Sentence, ...] = ()
    lent: tuple[LentCardOutcome, ...] = ()
