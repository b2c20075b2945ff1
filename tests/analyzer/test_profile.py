"""The whole analyzer: order of rows, advice withheld, and that its answer can be printed."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.profile import profile_fleet
from fleet.inventory import Inventory
from fleet.profiles import WorkloadState
from fleet.schema import Measure
from fleet.units import GIB
from fleet.usage import UsageGrid
from tests.analyzer.build import MONDAY, SETTINGS, Slice, by_hour, history, noise, profile, profiles, work
from tests.english import english


def fleet():
    office = by_hour(4, [0.8 if 8 <= hour < 18 else 0.05 for hour in range(24)])
    pool = {**work(noise(4, low=0.3, high=0.9), framebuffer=72 * GIB), Measure.KV_CACHE_USAGE: 0.3}
    return history(
        [
            Slice(workload="habit", usage=work(office)),
            Slice(workload="habit", usage=work(office[::-1])),
            Slice(workload="idle", usage=work(0.0)),
            Slice(workload="llm", usage=pool, server="vllm", pool=40 * GIB),
            Slice(workload="half", usage=work(0.0)),
            Slice(workload="half", usage=work(noise(4, low=0.3, high=0.9))),
            Slice(workload="silent", has_row=False),
        ],
        days=4,
    )


@given(st.permutations(range(6)), st.permutations(range(7)))
def test_the_order_of_rows_and_grants_changes_nothing(rows: list[int], grants: list[int]) -> None:
    usual = fleet()
    grid, inventory = usual.slices, usual.inventory
    shuffled = replace(
        usual,
        slices=UsageGrid(
            keys=tuple(grid.keys[row] for row in rows),
            since=grid.since,
            step_seconds=grid.step_seconds,
            steps=grid.steps,
            mean={measure: values[rows] for measure, values in grid.mean.items()},
            peak={measure: values[rows] for measure, values in grid.peak.items()},
        ),
        inventory=replace(inventory, grants=tuple(inventory.grants[number] for number in grants)),
    )
    assert profiles(shuffled) == profiles(usual)


def test_nothing_that_is_said_holds_nan() -> None:
    for one in profiles(fleet()).workloads:
        shown = [*one.hour_of_week.p50, *one.hour_of_week.max, one.compute.p95, one.confidence, one.coverage_ratio]
        assert all(value is None or value == value for value in shown)  # noqa: PLR0124 - NaN differs from itself


def test_workloads_are_sorted_and_each_is_named_once() -> None:
    names = [one.workload for one in profiles(fleet()).workloads]
    assert names == sorted(set(names))
    assert len(names) == 5


def test_a_fleet_without_sm_active_is_judged_by_its_duty_cycle() -> None:
    usage = {Measure.DUTY_CYCLE: noise(4, low=0.3, high=0.9), Measure.FRAMEBUFFER_USED: 2e10}
    found = profiles(history([Slice(usage=usage)], days=4))
    assert found.withheld == ()
    assert "duty cycle" in english(found.workloads[0])


def test_demand_is_sm_active_where_it_is_collected() -> None:
    said = profile(history([Slice(usage={**work(0.3), Measure.DUTY_CYCLE: noise(2, low=0.8, high=0.9)})]))
    assert said.compute.max == pytest.approx(0.3)
    assert "SM activity" in english(said)


def test_a_fleet_without_framebuffer_counters_gets_no_advice_on_framebuffer() -> None:
    found = profiles(history([Slice(usage={Measure.SM_ACTIVE: noise(4, low=0.3, high=0.9)})], days=4))
    assert {item.kind.value for item in found.withheld if item.reason == "no_framebuffer_counter"} == {
        "slice",
        "oversubscribe",
        "mig",
    }
    assert found.workloads[0].framebuffer.used_max is None


def test_an_empty_inventory_is_an_answer() -> None:
    nothing = history([], days=2)
    found = profile_fleet(nothing, settings=SETTINGS, now=nothing.inventory.as_of)
    assert found.workloads == ()
    assert found.cards == ()


def test_grants_without_any_history_are_unknown() -> None:
    usual = fleet()
    before = profile_fleet(
        replace(usual, inventory=replace(usual.inventory, as_of=MONDAY)), settings=SETTINGS, now=MONDAY
    )
    assert {one.state for one in before.workloads} == {WorkloadState.UNKNOWN}
    assert {item.reason for item in before.withheld} == {"history_too_short"}


def test_a_workload_that_ended_has_no_profile() -> None:
    usual = fleet()
    inventory: Inventory = replace(
        usual.inventory,
        grants=tuple(
            replace(grant, ended_at=MONDAY + timedelta(days=3)) if grant.workload == "idle" else grant
            for grant in usual.inventory.grants
        ),
    )
    assert "idle" not in {
        one.workload.rsplit("/", 1)[1] for one in profiles(replace(usual, inventory=inventory)).workloads
    }


def test_a_second_run_gives_the_same_answer_and_leaves_its_input_alone() -> None:
    usual = fleet()
    before = {measure: values.copy() for measure, values in usual.slices.mean.items()}
    assert profiles(usual) == profiles(usual)
    for measure, values in before.items():
        assert np.array_equal(values, usual.slices.mean[measure], equal_nan=True)
