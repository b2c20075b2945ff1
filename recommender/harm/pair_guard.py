"""Keeps workloads apart that were measured to slow each other down. Called by `placement`, where pairs were measured.

What the analyzer measured of two workloads on this very fleet counts first, where its interval is on one side of what
counts as kept; then what measured pairs of a file teach of their families. The rest is left to the packing and its
canary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from fleet.inventory import Priority, WorkloadId
from fleet.profiles import NeighbourEffect, Profiles
from fleet.schema import Measure
from fleet.usage import Float32, History
from recommender.demand import Demand
from recommender.harm.interference import KEPT_RATIO_MIN, Interference, Prediction, Subject

FAMILY_LABEL = "gputide.io/family"
"""Label by which workloads name what they are, as measured pairs do; without it a workload's own name counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairGuard:
    """What measured pairs say of the pods of one card.

    Attributes:
        demand: live slices.
        subjects: each row as it runs alone, in the demand's order.
        interference: what was learned of families; None where no pairs were given.
        at_home: what was measured on this fleet, by victim and neighbour.
    """

    demand: Demand
    subjects: tuple[Subject, ...]
    interference: Interference | None
    at_home: Mapping[tuple[WorkloadId, WorkloadId], NeighbourEffect]

    def parted(self, rows: Sequence[int]) -> list[list[int]]:
        """The rows of one card in as many groups as keep everybody's speed, those that stay together first.

        Who must part from most leaves first: a service that many slow gets a card of its own, and not each of these.
        What it reports of itself then moves it, not all others. Of two, the one of low priority leaves, else the one
        that slows; nobody is moved twice.
        """
        kept, left = list(rows), []
        while (culprit := self._culprit(kept)) is not None:
            kept.remove(culprit)
            left.append([culprit])
        return [kept, *left]

    def _culprit(self, rows: Sequence[int]) -> int | None:
        if self.interference is None and not self.at_home:
            return None
        grants = self.demand.grants
        apart: list[tuple[int, int]] = []
        unsure: list[tuple[int, int]] = []
        for victim, other in permutations(rows, 2):
            if grants[victim].priority is Priority.LOW:
                continue
            seen = self.at_home.get((grants[victim].workload_id, grants[other].workload_id))
            if seen is not None and seen.speed_ratio_max < KEPT_RATIO_MIN:
                apart.append((victim, other))
            elif seen is None or seen.speed_ratio_min < KEPT_RATIO_MIN:
                unsure.append((victim, other))
        if self.interference is not None and unsure:
            verdicts = self.interference.predict(
                [self.subjects[victim] for victim, _ in unsure], [self.subjects[other] for _, other in unsure]
            )
            apart += [pair for pair, said in zip(unsure, verdicts, strict=True) if said.predicted is Prediction.SUFFERS]
        if not apart:
            return None
        # Two that slow each other are one pair.
        pairs = Counter(row for pair in {frozenset(pair) for pair in apart} for row in pair)
        slows = Counter(other for _, other in apart)
        return max(pairs, key=lambda row: (pairs[row], grants[row].priority is Priority.LOW, slows[row], row))


def pair_guard(demand: Demand, history: History, profiles: Profiles, interference: Interference | None) -> PairGuard:
    """The guard of a plan.

    Args:
        profiles: the analyzer's answer on the history.
        interference: what measured pairs teach; None where there are none.
    """
    place = {(key.namespace, key.pod, key.container, key.card): row for row, key in enumerate(history.slices.keys)}
    rows = [place.get((grant.namespace, grant.pod, grant.container, grant.card), -1) for grant in demand.grants]
    mean = history.slices.mean
    duty, memory, framebuffer = (
        mean.get(measure) for measure in (Measure.DUTY_CYCLE, Measure.MEMORY_ACTIVE, Measure.FRAMEBUFFER_USED)
    )
    subjects = tuple(
        Subject(
            family=grant.label(FAMILY_LABEL) or grant.workload,
            duty_cycle_ratio=_mean(duty, row),
            memory_active_ratio=_mean(memory, row),
            framebuffer_bytes=_mean(framebuffer, row),
        )
        for grant, row in zip(demand.grants, rows, strict=True)
    )
    at_home = {(profile.workload, one.neighbour): one for profile in profiles.workloads for one in profile.beside}
    return PairGuard(demand=demand, subjects=subjects, interference=interference, at_home=at_home)


def _mean(values: Float32 | None, row: int) -> float | None:
    if values is None or row < 0 or not np.isfinite(values[row]).any():
        return None
    return float(np.nanmean(values[row]))
