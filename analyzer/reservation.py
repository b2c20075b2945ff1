"""What to keep reserved for a workload over the next day: a level by time of day that demand passes one time in twenty.

A weighted mean of three views of the day to come, each of which errs in its own way:

- habit: what demand passed one time in twenty at this time of day during the last week;
- yesterday: what is usual at this time of day, plus how far yesterday lay above the usual one time in twenty. It
  follows a workload whose level moves from day to day, which the habit learns late;
- rise: demand now, plus what it rose by one time in twenty up to this time of day, on days counted from this hour.

The views are first made for the last days, from what came before each of them. What each would have lost there (short
counts nineteen times as much as long) says how much it weighs for this workload: exponential weights, as experts are
weighed in prediction with expert advice (Cesa-Bianchi and Lugosi, Prediction, Learning, and Games, 2006, chapter 2).

What demand is above the usual right now is likely to stay for a while: a part of it is added that fades over a day.
Nothing is taken off where demand is below the usual: being short costs nineteen times as much as being long.

Neighbouring steps are pooled because habits start a little earlier on some days, and because a quantile of seven values
is a guess. The constants are round numbers in the middle of a plateau (`bench/quality/reservation-study`).

Called by `analyzer.facts` per workload, and by benchmarks that judge forecasts on held-out days.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from analyzer.rhythm import LocalHours
from fleet.usage import Float32

DAY_SECONDS = 86400
SHARE = 0.95
"""Share of the time that the level is to suffice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """How the day to come is looked at.

    Attributes:
        days: days that habits and rises are learned from.
        habit_reach_seconds: neighbourhood of a slot to either side that habits are pooled over.
        rise_reach_seconds: the same for rises.
        now_seconds: how much of the end of a history is now.
        habit_weight: weight of the habit before anything is known of its losses, at least zero, as the next two.
        judged_days: last days on which the views are judged; 0 leaves the weights as they are.
        sharpness: how much a view's weight falls with what it lost more than the best, in means of all three.
        carried_ratio: part of what demand is above the usual now that is carried into the day, 0-1.
        fade_seconds: time after which a third of what was carried is left.
    """

    days: int = 7
    habit_reach_seconds: int = 600
    rise_reach_seconds: int = 3600
    now_seconds: int = 1800
    habit_weight: float = 1.0
    yesterday_weight: float = 1.0
    rise_weight: float = 1.0
    judged_days: int = 3
    sharpness: float = 2.0
    carried_ratio: float = 0.5
    fade_seconds: int = 86400


OUTLOOK = Outlook()
"""What a reservation is made by."""


def reservation(demand: Float32, step_seconds: int, *, slots_per_day: int = 24, outlook: Outlook = OUTLOOK) -> Float32:
    """Level to reserve by time of day, for the day that follows the last step.

    Args:
        demand: (workloads, steps), any unit, at least zero, NaN where not collected; the last step ends now.
        step_seconds: length of a step, at most a slot.

    Returns:
        (workloads, slots_per_day), at least zero, the slot that begins now first. A view that a gap hides is left out
        of the mean; a time of day that no view knows gets what the workload passes one time in twenty at any time. NaN
        where nothing was seen at all, and everywhere with less than one whole day of steps.
    """
    rows, steps = demand.shape
    per_day = DAY_SECONDS // step_seconds
    levels = np.full((rows, slots_per_day), np.nan, np.float32)
    if steps < per_day or not rows:
        return levels
    views, above = _views(demand, steps, step_seconds, slots_per_day, outlook)
    weights = np.array((outlook.habit_weight, outlook.yesterday_weight, outlook.rise_weight))[:, None]
    weights = (weights * _merits(demand, step_seconds, slots_per_day, outlook))[:, :, None]
    weight = np.where(np.isnan(views), 0.0, weights).sum(axis=0)
    mean = np.nansum(views * weights, axis=0) / np.where(weight > 0.0, weight, np.nan)
    carried = np.nan_to_num(np.maximum(above, 0.0))[:, None] * outlook.carried_ratio * _fade(slots_per_day, outlook)
    np.maximum(mean + carried, 0.0, out=levels, casting="same_kind")
    for row in np.flatnonzero(np.isnan(levels).any(axis=1)):
        seen = demand[row, -outlook.days * per_day :]
        levels[row, np.isnan(levels[row])] = _quantile(seen[~np.isnan(seen)], SHARE)
    return levels


