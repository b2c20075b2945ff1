"""Demand of computing where SM active was collected in part: for a while, on some pods, or never."""

from dataclasses import replace

import numpy as np
import pytest

from analyzer.compute_demand import demand, duty_curves, owners_of
from analyzer.presence import Bools, tenures
from fleet.schema import Measure
from fleet.usage import Float32, History
from recommender.demand import demand_of
from tests.analyzer.build import Slice, history

DAYS = 6
PER_DAY = 144
LOAD = 0.3 + 0.2 * np.sin(np.arange(DAYS * PER_DAY) * 2 * np.pi / PER_DAY)
"""SM active of every pod; a kernel runs more often than all SMs are full."""
DUTY = 1 - (1 - LOAD) ** 3


def fleet(*collected: slice | None, workload: str = "svc") -> History:
    """One pod for each: the steps in which its SM active was collected, None for never; the duty cycle always was."""
    pods = []
    for steps in collected:
        sm = np.full(len(LOAD), np.nan)
        if steps is not None:
            sm[steps] = LOAD[steps]
        pods.append(Slice(workload=workload, usage={Measure.SM_ACTIVE: sm, Measure.DUTY_CYCLE: DUTY}))
    return history(pods, days=DAYS, jitter=0.0)


def demanded(past: History) -> tuple[Float32, Bools]:
    grid = past.slices
    owners = owners_of(tenures(past.inventory, grid, past.inventory.as_of), len(grid.keys))
    rows = np.arange(len(grid.keys))
    found, by_sm = demand(grid, rows, grid.steps, duty_curves(grid, owners, grid.steps))
    np.testing.assert_array_equal(demand_of(past).counted, found)
    np.testing.assert_array_equal(demand_of(past).by_sm, by_sm)
    return found, by_sm


ALL, LAST_DAY, LAST_HOURS = slice(None), slice(-PER_DAY - 1, None), slice(-PER_DAY // 2, None)


@pytest.mark.parametrize(
    "collected", [(LAST_DAY,), (None, ALL), (slice(PER_DAY // 2), None, slice(PER_DAY // 2, PER_DAY))]
)
def test_a_day_of_both_counters_reads_the_rest_of_the_duty_cycles(collected: tuple[slice | None, ...]) -> None:
    found, by_sm = demanded(fleet(*collected))
    assert by_sm.all()
    assert (found <= DUTY + 1e-6).all()
    # A twentieth of the duty cycle is one figure, the largest but a few of those that were seen in it.
    assert (found >= LOAD - 0.002).mean() > 0.95
    assert (found - LOAD).max() < 0.06
    assert (DUTY - LOAD).max() > 0.3


def test_what_was_collected_stays_as_it_is() -> None:
    found, _ = demanded(fleet(LAST_DAY))
    np.testing.assert_allclose(found[0, LAST_DAY], LOAD[LAST_DAY], atol=1e-6)


def test_a_load_that_was_never_seen_with_both_counters_counts_as_its_duty_cycle() -> None:
    past = fleet(LAST_DAY)
    peak = past.slices.mean[Measure.DUTY_CYCLE]
    peak[0, :3] = 0.99
    found, _ = demanded(past)
    np.testing.assert_allclose(found[0, :3], 0.99, atol=1e-6)


def test_half_a_day_of_both_counters_is_too_little() -> None:
    found, by_sm = demanded(fleet(LAST_HOURS))
    assert not by_sm.any()
    np.testing.assert_allclose(found[0], DUTY, atol=1e-6)


def test_another_workload_is_no_evidence() -> None:
    both = (fleet(ALL), fleet(None, workload="other"))
    grids = [one.slices for one in both]
    grants = tuple(replace(one.inventory.grants[0], pod=f"pod-{n}") for n, one in enumerate(both))
    past = replace(
        both[0],
        inventory=replace(both[0].inventory, grants=grants),
        slices=replace(
            grids[0],
            keys=tuple(replace(grid.keys[0], pod=f"pod-{n}") for n, grid in enumerate(grids)),
            mean={measure: np.vstack([grid.mean[measure] for grid in grids]) for measure in grids[0].mean},
            peak={},
        ),
    )
    found, by_sm = demanded(past)
    assert by_sm.tolist() == [True, False]
    np.testing.assert_allclose(found[1], DUTY, atol=1e-6)
