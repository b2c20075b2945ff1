"""Use of each workload over time, by its name: the part of a history that the pages keep in memory.

A page draws a few measures of one workload, so the other measures of the history are dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from dashboards.queries import Event, WorkloadHistory
from dashboards.view_models.card_history import Series
from fleet.inventory import Grant
from fleet.schema import Measure
from fleet.sharing import believed_pools, framebuffer_need
from fleet.usage import Float32, History, SliceGrid

STEPS_MAX = 2000
"""Most points of one curve."""
CELLS_MAX = 20_000_000
"""Steps times slices up to which steps are kept as they are: five hundred cards over four weeks of minutes."""
DRAWN_PEAKS = (Measure.SM_ACTIVE, Measure.DUTY_CYCLE)
"""Measures whose peaks pages draw."""
DRAWN = (*DRAWN_PEAKS, Measure.FRAMEBUFFER_USED, Measure.KV_CACHE_USAGE, Measure.REQUEST_RATE)
"""Measures whose means pages draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSeries:
    """Use of every workload of one cluster.

    Attributes:
        grid: the measures that pages draw, per slice.
        rows: per workload the rows of the grid, each with its grant.
        grants: per workload all of its grants, those without any sample too.
    """

    grid: SliceGrid
    rows: Mapping[str, tuple[tuple[int, Grant], ...]]
    grants: Mapping[str, tuple[Grant, ...]]

    @classmethod
    def of(cls, history: History) -> WorkloadSeries:
        """Keep the drawn measures of a history."""
        slices = history.slices
        grid = replace(
            slices,
            mean={measure: slices.mean[measure] for measure in DRAWN if measure in slices.mean},
            peak={measure: slices.peak[measure] for measure in DRAWN_PEAKS if measure in slices.peak},
        )
        grants: dict[str, list[Grant]] = defaultdict(list)
        by_slice: dict[tuple[str, str, str, str], Grant] = {}
        for grant in history.inventory.grants:
            grants[grant.workload_id].append(grant)
            by_slice[grant.namespace, grant.pod, grant.container, grant.card] = grant
        rows: dict[str, list[tuple[int, Grant]]] = defaultdict(list)
        for row, key in enumerate(grid.keys):
            found = by_slice.get((key.namespace, key.pod, key.container, key.card))
            if found is not None:
                rows[found.workload_id].append((row, found))
        return cls(
            grid=grid,
            rows={name: tuple(entries) for name, entries in rows.items()},
            grants={name: tuple(entries) for name, entries in grants.items()},
        )

    def history(self, workload: str, hours: int | None, events: tuple[Event, ...]) -> WorkloadHistory | None:
        """One workload over its last hours; None where it is unknown.

        Args:
            workload: `namespace/Kind/name`.
            hours: how far back; None for all.
        """
        grants = self.grants.get(workload)
        if grants is None:
            return None
        entries, grid = self.rows.get(workload, ()), self.grid
        rows = np.array([row for row, _ in entries], np.int64)
        first = 0 if hours is None else max(0, grid.steps - int(hours * 3600 / grid.step_seconds))
        stride = max(1, -(-(grid.steps - first) // STEPS_MAX))
        starts = np.arange(first, grid.steps, stride)
        demand = _of(grid.mean, DRAWN_PEAKS, rows, starts, is_peak=False)
        used = _of(grid.mean, (Measure.FRAMEBUFFER_USED,), rows, starts, is_peak=False)
        kv_cache = _of(grid.mean, (Measure.KV_CACHE_USAGE,), rows, starts, is_peak=False)
        rate = _of(grid.mean, (Measure.REQUEST_RATE,), rows, starts, is_peak=False)
        said = [np.nan if grant.kv_cache_pool_bytes is None else grant.kv_cache_pool_bytes for _, grant in entries]
        pools = believed_pools(np.array(said, float), used)
        times = tuple(grid.since + timedelta(seconds=float(grid.step_seconds * start)) for start in starts)
        return WorkloadHistory(
            times=times,
            compute_p50=_quantile(demand, 0.5),
            compute_p95=_quantile(demand, 0.95),
            compute_max=_quantile(_of(grid.peak, DRAWN_PEAKS, rows, starts, is_peak=True), 1.0),
            framebuffer_used_bytes=_quantile(used, 1.0),
            framebuffer_need_bytes=(
                None if np.isnan(pools).all() else _quantile(framebuffer_need(used, kv_cache, pools), 1.0)
            ),
            framebuffer_granted_bytes=_granted(grants, times),
            request_rate=None if np.isnan(rate).all() else _quantile(rate, 1.0),
            events=events,
        )

    def grants_of(self, card: str) -> tuple[Grant, ...]:
        """All grants that a card ever had."""
        return tuple(grant for grants in self.grants.values() for grant in grants if grant.card == card)

    def live_grants(self, moment: datetime) -> tuple[Grant, ...]:
        """What is granted at a moment, by namespace, pod, container and card."""
        living = (grant for grants in self.grants.values() for grant in grants if grant.lives_at(moment))
        return tuple(sorted(living, key=lambda grant: (grant.namespace, grant.pod, grant.container, grant.card)))

    def lately(self, grants: Sequence[Grant], hours: int) -> NDArray[np.float64]:
        """Use of slices over the last hours, shape (grants, 3), NaN where nothing was collected.

        The columns: mean of compute and its largest sample, 0-1; most framebuffer used, bytes.
        """
        grid = self.grid
        row_of = {(key.namespace, key.pod, key.container, key.card): row for row, key in enumerate(grid.keys)}
        found = np.full((len(grants), 3), np.nan)
        rows = [row_of.get((one.namespace, one.pod, one.container, one.card), -1) for one in grants]
        seen = np.array(rows, np.int64)
        places = np.flatnonzero(seen >= 0)
        if not len(places) or not grid.steps:
            return found
        seen, starts = seen[places], np.zeros(1, np.int64)
        # A day of four weeks: the rest of a plane is not touched. A step is never cut.
        first = max(0, grid.steps - max(1, int(hours * 3600 / grid.step_seconds)))
        latest = {
            name: grid.mean[name][:, first:] for name in (*DRAWN_PEAKS, Measure.FRAMEBUFFER_USED) if name in grid.mean
        }
        peaks = {name: grid.peak[name][:, first:] for name in DRAWN_PEAKS if name in grid.peak}
        found[places, 0] = _of(latest, DRAWN_PEAKS, seen, starts, is_peak=False)[:, 0]
        found[places, 1] = _of(peaks, DRAWN_PEAKS, seen, starts, is_peak=True)[:, 0]
        found[places, 2] = _of(latest, (Measure.FRAMEBUFFER_USED,), seen, starts, is_peak=True)[:, 0]
        return found


def _of(
    measures: Mapping[Measure, Float32],
    wanted: tuple[Measure, ...],
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    *,
    is_peak: bool,
) -> Float32:
    """The first of the wanted measures that was collected, (rows, starts), NaN where none was.

    From one start to the next the mean of what was collected, or the largest peak.
    """
    found = np.full((len(rows), len(starts)), np.nan, np.float32)
    for measure in wanted:
        if measure in measures and len(rows) and len(starts):
            found = np.where(np.isnan(found), _folded(measures[measure][rows], starts, is_peak=is_peak), found)
    return found


def _folded(values: Float32, starts: NDArray[np.int64], *, is_peak: bool) -> Float32:
    if is_peak:
        return np.asarray(np.fmax.reduceat(values, starts, axis=1), np.float32)
    there = ~np.isnan(values)
    count = np.add.reduceat(there, starts, axis=1, dtype=np.int64)
    total = np.add.reduceat(np.where(there, values, 0.0), starts, axis=1, dtype=np.float64)
    return np.where(count > 0, total / np.maximum(1, count), np.nan).astype(np.float32)


def _quantile(values: Float32, quantile: float) -> Series:
    """Quantile over rows per column, None where nothing was collected."""
    if not values.size:
        return tuple([None] * values.shape[1])
    seen = ~np.isnan(values).all(axis=0)
    result = np.full(values.shape[1], np.nan)
    if seen.any():
        result[seen] = np.nanquantile(values[:, seen], quantile, axis=0)
    return tuple(None if np.isnan(value) else float(value) for value in result)


def _granted(grants: tuple[Grant, ...], times: tuple[datetime, ...]) -> Series:
    """Largest grant that lived at each time."""
    values: list[float | None] = []
    for moment in times:
        living = [grant.framebuffer_granted_bytes for grant in grants if grant.lives_at(moment.astimezone(UTC))]
        values.append(float(max(living)) if living else None)
    return tuple(values)
