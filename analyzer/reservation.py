"""What to keep reserved for a workload over the next day: a level by time of day that demand passes one time in twenty.

The mean of two pooled quantiles. A slow one, over a week and an hour to either side, knows the shape of the day; a fast
one, over two days and four hours to either side, knows the level that the workload has moved to. Each alone is worse:
the slow one lags behind a shift, the fast one forgets the shape. Neighbouring steps are pooled because habits start a
little earlier on some days, and because a quantile of seven values is a guess.

Called by `analyzer.facts` per workload, and by whoever judges forecasts on held-out days.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from analyzer.rhythm import LocalHours
from fleet.usage import Float32

DAY_SECONDS = 86400
SLOW_DAYS = 7
SLOW_REACH_SECONDS = 3600
FAST_DAYS = 2
FAST_REACH_SECONDS = 4 * 3600
SHARE = 0.95
"""Share of the time that the level is to suffice."""


def reservation(demand: Float32, step_seconds: int, *, slots_per_day: int = 24) -> Float32:
    """Level to reserve by time of day, for the day that follows the last step.

    Args:
        demand: (workloads, steps), any unit, NaN where not collected; the last step ends now.
        step_seconds: length of a step, at most a slot.
        slots_per_day: how many levels a day has.

    Returns:
        (workloads, slots_per_day), the slot that begins now first; NaN where neither window saw anything, and
        everywhere with less than one whole day of steps.
    """
    rows, steps = demand.shape
    per_day = DAY_SECONDS // step_seconds
    levels = np.full((rows, slots_per_day), np.nan, np.float32)
    if steps < per_day or not rows:
        return levels
    slow, fast = np.empty_like(levels), np.empty_like(levels)
    _pooled(demand, per_day, SLOW_DAYS, SLOW_REACH_SECONDS // step_seconds, SHARE, slow)
    _pooled(demand, per_day, FAST_DAYS, FAST_REACH_SECONDS // step_seconds, SHARE, fast)
    both: Float32 = np.where(np.isnan(fast), slow, np.where(np.isnan(slow), fast, (slow + fast) / 2)).astype(np.float32)
    return both


def hourly_reservation(demand: Float32, hours: LocalHours, step_seconds: int) -> Float32:
    """The same by local hour of the day, midnight first, (workloads, 24).

    Args:
        demand: (workloads, steps), NaN where not collected.
        hours: local hours of the steps; an hour that has only begun is left out.
        step_seconds: length of a step.

    Returns:
        NaN everywhere where steps are longer than an hour, or don't divide it.
    """
    unknown = np.full((len(demand), 24), np.nan, np.float32)
    if 3600 % step_seconds or not len(hours.starts):
        return unknown
    is_whole = hours.lengths[-1] >= hours.steps_per_hour
    steps = demand.shape[1] if is_whole else int(hours.starts[-1])
    first = int(hours.hour[-1]) + (1 if is_whole else 0)
    return np.roll(reservation(demand[:, :steps], step_seconds), first % 24, axis=1)


@njit(cache=True, nogil=True)
def _pooled(demand: Any, per_day: Any, days: Any, reach: Any, share: Any, levels: Any) -> None:
    rows, steps = demand.shape
    slots = levels.shape[1]
    width = per_day // slots
    pool = np.empty(days * (2 * reach + width), np.float32)
    for row in range(rows):
        for slot in range(slots):
            count = 0
            for day in range(1, days + 1):
                first = steps - day * per_day + slot * width
                for step in range(max(0, first - reach), min(steps, first + width + reach)):
                    value = demand[row, step]
                    # Days that lie wholly before the history begin below zero and add nothing.
                    if not np.isnan(value) and first + width + reach > 0:
                        pool[count] = value
                        count += 1
            if count == 0:
                levels[row, slot] = np.nan
                continue
            ordered = np.sort(pool[:count])
            levels[row, slot] = ordered[max(0, int(np.ceil(share * count - 1e-9)) - 1)]
