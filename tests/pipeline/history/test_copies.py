"""Samples that came twice count once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from pipeline.history.reading import without_copies

NEVER = -(1 << 62)


def counted(*series, before=()):
    """Samples that count, per series of (subject, times), where other series counted up to some times before."""
    starts = np.cumsum([0, *(len(times) for _, times in series)])
    ts_ms = np.array([ts for _, times in series for ts in times], dtype=np.int64)
    subjects = np.array([subject for subject, _ in series])
    ends = np.array(before or [NEVER] * len(series), dtype=np.int64)
    kept = without_copies(subjects, starts, ts_ms, np.ones(len(ts_ms)), ends)
    return [ts_ms[start:end][kept[start:end]].tolist() for start, end in pairwise(starts)]


def test_of_a_pair_of_replicas_the_longer_counts_and_the_other_fills_its_gaps():
    first = [30_000, 90_000, 210_000, 270_000]
    second = [27_000, 97_000, 150_000]
    assert counted((0, first), (0, second)) == [first, [150_000]]


def test_parts_of_one_scrape_all_count():
    times = [30_000, 60_000]
    assert counted((0, times), (0, times)) == [times, times]


def test_an_exporter_that_restarted_goes_on():
    assert counted((0, [30_000, 60_000]), (0, [120_001, 150_000])) == [[30_000, 60_000], [120_001, 150_000]]


def test_series_of_different_cards_and_of_none_are_left_alone():
    assert counted((0, [1]), (1, [2]), (-1, [3]), (-1, [4])) == [[1], [2], [3], [4]]


def test_a_missing_value_counts_nowhere():
    kept = without_copies(np.array([0]), np.array([0, 2]), np.array([1, 2]), np.array([np.nan, 1.0]), np.array([NEVER]))
    assert kept.tolist() == [False, True]


def test_a_hole_is_filled_with_as_many_samples_as_it_lacks():
    first = [0, 30_000, *range(120_000, 270_000, 30_000)]
    second = [time + 11_000 for time in range(0, 150_000, 30_000)]
    assert counted((0, first), (0, second)) == [first, [71_000, 101_000]]


def test_what_another_replica_gave_before_does_not_count_again():
    times = [37_000, 67_000, 97_000]
    assert counted((0, times), before=[30_000]) == [times[1:]]
    assert counted((0, times), (0, [60_000, 90_000]), before=[30_000, NEVER]) == [times[1:], []]
    same = [60_000, 90_000]
    assert counted((0, [time + 11_000 for time in same]), (0, same), before=[30_000, NEVER]) == [[], same]
