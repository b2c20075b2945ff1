"""What every live slice demanded, as arrays: rows of the history joined with the grants of the inventory.

A slice that took over from an earlier one of its workload has that one's past before its own (`analyzer.succession`).

The first step of the planner and of the back-test; everything after it works on these arrays and never looks at a
sample again. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.compute_demand import DutyCurves, demand, duty_curves, owners_of
from analyzer.presence import Tenure, tenures, timeline
from analyzer.succession import Heir, succession
from fleet.inventory import Grant, WorkloadId
from fleet.schema import Measure
from fleet.servers import preallocates
from fleet.sharing import believed_pools, framebuffer_need
from fleet.usage import Float32, History, SliceGrid

DAY_SECONDS = 86400
_SIMILAR_FACTOR = 1.5
"""Replicas whose mean demand differs by less than about this factor count as alike."""
_QUIET_RATIO = 0.002
"""Mean demand below which replicas are alike whatever their factor."""

_HOUR_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Live slices and their series, one row per live grant, in the inventory's order.

    Attributes:
        workloads: the workloads they belong to, sorted.
        workload_of: number of each row's workload, (rows,), int32.
        compute: demand, share of a card's busiest engine: computing, encoder or decoder, (rows, steps), NaN = not
            collected. A transcoder works on a card without its SMs.
        counted: demand of computing alone, likewise.
        used_bytes: framebuffer used, (rows, steps).
        need_bytes: framebuffer needed, less the unused part of a pre-allocated KV cache, (rows, steps).
        has_need: False where a server pre-allocates and nothing shows what it needs, (rows,), bool.
        by_sm: True where demand of computing stands on SM active, False where it is the duty cycle, (rows,).
    """

    grants: tuple[Grant, ...]
    workloads: tuple[WorkloadId, ...]
    workload_of: NDArray[np.int32]
    compute: Float32
    counted: Float32
    used_bytes: Float32
    need_bytes: Float32
    has_need: NDArray[np.bool_]
    by_sm: NDArray[np.bool_]
    step_seconds: int

    @property
    def steps_per_day(self) -> int:
        """Steps of a day, at least one."""
        return max(1, DAY_SECONDS // self.step_seconds)

    @property
    def steps(self) -> int:
        """Steps of the history."""
        return int(self.compute.shape[1])

    def hourly_load(self, rows: Sequence[int]) -> NDArray[np.float64]:
        """Mean load of rows together, hour by hour of the history, share of a card, (hours,)."""
        steps = max(1, _HOUR_SECONDS // self.step_seconds)
        hours = self.steps // steps
        if not rows:
            return np.zeros(hours)
        load = np.nan_to_num(self.compute[list(rows), : hours * steps]).sum(axis=0, dtype=np.float64)
        return np.asarray(load.reshape(hours, steps).mean(axis=1), np.float64)


def demand_of(history: History) -> Demand:
    """Joins grants and series.

    Returns:
        One row per live grant; a grant without any sample, of its own or of one that it took over from, has NaN all
        through. Negative and infinite samples are taken as not collected.
    """
    grid = history.slices
    grants, rows, curves, inherited = _joined(history)
    counted, by_sm = _counted(grid, rows, curves)
    used = _taken(grid.peak.get(Measure.FRAMEBUFFER_USED), rows, grid.steps)
    cache = grid.peak.get(Measure.KV_CACHE_USAGE)
    pools = believed_pools(_pools(grants), used)
    usage = None if cache is None else _taken(cache, rows, grid.steps)
    compute = _busiest(
        counted, [_taken(grid.mean[engine], rows, grid.steps) for engine in VIDEO if engine in grid.mean]
    )
    need = framebuffer_need(used, usage, pools)
    has_need = _has_need(grants, pools, usage)
    for piece in inherited:
        _inherit(piece, grid, curves, counted=counted, compute=compute, used=used, need=need)
    names = tuple(sorted({grant.workload_id for grant in grants}))
    number = {name: index for index, name in enumerate(names)}
    return Demand(
        grants=grants,
        workloads=names,
        workload_of=np.array([number[grant.workload_id] for grant in grants], np.int32),
        compute=compute,
        counted=counted,
        used_bytes=used,
        need_bytes=need,
        has_need=has_need,
        by_sm=by_sm,
        step_seconds=grid.step_seconds,
    )


def touched(history: History) -> NDArray[np.bool_]:
    """Steps in which a live slice did anything for a moment, by the peaks of its engines, (rows, steps).

    A mean over a step hides a request that takes a second of it. Rows are those of `demand_of`.
    """
    grid = history.slices
    _, rows, _, inherited = _joined(history)
    found = _touched(grid, rows)
    for piece in inherited:
        found[piece.row, : piece.stop] |= _touched(grid, np.array([piece.source], np.int64))[0, : piece.stop]
    return found


def recorded(history: History, measure: Measure) -> Float32:
    """Means of a measure of live slices as it was recorded, (rows, steps), NaN where it was not; rows as `demand_of`.

    A live slice has the past of one that it took over from.
    """
    grid = history.slices
    _, rows, _, inherited = _joined(history)
    values = grid.mean.get(measure)
    found = _taken(values, rows, grid.steps)
    for piece in inherited:
        row = found[piece.row, : piece.stop]
        own = _taken(values, np.array([piece.source], np.int64), grid.steps)
        np.copyto(row, own[0, : piece.stop], where=np.isnan(row))
    return found


def _touched(grid: SliceGrid, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    sm, duty, *video = (
        _taken(grid.peak.get(measure), rows, grid.steps) for measure in (Measure.SM_ACTIVE, Measure.DUTY_CYCLE, *VIDEO)
    )
    # The duty cycle is an upper bound, and of a shared card it is everybody's.
    compute = np.where(np.isfinite(sm).any(axis=1, keepdims=True), sm, duty)
    found: NDArray[np.bool_] = np.asarray(_busiest(compute, video) > 0, bool)
    return found


def _joined(history: History) -> tuple[tuple[Grant, ...], NDArray[np.int64], DutyCurves | None, list[_Piece]]:
    """Live grants, the row of each in the grid (-1 for none), duty curves, and the pasts that they took over."""
    inventory, grid = history.inventory, history.slices
    grants = inventory.live_grants()
    lives = tenures(inventory, grid, inventory.as_of)
    row_of = {_identity(life.latest): life.row for life in lives if life.row is not None}
    rows = np.array([row_of.get(_identity(grant), -1) for grant in grants], np.int64)
    curves = duty_curves(grid, owners_of(lives, len(grid.keys)), grid.steps)
    return grants, rows, curves, _inherited(history, lives, grants, curves)


def _identity(item: Grant) -> tuple[str, str, str, str]:
    return item.namespace, item.pod, item.container, item.card


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """An earlier slice that a live one took over from.

    Attributes:
        source: row of the earlier one in the grid.
        stop: step before which the earlier one counts.
        is_resized: True where the live one is granted another framebuffer.
    """

    row: int
    source: int
    stop: int
    grant: Grant
    is_resized: bool


def _inherited(
    history: History, lives: Sequence[Tenure], grants: Sequence[Grant], curves: DutyCurves | None
) -> list[_Piece]:
    """Earlier slices, the latest first for each live one."""
    if len(grants) == len(history.inventory.grants):
        return []
    line = timeline(history.slices, history.inventory.as_of)
    number = {_identity(grant): row for row, grant in enumerate(grants)}
    heirs: Sequence[Heir] = succession(lives, history.slices, line, curves).heirs
    pieces = []
    for heir in heirs:
        row = number[_identity(lives[heir.number].latest)]
        for earlier, stop in heir.before:
            grant = lives[earlier].latest
            source = lives[earlier].row
            if source is not None and stop > 0:
                resized = grant.framebuffer_granted_bytes != grants[row].framebuffer_granted_bytes
                pieces.append(_Piece(row=row, source=source, stop=stop, grant=grant, is_resized=resized))
    return pieces


def _inherit(
    piece: _Piece,
    grid: SliceGrid,
    curves: DutyCurves | None,
    *,
    counted: Float32,
    compute: Float32,
    used: Float32,
    need: Float32,
) -> None:
    """Puts an earlier slice's past into the row of the live one, where that has none of its own yet."""
    source, span = np.array([piece.source], np.int64), slice(0, piece.stop)
    own_counted, _ = _counted(grid, source, curves)
    own_compute = _busiest(
        own_counted, [_taken(grid.mean[engine], source, grid.steps) for engine in VIDEO if engine in grid.mean]
    )
    own_used = _taken(grid.peak.get(Measure.FRAMEBUFFER_USED), source, grid.steps)
    cache = grid.peak.get(Measure.KV_CACHE_USAGE)
    usage = None if cache is None else _taken(cache, source, grid.steps)
    # What it needed was read with the pool that it had then.
    own_need = framebuffer_need(own_used, usage, _pools([piece.grant]))
    if piece.is_resized and piece.grant.kv_cache_pool_bytes is not None:
        # Such a server takes a share of its grant: of another grant it says nothing.
        own_used[:] = np.nan
    for values, own in ((counted, own_counted), (compute, own_compute), (used, own_used), (need, own_need)):
        row = values[piece.row, span]
        np.copyto(row, own[0, span], where=np.isnan(row))


def _pools(grants: Sequence[Grant]) -> NDArray[np.float64]:
    return np.array([np.nan if g.kv_cache_pool_bytes is None else g.kv_cache_pool_bytes for g in grants], float)


VIDEO = (Measure.ENCODER, Measure.DECODER)
"""Engines beside the SMs that a card has one or a few of, shared by all that sit on it."""


def _busiest(counted: Float32, video: Sequence[Float32]) -> Float32:
    busiest = counted
    for engine in video:
        busiest = np.fmax(busiest, engine)
    return busiest


def _counted(grid: SliceGrid, rows: NDArray[np.int64], curves: DutyCurves | None) -> tuple[Float32, NDArray[np.bool_]]:
    found = np.full((len(rows), grid.steps), np.nan, np.float32)
    by_sm = np.zeros(len(rows), bool)
    there = rows >= 0
    found[there], by_sm[there] = demand(grid, rows[there], grid.steps, curves)
    return _collected(found), by_sm


_ROWS_AT_ONCE = 4096


def _taken(values: Float32 | None, rows: NDArray[np.int64], steps: int) -> Float32:
    taken = np.full((len(rows), steps), np.nan, np.float32)
    if values is not None:
        # Part by part: of a very large fleet a second copy would be what fills the memory.
        for start in range(0, len(taken), _ROWS_AT_ONCE):
            part, here = taken[start : start + _ROWS_AT_ONCE], rows[start : start + _ROWS_AT_ONCE]
            part[here >= 0] = _collected(values[here[here >= 0]])
    return taken


def _collected(values: Float32) -> Float32:
    """What no counter can show was not collected: a negative demand would make room on a card."""
    values[~(values >= 0) | np.isinf(values)] = np.nan
    return values


def _has_need(grants: tuple[Grant, ...], pools: NDArray[np.float64], usage: Float32 | None) -> NDArray[np.bool_]:
    seen = np.zeros(len(grants), bool) if usage is None else np.isfinite(usage).any(axis=1)
    hides_need = np.array([preallocates(grant.server) for grant in grants], bool)
    has_pool = ~np.isnan(pools)
    return np.where(has_pool, seen, ~hides_need)


def alike(demand: Demand, rows: NDArray[np.int64]) -> NDArray[np.int32]:
    """Groups rows that behave alike: replicas of one workload whose demand has about the same level.

    Args:
        rows: which rows, (n,).

    Returns:
        Number of each row's type, 0 … types-1 in the order of workload and level, (n,).
    """
    levels: list[tuple[int, int]] = []
    by_workload: dict[int, list[int]] = defaultdict(list)
    for position, row in enumerate(rows):
        by_workload[int(demand.workload_of[row])].append(position)
    level_of = np.zeros(len(rows), np.int64)
    for positions in by_workload.values():
        if len(positions) > 1:
            level_of[positions] = _levels(demand.compute[rows[positions]])
    levels = [(int(demand.workload_of[row]), int(level)) for row, level in zip(rows, level_of, strict=True)]
    number = {level: index for index, level in enumerate(sorted(set(levels)))}
    return np.array([number[level] for level in levels], np.int32)


def _levels(compute: Float32) -> NDArray[np.int64]:
    """Level of each replica against all of them, in powers of `_SIMILAR_FACTOR`, over the steps both were seen in."""
    seen = np.isfinite(compute)
    filled = np.where(seen, compute, 0).astype(np.float64)
    count = seen.sum(axis=0)
    average = np.divide(filled.sum(axis=0), count, out=np.zeros(compute.shape[1]), where=count > 0)
    own = filled.sum(axis=1)
    others = (seen * average).sum(axis=1)
    samples = np.maximum(1, seen.sum(axis=1))
    plain = (own < _QUIET_RATIO * samples) & (others < _QUIET_RATIO * samples)
    ratio = np.maximum(own, 1e-9) / np.maximum(others, 1e-9)
    level = np.rint(np.log(ratio) / np.log(_SIMILAR_FACTOR)).clip(-6, 6)
    return np.where(plain, 0, level).astype(np.int64)
