"""How much harm a service may suffer from plans, how fast it spends that, and what follows from it.

Each service may be violated in a set share of its active time: its harm budget, counted over some days. The burn rate
says how many times faster than allowed it is being spent: 1 spends the budget in just its days. A high rate over a
short time warns early but may be a passing peak, so both a short and a long span must show it, as with error budgets in
operations. The rollout asks between its batches: it goes slower, stops, or takes the stage back. `verify` judges the
same budget after days (`enforcer.record.verdict`).

Source: B. Beyer et al., The Site Reliability Workbook (O'Reilly 2018), chapter 5 (multiwindow, multi-burn-rate alerts).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from fleet.inventory import WorkloadId
from fleet.sentences import Sentence, sentence
from fleet.settings.guard import GuardSettings

SHORT_SPAN = timedelta(hours=1)
"""Span over which a burn rate must still be high."""

LONG_SPAN = timedelta(hours=6)
"""Span over which a burn rate counts."""


class Brake(StrEnum):
    """What the burn rate of harm budgets asks for."""

    NONE = "none"
    SLOW = "slow"
    """One workload at a time."""
    FREEZE = "freeze"
    """Nothing more is changed for now."""
    RESTORE = "restore"
    """The stage under way is taken back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """What one workload suffered in a span.

    Attributes:
        violated_steps: those of them in which it did not get what it needed.
    """

    active_steps: int
    violated_steps: int

    @property
    def ratio(self) -> float | None:
        """Violated share, 0-1; None where it was never active."""
        return self.violated_steps / self.active_steps if self.active_steps else None


class HarmRecords(Protocol):
    """Says what workloads suffered."""

    def harm(self, since: datetime, until: datetime) -> Mapping[WorkloadId, Harm]:
        """Harm per workload between two moments; workloads that nothing is known of are left out.

        Raises:
            Unavailable: what keeps it can't be reached.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What harm budgets say at one moment.

    Attributes:
        reason: one sentence with workload, value, limit and setting; empty where they ask for nothing.
    """

    brake: Brake
    reason: Sentence | str = ""


class HarmBudgets:
    """Watches the budgets of services."""

    def __init__(self, records: HarmRecords, guard: GuardSettings) -> None:
        self._records = records
        self._guard = guard
        self._whole: tuple[datetime, Mapping[WorkloadId, Harm]] | None = None

    def judge(self, workloads: Iterable[WorkloadId], changed_since: datetime, now: datetime) -> Judgement:
        """What the budgets of some workloads ask for; nothing, where nothing was measured.

        Args:
            changed_since: when it began to: what they suffered before is not its doing.

        Raises:
            Unavailable: what keeps the measurements can't be reached.
        """
        short, long = (self._records.harm(max(now - span, changed_since), now) for span in (SHORT_SPAN, LONG_SPAN))
        whole = self._over_the_days(changed_since, now)
        part = min(1.0, max(now - changed_since, timedelta(0)) / timedelta(days=self._guard.harm_budget_days))
        worst = Judgement(brake=Brake.NONE)
        order = list(Brake)
        for workload in sorted(set(workloads)):
            harm = short.get(workload), long.get(workload), whole.get(workload)
            found = judge_workload(workload, harm, self._guard, part=part)
            if order.index(found.brake) > order.index(worst.brake):
                worst = found
        return worst

    def _over_the_days(self, changed_since: datetime, now: datetime) -> Mapping[WorkloadId, Harm]:
        """Harm over the budget's days; weeks are read anew once in a short span only."""
        if self._whole is None or not timedelta(0) <= now - self._whole[0] < SHORT_SPAN:
            since = max(now - timedelta(days=self._guard.harm_budget_days), changed_since)
            self._whole = (now, self._records.harm(since, now))
        return self._whole[1]


def judge_workload(
    workload: WorkloadId, harm: tuple[Harm | None, Harm | None, Harm | None], guard: GuardSettings, *, part: float = 1.0
) -> Judgement:
    """What the budget of one workload asks for.

    Args:
        harm: what it suffered over the short, the long and the whole span.
        part: share of the budget's days that the whole span covers, 0-1.
    """
    (short, long, whole), ratio_max = harm, f"{guard.harm_ratio_max:g}"
    rates = [burn_rate(harm, guard) for harm in (short, long)]
    rate = None if any(found is None for found in rates) else min(found for found in rates if found is not None)
    limits = (
        (Brake.RESTORE, guard.harm_restore_burn, "guard.harm_restore_burn"),
        (Brake.FREEZE, guard.harm_freeze_burn, "guard.harm_freeze_burn"),
        (Brake.SLOW, guard.harm_slow_burn, "guard.harm_slow_burn"),
    )
    for brake, limit, setting in limits:
        if rate is not None and rate >= limit:
            times, of_limit = f"{rate:.1f}", f"{setting}={limit:g}"
            reason = sentence(
                "guard.harm_too_fast", workload=workload, times=times, limit=of_limit, ratio_max=ratio_max
            )
            return Judgement(brake=brake, reason=reason)
        if brake is Brake.FREEZE and (spent := spent_share(whole, guard, part)) is not None and spent >= 1.0:
            reason = sentence(
                "guard.harm_spent", workload=workload, days=str(guard.harm_budget_days), spent_ratio=spent,
                ratio_max=ratio_max,
            )  # fmt: skip
            return Judgement(brake=brake, reason=reason)
    return Judgement(brake=Brake.NONE)


def burn_rate(harm: Harm | None, guard: GuardSettings) -> float | None:
    """How many times faster than allowed a budget is spent; None where the workload was not active or not measured."""
    ratio = None if harm is None else harm.ratio
    return None if ratio is None else ratio / guard.harm_ratio_max


def spent_share(harm: Harm | None, guard: GuardSettings, part: float) -> float | None:
    """Share of a budget that is spent, 1 where all of it is; None where nothing was measured.

    Args:
        harm: what was suffered over the part of the budget's days that has passed.
        part: that part, 0-1; the rest is taken to be as active.
    """
    rate = burn_rate(harm, guard)
    return None if rate is None else rate * part
