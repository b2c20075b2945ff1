"""What earlier pods say of a workload, and when they say nothing of it any more."""

from datetime import timedelta

import numpy as np

from fleet.profiles import WorkloadState
from fleet.schema import Measure
from fleet.units import GIB
from tests.analyzer.build import MONDAY, Slice, Usage, by_hour, history, profile, work
from tests.english import english

DAYS, STEPS = 8.0, 8 * 144
OFFICE = [0.05] * 8 + [0.6] * 10 + [0.05] * 6


def spell(usage: Usage, start: float, end: float) -> Usage:
    """The usage from one day to another, nothing collected around it."""
    there = np.zeros(STEPS, bool)
    there[round(start * 144) : round(end * 144)] = True
    return {measure: np.where(there, values, np.nan) for measure, values in usage.items()}


def at(day: float):
    return MONDAY + timedelta(days=day)


def replaced(day: float, factor: float = 1.0, framebuffer: float = 20 * GIB) -> list[Slice]:
    """A service with office hours whose pod is replaced on a day by one that is `factor` times as busy."""
    habit = by_hour(DAYS, OFFICE)
    return [
        Slice(pod="old", card="GPU-0", usage=spell(work(habit), 0, day), ended_at=at(day)),
        Slice(
            pod="new",
            card="GPU-1",
            usage=spell(work(habit * factor, framebuffer=framebuffer), day, DAYS),
            started_at=at(day),
        ),
    ]


def test_the_habit_of_earlier_pods_is_the_workloads() -> None:
    found = profile(history(replaced(7.5), days=DAYS))
    assert found.state is not WorkloadState.UNKNOWN
    assert (found.hour_of_week.p50[24 + 10] or 0.0) > 0.5
    assert (found.hour_of_week.p50[24 + 3] or 0.0) < 0.1


def test_pods_of_another_behaviour_count_alone() -> None:
    found = profile(history(replaced(6.5, factor=0.1), days=DAYS))
    assert found.compute.max is not None
    assert found.compute.max < 0.1


def test_a_service_that_needs_less_framebuffer_since_it_was_replaced_is_believed() -> None:
    assert profile(history(replaced(6.5), days=DAYS)).framebuffer.need_max == 20 * GIB
    assert profile(history(replaced(6.5, framebuffer=5 * GIB), days=DAYS)).framebuffer.need_max == 5 * GIB


def test_why_little_is_known_of_pods_that_behave_otherwise_is_said() -> None:
    found = profile(history(replaced(7.5, factor=0.1), days=DAYS))
    assert found.state is WorkloadState.UNKNOWN
    assert english(found).startswith("Only 12 hours of history since its new pods behave unlike the old ones")


def test_pods_at_other_hours_are_no_pods_of_another_behaviour() -> None:
    # Twelve hours of the night look quiet only beside whole days: they are held against earlier nights.
    found = profile(history(replaced(7.75), days=DAYS))
    assert (found.compute.max or 0.0) > 0.5


def test_a_quiet_sunday_of_new_pods_is_held_against_earlier_sundays() -> None:
    days, steps = 15.0, 15 * 144
    week = (OFFICE * 5) + [0.02] * 48
    habit = by_hour(days, week)
    there = np.arange(steps) >= 13 * 144
    old, new = (
        {Measure.SM_ACTIVE: np.where(mask, habit, np.nan), Measure.FRAMEBUFFER_USED: np.where(mask, 1e9, np.nan)}
        for mask in (~there, there)
    )
    found = profile(
        history(
            [
                Slice(pod="old", card="GPU-0", usage=old, ended_at=at(13)),
                Slice(pod="new", card="GPU-1", usage=new, started_at=at(13)),
            ],
            days=days,
        )
    )
    assert (found.compute.max or 0.0) > 0.5