def hourly_reservation(demand: Float32, hours: LocalHours, step_seconds: int) -> Float32:
    """The same by local hour of the day, midnight first, (workloads, 24), for shares of a card.

    Args:
        demand: (workloads, steps), 0-1, NaN where not collected.
        hours: local hours of the steps; an hour that has only begun is left out.

    Returns:
        At most 1: no more than a card can be reserved. NaN everywhere where steps are longer than an hour, or don't
        divide it.
    """
    unknown = np.full((len(demand), 24), np.nan, np.float32)
    if 3600 % step_seconds or not len(hours.starts):
        return unknown
    is_whole = hours.lengths[-1] >= hours.steps_per_hour
    steps = demand.shape[1] if is_whole else int(hours.starts[-1])
    first = int(hours.hour[-1]) + (1 if is_whole else 0)
    levels = np.minimum(reservation(demand[:, :steps], step_seconds), np.float32(1.0))
    return np.roll(levels, first % 24, axis=1)


def _views(demand: Float32, end: int, step_seconds: int, slots: int, outlook: Outlook) -> tuple[Float32, Float32]:
    """The three views of the day after a step, and how far demand is above the usual by then.

    Returns:
        (3, workloads, slots) and (workloads,).
    """
    rows = len(demand)
    per_day = DAY_SECONDS // step_seconds
    now_steps = max(1, outlook.now_seconds // step_seconds)
    usual, habit, rise = (np.empty((rows, slots), np.float32) for _ in range(3))
    _habits(demand, end, per_day, outlook.days, outlook.habit_reach_seconds // step_seconds, usual, habit)
    _rises(demand, end, per_day, outlook.days, outlook.rise_reach_seconds // step_seconds, now_steps, rise)
    now, above, excess = _latest(demand, end, usual, per_day, now_steps)
    return np.stack((habit, usual + excess[:, None], rise + now[:, None])), above


def _merits(demand: Float32, step_seconds: int, slots: int, outlook: Outlook) -> NDArray[np.float64]:
    """How much each view is to weigh for each workload by what it would have lost on the last days, (3, workloads).

    The best weighs 1, and all do where nothing is known of earlier days, or nothing was lost.
    """
    rows, steps = demand.shape
    per_day = DAY_SECONDS // step_seconds
    width = per_day // slots
    lost = np.zeros((3, rows))
    for day in range(1, outlook.judged_days + 1):
        end = steps - day * per_day
        if end < per_day:
            break
        views, _ = _views(demand, end, step_seconds, slots, outlook)
        coming = demand[:, end : end + slots * width].reshape(rows, slots, width)
        # Only steps that all three views predict are compared.
        known = ~np.isnan(coming) & ~np.isnan(views.sum(axis=0))[:, :, None]
        for number, view in enumerate(views):
            short = np.where(known, coming - view[:, :, None], 0.0)
            lost[number] += np.where(short > 0.0, SHARE * short, (SHARE - 1.0) * short).sum(axis=(1, 2))
    mean = lost.mean(axis=0)
    relative = lost / np.where(mean > 0.0, mean, 1.0)
    merits: NDArray[np.float64] = np.exp(-outlook.sharpness * (relative - relative.min(axis=0)))
    return merits


def _fade(slots: int, outlook: Outlook) -> Float32:
    """What is left of a deviation in the middle of each slot, (slots,)."""
    seconds = (np.arange(slots) + 0.5) * (DAY_SECONDS / slots)
    fade: Float32 = np.exp(-seconds / outlook.fade_seconds).astype(np.float32)
    return fade


@njit(cache=True, nogil=True)
def _habits(demand: Any, end: Any, per_day: Any, days: Any, reach: Any, usual: Any, habit: Any) -> None:
    """Median and 0.95 quantile by slot over the last days, days counted back from a step."""
    slots = usual.shape[1]
    width = per_day // slots
    pool = np.empty(days * (2 * reach + width), np.float32)
    for row in range(demand.shape[0]):
        for slot in range(slots):
            count = 0
            for day in range(1, days + 1):
                first = end - day * per_day + slot * width
                # Days before the history are left out.
                for step in range(max(0, first - reach), min(end, max(0, first + width + reach))):
                    value = demand[row, step]
                    if not np.isnan(value):
                        pool[count] = value
                        count += 1
            usual[row, slot] = _quantile(pool[:count], 0.5)
            habit[row, slot] = _quantile(pool[:count], SHARE)


@njit(cache=True, nogil=True)
def _rises(demand: Any, end: Any, per_day: Any, days: Any, reach: Any, now_steps: Any, rise: Any) -> None:
    """0.95 quantile by slot of what demand is above its level when the day began; neighbours are of the same day."""
    slots = rise.shape[1]
    width = per_day // slots
    pool = np.empty(days * (2 * reach + width), np.float32)
    start = np.empty(days + 1, np.float32)
    for row in range(demand.shape[0]):
        for day in range(1, days + 1):
            start[day] = _mean(demand[row], end - day * per_day - now_steps, end - day * per_day)
        for slot in range(slots):
            count = 0
            for day in range(1, days + 1):
                begin = end - day * per_day
                first = begin + slot * width
                if np.isnan(start[day]):
                    continue
                for step in range(max(begin, first - reach), min(begin + per_day, first + width + reach)):
                    value = demand[row, step]
                    if not np.isnan(value):
                        pool[count] = value - start[day]
                        count += 1
            rise[row, slot] = _quantile(pool[:count], SHARE)


@njit(cache=True, nogil=True)
def _latest(demand: Any, end: Any, usual: Any, per_day: Any, now_steps: Any) -> Any:
    """Demand now, how far that is above the usual, and how far the last day was one time in twenty, (3, workloads)."""
    found = np.empty((3, demand.shape[0]), np.float32)
    slots = usual.shape[1]
    width = per_day // slots
    over = np.empty(per_day, np.float32)
    for row in range(demand.shape[0]):
        for place in range(per_day):
            slot = min(place // width, slots - 1)
            over[place] = demand[row, end - per_day + place] - usual[row, slot]
        found[0, row] = _mean(demand[row], end - now_steps, end)
        found[1, row] = _mean(over, per_day - now_steps, per_day)
        found[2, row] = _quantile(over[~np.isnan(over)], SHARE)
    return found


@njit(cache=True, nogil=True)
def _mean(values: Any, first: Any, last: Any) -> Any:
    """Mean of what is known of a part; NaN where that is nothing."""
    total, count = 0.0, 0
    for place in range(max(0, first), max(0, last)):
        if not np.isnan(values[place]):
            total += values[place]
            count += 1
    return np.float32(total / count) if count else np.float32(np.nan)


@njit(cache=True, nogil=True)
def _quantile(values: Any, share: Any) -> Any:
    """The value that a share of the values don't pass; NaN of none. No value is NaN; their order is not kept.

    Hoare's selection ("Algorithm 65: Find", 1961): numpy's takes three times as long to compile as all the rest.
    """
    count = len(values)
    if count == 0:
        return np.float32(np.nan)
    place = max(0, int(np.ceil(share * count - 1e-9)) - 1)
    low, high = 0, count - 1
    while low < high:
        pivot = values[(low + high) // 2]
        left, right = low, high
        while left <= right:
            while values[left] < pivot:
                left += 1
            while values[right] > pivot:
                right -= 1
            if left <= right:
                values[left], values[right] = values[right], values[left]
                left += 1
                right -= 1
        if place <= right:
            high = right
        elif place >= left:
            low = left
        else:
            break
    return values[place]
