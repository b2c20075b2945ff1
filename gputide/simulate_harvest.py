"""What low priority work gets out of a fleet: the compute that others leave, and what being sent away costs it.

One worker of low priority may sit on each shared card in use, and one on each card that is paid for and empty (spares
between overloads, cards of pods that sleep). On a shared card it gets what high and normal priority leave, at once
less when they want more (mGPU: nothing while the online side fills the card). It never takes framebuffer from them:
when less than the watermark is left free it is evicted at once and not started again on that card for a while
(Kuaishou). Evicted, it loses what it did since its last checkpoint. Called by `simulate_policies`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.sharing import ACTIVE_RATIO_MIN


@dataclass(frozen=True, slots=True, kw_only=True)
class HarvestRules:
    """What a worker is like.

    Attributes:
        framebuffer_ratio: framebuffer of a worker, share of the card.
        watermark_ratio: framebuffer that stays free beside it, share of the card; it starts where twice that is free.
        rest_seconds: an evicted worker does not come back to that card for so long.
        checkpoint_seconds: time between two checkpoints.
        left_min: compute left on a card, share of the card, below which no worker starts there.
        yields_whole_card: True where a worker gets nothing at all while others work on its card (mGPU); else what they
            leave.
    """

    framebuffer_ratio: float = 0.2
    watermark_ratio: float = 0.05
    rest_seconds: int = 3600
    checkpoint_seconds: int = 1800
    left_min: float = 0.2
    yields_whole_card: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """What low priority got.

    Attributes:
        gpu_hours: card-hours of work that stayed done.
        lost_gpu_hours: card-hours done and lost by eviction.
        worker_hours: hours that workers sat on cards.
        evictions: how often one was sent away.
        by_step: card-hours of work done in each step, kept or lost later, (steps,).
    """

    gpu_hours: float
    lost_gpu_hours: float
    worker_hours: float
    evictions: int
    by_step: NDArray[np.float64]

    @property
    def evictions_per_worker_hour(self) -> float:
        """Eviction rate."""
        return self.evictions / self.worker_hours if self.worker_hours > 0 else 0.0


def harvest(
    left: NDArray[np.float32],
    free_ratio: NDArray[np.float32],
    is_shared: NDArray[np.bool_],
    idle_cards: NDArray[np.int64],
    wanted: NDArray[np.int64] | None,
    *,
    step_seconds: int,
    rules: HarvestRules,
) -> Harvest:
    """Plays low priority work on what is left.

    Args:
        left: compute left on each card, share of it, (cards, steps).
        free_ratio: framebuffer that nobody on the card needs, share of it, (cards, steps).
        is_shared: cards in use that may take a worker, (cards, steps).
        idle_cards: whole cards that are paid for and empty, (steps,).
        wanted: workers that wait or run in each step, (steps,); None for a queue that never ends.
        step_seconds: length of a step.
        rules: what a worker is like.
    """
    cards, steps = left.shape
    if rules.yields_whole_card:
        left = np.where(left >= 1.0 - ACTIVE_RATIO_MIN, left, np.float32(0))
    hours = step_seconds / 3600.0
    per_checkpoint = max(1, rules.checkpoint_seconds // step_seconds)
    running, age = np.zeros(cards, bool), np.zeros(cards, np.int64)
    unsaved, rests_until = np.zeros(cards), np.zeros(cards, np.int64)
    lost = worker_hours = 0.0
    by_step = np.zeros(steps)
    endless = cards + int(idle_cards.max(initial=0))
    evictions = whole_before = 0
    for step in range(steps):
        room = free_ratio[:, step] - rules.framebuffer_ratio
        evicted = running & (~is_shared[:, step] | (room < rules.watermark_ratio))
        lost += float(unsaved[evicted].sum())
        evictions += int(evicted.sum())
        rests_until[evicted] = step + rules.rest_seconds // step_seconds
        running &= ~evicted
        demand = endless if wanted is None else int(wanted[step])
        whole = min(int(idle_cards[step]), demand)
        back = max(0, min(whole_before, demand) - whole)
        evictions += back
        # A whole card's worker is half-way to its next checkpoint on average.
        lost += back * min(rules.checkpoint_seconds / 3600.0 / 2, hours * step)
        whole_before = whole
        # Who has nobody waiting behind it is done.
        finished = np.flatnonzero(running)[max(0, demand - whole) :]
        running[finished] = False
        places = is_shared[:, step] & ~running & (rests_until <= step) & (left[:, step] >= rules.left_min)
        places &= room >= 2 * rules.watermark_ratio
        ranked = np.flatnonzero(places)[np.argsort(-left[places, step], kind="stable")]
        started = ranked[: max(0, demand - whole - int(running.sum()))]
        running[started], age[started], unsaved[started] = True, 0, 0.0
        gained = np.where(running, left[:, step], 0.0) * hours
        unsaved += gained
        by_step[step] = float(gained.sum()) + whole * hours
        worker_hours += (int(running.sum()) + whole) * hours
        age += running
        unsaved[(age % per_checkpoint) == 0] = 0.0
    return Harvest(
        gpu_hours=max(0.0, float(by_step.sum()) - lost),
        lost_gpu_hours=lost,
        worker_hours=worker_hours,
        evictions=evictions,
        by_step=by_step,
    )
