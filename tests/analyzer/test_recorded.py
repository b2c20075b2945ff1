"""States on recorded fleets, and what became of them on the days that follow."""

from collections import Counter
from datetime import UTC, datetime

import numpy as np
import pytest

from fleet.profiles import WorkloadState
from fleet.schema import Measure
from tests.analyzer.build import profiles
from tests.analyzer.recorded import recorded
from tests.english import english

pytestmark = pytest.mark.long

CUT = datetime(2026, 1, 12, tzinfo=UTC)
IDLE = {WorkloadState.IDLE, WorkloadState.IDLE_HELD}


@pytest.fixture(scope="module")
def whole(shared_traces):
    return recorded(shared_traces / "fleet-servegen")


@pytest.fixture(scope="module")
def before(shared_traces):
    return profiles(recorded(shared_traces / "fleet-servegen", CUT))


@pytest.fixture(scope="module")
def after(whole):
    """Per workload, the days after the cut: duty cycle and SM active, (slices, steps)."""
    first = int((CUT - whole.slices.since).total_seconds()) // whole.slices.step_seconds
    owner = {(grant.pod_id, grant.card): grant.workload_id for grant in whole.inventory.grants}
    rows: dict[str, list[int]] = {}
    for row, key in enumerate(whole.slices.keys):
        rows.setdefault(owner[key.pod_id, key.card], []).append(row)
    return {
        workload: (
            whole.slices.mean[Measure.DUTY_CYCLE][numbers, first:],
            whole.slices.mean[Measure.SM_ACTIVE][numbers, first:],
        )
        for workload, numbers in rows.items()
    }


def test_every_state_that_the_fleet_can_show_is_found(before) -> None:
    counts = Counter(one.state for one in before.workloads)
    assert counts[WorkloadState.OVERSIZED] > 50
    assert counts[WorkloadState.OFF_PEAK] > 3
    assert counts[WorkloadState.IDLE_HELD] > 20
    assert before.withheld == ()


def test_confidence_in_idleness_is_no_more_than_what_came_true(before, after) -> None:
    idle = [one for one in before.workloads if one.state in IDLE]
    stayed = [not (np.nan_to_num(after[one.workload][0]) > 0.01).any() for one in idle]
    # Three days were judged, confidence speaks of seven: it may not promise more than the three showed.
    assert np.mean([one.confidence for one in idle]) <= np.mean(stayed) + 0.1


def test_promised_hours_hold_better_than_naive_promises(before, after) -> None:
    kept = passed = total = 0
    for one in before.workloads:
        if one.state is not WorkloadState.OFF_PEAK or one.workload not in after:
            continue
        top = np.fmax.reduce(after[one.workload][1], axis=0)
        for number in range(top.size // 6):
            hour = top[number * 6 : number * 6 + 6]
            if number % 168 in one.off_peak_hours and not np.isnan(hour).all():
                total += 1
                kept += np.nanmax(hour) <= 0.2 * one.compute.p95
                passed += np.nanmax(hour) > 0.5 * one.compute.p95
    # Naive promises: 90.5 % and 5.7 %, judged by the mean of the hour; here not one of its steps may pass.
    assert total > 100
    assert kept / total > 0.95
    assert passed / total < 0.03


def test_a_day_of_duty_cycles_says_what_it_cannot_support(shared_traces) -> None:
    found = profiles(recorded(shared_traces / "fleet-gentd26"))
    assert {(item.kind.value, item.reason) for item in found.withheld} == {
        ("offpeak_pair", "history_too_short"),
        ("tide", "history_too_short"),
    }
    assert "duty cycle" in english(found.workloads[0])
