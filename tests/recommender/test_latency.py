"""Slowest requests on a shared card, foretold from loads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recommender.latency import table as latency_table
from recommender.latency.inflation import SharingMode, inflation, inflation_of_hours

LOADS = st.floats(0.0, 1.2, allow_nan=False)


@pytest.mark.parametrize(("row", "own"), list(enumerate(latency_table.OWN_LOADS)))
def test_the_points_of_the_table_are_met(row: int, own: float) -> None:
    for column, beside in enumerate(latency_table.NEIGHBOUR_LOADS):
        found = inflation(SharingMode.BURST, own_load=own, neighbour_load=beside)
        assert found == pytest.approx(latency_table.BURST[row][column])
    for column, share in enumerate(latency_table.SHARES):
        if share > own:
            found = inflation(SharingMode.HARD, own_load=own, neighbour_load=0.0, share=share)
            assert found == pytest.approx(latency_table.HARD[row][column])


@given(own=LOADS, first=LOADS, second=LOADS)
def test_more_neighbours_never_help(own: float, first: float, second: float) -> None:
    less, more = (inflation(SharingMode.BURST, own_load=own, neighbour_load=load) for load in sorted((first, second)))
    assert more is None or (less is not None and 1.0 <= less <= more * (1 + 1e-9))


@given(own=LOADS, first=st.floats(0.01, 1.0), second=st.floats(0.01, 1.0))
def test_a_larger_share_never_hurts(own: float, first: float, second: float) -> None:
    small, large = (
        inflation(SharingMode.HARD, own_load=own, neighbour_load=0.0, share=share) for share in sorted((first, second))
    )
    assert small is None or (large is not None and large <= small * (1 + 1e-9))


def test_a_share_below_the_load_queues_without_end() -> None:
    assert inflation(SharingMode.HARD, own_load=0.5, neighbour_load=0.0, share=0.4) is None


def test_whoever_goes_first_does_not_wait() -> None:
    assert inflation(SharingMode.PRIORITY, own_load=0.7, neighbour_load=0.9) == 1.0


def test_hours_count_by_the_requests_they_hold() -> None:
    own = np.array([*([0.4] * 9), 0.01])
    quiet_hour_is_busy_beside = np.array([*([0.0] * 9), 0.8])
    assert inflation_of_hours(SharingMode.BURST, own_load=own, neighbour_load=quiet_hour_is_busy_beside) == 1.0
    clash = inflation_of_hours(SharingMode.BURST, own_load=own, neighbour_load=np.array([0.3, *([0.0] * 9)]))
    assert clash is not None
    assert clash > 4.0


def test_without_room_there_is_no_answer() -> None:
    assert inflation_of_hours(SharingMode.BURST, own_load=np.array([0.7]), neighbour_load=np.array([0.8])) is None


def test_a_service_that_never_works_waits_for_nobody() -> None:
    assert inflation_of_hours(SharingMode.BURST, own_load=np.full(3, np.nan), neighbour_load=np.ones(3)) == 1.0
