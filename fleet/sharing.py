"""How pods that share a card fare: contention for compute, framebuffer, and what low priority work gets.

One set of formulas for everything that plays pods on cards: the replay after a plan was applied, the back-test, the
simulated cluster and the planner's own prediction. They are the referee's rules: a step of a pod is *violated* when
the pod is active and its card's high and normal priority demand exceeds the card (contention), its grant is below
its need (short), or the needs on its card exceed the card's framebuffer (full).

Shapes: `demand` and `need` are (rows, steps), one row per slice; NaN means not collected and demands nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.usage import Float32

ACTIVE_RATIO_MIN = 0.001
"""Demand above which a pod is active in a step."""
CONTENTION_RATIO_MAX = 1.005
"""Summed demand up to which a card is not contended (half a percent is noise)."""
GRANT_SLACK_BYTES = 2**20
"""Grants on one card may exceed its framebuffer by this much (rounding of MiB)."""
PREALLOCATED_RATIO = 0.9
"""Share of its grant that a pre-allocating server takes at start (vLLM's default gpu_memory_utilization)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seats:
    """Where slices sit and what they were granted; columns of one length (rows).

    Attributes:
        card: number of the card, 0 … cards-1, int64.
        framebuffer_granted_bytes: granted framebuffer, float64.
        compute_granted_ratio: share of compute granted, 0-1, float64.
        is_hard: True where the compute share is a hard limit, bool.
        is_low: True for low priority, bool.
        kept_bytes: what of a slice stays on the card while its pod rests, float64; inf where all of it does.
        capacity_bytes: framebuffer of each card, shape (cards,), float64.
    """

    card: NDArray[np.int64]
    framebuffer_granted_bytes: NDArray[np.float64]
    compute_granted_ratio: NDArray[np.float64]
    is_hard: NDArray[np.bool_]
    is_low: NDArray[np.bool_]
    kept_bytes: NDArray[np.float64]
    capacity_bytes: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fare:
    """How every slice fared in every step; all arrays (rows, steps).

    Attributes:
        contention: its card's high and normal demand exceeded the card, or its own hard limit was reached.
        short: its grant was below its need.
        full: the needs on its card exceeded the card's framebuffer.
        served_ratio: compute it got, share of the card, 0-1; NaN where nothing was collected.
    """

    active: NDArray[np.bool_]
    contention: NDArray[np.bool_]
    short: NDArray[np.bool_]
    full: NDArray[np.bool_]
    served_ratio: Float32

    @property
    def violated(self) -> NDArray[np.bool_]:
        """Active and contended, short or full, shape (rows, steps)."""
        return self.active & (self.contention | self.short | self.full)


def framebuffer_need(used: Float32, kv_cache_usage: Float32 | None, pool_bytes: NDArray[np.float64]) -> Float32:
    """Framebuffer that is really needed: what is used, less the unused part of a pre-allocated KV cache.

    Args:
        used: framebuffer used, bytes, (rows, steps).
        kv_cache_usage: share of the KV cache in use, 0-1, (rows, steps); None where no server reports it.
        pool_bytes: size of the KV cache, (rows,); NaN where the server does not pre-allocate.

    Returns:
        Need in bytes, (rows, steps): used - pool × (1 - usage); an unreported usage counts as full, and where less than
        the cache is used, a server that sleeps gave it back.
    """
    need = used.copy()
    rows = np.flatnonzero(~np.isnan(pool_bytes))
    if kv_cache_usage is not None and len(rows):
        usage = np.nan_to_num(kv_cache_usage[rows], nan=1.0)
        is_held = used[rows] >= pool_bytes[rows, None]
        need[rows] -= np.where(is_held, pool_bytes[rows, None] * (1.0 - usage), 0.0).astype(np.float32)
    return need


def believed_pools(pool_bytes: NDArray[np.float64], used: Float32) -> NDArray[np.float64]:
    """Sizes of KV caches, NaN for one that is larger than all that its slice ever held: nobody has such a cache.

    Args:
        pool_bytes: what servers or inventories say, (rows,); NaN where nobody says.
        used: framebuffer used, bytes, (rows, steps); a row without any says nothing against a size.
    """
    most = np.fmax.reduce(used, axis=1, initial=-np.inf, where=~np.isnan(used))
    return np.where(np.isfinite(most) & (pool_bytes > most), np.nan, pool_bytes)


def sum_by_card(values: NDArray[np.float32], card: NDArray[np.int64], cards: int) -> Float32:
    """Sum rows that sit on one card, (cards, steps); cards without a row are 0.

    Args:
        values: (rows, steps), NaN counts as nothing.
        card: card number of each row, (rows,).
    """
    total = np.zeros((cards, values.shape[1]), np.float32)
    if not len(card):
        return total
    order = np.argsort(card, kind="stable")
    sorted_card = card[order]
    starts = np.flatnonzero(np.r_[True, sorted_card[1:] != sorted_card[:-1]])
    total[sorted_card[starts]] = np.add.reduceat(np.nan_to_num(values[order]), starts, axis=0)
    return total


def fare(demand: Float32, need: Float32, seats: Seats) -> Fare:
    """Play slices on their cards.

    Args:
        demand: compute each slice would use alone, share of its card, (rows, steps).
        need: framebuffer each slice needs, bytes, (rows, steps).
        seats: where they sit. Slices that keep only a part on their card while they rest may be granted more together
            than the card has.

    Returns:
        How each fared. High and normal priority share a contended card in proportion to demand; low priority gets
        what they leave.
    """
    cards = len(seats.capacity_bytes)
    asked = np.nan_to_num(demand)
    limit = np.where(seats.is_hard, seats.compute_granted_ratio, 1.0).astype(np.float32)[:, None]
    capped = np.minimum(asked, limit)
    active = asked > ACTIVE_RATIO_MIN
    low = seats.is_low[:, None]
    high_total = sum_by_card(np.where(low, 0, capped), seats.card, cards)
    low_total = sum_by_card(np.where(low, capped, 0), seats.card, cards)
    share_high = 1.0 / np.maximum(1.0, high_total)
    share_low = np.minimum(1.0, np.maximum(0.0, 1.0 - high_total) / np.maximum(low_total, 1e-9))
    served = capped * np.where(low, share_low[seats.card], share_high[seats.card])
    contention = (high_total > CONTENTION_RATIO_MAX)[seats.card] & ~low
    contention |= asked > limit + (CONTENTION_RATIO_MAX - 1.0)
    short = np.nan_to_num(need) > seats.framebuffer_granted_bytes[:, None] + 1
    full = _full(asked, need, seats, cards)
    return Fare(
        active=active,
        contention=contention,
        short=short,
        full=full,
        served_ratio=np.where(np.isnan(demand), np.nan, served).astype(np.float32),
    )


def _full(asked: Float32, need: Float32, seats: Seats, cards: int) -> NDArray[np.bool_]:
    crowd = np.bincount(seats.card, minlength=cards)
    lending = np.bincount(seats.card, weights=np.isfinite(seats.kept_bytes), minlength=cards) > 0
    resting = np.minimum(need, seats.kept_bytes[:, None])
    held = np.where(asked <= ACTIVE_RATIO_MIN, resting, need).astype(np.float32)
    # float32 sums of bytes are exact to about 4 KiB on a card of 80 GiB, so the comparison allows one MiB.
    full = sum_by_card(held, seats.card, cards) > seats.capacity_bytes[:, None] + GRANT_SLACK_BYTES
    granted = np.bincount(seats.card, weights=seats.framebuffer_granted_bytes, minlength=cards)
    overgranted = (granted > seats.capacity_bytes + GRANT_SLACK_BYTES) & ~lending & (crowd > 1)
    full |= overgranted[:, None]
    return full[seats.card]


def replayed_framebuffer(
    used: Float32,
    need: Float32,
    kv_cache_usage: Float32 | None,
    pool_bytes: NDArray[np.float64],
    granted_bytes: NDArray[np.float64],
) -> tuple[Float32, Float32 | None, NDArray[np.float64]]:
    """What a slice would show if it ran in another grant than the one it was recorded in.

    A server that pre-allocates takes `PREALLOCATED_RATIO` of its new grant: weights stay, the KV cache shrinks, its
    usage rises. Any other uses what it needs, at most its grant (an allocation beyond it is refused).

    Args:
        used: recorded framebuffer used, bytes, (rows, steps).
        need: recorded need, bytes, (rows, steps), see `framebuffer_need`.
        kv_cache_usage: recorded usage of the KV cache, (rows, steps) or None.
        pool_bytes: recorded size of the KV cache, (rows,), NaN where the server does not pre-allocate.
        granted_bytes: the new grant, (rows,).

    Returns:
        Framebuffer used, KV-cache usage (None if none was recorded) and the new pool size, shapes as given.
    """
    shown = np.where(np.isnan(used), np.nan, np.minimum(need, granted_bytes[:, None])).astype(np.float32)
    pools = pool_bytes.copy()
    rows = np.flatnonzero(~np.isnan(pool_bytes))
    if kv_cache_usage is None or not len(rows):
        return shown, kv_cache_usage, pools
    usage = kv_cache_usage.copy()
    weights = used[rows] - pool_bytes[rows, None]
    pool = np.maximum(1.0, PREALLOCATED_RATIO * granted_bytes[rows, None] - weights)
    usage[rows] = np.minimum(1.0, usage[rows] * pool_bytes[rows, None] / pool).astype(np.float32)
    held = np.maximum(weights, PREALLOCATED_RATIO * granted_bytes[rows, None])
    shown[rows] = np.where(np.isnan(used[rows]), np.nan, np.minimum(held, granted_bytes[rows, None]))
    pools[rows] = np.nanmin(pool, axis=1) if pool.shape[1] else pool_bytes[rows]
    return shown, usage, pools
