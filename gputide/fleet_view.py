"""Fulfils the pages' `FleetView` from the warehouse and the analyzer; reads only, from any thread.

The history and its profiles are kept until the warehouse holds something newer, so a page that polls costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from dashboards.queries import Event, Freshness, Series, WorkloadHistory
from fleet.errors import NotEnoughData
from fleet.inventory import Grant
from fleet.profiles import Profiles
from fleet.schema import Measure
from fleet.sharing import framebuffer_need
from fleet.usage import Float32, History

STEPS_MAX = 2000
"""Most points of one curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysed:
    """A history with its profiles.

    Attributes:
        history: what was read from the warehouse.
        profiles: what the analyzer made of it.
    """

    history: History
    profiles: Profiles


class WarehouseFleetView:
    """`FleetView` over one cluster's warehouse."""

    def __init__(
        self,
        *,
        clusters: Callable[[], tuple[str, ...]],
        version: Callable[[], str],
        analyse: Callable[[str], Analysed],
        now: Callable[[], datetime],
        events: Callable[[str], tuple[Event, ...]],
    ) -> None:
        """Make the view.

        Args:
            clusters: names of the clusters with data.
            version: text that changes when the warehouse holds something new.
            analyse: reads and profiles one cluster.
            now: the clock of the data.
            events: what happened to one workload.
        """
        self._clusters = clusters
        self._version = version
        self._analyse = analyse
        self._now = now
        self._events = events
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[str, Analysed]] = {}

    def clusters(self) -> tuple[str, ...]:
        """Names of all clusters with data."""
        return self._clusters()

    def profiles(self, cluster: str) -> Profiles:
        """The newest analysis, the same object while nothing changed."""
        return self._analysed(cluster).profiles

    def history(self, cluster: str, workload: str, hours: int | None) -> WorkloadHistory | None:
        """One workload over its last hours; None where it is unknown."""
        history = self._analysed(cluster).history
        grants = {
            (grant.namespace, grant.pod, grant.container, grant.card): grant
            for grant in history.inventory.grants
            if grant.workload_id == workload
        }
        if not grants:
            return None
        grid = history.slices
        rows = [row for row, key in enumerate(grid.keys) if (key.namespace, key.pod, key.container, key.card) in grants]
        first = 0 if hours is None else max(0, grid.steps - int(hours * 3600 / grid.step_seconds))
        stride = max(1, -(-(grid.steps - first) // STEPS_MAX))
        columns = np.arange(first, grid.steps, stride)
        demand = _of(grid.mean, (Measure.SM_ACTIVE, Measure.DUTY_CYCLE), rows, columns)
        peak = _of(grid.peak, (Measure.SM_ACTIVE, Measure.DUTY_CYCLE), rows, columns)
        used = _of(grid.mean, (Measure.FRAMEBUFFER_USED,), rows, columns)
        kv_cache = _of(grid.mean, (Measure.KV_CACHE_USAGE,), rows, columns)
        rate = _of(grid.mean, (Measure.REQUEST_RATE,), rows, columns)
        by_row = [
            grants[(grid.keys[row].namespace, grid.keys[row].pod, grid.keys[row].container, grid.keys[row].card)]
            for row in rows
        ]
        pools = np.array(
            [np.nan if grant.kv_cache_pool_bytes is None else grant.kv_cache_pool_bytes for grant in by_row], float
        )
        times = tuple(grid.since + timedelta(seconds=float(grid.step_seconds * column)) for column in columns)
        return WorkloadHistory(
            times=times,
            compute_p50=_quantile(demand, 0.5),
            compute_p95=_quantile(demand, 0.95),
            compute_max=_quantile(peak, 1.0),
            framebuffer_used_bytes=_quantile(used, 1.0),
            framebuffer_need_bytes=(
                None if np.isnan(pools).all() else _quantile(framebuffer_need(used, kv_cache, pools), 1.0)
            ),
            framebuffer_granted_bytes=_granted(tuple(grants.values()), times),
            request_rate=None if np.isnan(rate).all() else _quantile(rate, 1.0),
            events=self._events(workload),
        )

    def freshness(self, cluster: str) -> Freshness:
        """Coverage and age of the data."""
        analysed = self._analysed(cluster)
        return Freshness(
            coverage_ratio=analysed.profiles.coverage_ratio,
            newest_at=analysed.history.slices.until,
            interval_seconds=float(analysed.history.slices.step_seconds),
            now=self._now(),
        )

    def analysed(self, cluster: str) -> Analysed:
        """History and profiles together, for the planner."""
        return self._analysed(cluster)

    def _analysed(self, cluster: str) -> Analysed:
        with self._lock:
            version = self._version()
            kept = self._kept.get(cluster)
            if kept is not None and kept[0] == version:
                return kept[1]
            if cluster not in self._clusters():
                raise NotEnoughData(
                    f"nothing is known of cluster {cluster!r}; feed it with `gputide replay` or `receive`"
                )
            analysed = self._analyse(cluster)
            self._kept[cluster] = (version, analysed)
            return analysed


def _of(
    measures: Mapping[Measure, Float32], wanted: tuple[Measure, ...], rows: list[int], columns: NDArray[np.int64]
) -> Float32:
    """The first of the wanted measures that was collected, (rows, columns), NaN where none was."""
    missing = np.full((len(rows), len(columns)), np.nan, np.float32)
    found = missing
    for measure in wanted:
        if measure in measures and rows:
            values = measures[measure][np.ix_(np.array(rows), columns)]
            found = np.where(np.isnan(found), values, found)
    return found


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
