"""Samples that came twice: a pair of replicas scrapes the same exporters a few seconds apart.

Where several series of one metric speak of the same, the one with most samples counts, and the others where it has
nothing. Called by `reading`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_NEARBY = 0.75
"""Share of the gap between two scrapes within which a sample of another series is a copy."""
_ALONE_MS = 60_000.0
"""The same in time, where one sample is all there is."""


def without_copies(
    subject: NDArray[np.int64], starts: NDArray[np.int64], ts_ms: NDArray[np.int64], values: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Which samples count.

    Of several series of one subject the longest counts wholly; a sample of another one counts where no longer one has
    a sample nearby (within three quarters of the longest's own gap: a replica is never further away than half of one),
    or has one at the very same time (then they are parts of one scrape, such as two MIG instances of one pod, and the
    larger value will count).

    Args:
        subject: what each series speaks of, shape (series,); -1 for nothing.
        starts: where the samples of each series begin, shape (series + 1,).
        ts_ms: shape (samples,).
        values: shape (samples,); NaN is no sample.

    Returns:
        Shape (samples,).
    """
    counts_it = ~np.isnan(values)
    numbers, occurrences = np.unique(subject[subject >= 0], return_counts=True)
    for number in numbers[occurrences > 1].tolist():
        series = np.flatnonzero(subject == number)
        lengths = starts[series + 1] - starts[series]
        longest_first = series[np.argsort(-lengths, kind="stable")].tolist()
        gaps = np.diff(ts_ms[starts[longest_first[0]] : starts[longest_first[0] + 1]])
        nearby_ms = _NEARBY * float(np.median(gaps)) if len(gaps) else _ALONE_MS
        times = np.empty(0, dtype=np.int64)
        for place in longest_first:
            span = slice(starts[place], starts[place + 1])
            mine = ts_ms[span]
            distance = _distances(mine, times)
            counts_it[span] &= (distance > nearby_ms) | (distance == 0)
            times = np.union1d(times, mine[counts_it[span]])
    return counts_it


def _distances(mine: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.float64]:
    """How far each time is from the nearest of some ascending ones."""
    if not len(times):
        return np.full(len(mine), np.inf)
    after = np.searchsorted(times, mine)
    later, earlier = times[np.minimum(after, len(times) - 1)], times[np.maximum(after - 1, 0)]
    nearest: NDArray[np.float64] = np.minimum(np.abs(later - mine), np.abs(mine - earlier)).astype(np.float64)
    return nearest
