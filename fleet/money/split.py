"""How the price of a card hour is split between those who share the card, what nobody was given, and what is stranded.

A card hour is split in millionths of itself: shares are rounded by the largest remainder, so that parts, idle and
stranded rest always sum to the card hour, and a price times these integers is exact. Three bases side by side: by
allocation, by use, and blended.

A card is two things, compute and framebuffer; `compute_ratio` says how much of the price stands for the first. By
allocation a tenant pays for what it was granted of each: `w·c + (1-w)·m`. What can still be granted in both is *idle*:
`1 - max(C, M)` over the sums; what is left of one when the other is gone can't be granted to anybody and is
*stranded*: `max(C, M) - (w·C + (1-w)·M)`. Grants that sum to more than a card are scaled down to it, and the ratio is
reported as density. So a tenant's part depends on its own grant alone, until a card is oversubscribed.

Called by the chargeback; columns in, columns out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MILLION = 1_000_000
"""Units of one card hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardHours:
    """Who held what of which card hour; one row per tenant of a card hour.

    Attributes:
        card_hour: place of the card hour of each row, 0 … count-1, int64, shape (rows,).
        compute_granted: share of the card times share of the hour, 0-1, float64, shape (rows,).
        framebuffer_granted: the same of its framebuffer.
        compute_used: mean share of the card that was busy times share of the hour, 0-1; NaN where not measured.
        framebuffer_used: mean share of the framebuffer that was held times share of the hour; NaN where not measured.
    """

    count: int
    card_hour: NDArray[np.int64]
    compute_granted: NDArray[np.float64]
    framebuffer_granted: NDArray[np.float64]
    compute_used: NDArray[np.float64]
    framebuffer_used: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """One split of all card hours, in millionths of a card hour; per card hour they sum to `MILLION`.

    Attributes:
        rows: part of each tenant, int64, shape (rows,).
        idle: what could still be granted, or was granted and not used, int64, shape (count,).
        stranded: what nobody can be granted, int64, shape (count,).
    """

    rows: NDArray[np.int64]
    idle: NDArray[np.int64]
    stranded: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The three splits.

    Attributes:
        allocation: by what was granted.
        use: by what was used; a tenant without measurements counts with its grant.
        blended: between the two.
        density: what was granted of each card hour, its larger resource, 1 is the whole card; over 1 is
            oversubscribed; float64, shape (count,).
    """

    allocation: Parts
    use: Parts
    blended: Parts
    density: NDArray[np.float64]


def split_card_hours(hours: CardHours, *, compute_ratio: float, blended_use_ratio: float) -> Split:
    """Split card hours on all three bases.

    Args:
        compute_ratio: share of a card's price that its compute stands for, 0-1.
        blended_use_ratio: share of the blended cost that goes by use, 0-1.
    """
    place, count, weight = hours.card_hour, hours.count, compute_ratio
    compute_sum = _summed(hours.compute_granted, place, count)
    framebuffer_sum = _summed(hours.framebuffer_granted, place, count)
    compute = hours.compute_granted / np.maximum(1.0, compute_sum)[place]
    framebuffer = hours.framebuffer_granted / np.maximum(1.0, framebuffer_sum)[place]
    granted = weight * compute + (1.0 - weight) * framebuffer
    taken = np.maximum(np.minimum(1.0, compute_sum), np.minimum(1.0, framebuffer_sum))
    stranded = np.maximum(0.0, taken - _summed(granted, place, count))

    compute_used = _within_card(np.where(np.isnan(hours.compute_used), compute, hours.compute_used), place, count)
    framebuffer_used = _within_card(
        np.where(np.isnan(hours.framebuffer_used), framebuffer, hours.framebuffer_used), place, count
    )
    used = weight * compute_used + (1.0 - weight) * framebuffer_used
    used_sum = np.minimum(1.0, _summed(used, place, count))
    stranded_used = np.minimum(stranded, 1.0 - used_sum)

    mix = blended_use_ratio
    return Split(
        allocation=_rounded(granted, 1.0 - taken, stranded, place),
        use=_rounded(used, 1.0 - used_sum - stranded_used, stranded_used, place),
        blended=_rounded(
            (1.0 - mix) * granted + mix * used,
            (1.0 - mix) * (1.0 - taken) + mix * (1.0 - used_sum - stranded_used),
            (1.0 - mix) * stranded + mix * stranded_used,
            place,
        ),
        density=np.maximum(compute_sum, framebuffer_sum),
    )


def _summed(values: NDArray[np.float64], place: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    return np.bincount(place, weights=values, minlength=count).astype(np.float64)


def _within_card(values: NDArray[np.float64], place: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Scaled down where the tenants of a card hour together have more than the card."""
    return values / np.maximum(1.0, _summed(values, place, count))[place]


def _rounded(
    rows: NDArray[np.float64], idle: NDArray[np.float64], stranded: NDArray[np.float64], place: NDArray[np.int64]
) -> Parts:
    """Millionths by the largest remainder: whole units first, the units left go where most was cut off."""
    count, tenants = len(idle), len(rows)
    shares = np.concatenate([rows, idle, stranded])
    shares = np.maximum(0.0, shares) * MILLION
    group = np.concatenate([place, np.arange(count), np.arange(count)])
    # What is within rounding error of a whole unit is that unit; else equal shares would be cut unequally.
    whole = np.floor(shares + 1e-6)
    left = MILLION - np.bincount(group, weights=whole, minlength=count).astype(np.int64)
    units = whole.astype(np.int64)
    open_entries = np.flatnonzero((left > 0)[group])
    if len(open_entries):
        cut = np.clip(shares[open_entries] - whole[open_entries], 0.0, 1.0)
        of = group[open_entries]
        order = np.lexsort((-cut, of))
        ranked = of[order]
        starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
        rank = np.arange(len(ranked)) - np.repeat(starts, np.diff(np.r_[starts, len(ranked)]))
        units[open_entries[order]] += rank < left[ranked]
    return Parts(rows=units[:tenants], idle=units[tenants : tenants + count], stranded=units[tenants + count :])
