"""Rules that anyone could make without us, packed and judged like ours: the frontier's and the back-test's company.

Sum of maxima, and the hour profile (95th percentile per hour of day) with a limit of 0.9: both first fit by decreasing
size, framebuffer at its maximum plus 10 %. Called by `planner` and `backtest`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet.usage import Float32
from recommender.demand import DAY_SECONDS, Demand
from recommender.footprint_grants import SNAP_BYTES
from recommender.policies.first_fit import first_fit_decreasing

SUM_OF_MAXIMA = "sum of maxima"
HOUR_PROFILE = "hour profile p95, limit 0.9"
NAIVE_RULES = (SUM_OF_MAXIMA, HOUR_PROFILE)
_HEADROOM = 1.10
_LIMIT = {SUM_OF_MAXIMA: 1.0, HOUR_PROFILE: 0.9}
_OPEN_MAX = 512


def naive_packing(
    rule: str, demand: Demand, rows: NDArray[np.int64], capacity_bytes: float
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Packs rows by a naive rule; returns bin of each row, (n,), and framebuffer granted to each, bytes, (n,).

    Args:
        rule: one of `NAIVE_RULES`.
    """
    need = np.nan_to_num(demand.need_bytes[rows], nan=0.0).max(axis=1, initial=0.0).astype(float)
    granted = np.minimum(capacity_bytes, np.ceil(need * _HEADROOM / SNAP_BYTES) * SNAP_BYTES)
    compute = np.nan_to_num(demand.compute[rows])
    if rule == SUM_OF_MAXIMA or demand.step_seconds > DAY_SECONDS // 24:
        profile = compute.max(axis=1, initial=0.0)[:, None].astype(np.float32)
    else:
        profile = _hour_profile(demand.compute[rows], demand.step_seconds)
    limit = _LIMIT[rule]
    card = first_fit_decreasing(granted, profile, capacity_bytes, limit, open_max=_OPEN_MAX)
    return card.astype(np.int32), granted


def _hour_profile(compute: Float32, step_seconds: int) -> Float32:
    """95th percentile per hour of day, (rows, 24); hours are counted from the end of the history."""
    steps = compute.shape[1]
    hour_of = (np.arange(steps, dtype=np.int64) - steps) * step_seconds // 3600 % 24
    profile = np.zeros((len(compute), 24), np.float32)
    for number in range(24):
        here = compute[:, np.flatnonzero(hour_of == number)]
        if here.shape[1]:
            profile[:, number] = _p95(here)
    return profile


def _p95(values: Float32) -> Float32:
    """95th percentile of each row without its gaps, linear between neighbours; 0 where nothing was collected."""
    rising = np.sort(values, axis=1)  # gaps last
    count = np.isfinite(rising).sum(axis=1)
    place = np.maximum(0, count - 1) * 0.95
    low = place.astype(np.int64)
    high = np.minimum(low + 1, np.maximum(0, count - 1))
    row = np.arange(len(rising))
    found = rising[row, low] + (rising[row, high] - rising[row, low]) * (place - low)
    return np.where(count > 0, found, 0.0).astype(np.float32)
