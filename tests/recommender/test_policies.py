"""Other tools' rules do what their sources say they do."""

from datetime import UTC, datetime, time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.units import GIB
from recommender.demand import Demand, demand_of
from recommender.policies.first_fit import first_fit_decreasing
from recommender.policies.right_sizing import forecast_ask, hindsight_ask, percentile_ask
from recommender.policies.scaling_in import TideTable, asleep, scaled_in
from tests.recommender.builders import PER_DAY, Service, cluster

ROWS = np.arange(3)


def demand(days: int = 7) -> Demand:
    return demand_of(
        cluster(Service(name="day", level=0.6, hours=(8, 20)), Service(name="flat", level=0.2, replicas=2), days=days)
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 500), pods=st.integers(1, 30), slots=st.integers(1, 4))
def test_first_fit_never_overfills_a_card(seed: int, pods: int, slots: int) -> None:
    random = np.random.default_rng(seed)
    sizes = random.uniform(1, 24, pods) * GIB
    profile = random.uniform(0, 1, (pods, slots)).astype(np.float32)
    card = first_fit_decreasing(sizes, profile, 24.0 * GIB, 1.0)
    assert np.bincount(card, sizes).max() <= 24.0 * GIB
    for slot in range(slots):
        assert np.bincount(card, profile[:, slot]).max() <= 1.0 + 1e-6
    assert set(card) == set(range(card.max() + 1))


def test_first_fit_looks_at_the_latest_cards_only_where_a_limit_is_set() -> None:
    # The pod of 22 GiB opens the first card, that of 18 the second; 2 fit on either.
    profile = np.zeros((3, 1), np.float32)
    sizes = np.array([18.0, 22.0, 2.0]) * GIB
    assert first_fit_decreasing(sizes, profile, 24.0 * GIB, 1.0).tolist() == [1, 0, 0]
    assert first_fit_decreasing(sizes, profile, 24.0 * GIB, 1.0, open_max=1).tolist() == [1, 0, 1]


def test_percentile_takes_the_largest_of_the_workload_and_a_margin_of_framebuffer() -> None:
    asked = percentile_ask(demand(), ROWS)
    assert asked.profile[1, 0] == asked.profile[2, 0]
    assert asked.profile[1, 0] == pytest.approx(0.2, abs=0.02)
    np.testing.assert_allclose(asked.framebuffer_bytes, 4 * GIB * 1.15)


def test_forecast_knows_the_hours_of_a_daily_service() -> None:
    asked = forecast_ask(demand(), ROWS)
    day = asked.profile[0]
    assert day[10:18].min() > 0.5
    assert day[:6].max() < 0.2
    assert np.ptp(asked.profile[1]) == 0.0


def test_forecast_of_a_day_falls_back_to_a_percentile() -> None:
    asked = forecast_ask(demand(days=1), ROWS)
    assert np.ptp(asked.profile[0]) == 0.0
    assert asked.profile[0, 0] == pytest.approx(0.6 * 1.15, abs=0.03)


def test_hindsight_asks_for_what_came() -> None:
    known = demand()
    asked = hindsight_ask(known, ROWS)
    np.testing.assert_array_equal(asked.profile, np.nan_to_num(known.compute))


def test_culler_waits_for_window_and_grace_and_wakes_at_once() -> None:
    compute = np.zeros((1, 20), np.float32)
    compute[0, 0] = compute[0, 10] = 0.3
    sleeps = asleep(compute, np.zeros(1, np.int32), 600)[0]
    # 30 minutes of silence and 5 of grace: four steps of ten minutes.
    assert sleeps.tolist() == [False] * 5 + [True] * 5 + [False] * 5 + [True] * 5


def test_culler_lets_no_pod_sleep_while_another_of_its_owner_works_or_is_not_seen() -> None:
    compute = np.zeros((3, 12), np.float32)
    compute[1] = 0.2
    compute[2] = np.nan
    assert not asleep(compute, np.zeros(3, np.int32), 600).any()
    assert not asleep(compute[2:], np.zeros(1, np.int32), 600).any()
    assert asleep(compute[:1], np.zeros(1, np.int32), 600).any()


def test_tide_keeps_the_work_and_half_of_the_replicas() -> None:
    since = datetime(2026, 1, 5, tzinfo=UTC)
    compute = np.full((5, PER_DAY), 0.3, np.float32)
    workload = np.array([0, 0, 0, 0, 1], np.int32)
    tide = scaled_in(compute, workload, TideTable(), since=since, step_seconds=600, time_zone="UTC")
    np.testing.assert_allclose(tide.compute.sum(axis=0), compute.sum(axis=0), rtol=1e-5)
    night = int(time(3).hour * 6)
    assert tide.is_away[:, night].tolist() == [False, False, True, True, False]
    assert not tide.is_away[:, 12 * 6].any()
    assert tide.is_training.sum() == 8 * 6


def test_tide_goes_by_the_clock_of_its_zone() -> None:
    since = datetime(2026, 1, 5, tzinfo=UTC)
    compute = np.full((2, PER_DAY), 0.1, np.float32)
    workload = np.zeros(2, np.int32)
    tide = scaled_in(compute, workload, TideTable(), since=since, step_seconds=600, time_zone="Asia/Shanghai")
    # 23:30 in Shanghai is 15:30 UTC.
    assert tide.is_training[int(15.5 * 6)]
    assert not tide.is_training[int(15.5 * 6) - 1]
