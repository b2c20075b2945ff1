"""Who rises together: replicas of one workload, and workloads with each other.

What rises together is no good company on one card: its peaks add up. Replicas behind one load balancer do as a rule,
and the analyzer measures how far. Workloads are compared by their hours, linearly; a common habit (everybody works by
day) counts, because it is what makes peaks meet. Called by `analyzer.facts` and `analyzer.profile`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fleet.usage import Float32

TOGETHER_MIN = 0.8
"""Correlation of hours from which workloads rise together."""
HOURS_MIN = 72
"""Fewest hours in which both must have been seen."""
COMPANIONS_MAX = 5
"""Most companions that are named, the closest ones."""
REPLICA_STEPS_MIN = 144
"""Fewest steps in which all replicas must have been seen before they are compared."""
EXACT_MAX = 3000
"""Most workloads of which every pair is compared."""
CELLS_PER_ROW = 8
"""In how many cells a workload may answer. Measured on fleets of 8,000 over four weeks: of the companions that
comparing every pair names, 99 of 100 are found where few or many share a rhythm, 96 where they share rare bursts, and
93 where a third of the fleet was seen for a part of the time."""
_BLOCK = 512


def replica_correlation(demand: Float32) -> float | None:
    """Mean correlation between pairs of replicas, -1 to 1; None with fewer than two, or where nothing moves.

    Taken from the variance of their sum: with n replicas of variance 1 it is n + n(n - 1) times the mean correlation.

    Args:
        demand: (replicas, steps), NaN where not collected; steps in which a replica is missing are left out.
    """
    together = demand[:, ~np.isnan(demand).any(axis=0)].astype(np.float64)
    spread = together.std(axis=1) if together.shape[1] >= REPLICA_STEPS_MIN else np.zeros(0)
    moving = together[spread > 1e-6] if len(spread) else together[:0]
    count = len(moving)
    if count < 2:
        return None
    standard = (moving - moving.mean(axis=1, keepdims=True)) / moving.std(axis=1, keepdims=True)
    return round(float((standard.sum(axis=0).var() - count) / (count * (count - 1))), 3)


def companions(levels: Float32) -> list[tuple[int, ...]]:
    """For every workload, the numbers of those that it rises together with, the closest first.

    Up to `EXACT_MAX` workloads every pair is compared. Beyond, only those are whose hours resemble the same one of
    some hundred workloads picked evenly from the fleet (an inverted file over cells: Sivic and Zisserman 2003, with
    several cells per entry), so that the work grows with the fleet to the power of 1.5: pairs near the limit may then
    be missed, the closest hardly ever. The figures themselves are exact either way.

    Args:
        levels: demand by hour, (workloads, hours), NaN where not collected.
    """
    found: list[tuple[int, ...]] = [() for _ in range(len(levels))]
    own, seen, moves = np.empty(levels.shape, np.float32), ~np.isnan(levels), np.zeros(len(levels), bool)
    for start in range(0, len(levels), _BLOCK):
        part = slice(start, start + _BLOCK)
        own[part] = np.where(seen[part], levels[part] - _mean(levels[part], seen[part]), 0)
        moves[part] = np.abs(own[part]).max(axis=1, initial=0) > 1e-4
    moving = np.flatnonzero(moves & (seen.sum(axis=1) >= HOURS_MIN))
    own, seen = own[moving], seen[moving]
    for asking, answering in _cells(own):
        # Blocks keep the table of all pairs out of memory.
        for start in range(0, len(asking), _BLOCK):
            block = asking[start : start + _BLOCK]
            correlation = _correlation(own[block], seen[block], own[answering], seen[answering])
            correlation[block[:, None] == answering[None, :]] = 0.0
            for row, number in enumerate(block.tolist()):
                found[int(moving[number])] = _closest(correlation[row], moving[answering])
    return found


def _cells(own: Float32) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Who asks and who may answer, cell by cell: everybody asks once, and may answer in several cells.

    Args:
        own: centred demand by hour, (rows, hours).
    """
    everybody = np.arange(len(own))
    if len(own) <= EXACT_MAX:
        yield everybody, everybody
        return
    count = math.isqrt(len(own))
    anchors = _unit(own[np.linspace(0, len(own) - 1, count).astype(np.int64)])
    nearest = np.empty((len(own), CELLS_PER_ROW), np.int64)
    for start in range(0, len(own), _BLOCK):
        near = _unit(own[start : start + _BLOCK]) @ anchors.T
        best = np.argpartition(-near, CELLS_PER_ROW, axis=1)[:, :CELLS_PER_ROW]
        order = np.argsort(-np.take_along_axis(near, best, axis=1), axis=1, kind="stable")
        nearest[start : start + _BLOCK] = np.take_along_axis(best, order, axis=1)
    home = nearest[:, 0]
    by_home = np.split(np.argsort(home, kind="stable"), np.searchsorted(np.sort(home), np.arange(1, count)))
    cells, rows = nearest.T.reshape(-1), np.tile(everybody, CELLS_PER_ROW)
    order = np.lexsort((rows, cells))
    by_cell = np.split(rows[order], np.searchsorted(cells[order], np.arange(1, count)))
    for asking, answering in zip(by_home, by_cell, strict=True):
        if len(asking):
            yield asking, answering


def _unit(rows: Float32) -> Float32:
    unit: Float32 = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def _correlation(own: Float32, seen: NDArray[np.bool_], others: Float32, others_seen: NDArray[np.bool_]) -> Float32:
    """Correlation of every row with every other one over the hours that both were seen in, (rows, others)."""
    product = own @ others.T
    if seen.all() and others_seen.all():
        scale = np.linalg.norm(own, axis=1)[:, None] * np.linalg.norm(others, axis=1)[None, :]
        # A workload that was seen throughout shares all hours with every other.
        enough = np.asarray(True)
    else:
        rows, columns = seen.astype(np.float32), others_seen.astype(np.float32)
        # Each pair is scaled by what both have seen of each other.
        scale = np.sqrt(((own * own) @ columns.T) * (rows @ (others * others).T))
        enough = rows @ columns.T >= HOURS_MIN
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Float32 = np.where((scale > 1e-9) & enough, product / scale, 0.0).astype(np.float32)
    return found


def _mean(levels: Float32, there: NDArray[np.bool_]) -> NDArray[np.float64]:
    mean: NDArray[np.float64] = np.where(there, levels, 0).sum(axis=1, dtype=np.float64) / np.maximum(
        1, there.sum(axis=1)
    )
    return mean[:, None]


def _closest(correlation: NDArray[np.float32], numbers: Sequence[int] | NDArray[np.int64]) -> tuple[int, ...]:
    near = np.flatnonzero(correlation >= TOGETHER_MIN)
    ordered = near[np.argsort(-correlation[near], kind="stable")][:COMPANIONS_MAX]
    return tuple(int(numbers[place]) for place in ordered)
