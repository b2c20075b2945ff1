"""Keeps latency-critical services off cards where their slowest requests would wait too long. Called by `placement`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fleet.priority_holds import Hold, Holders, first_at_every_moment
from recommender.advice.case import Permits
from recommender.core_limits import shared_percents
from recommender.demand import Demand
from recommender.latency.inflation import SharingMode, inflation_of_hours, least_hard_percent


def latency_guard(demand: Demand, permits: Permits, holders: Holders, *, inflation_max: float) -> LatencyGuard:
    """The guard of a plan.

    Args:
        demand: live slices and their series.
        permits: the cases, which say who is latency-critical.
        holders: what holds low priority back, and how soon.
        inflation_max: most that P99 latency may grow, times that alone.
    """
    critical = {name for name, case in permits.cases.items() if case.is_latency_critical}
    rows = frozenset(row for row, grant in enumerate(demand.grants) if grant.workload_id in critical)
    cases = [permits.cases.get(grant.workload_id) for grant in demand.grants]
    holds = {
        row: case.hold if first_at_every_moment(case.hold, holders) else Hold.NONE
        for row, case in enumerate(cases)
        if case is not None and case.hold is not None
    }
    return LatencyGuard(demand=demand, critical=rows, inflation_max=inflation_max, holds=holds)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyGuard:
    """What sharing does to the slowest requests of those who must answer fast.

    Attributes:
        demand: live slices and their series.
        critical: rows of latency-critical services.
        inflation_max: most that their P99 latency may grow, times that alone.
        holds: what holds each row of low priority back from the first moment on.
    """

    demand: Demand
    critical: frozenset[int]
    inflation_max: float
    holds: Mapping[int, Hold]

    def inflations(self, rows: Sequence[int]) -> dict[int, float | None]:
        """P99 latency beside the others / alone, for each latency-critical row of one card.

        Args:
            rows: all rows of the card. Those of low priority that are held back yield to the others, who share what
                they need as it comes; where the gate needs core limits, they do so within theirs.

        Returns:
            Row to ratio; None where requests would queue without end. Alone on a card nobody is slowed.
        """
        asked = [row for row in rows if row in self.critical]
        if len(rows) < 2 or not asked:
            return {}
        yields = {row: self.holds.get(row, Hold.NONE) is not Hold.NONE for row in rows}
        is_limited = any(self.holds.get(row) is Hold.CORES for row in rows)
        found: dict[int, float | None] = {}
        for row in asked:
            equals = [other for other in rows if other != row and (yields[row] or not yields[other])]
            mode = SharingMode.BURST if equals else SharingMode.PRIORITY
            own = self.demand.hourly_load([row])
            ratios = [inflation_of_hours(mode, own_load=own, neighbour_load=self.demand.hourly_load(equals))]
            if is_limited and not yields[row]:
                peak = int(shared_percents(np.nanmax(self.demand.compute[row], initial=0.0)))
                share = max(peak, least_hard_percent(own, self.inflation_max) or peak) / 100.0
                ratios.append(inflation_of_hours(SharingMode.HARD, own_load=own, neighbour_load=own * 0.0, share=share))
            known = [ratio for ratio in ratios if ratio is not None]
            found[row] = max(known) if len(known) == len(ratios) else None
        return found

    def is_too_slow(self, rows: Sequence[int]) -> bool:
        """True where a latency-critical service of the card would be slowed beyond the limit."""
        return any(ratio is None or ratio > self.inflation_max for ratio in self.inflations(rows).values())
