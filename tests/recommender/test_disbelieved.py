"""Compute of pods whose counters lie counts in a plan as compute that was not collected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fleet.schema import Measure
from fleet.usage import History
from tests.recommender.builders import Service, cluster, plan_of

COUNTERS = (Measure.SM_ACTIVE, Measure.DUTY_CYCLE)


def fleet(value: float) -> History:
    """Four replicas and two services beside them; the counters of one replica read a value all the time."""
    found = cluster(
        Service(name="a", replicas=4, level=0.6, used_gib=2.0),
        Service(name="b", level=0.5, used_gib=2.0),
        Service(name="c", level=0.2, used_gib=2.0),
    )
    grid = found.slices
    row = next(number for number, key in enumerate(grid.keys) if key.pod.startswith("a-"))
    mean = {measure: grid.mean[measure].copy() if measure in COUNTERS else grid.mean[measure] for measure in grid.mean}
    for measure in COUNTERS:
        if measure in mean:
            mean[measure][row] = value
    return replace(found, slices=replace(grid, mean=mean, peak=mean))


def seats(history: History) -> set[frozenset[str]]:
    return {frozenset(part.pod for part in card.slices) for card in plan_of(history).placement}


def test_plan_of_a_fleet_with_a_replica_that_reads_zero_is_that_of_one_without_its_counters() -> None:
    assert seats(fleet(0.0)) == seats(fleet(float(np.nan)))
