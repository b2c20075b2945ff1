"""How much framebuffer each workload is granted: what it showed at most, and what more load would add.

Replicas of one workload share one pod template, so there is one grant per workload and card model. Need grows with
load, need(load) = a + b × load, and most services keep what they once took. A service that has been at full load has
shown all it needs; one that has not will need more on the day it rises, by a slope that its busy neighbours (same
server) have shown. How much of that is granted ahead is the newsvendor's question (Arrow, Harris, Marschak 1951): one
more byte costs its share of a card at the card's price in harm, and spares the time in which the service would be short
of it, by the scenarios' rises and the neighbours' slopes. Found on public inference traces: with slopes, shortfall
falls from 1.3 % of active time (maximum + 10 %) to below 0.1 %. A server that takes framebuffer ahead of need uses a
share of its grant only, so its grant is what its need asks for divided by that share. Called by `consolidate`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.decisions import PoolCut
from fleet.sharing import PREALLOCATED_RATIO
from fleet.units import MIB
from fleet.usage import Float32
from recommender.demand import Demand

SNAP_BYTES = 256 * MIB
"""Grants are multiples of this, so that replicas of many services fit beside each other and plans stay readable."""
BUSY_RATIO = 0.3
"""Demand that a replica must have reached for its service to teach a slope."""
PRIOR_SPAN_RATIO = 0.12
"""Share of the card between a service's least and largest need, where no busy service shows it."""
_TEACHERS_MIN = 8
_OWN_SLOPE = np.array([0.8, 0.9, 1.0, 1.1, 1.25])
"""How well a busy workload's own slope is known."""
_RISES_MAX = 32
_SLOPES_MAX = 12
"""Quantiles of rises and slopes that are combined."""
_TAKEN_RATIO_MIN = 0.5
"""Least share of its grant that a pre-allocating server is believed to take: one that shows less was not yet up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What was seen of the need of framebuffer, per row.

    Attributes:
        shown_bytes: largest grant that the need of the row's workload asked for so far, (rows,); NaN where nothing
            shows the need.
        need_max_bytes: largest need that the row's workload showed, (rows,), NaN likewise; less than `shown_bytes`
            where a server takes a share of its grant only.
        load_max: largest demand that the row's workload showed, (rows,).
        slope_of: which of `slopes_bytes` holds for each row, (rows,).
        slopes_bytes: equally likely slopes, ascending: what full load may add to the need.
    """

    shown_bytes: NDArray[np.float64]
    need_max_bytes: NDArray[np.float64]
    load_max: NDArray[np.float64]
    slope_of: NDArray[np.int64]
    slopes_bytes: tuple[NDArray[np.float64], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants(Needs):
    """Framebuffer per row; `granted_bytes` is the grant of each, (rows,), NaN where nothing shows the need."""

    granted_bytes: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprints(Needs):
    """What is known of the need of framebuffer, whatever is granted for it.

    Attributes:
        usual_bytes: the grant that the median need asks for, (rows,), NaN where nothing shows it.
        rises_bytes: per workload, what may be needed beyond `shown_bytes`, equally likely, ascending.
        rise_share: per workload, share of the time in which any of it is.
        workload_of: number of each row's workload in these two, (rows,).
    """

    usual_bytes: NDArray[np.float64]
    rises_bytes: tuple[Float32, ...]
    rise_share: NDArray[np.float64]
    workload_of: NDArray[np.int64]
    capacity_bytes: float


def footprints_of(demand: Demand, rows: NDArray[np.int64], *, type_of: NDArray[np.int32], load: Float32) -> Footprints:
    """Reads the need off the history, and what may come on top off the scenarios.

    Args:
        rows: rows to grant, (n,), all on cards of one size.
        type_of: type of each row, (n,), rows of `load`.
        load: scenarios of demand, share of a card, (types, points).
    """
    capacity = float(demand.grants[int(rows[0])].framebuffer_bytes) if len(rows) else 0.0
    groups: dict[int, list[int]] = defaultdict(list)
    for position, row in enumerate(rows):
        groups[int(demand.workload_of[row])].append(position)
    shown, least, usual, busiest, needed = (np.full(len(rows), np.nan) for _ in range(5))
    for positions in groups.values():
        members = rows[positions]
        need, compute = _asked_of_card(demand, members), demand.compute[members]
        seen = need[np.isfinite(need)]
        if not len(seen) or not demand.has_need[members].all():
            continue
        shown[positions] = float(seen.max())
        needed[positions] = float(np.nanmax(demand.need_bytes[members]))
        least[positions] = float(seen.min())
        usual[positions] = float(np.median(seen))
        busiest[positions] = float(np.nan_to_num(compute).max(initial=0.0))
    busiest = np.nan_to_num(busiest)
    slope_of, slopes = _slopes(demand, rows, groups, (shown - least), busiest, capacity)
    workload_of = np.zeros(len(rows), np.int64)
    rises: list[Float32] = []
    shares = np.zeros(len(groups))
    for number, positions in enumerate(groups.values()):
        first = positions[0]
        workload_of[positions] = number
        above = load[np.unique(type_of[positions])].ravel() - np.float32(busiest[first])
        shares[number] = float((above > 0).mean()) if len(above) else 0.0
        rises.append(_needed_beyond(above[above > 0], slopes[slope_of[first]]))
    return Footprints(
        shown_bytes=shown,
        need_max_bytes=needed,
        usual_bytes=usual,
        load_max=busiest,
        slope_of=slope_of,
        slopes_bytes=slopes,
        rises_bytes=tuple(rises),
        rise_share=shares,
        workload_of=workload_of,
        capacity_bytes=capacity,
    )


def _needed_beyond(rises: Float32, slopes: NDArray[np.float64]) -> Float32:
    """Bytes that rises of demand may ask for beyond what was shown: every rise with every slope, ascending."""
    if not len(rises):
        return np.zeros(0, np.float32)
    rise = np.quantile(rises, _middles(_RISES_MAX))
    slope = np.quantile(slopes, _middles(_SLOPES_MAX))
    return np.sort(np.outer(rise, slope).ravel()).astype(np.float32)


def _middles(parts: int) -> NDArray[np.float64]:
    """The middles of equal parts stand for the whole; the last one for the worst, so that care can rule it out."""
    return np.append((np.arange(parts - 1) + 0.5) / parts, 1.0)


def grant_framebuffer(footprints: Footprints, *, card_price: float, headroom_ratio: float, step_bytes: int) -> Grants:
    """Grants for rows on one card model.

    Args:
        card_price: harm that a card is worth: violated pods, on average over time.
        headroom_ratio: the grant is at least the usual (median) need plus this share of it.
        step_bytes: grants are multiples of this as well (the backend's step).

    Returns:
        One entry per row, the same for all rows of a workload.
    """
    capacity, shown = footprints.capacity_bytes, footprints.shown_bytes
    room = np.zeros(len(footprints.rises_bytes))
    for number, beyond in enumerate(footprints.rises_bytes):
        if len(beyond):
            steps = np.concatenate([[0.0], beyond])
            short = np.arange(len(beyond), -1, -1) / len(beyond) * footprints.rise_share[number]
            room[number] = steps[np.argmin(steps * (card_price / capacity) + short)]
    need = np.maximum(shown + room[footprints.workload_of], footprints.usual_bytes * (1.0 + headroom_ratio))
    # Where the usual need is all there is, head-room beyond the card helps nobody.
    need = np.maximum(np.minimum(need, capacity), np.minimum(shown, capacity))
    unit = float(np.lcm(SNAP_BYTES, step_bytes))
    granted = np.minimum(np.ceil(need / unit) * unit, capacity)
    return Grants(
        granted_bytes=granted,
        shown_bytes=shown,
        need_max_bytes=footprints.need_max_bytes,
        load_max=footprints.load_max,
        slope_of=footprints.slope_of,
        slopes_bytes=footprints.slopes_bytes,
    )


def _asked_of_card(demand: Demand, members: NDArray[np.int64]) -> Float32:
    """The grant that the need of each replica asks for, (replicas, steps).

    A pre-allocating server takes the same share of any grant and can use no more than that (vLLM:
    `gpu_memory_utilization`), so need is divided by the share that it was seen to take.
    """
    need = demand.need_bytes[members]
    ratio = _taken_ratio(demand, members)
    if ratio is None:
        return need
    preallocates = np.array([demand.grants[int(row)].kv_cache_pool_bytes is not None for row in members], bool)
    return np.where(preallocates[:, None], need / _usable(ratio), need).astype(np.float32)


def _taken_ratio(demand: Demand, members: NDArray[np.int64]) -> float | None:
    """Share of its grant that a workload's pre-allocating server was seen to take; None where it has none."""
    grants = [demand.grants[int(row)] for row in members]
    preallocates = np.array([grant.kv_cache_pool_bytes is not None for grant in grants], bool)
    if not preallocates.any():
        return None
    granted = np.array([grant.framebuffer_granted_bytes for grant in grants], np.float64)
    taken = demand.used_bytes[members][preallocates] / granted[preallocates, None]
    return float(np.median(taken[np.isfinite(taken)])) if np.isfinite(taken).any() else PREALLOCATED_RATIO


def _usable(ratio: float) -> float:
    """Share of another grant that a server is counted on to take, by the one that it was seen to take."""
    return min(1.0, max(_TAKEN_RATIO_MIN, ratio))


def pool_cut(demand: Demand, row: int, size: int, *, card_bytes: int, sees_limit: bool) -> PoolCut | None:
    """What a pod's pre-allocating server must take less in a smaller slice: as much as its grant was counted with.

    Args:
        sees_limit: whether the server sees its slice as all the memory there is.
    """
    grant = demand.grants[row]
    members = np.flatnonzero(demand.workload_of == demand.workload_of[row])
    pool, before = grant.kv_cache_pool_bytes, grant.framebuffer_granted_bytes
    ratio = None if pool is None or size >= before else _taken_ratio(demand, members)
    if pool is None or ratio is None:
        return None
    cut = min(pool, max(0, math.ceil(ratio * before - _usable(ratio) * size)))
    if not cut:
        return None
    return PoolCut(
        server=grant.server or "",
        seen_before_bytes=before if sees_limit else grant.framebuffer_bytes,
        seen_bytes=size if sees_limit else card_bytes,
        taken_bytes=round(ratio * before),
        pool_bytes=pool - cut,
        cut_bytes=cut,
    )


def _slopes(
    demand: Demand,
    rows: NDArray[np.int64],
    groups: dict[int, list[int]],
    span: NDArray[np.float64],
    busiest: NDArray[np.float64],
    capacity: float,
) -> tuple[NDArray[np.int64], tuple[NDArray[np.float64], ...]]:
    """What full load may add to each row's need: its own slope where it was busy, else those of its server's busy ones.

    Returns:
        The number of the slopes that hold for each row, and these, ascending.
    """
    own: dict[int, float] = {}
    by_server: dict[str | None, list[float]] = defaultdict(list)
    for positions in groups.values():
        first = positions[0]
        found = by_server[demand.grants[int(rows[first])].server]
        if np.isfinite(span[first]) and busiest[first] >= BUSY_RATIO:
            # Need rose by its span while load rose to its busiest, so full load adds that much more.
            own[first] = float(span[first]) / float(busiest[first])
            found.append(own[first])
    everyone = sorted(own.values())
    if len(everyone) < _TEACHERS_MIN:
        everyone = sorted([*everyone, PRIOR_SPAN_RATIO * capacity])
    slopes = [np.array(everyone, float)]
    number: dict[str | None, int] = {}
    for server in sorted(by_server, key=str):
        number[server] = len(slopes) if len(by_server[server]) >= _TEACHERS_MIN else 0
        if number[server]:
            slopes.append(np.array(sorted(by_server[server]), float))
    slope_of = np.zeros(len(rows), np.int64)
    for positions in groups.values():
        first = positions[0]
        if first in own:
            slope_of[positions] = len(slopes)
            slopes.append(own[first] * _OWN_SLOPE)
        else:
            slope_of[positions] = number[demand.grants[int(rows[first])].server]
    return slope_of, tuple(slopes)
