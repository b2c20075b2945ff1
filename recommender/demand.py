"""What every live slice demanded, as arrays: rows of the history joined with the grants of the inventory.

The first step of the planner and of the back-test; everything after it works on these arrays and never looks at a
sample again. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.inventory import Grant, Inventory, WorkloadId
from fleet.schema import Measure
from fleet.sharing import framebuffer_need
from fleet.usage import Float32, History

DAY_SECONDS = 86400
_SIMILAR_FACTOR = 1.5
"""Replicas whose mean demand differs by less than about this factor count as alike."""
_QUIET_RATIO = 0.002
"""Mean demand below which replicas are alike whatever their factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Live slices and their series, one row per live grant, in the inventory's order.

    Attributes:
        grants: the live grants, (rows).
        workloads: the workloads they belong to, sorted.
        workload_of: number of each row's workload, (rows,), int32.
        compute: demand, share of a card's busiest engine: computing, encoder or decoder, (rows, steps), NaN = not
            collected. A transcoder works on a card without its SMs.
        counted: demand by `counter` alone, likewise.
        used_bytes: framebuffer used, (rows, steps).
        need_bytes: framebuffer needed, less the unused part of a pre-allocated KV cache, (rows, steps).
        has_need: False where a server pre-allocates and nothing shows what it needs, (rows,), bool.
        counter: column that demand of computing was read from.
        step_seconds: length of a step.
        steps_per_day: steps of a day.
    """

    grants: tuple[Grant, ...]
    workloads: tuple[WorkloadId, ...]
    workload_of: NDArray[np.int32]
    compute: Float32
    counted: Float32
    used_bytes: Float32
    need_bytes: Float32
    has_need: NDArray[np.bool_]
    counter: Measure
    step_seconds: int

    @property
    def steps_per_day(self) -> int:
        """Steps of a day, at least one."""
        return max(1, DAY_SECONDS // self.step_seconds)

    @property
    def steps(self) -> int:
        """Steps of the history."""
        return int(self.compute.shape[1])


PREALLOCATING_SERVERS = frozenset({"vllm", "sglang", "tgi", "lmdeploy"})
"""Servers that take their share of the framebuffer at start (see `fleet.sharing.PREALLOCATED_RATIO`)."""


def demand_of(history: History) -> Demand:
    """Joins grants and series.

    Args:
        history: inventory and usage.

    Returns:
        One row per live grant; a grant without any sample has NaN all through. Negative and infinite samples are
        taken as not collected.
    """
    inventory = history.inventory
    grants = inventory.live_grants()
    grid = history.slices
    row_of = {(key.namespace, key.pod, key.container, key.card): row for row, key in enumerate(grid.keys)}
    rows = np.array(
        [row_of.get((grant.namespace, grant.pod, grant.container, grant.card), -1) for grant in grants], np.int64
    )
    sm_active = grid.mean.get(Measure.SM_ACTIVE)
    counter = Measure.SM_ACTIVE
    if sm_active is None or not np.isfinite(sm_active).any():
        counter = Measure.DUTY_CYCLE
    counted = _taken(grid.mean.get(counter), rows, grid.steps)
    used = _taken(grid.peak.get(Measure.FRAMEBUFFER_USED), rows, grid.steps)
    cache = grid.peak.get(Measure.KV_CACHE_USAGE)
    pools = np.array([np.nan if g.kv_cache_pool_bytes is None else g.kv_cache_pool_bytes for g in grants], float)
    usage = None if cache is None else _taken(cache, rows, grid.steps)
    names = tuple(sorted({grant.workload_id for grant in grants}))
    number = {name: index for index, name in enumerate(names)}
    return Demand(
        grants=grants,
        workloads=names,
        workload_of=np.array([number[grant.workload_id] for grant in grants], np.int32),
        compute=_busiest(
            counted, [_taken(grid.mean[engine], rows, grid.steps) for engine in VIDEO if engine in grid.mean]
        ),
        counted=counted,
        used_bytes=used,
        need_bytes=framebuffer_need(used, usage, pools),
        has_need=_has_need(grants, pools, usage),
        counter=counter,
        step_seconds=grid.step_seconds,
    )


VIDEO = (Measure.ENCODER, Measure.DECODER)
"""Engines beside the SMs that a card has one or a few of, shared by all that sit on it."""


def _busiest(counted: Float32, video: Sequence[Float32]) -> Float32:
    busiest = counted
    for engine in video:
        busiest = np.fmax(busiest, engine)
    return busiest


_ROWS_AT_ONCE = 4096


def _taken(values: Float32 | None, rows: NDArray[np.int64], steps: int) -> Float32:
    taken = np.full((len(rows), steps), np.nan, np.float32)
    known = rows >= 0
    if values is not None and known.any():
        taken[known] = values[rows[known]]
        for start in range(0, len(taken), _ROWS_AT_ONCE):
            part = taken[start : start + _ROWS_AT_ONCE]
            # What no counter can show was not collected: a negative demand would make room on a card.
            part[~(part >= 0) | np.isinf(part)] = np.nan
    return taken


def _has_need(grants: tuple[Grant, ...], pools: NDArray[np.float64], usage: Float32 | None) -> NDArray[np.bool_]:
    seen = np.zeros(len(grants), bool) if usage is None else np.isfinite(usage).any(axis=1)
    preallocates = np.array([grant.server in PREALLOCATING_SERVERS for grant in grants], bool)
    has_pool = ~np.isnan(pools)
    return np.where(has_pool, seen, ~preallocates)


def alike(demand: Demand, rows: NDArray[np.int64]) -> NDArray[np.int32]:
    """Groups rows that behave alike: replicas of one workload whose demand has about the same level.

    Args:
        demand: the series.
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


def card_nodes(inventory: Inventory) -> dict[str, str]:
    """Node of every card, also of cards that only a grant names."""
    nodes = {grant.card: grant.node for grant in inventory.grants}
    nodes.update({card.card: card.node for card in inventory.cards})
    return {str(card): node for card, node in nodes.items()}
