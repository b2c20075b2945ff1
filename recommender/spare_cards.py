"""Cards that a pod of several holds and never works on. Called by `permits` for the rule of fewer cards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recommender.demand import Demand

COVERAGE_MIN = 0.95
"""Share of the steps in which its pod was seen that such a card must have been seen in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareCards:
    """What a workload could give back.

    Attributes:
        rows: rows of the demand, as many per pod for all its pods, ascending; empty where there are none.
        held_bytes: most framebuffer that any of them holds.
    """

    rows: tuple[int, ...]
    held_bytes: int


NOTHING_SPARE = SpareCards(rows=(), held_bytes=0)


def spare_cards(demand: Demand, rows: Sequence[int], *, idle_ratio_max: float) -> SpareCards:
    """Finds the cards that every pod of a workload can do without.

    Args:
        demand: live slices and their series.
        rows: rows of one workload.
        idle_ratio_max: activity up to which a card does nothing, 0-1.

    Returns:
        As many cards per pod as the pod with the fewest idle ones has, since replicas have one template; nothing where
        a pod has a single card, works on none, or was seen too seldom.
    """
    cards_of: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        cards_of[demand.grants[row].pod_id].append(row)
    if len({len(held) for held in cards_of.values()}) != 1:
        return NOTHING_SPARE
    idle_of = {pod: _idle(demand, held, idle_ratio_max) for pod, held in cards_of.items()}
    count = min(len(idle) for idle in idle_of.values())
    if not count or any(len(idle) == len(cards_of[pod]) for pod, idle in idle_of.items()):
        return NOTHING_SPARE
    # A pod that works on fewer cards than its siblings keeps the idle ones that hold most.
    chosen = [row for idle in idle_of.values() for row in idle[:count]]
    return SpareCards(rows=tuple(sorted(chosen)), held_bytes=int(max(_held(demand, row) for row in chosen)))


def _idle(demand: Demand, held: Sequence[int], idle_ratio_max: float) -> list[int]:
    """Rows of one pod that never worked, those that hold least first."""
    compute = demand.compute[list(held)]
    seen = np.isfinite(compute)
    steps = int(seen.any(axis=0).sum())
    if not steps or len(held) < 2:
        return []
    idle = [
        row
        for number, row in enumerate(held)
        if seen[number].sum() >= COVERAGE_MIN * steps and float(np.nanmax(compute[number])) <= idle_ratio_max
    ]
    return sorted(idle, key=lambda row: (_held(demand, row), demand.grants[row].card))


def _held(demand: Demand, row: int) -> float:
    used = demand.used_bytes[row]
    return float(np.nanmax(used)) if np.isfinite(used).any() else float(demand.grants[row].framebuffer_granted_bytes)
