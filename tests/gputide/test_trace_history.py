"""A trace as a history: every sample in its step, what is missing stays missing, nothing of later days."""

from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.trace.trace import Trace, open_trace
from fleet.errors import NotEnoughData
from fleet.schema import Measure
from gputide.replay.history import read_history, set_stage
from recommender.simulate.replan import matched_cards
from recommender.simulate.stage import part_of


@pytest.fixture(scope="module")
def trace(small_fleet: Path) -> Trace:
    return open_trace(small_fleet)


def test_every_sample_lies_in_its_step(trace: Trace) -> None:
    history = read_history(trace, since=trace.since, until=trace.until)
    usage = pq.read_table(trace.folder / "usage.parquet")
    for measure in (Measure.DUTY_CYCLE, Measure.FRAMEBUFFER_USED):
        stored = usage.column(measure.value)
        values = history.slices.mean[measure]
        assert np.isfinite(values).sum() == len(stored) - stored.null_count
        total = float(np.nansum(values.astype(np.float64)))
        assert total == pytest.approx(float(np.nansum(stored.to_numpy(zero_copy_only=False))), rel=1e-6)


def test_first_and_last_sample_are_the_first_and_last_step(trace: Trace) -> None:
    history = read_history(trace, since=trace.since, until=trace.until)
    usage = pq.read_table(trace.folder / "usage.parquet", columns=["ts"]).column("ts").to_numpy()
    ends = history.slices.step_ends_ms()
    assert ends[0] == usage.min().astype("datetime64[ms]").astype(int)
    assert ends[-1] == usage.max().astype("datetime64[ms]").astype(int)


def test_part_is_what_would_have_been_read(trace: Trace) -> None:
    cut = trace.since + timedelta(days=4)
    whole = read_history(trace, since=trace.since, until=trace.until)
    part = part_of(whole, trace.since, cut).slices
    read = read_history(trace, since=trace.since, until=cut).slices
    assert (part.since, part.until) == (read.since, read.until)
    np.testing.assert_array_equal(part.mean[Measure.SM_ACTIVE], read.mean[Measure.SM_ACTIVE])


def test_pods_that_come_later_are_not_on_the_stage(trace: Trace) -> None:
    cut = trace.since + timedelta(days=4)
    stage = set_stage(trace, cut=cut, until=trace.until)
    assert all(grant.started_at <= cut and grant.ended_at is None for grant in stage.demand.grants)
    assert stage.steps + stage.past == stage.demand.steps


def test_days_that_the_trace_does_not_hold_are_refused(trace: Trace) -> None:
    with pytest.raises(NotEnoughData, match="holds"):
        set_stage(trace, cut=trace.until, until=trace.until + timedelta(days=1))


@given(seed=st.integers(0, 10_000), pods=st.integers(1, 20), bins=st.integers(1, 8))
def test_plan_on_cards_in_use_keeps_its_groups_and_moves_nobody_without_need(seed: int, pods: int, bins: int) -> None:
    random = np.random.default_rng(seed)
    seated = random.integers(0, bins, pods)
    planned = random.integers(0, bins, pods) + 100
    models, cards = np.zeros(pods, np.int64), np.zeros(bins + pods, np.int64)
    is_open = np.ones(bins + pods, bool)
    card = matched_cards(planned, seated, models, cards, is_open)
    for one in range(pods):
        for other in range(pods):
            assert (card[one] == card[other]) == (planned[one] == planned[other])
    again = matched_cards(seated + 7, seated, models, cards, is_open)
    np.testing.assert_array_equal(again, seated)
