"""How much framebuffer is really needed, and where pre-allocation hides it.

A server that takes its share at start shows a constant; what it needs shows only in the usage of its cache
(`fleet.sharing.framebuffer_need`). Without that measure the need is not known, and saying so is the answer. PyTorch
keeps freed blocks, so what is used stays an upper bound of the need everywhere.

Called by `analyzer.profile`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.presence import Bools, Tenure, Timeline
from fleet.profiles import FramebufferProfile
from fleet.schema import Measure
from fleet.servers import hosts_engines, preallocates
from fleet.sharing import PREALLOCATED_RATIO, believed_pools, framebuffer_need
from fleet.trust_thresholds import ABOVE_ONE_MIN, FRAMEBUFFER_OVER_CARD_MIN
from fleet.usage import Float32, SliceGrid

CONSTANT_RATIO_MAX = 0.01
"""Framebuffer that moves by no more than this share of itself is constant."""
CONSTANT_STEPS_MIN = 36
"""Fewest collected steps before constancy says anything."""
START_SECONDS = 3600
"""How long after its start a process counts as starting."""
KV_CACHE_COVERAGE_MIN = 0.8
"""Share of the steps with framebuffer in which the cache's usage must be known before it counts as the need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Framebuffer of the slices of one workload.

    Attributes:
        need: need in bytes, (rows, steps); NaN where not collected or hidden.
        held_recently_max: most that a live slice held in the recent window, bytes; None where not collected.
    """

    profile: FramebufferProfile
    need: Float32
    held_recently_max: int | None


def footprint(
    lives: Sequence[Tenure], grid: SliceGrid, used_by_engines: Bools, line: Timeline, *, recent_steps: int
) -> Footprint:
    """Framebuffer granted, used and needed by the slices of one workload.

    Args:
        used_by_engines: whether each slice worked, (len(lives), steps).
        recent_steps: length of the window in which holding counts for `idle_held`.

    Returns:
        The footprint. `used_max` is that of live slices; the need is looked for in earlier ones too.
    """
    steps = line.steps
    rows = np.array([life.row for life in lives if life.row is not None], np.int64)
    numbers = np.array([number for number, life in enumerate(lives) if life.row is not None], np.int64)
    live = np.array([life.is_live for life in lives], bool)
    granted = max((life.latest.framebuffer_granted_bytes for life in lives if life.is_live), default=0)
    peaks = {**grid.mean, **grid.peak}
    used = np.full((len(lives), steps), np.nan, np.float32)
    if Measure.FRAMEBUFFER_USED in peaks and len(rows):
        taken = peaks[Measure.FRAMEBUFFER_USED][rows, :steps]
        # What no card can hold was not measured, whatever was written down; the findings say so where it is common.
        capacity = np.array([_capacity(lives[number]) for number in numbers.tolist()], np.float64)[:, None]
        used[numbers] = np.where((taken >= 0) & (taken <= FRAMEBUFFER_OVER_CARD_MIN * capacity), taken, np.nan)
    cache = None
    if Measure.KV_CACHE_USAGE in peaks and len(rows):
        cache = np.full((len(lives), steps), np.nan, np.float32)
        share = peaks[Measure.KV_CACHE_USAGE][rows, :steps]
        cache[numbers] = np.where((share >= 0) & (share <= ABOVE_ONE_MIN), share, np.nan)
    collected = ~np.isnan(used)
    preallocated = _preallocated(lives, used, collected, used_by_engines)
    need, hidden = _need(lives, used, cache, preallocated, line)
    used_live = used[live] if collected[live].any() else used
    is_hidden = bool((hidden & live).any())
    pool = max((life.latest for life in lives if life.is_live), key=lambda one: one.kv_cache_pool_bytes or 0)
    pool_min = None if is_hidden else pool.kv_cache_pool_bytes
    starting = _starting(lives, used, line)
    profile = FramebufferProfile(
        granted=granted,
        used_max=_largest(used_live),
        need_max=None if is_hidden else _largest(need),
        preallocated=bool(preallocated[live].any()),
        start_max=None if is_hidden else _largest(need[starting]),
        steady_max=None if is_hidden else _largest(need[~starting]),
        pool_min=pool_min,
        pool_max=pool_min if pool_min is None else pool.kv_cache_pool_max_bytes or pool_min,
    )
    recent = used[live][:, max(0, steps - recent_steps) :]
    return Footprint(profile=profile, need=need, held_recently_max=_largest(recent))


def _starting(lives: Sequence[Tenure], used: Float32, line: Timeline) -> Bools:
    """Steps within an hour of a start of a slice's process, (rows, steps).

    A process starts with its grant, and where framebuffer is held again after a step without any: weights are loaded
    and kernels are tried out then, and the peak of it comes back with every restart.
    """
    window = max(1, START_SECONDS // line.step_seconds)
    starting = np.zeros(used.shape, bool)
    for number, life in enumerate(lives):
        begins = [line.first_step_after(grant.started_at) for grant in life.grants if grant.started_at >= line.since]
        begins += (np.flatnonzero((used[number, 1:] > 0) & (used[number, :-1] <= 0)) + 1).tolist()
        for begin in begins:
            starting[number, begin : begin + window] = True
    return starting


def _capacity(life: Tenure) -> float:
    return float(max(grant.framebuffer_bytes for grant in life.grants))


def _preallocated(lives: Sequence[Tenure], used: Float32, collected: Bools, worked: Bools) -> Bools:
    found = np.zeros(len(lives), bool)
    for number, life in enumerate(lives):
        grant = life.latest
        if grant.kv_cache_pool_bytes is not None:
            found[number] = True
        elif grant.server is not None and not hosts_engines(grant.server):
            found[number] = preallocates(grant.server)
        else:
            found[number] = _is_constant(
                used[number][collected[number]], grant.framebuffer_granted_bytes, worked[number]
            )
    return found


def _is_constant(values: Float32, granted_bytes: int, worked: Bools) -> bool:
    """A server that worked, and whose framebuffer stood still near its grant all the while, took it ahead of need."""
    if len(values) < CONSTANT_STEPS_MIN or not worked.any():
        return False
    low, high = (float(value) for value in np.quantile(values, (0.05, 0.95)))
    near_grant = high >= (PREALLOCATED_RATIO - 0.1) * granted_bytes
    return near_grant and high - low <= CONSTANT_RATIO_MAX * high


def _need(
    lives: Sequence[Tenure], used: Float32, cache: Float32 | None, preallocated: Bools, line: Timeline
) -> tuple[Float32, Bools]:
    """Need of each slice (rows, steps), and where it is hidden (rows,)."""
    told = np.array([_bytes_or_nan(life.latest.kv_cache_pool_bytes) for life in lives], np.float64)
    pools = believed_pools(told, used)
    need = framebuffer_need(used, cache, pools)
    for number, life in enumerate(lives):
        # A pool that shrank with its grant was larger before: each period counts with its own.
        for grant in life.grants[:-1] if len({grant.kv_cache_pool_bytes for grant in life.grants}) > 1 else ():
            stop = line.steps if grant.ended_at is None else line.steps_until(grant.ended_at)
            period = slice(line.first_step_after(grant.started_at), stop)
            rows = slice(number, number + 1)
            then = None if cache is None else cache[rows, period]
            pool = np.array([_bytes_or_nan(grant.kv_cache_pool_bytes)], np.float64)
            need[rows, period] = framebuffer_need(used[rows, period], then, pool)
    hidden = preallocated & np.isnan(pools)
    pooled = np.flatnonzero(preallocated & ~hidden)
    if len(pooled):
        there = ~np.isnan(used[pooled])
        if cache is None:
            hidden[pooled] = True
        else:
            both = there & ~np.isnan(cache[pooled])
            hidden[pooled] = both.sum(axis=1) < KV_CACHE_COVERAGE_MIN * np.maximum(1, there.sum(axis=1))
            # The formula takes an unreported usage as a full cache; here it is simply not known.
            need[pooled] = np.where(both, need[pooled], np.nan)
    need[hidden] = np.nan
    return need, hidden


def _bytes_or_nan(value: int | None) -> float:
    return np.nan if value is None else float(value)


def _largest(values: Float32) -> int | None:
    if not values.size or np.isnan(values).all():
        return None
    return int(np.nanmax(values))


def day_peaks(values: Float32, starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Largest value over all rows within each block of steps, shape (blocks,); NaN where nothing was collected."""
    top = np.fmax.reduce(values, axis=0).astype(np.float64)
    blocks: NDArray[np.float64] = np.fmax.reduceat(top, starts)
    return blocks
