"""Plays requests on cards that models share asleep, request by request: what waits, how long, how often one wakes.

Written from the published rules (docs/advice.md, "Models that sleep") and published times alone; it shares no code with
the planner that it judges.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

GIB = 2**30
ASLEEP_BYTES = 4.29 * GIB
"""The most that vLLM was seen to keep asleep."""
BEGIN_SECONDS, BYTES_PER_SECOND = 0.17, 12.6e9
"""vLLM's level 1 on an A100: 0.26 s for 1.2 GB, 0.82 s for 8.3 GB (blog.vllm.ai, 2025-10-26)."""
START_SECONDS, COOLDOWN_SECONDS = 48.0, 300.0
"""A cold start of vLLM (the same report), and how long KEDA waits before it scales to zero."""


@dataclass(slots=True, kw_only=True)
class Tenant:
    """One model on a shared card.

    Attributes:
        limit_bytes: framebuffer that it takes awake.
        weights_bytes: what moves when it wakes or falls asleep.
        pool_bytes: KV cache within its limit.
        wakes: how often it woke.
        waited: how long each request waited before it began, (requests,), seconds, filled in.
    """

    limit_bytes: float
    weights_bytes: float
    pool_bytes: float
    arrivals: NDArray[np.float64]
    seconds: NDArray[np.float64]
    cache_bytes: NDArray[np.float64]
    wakes: int = 0
    waited: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    @property
    def move_seconds(self) -> float:
        """How long it takes to wake, or to fall asleep."""
        return BEGIN_SECONDS + self.weights_bytes / BYTES_PER_SECOND


class SharedCard:
    """A card whose models all begin asleep."""

    def __init__(self, tenants: Sequence[Tenant], capacity_bytes: float) -> None:
        self._tenants = tenants
        self._free = capacity_bytes - len(tenants) * ASLEEP_BYTES
        self._awake = [False] * len(tenants)
        self._running = [0] * len(tenants)
        self._cached = [0.0] * len(tenants)
        self._waiting: list[deque[int]] = [deque() for _ in tenants]
        self._rested_since = [0.0] * len(tenants)
        self._to_wake: deque[int] = deque()
        self._is_moving = False
        self._events: list[tuple[float, int, int, int]] = []

    def play(self) -> None:
        """Plays all requests; the tenants then know how long each waited, and how often they woke."""
        order = sorted(
            (float(at), number, place)
            for number, tenant in enumerate(self._tenants)
            for place, at in enumerate(tenant.arrivals)
        )
        for tenant in self._tenants:
            tenant.waited = np.zeros(len(tenant.arrivals))
        for at, number, place in order:
            self._until(at)
            self._waiting[number].append(place)
            if self._awake[number]:
                self._serve(number, at)
            elif number not in self._to_wake:
                self._to_wake.append(number)
                self._wake_next(at)
        self._until(np.inf)

    def _until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            now, woken, number, place = heapq.heappop(self._events)
            if woken:
                self._is_moving = False
                self._to_wake.popleft()
                self._awake[number] = True
                self._tenants[number].wakes += 1
            else:
                self._running[number] -= 1
                self._cached[number] -= float(self._tenants[number].cache_bytes[place])
                self._rested_since[number] = now
            self._serve(number, now)
            self._wake_next(now)

    def _serve(self, number: int, now: float) -> None:
        tenant, waiting = self._tenants[number], self._waiting[number]
        while waiting:
            place = waiting[0]
            size = float(tenant.cache_bytes[place])
            if self._running[number] and self._cached[number] + size > tenant.pool_bytes:
                return
            waiting.popleft()
            tenant.waited[place] = now - tenant.arrivals[place]
            self._running[number] += 1
            self._cached[number] += size
            heapq.heappush(self._events, (now + float(tenant.seconds[place]), 0, number, place))

    def _wake_next(self, now: float) -> None:
        """Wakes the model that was asked for first, once those that rest leave room for it."""
        if self._is_moving or not self._to_wake:
            return
        number = self._to_wake[0]
        needed, leaving, seconds = self._extra(number) - self._free, [], self._tenants[number].move_seconds
        resting = [one for one, is_awake in enumerate(self._awake) if is_awake and not self._running[one]]
        for one in sorted(resting, key=lambda one: self._rested_since[one]):
            if needed <= 0:
                break
            leaving.append(one)
            needed -= self._extra(one)
            seconds += self._tenants[one].move_seconds
        if needed > 0:
            return
        for one in leaving:
            self._awake[one] = False
            self._free += self._extra(one)
        self._free -= self._extra(number)
        self._is_moving = True
        heapq.heappush(self._events, (now + seconds, 1, number, 0))

    def _extra(self, number: int) -> float:
        return self._tenants[number].limit_bytes - ASLEEP_BYTES


def scaled_to_zero(
    arrivals: Sequence[NDArray[np.float64]], seconds: Sequence[NDArray[np.float64]], wait_max: float
) -> tuple[int, int]:
    """Most cards at a time, and late requests, where each model has a card while it is up and starts cold."""
    changes: list[tuple[float, int]] = []
    late = 0
    for begins, durations in zip(arrivals, seconds, strict=True):
        ready, down = -np.inf, -np.inf
        for at, lasts in zip(begins.tolist(), durations.tolist(), strict=True):
            if at > down:
                changes += [(at, 1)] if down == -np.inf else [(down, -1), (at, 1)]
                ready = at + START_SECONDS
                down = ready
            late += ready - at > wait_max
            down = max(down, max(at, ready) + lasts + COOLDOWN_SECONDS)
    up = most = 0
    for _, change in sorted(changes):
        up += change
        most = max(most, up)
    return most, late
