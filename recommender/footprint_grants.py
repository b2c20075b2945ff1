"""How much framebuffer each workload is granted: what it showed at most, and what more load would add.

Replicas of one workload share one pod template, so there is one grant per workload and card model. Need grows with
load, need(load) = a + b × load, and most services keep what they once took. A service that has been at full load has
shown all it needs; one that has not will need more on the day it rises, by a slope that its busy neighbours (same
server) have shown. Found on public inference traces: with the upper slope of the busy services, shortfall falls from
1.3 % of active time (maximum + 10 %) to below 0.1 %. A server that takes framebuffer ahead of need uses a share of its
grant only, so its grant is what its need asks for divided by that share. Called by `planner`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.decisions import RiskLevel
from fleet.sharing import PREALLOCATED_RATIO
from fleet.units import MIB
from fleet.usage import Float32
from recommender.demand import Demand

SNAP_BYTES = 256 * MIB
"""Grants are multiples of this, so that replicas of many services fit beside each other and plans stay readable."""
SLOPE_QUANTILE = {RiskLevel.LOW: 0.97, RiskLevel.MEDIUM: 0.9, RiskLevel.HIGH: 0.75}
"""Which quantile of the busy services' slopes a service that never was busy is assumed to have."""
BUSY_RATIO = 0.3
"""Demand that a replica must have reached for its service to teach a slope."""
PRIOR_SPAN_RATIO = 0.12
"""Share of the card between a service's least and largest need, where no busy service shows it."""
_TEACHERS_MIN = 8
_TAKEN_RATIO_MIN = 0.5
"""Least share of its grant that a pre-allocating server is believed to take: one that shows less was not yet up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """Framebuffer per row.

    Attributes:
        granted_bytes: the grant of each row, (rows,); NaN where nothing shows the need.
        shown_bytes: largest grant that the need of the row's workload asked for so far, (rows,), NaN likewise.
        need_max_bytes: largest need that the row's workload showed, (rows,), NaN likewise; less than `shown_bytes`
            where a server takes a share of its grant only.
        slope_bytes: what full load would add to a service that showed nothing yet, (rows,).
        load_max: largest demand that the row's workload showed, (rows,).
        spans_bytes: how far need spread in each busy workload, ascending: what a rise may cost, (workloads,).
    """

    granted_bytes: NDArray[np.float64]
    shown_bytes: NDArray[np.float64]
    need_max_bytes: NDArray[np.float64]
    slope_bytes: NDArray[np.float64]
    load_max: NDArray[np.float64]
    spans_bytes: NDArray[np.float64]


def grant_framebuffer(
    demand: Demand,
    rows: NDArray[np.int64],
    *,
    risk: RiskLevel,
    headroom_ratio: float,
    step_bytes: int,
) -> Grants:
    """Grants for rows on one card model.

    Args:
        demand: the series.
        rows: rows to grant, (n,), all on cards of one size.
        risk: harm preset, chooses the slope.
        headroom_ratio: the grant is at least the usual (median) need plus this share of it.
        step_bytes: grants are multiples of this as well (the backend's step).

    Returns:
        One entry per row, the same for all rows of a workload.
    """
    capacity = float(demand.grants[int(rows[0])].framebuffer_bytes) if len(rows) else 0.0
    groups: dict[int, list[int]] = defaultdict(list)
    for position, row in enumerate(rows):
        groups[int(demand.workload_of[row])].append(position)
    shown, least, usual, busiest, needed = (np.full(len(rows), np.nan) for _ in range(5))
    for positions in groups.values():
        members = rows[positions]
        need, compute = _asked_of_card(demand, members), demand.compute[members]
        seen = np.isfinite(need)
        if not seen.any() or not demand.has_need[members].all():
            continue
        shown[positions] = float(need[seen].max())
        needed[positions] = float(demand.need_bytes[members][seen].max())
        least[positions] = float(need[seen].min())
        usual[positions] = float(np.median(need[seen]))
        busiest[positions] = float(np.nan_to_num(compute).max(initial=0.0))
    slope, spans = _slopes(demand, rows, groups, (shown - least), busiest, SLOPE_QUANTILE[risk], capacity)
    need = np.maximum(shown + slope * np.maximum(0.0, 1.0 - busiest), usual * (1.0 + headroom_ratio))
    # Where the usual need is all there is, head-room beyond the card helps nobody.
    need = np.maximum(np.minimum(need, capacity), np.minimum(shown, capacity))
    unit = float(np.lcm(SNAP_BYTES, step_bytes))
    granted = np.minimum(np.ceil(need / unit) * unit, capacity)
    return Grants(
        granted_bytes=granted,
        shown_bytes=shown,
        need_max_bytes=needed,
        slope_bytes=slope,
        load_max=np.nan_to_num(busiest),
        spans_bytes=spans,
    )


def _asked_of_card(demand: Demand, members: NDArray[np.int64]) -> Float32:
    """The grant that the need of each replica asks for, (replicas, steps).

    A pre-allocating server takes the same share of any grant and can use no more than that (vLLM:
    `gpu_memory_utilization`), so need is divided by the share that it was seen to take.
    """
    need = demand.need_bytes[members]
    grants = [demand.grants[int(row)] for row in members]
    preallocates = np.array([grant.kv_cache_pool_bytes is not None for grant in grants], bool)
    if not preallocates.any():
        return need
    granted = np.array([grant.framebuffer_granted_bytes for grant in grants], np.float64)
    taken = demand.used_bytes[members][preallocates] / granted[preallocates, None]
    ratio = float(np.median(taken[np.isfinite(taken)])) if np.isfinite(taken).any() else PREALLOCATED_RATIO
    ratio = min(1.0, max(_TAKEN_RATIO_MIN, ratio))
    return np.where(preallocates[:, None], need / ratio, need).astype(np.float32)


def _slopes(
    demand: Demand,
    rows: NDArray[np.int64],
    groups: dict[int, list[int]],
    span: NDArray[np.float64],
    busiest: NDArray[np.float64],
    quantile: float,
    capacity: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bytes that full load adds, per row: the quantile over busy workloads of the same server, else of all.

    Also all spans that taught it, ascending.
    """
    by_server: dict[str | None, list[float]] = defaultdict(list)
    everyone: list[float] = []
    for positions in groups.values():
        first = positions[0]
        if np.isfinite(span[first]) and busiest[first] >= BUSY_RATIO:
            by_server[demand.grants[int(rows[first])].server].append(float(span[first]))
            everyone.append(float(span[first]))
    everyone.sort()
    prior = PRIOR_SPAN_RATIO * capacity
    overall = float(np.quantile(everyone, quantile)) if len(everyone) >= _TEACHERS_MIN else prior
    slope_of = {
        server: float(np.quantile(spans, quantile)) if len(spans) >= _TEACHERS_MIN else overall
        for server, spans in by_server.items()
    }
    slopes = np.array([slope_of.get(demand.grants[int(row)].server, overall) for row in rows], float)
    return slopes, np.array(everyone if everyone else [prior], float)
