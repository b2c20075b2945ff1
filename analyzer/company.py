"""Who rises together: replicas of one workload, and workloads with each other.

What rises together is no good company on one card: its peaks add up. Replicas behind one load balancer do as a rule,
and the analyzer measures how far. Workloads are compared by their hours, linearly; a common habit (everybody works by
day) counts, because it is what makes peaks meet. Called by `analyzer.facts` and `analyzer.profile`.
"""

from __future__ import annotations

from collections.abc import Sequence

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

    Args:
        levels: demand by hour, (workloads, hours), NaN where not collected.
    """
    found: list[tuple[int, ...]] = [() for _ in range(len(levels))]
    there = ~np.isnan(levels)
    centred = np.where(there, levels - _mean(levels, there), 0).astype(np.float32)
    moving = np.flatnonzero((np.abs(centred).max(axis=1, initial=0) > 1e-4) & (there.sum(axis=1) >= HOURS_MIN))
    own, seen = centred[moving], there[moving].astype(np.float32)
    squares = own * own
    # Blocks keep the table of all pairs out of memory.
    for start in range(0, len(moving), _BLOCK):
        block = slice(start, start + _BLOCK)
        product = own[block] @ own.T
        # Each pair is scaled by what both have seen of each other.
        scale = np.sqrt((squares[block] @ seen.T) * (seen[block] @ squares.T))
        common = seen[block] @ seen.T
        with np.errstate(divide="ignore", invalid="ignore"):
            correlation = np.where((scale > 1e-9) & (common >= HOURS_MIN), product / scale, 0.0)
        for row in range(len(correlation)):
            correlation[row, start + row] = 0.0
            found[int(moving[start + row])] = _closest(correlation[row], moving)
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
