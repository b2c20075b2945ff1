"""Where work of low priority may start beside others, and what its evictions teach. Rules only; nothing is done here.

A worker of low priority never takes framebuffer from those who come before it: where less than a threshold stays free
it is evicted at once (Kuaishou's avoidance). What can be decided is where it starts, and that needs a forecast: does
the room that a card has now last? Three things are known of a card: the room now, the least it had over the last hour,
and how far, on the days before, the room fell in the hours that came after this time of day. What is left after the
mean of these falls, and no more than was there all the last hour, is the room that is counted on.

How much of it is kept in reserve is learned: every eviction raises the reserve of the whole fleet, every hour that a
worker ran lowers it, so that evictions settle a little below the rate that is allowed. Rows are cards; the arrays hold
what the pods that sit there now needed before, on whatever cards they sat then.

Chosen on some cuts of one public inference fleet and looked at on others and on generated fleets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DAY_SECONDS = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """How carefully workers are let in. Ratios are shares of a card's framebuffer.

    Attributes:
        evictions_per_hour_max: evictions per hour that a worker ran which are allowed.
        aim_ratio: share of that rate at which the reserve neither grows nor shrinks.
        calm_seconds: room counts only if it was there for so long.
        ahead_seconds: falls within so long after this time of day are expected again.
        memory_days: days whose falls are remembered.
        reserve_ratio: reserve before anything was learned.
        reserve_max: largest reserve.
        learning_ratio: how far one eviction more than allowed, of one worker, moves the reserve.
        workers_min: fewer workers than these teach as slowly as so many.
    """

    evictions_per_hour_max: float = 0.05
    aim_ratio: float = 0.8
    calm_seconds: int = 3600
    ahead_seconds: int = 6 * 3600
    memory_days: int = 7
    reserve_ratio: float = 0.02
    reserve_max: float = 0.2
    learning_ratio: float = 0.05
    workers_min: int = 5


class Admission:
    """Decides who may start, and learns from who had to go."""

    def __init__(self, rules: AdmissionRules, *, step_seconds: int) -> None:
        self._rules = rules
        self._step_seconds = step_seconds
        self._reserve = rules.reserve_ratio

    @property
    def reserve_ratio(self) -> float:
        """Reserve as learned so far, share of a card's framebuffer."""
        return self._reserve

    def room(self, seen: NDArray[np.floating]) -> NDArray[np.float64]:
        """Framebuffer that may be counted on, less the reserve.

        Args:
            seen: framebuffer that nobody on each card needed, share of it, (cards, steps); the last column is now.

        Returns:
            Share of each card's framebuffer, (cards,); negative where there is less than the reserve.
        """
        rules, steps = self._rules, seen.shape[1]
        calm = max(1, rules.calm_seconds // self._step_seconds)
        ahead = max(1, rules.ahead_seconds // self._step_seconds)
        per_day = max(1, DAY_SECONDS // self._step_seconds)
        room = seen[:, -1].astype(float)
        falls = []
        for day in range(1, rules.memory_days + 1):
            then = steps - 1 - day * per_day
            if then < 0:
                break
            falls.append(seen[:, then] - seen[:, then : min(steps, then + ahead)].min(axis=1))
        if falls:
            room -= np.mean(falls, axis=0)
        counted: NDArray[np.float64] = np.minimum(room, seen[:, -calm:].min(axis=1)) - self._reserve
        return counted

    def learn(self, *, evictions: int, workers: int) -> None:
        """Takes in one step.

        Args:
            evictions: workers that were evicted in it.
        """
        rules = self._rules
        hours = workers * self._step_seconds / 3600.0
        missed = evictions - rules.aim_ratio * rules.evictions_per_hour_max * hours
        moved = self._reserve + rules.learning_ratio * missed / max(rules.workers_min, workers)
        self._reserve = min(rules.reserve_max, max(0.0, moved))
