"""How pods on one card fare, against the rules written out pod by pod."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.sharing import Seats, fare, framebuffer_need, replayed_framebuffer, sum_by_card

GIB = 2.0**30


def seats(
    card: list[int], granted: list[float], *, low: list[bool] | None = None, hard: list[float] | None = None
) -> Seats:
    rows = len(card)
    return Seats(
        card=np.array(card, np.int64),
        framebuffer_granted_bytes=np.array(granted, float),
        compute_granted_ratio=np.array(hard or [1.0] * rows, float),
        is_hard=np.array([hard is not None] * rows),
        is_low=np.array(low or [False] * rows),
        kept_bytes=np.full(rows, np.inf),
        capacity_bytes=np.full(max(card) + 1, 24 * GIB),
    )


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


def test_demand_above_the_card_is_contention_for_all_on_it() -> None:
    got = fare(column(0.7, 0.5, 0.9), column(1, 1, 1), seats([0, 0, 1], [8 * GIB] * 3))
    assert got.violated[:, 0].tolist() == [True, True, False]
    assert got.served_ratio[:, 0] == pytest.approx([0.7 / 1.2, 0.5 / 1.2, 0.9])


def test_half_a_percent_above_the_card_is_noise() -> None:
    assert not fare(column(0.5, 0.504), column(1, 1), seats([0, 0], [8 * GIB] * 2)).violated.any()


def test_low_priority_gets_what_is_left_and_harms_nobody() -> None:
    got = fare(column(0.8, 0.6, 0.2), column(1, 1, 1), seats([0, 0, 0], [GIB] * 3, low=[False, True, True]))
    assert not got.contention.any()
    assert got.served_ratio[:, 0] == pytest.approx([0.8, 0.15, 0.05], abs=1e-6)


def test_hard_limit_caps_a_pod_and_counts_as_its_own_contention() -> None:
    got = fare(column(0.7, 0.3), column(1, 1), seats([0, 0], [GIB] * 2, hard=[0.5, 0.5]))
    assert got.contention[:, 0].tolist() == [True, False]
    assert got.served_ratio[:, 0] == pytest.approx([0.5, 0.3])


def test_need_above_the_grant_is_short_and_needs_above_the_card_are_full() -> None:
    got = fare(column(0.1, 0.1), column(9 * GIB, 4 * GIB), seats([0, 0], [8 * GIB, 8 * GIB]))
    assert got.short[:, 0].tolist() == [True, False]
    assert not got.full.any()
    crowded = fare(column(0.1, 0.1), column(14 * GIB, 13 * GIB), seats([0, 0], [12 * GIB] * 2))
    assert crowded.full.all()


def test_grants_above_the_card_are_full_unless_pods_lend_what_they_rest_on() -> None:
    asked, need = column(0.1, 0.0), column(13 * GIB, 13 * GIB)
    sat = seats([0, 0], [13 * GIB] * 2)
    assert fare(asked, need, sat).full.all()
    assert not fare(asked, need, replace(sat, kept_bytes=np.full(2, 11.0 * GIB))).full.any()


def test_what_resting_pods_keep_is_not_lent() -> None:
    need = column(13 * GIB, 13 * GIB)
    lent = replace(seats([0, 0], [13 * GIB] * 2), kept_bytes=np.full(2, 12.0 * GIB))
    assert fare(column(0.1, 0.0), need, lent).full.all()
    both = replace(lent, kept_bytes=np.full(2, 6.0 * GIB))
    assert fare(column(0.1, 0.1), need, both).full.all(), "who works holds all of it"


def test_missing_row_demands_nothing_and_is_never_violated() -> None:
    got = fare(column(np.nan, 0.9), column(np.nan, 1), seats([0, 0], [GIB] * 2))
    assert not got.violated.any()
    assert np.isnan(got.served_ratio[0, 0])


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1, width=32), st.booleans()), min_size=1, max_size=12))
def test_nobody_gets_more_than_was_asked_and_no_card_gives_more_than_itself(
    pods: list[tuple[int, float, bool]],
) -> None:
    card, demand, low = [pod[0] for pod in pods], [pod[1] for pod in pods], [pod[2] for pod in pods]
    sat = seats(card, [GIB] * len(pods), low=low)
    got = fare(column(*demand), column(*[0.0] * len(pods)), sat)
    assert (got.served_ratio[:, 0] <= np.array(demand, np.float32) + 1e-6).all()
    totals = sum_by_card(got.served_ratio, sat.card, len(sat.capacity_bytes))
    assert (totals <= 1 + 1e-5).all()


def test_unused_part_of_a_preallocated_cache_is_not_needed() -> None:
    used = column(20 * GIB, 5 * GIB)
    need = framebuffer_need(used, column(0.25, np.nan), np.array([8 * GIB, np.nan]))
    assert need[:, 0] == pytest.approx([14 * GIB, 5 * GIB])


def test_a_server_that_sleeps_gave_its_cache_back() -> None:
    need = framebuffer_need(column(2 * GIB), column(0.0), np.array([8 * GIB]))
    assert need[0, 0] == pytest.approx(2 * GIB)


def test_unreported_cache_usage_counts_as_full() -> None:
    need = framebuffer_need(column(20 * GIB), column(np.nan), np.array([8 * GIB]))
    assert need[0, 0] == pytest.approx(20 * GIB)


def test_preallocating_server_takes_its_share_of_a_smaller_grant() -> None:
    pool = np.array([16 * GIB])
    used, usage = column(21.6 * GIB), column(0.1)
    need = framebuffer_need(used, usage, pool)
    shown, new_usage, pools = replayed_framebuffer(used, need, usage, pool, np.array([10 * GIB]))
    assert shown[0, 0] == pytest.approx(9 * GIB)
    assert pools[0] == pytest.approx(9 * GIB - 5.6 * GIB, rel=1e-6)
    assert new_usage is not None
    assert new_usage[0, 0] == pytest.approx(1.6 / 3.4, rel=1e-5)


def test_replay_in_the_same_grant_shows_what_was_recorded() -> None:
    pool = np.array([16 * GIB])
    used, usage = column(21.6 * GIB), column(0.1)
    shown, new_usage, _ = replayed_framebuffer(
        used, framebuffer_need(used, usage, pool), usage, pool, np.array([24 * GIB])
    )
    assert shown[0, 0] == pytest.approx(21.6 * GIB)
    assert new_usage is not None
    assert new_usage[0, 0] == pytest.approx(0.1)
