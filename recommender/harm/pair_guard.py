"""Keeps workloads apart that were measured to slow each other down. Called by `placement`, where pairs were measured.

Only pairs of families that were measured are judged; the rest is left to the packing and its canary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fleet.inventory import Priority
from fleet.schema import Measure
from fleet.usage import Float32, History
from recommender.demand import Demand
from recommender.harm.interference import Interference, Prediction, Subject

FAMILY_LABEL = "gputide.io/family"
"""Label by which workloads name what they are, as measured pairs do; without it a workload's own name counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairGuard:
    """What measured pairs say of the pods of one card.

    Attributes:
        demand: live slices.
        subjects: each row as it runs alone, in the demand's order.
        interference: what was learned; None where nothing was measured.
    """

    demand: Demand
    subjects: tuple[Subject, ...]
    interference: Interference | None

    def parted(self, rows: Sequence[int]) -> list[list[int]]:
        """The rows of one card in as many groups as keep everybody's speed, those that stay together first.

        Of two that must part, the one of low priority leaves, else the one that slows; nobody is moved twice.
        """
        kept, left = list(rows), []
        while (culprit := self._culprit(kept)) is not None:
            kept.remove(culprit)
            left.append([culprit])
        return [kept, *left]

    def _culprit(self, rows: Sequence[int]) -> int | None:
        pairs = [
            (victim, other)
            for victim in rows
            for other in rows
            if victim != other and self.demand.grants[victim].priority is not Priority.LOW
        ]
        if self.interference is None or not pairs:
            return None
        verdicts = self.interference.predict(
            [self.subjects[victim] for victim, _ in pairs], [self.subjects[other] for _, other in pairs]
        )
        blamed = [
            other for (_, other), said in zip(pairs, verdicts, strict=True) if said.predicted is Prediction.SUFFERS
        ]
        if not blamed:
            return None
        return max(blamed, key=lambda row: (self.demand.grants[row].priority is Priority.LOW, blamed.count(row), row))


def pair_guard(demand: Demand, history: History, interference: Interference | None) -> PairGuard:
    """The guard of a plan.

    Args:
        interference: what measured pairs teach; None where there are none.
    """
    place = {(key.namespace, key.pod, key.container, key.card): row for row, key in enumerate(history.slices.keys)}
    rows = [place.get((grant.namespace, grant.pod, grant.container, grant.card), -1) for grant in demand.grants]
    mean = history.slices.mean
    subjects = tuple(
        Subject(
            family=grant.label(FAMILY_LABEL) or grant.workload,
            duty_cycle_ratio=_mean(mean.get(Measure.DUTY_CYCLE), row),
            memory_active_ratio=_mean(mean.get(Measure.MEMORY_ACTIVE), row),
            framebuffer_bytes=_mean(mean.get(Measure.FRAMEBUFFER_USED), row),
        )
        for grant, row in zip(demand.grants, rows, strict=True)
    )
    return PairGuard(demand=demand, subjects=subjects, interference=interference)


def _mean(values: Float32 | None, row: int) -> float | None:
    if values is None or row < 0 or not np.isfinite(values[row]).any():
        return None
    return float(np.nanmean(values[row]))
