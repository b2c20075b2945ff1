"""First fit by decreasing size: how every rule without a packer of its own is packed, hindsight among them.

Called by `naive` and by the policies that are played.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from fleet.usage import Float32


def first_fit_decreasing(
    sizes: NDArray[np.float64], profile: Float32, capacity_bytes: float, limit: float, *, open_max: int | None = None
) -> NDArray[np.int64]:
    """Packs pods of one card model.

    Args:
        sizes: framebuffer of each, bytes, (pods,).
        profile: demand of each in every slot, share of a card, (pods, slots).
        capacity_bytes: framebuffer of a card; with none every pod has a card of its own.
        limit: most demand on a card in any slot.
        open_max: most cards that are looked at, the latest; None for all. Large fleets need a limit to end in time.

    Returns:
        Card of each pod, 0 … cards-1, (pods,). The largest of framebuffer and peak demand goes first, each to the
        first card on which both fit.
    """
    if capacity_bytes <= 0:
        # Nothing is known of such a card, so nobody shares it.
        return np.arange(len(sizes), dtype=np.int64)
    peak = profile.max(axis=1, initial=0.0) / limit
    order = np.argsort(-np.maximum(sizes / capacity_bytes, peak), kind="stable")
    card: NDArray[np.int64] = _first_fit(
        order,
        sizes.astype(float),
        np.ascontiguousarray(profile),
        capacity_bytes,
        limit,
        len(order) if open_max is None else open_max,
    )
    return card


@numba.njit(cache=True, nogil=True)
def _first_fit(order: Any, sizes: Any, profile: Any, capacity: float, limit: float, open_max: int) -> Any:
    pods, slots = profile.shape
    card = np.empty(pods, np.int64)
    used = np.zeros(pods)
    load = np.zeros((pods, slots), np.float32)
    made = 0
    for pod in order:
        found = made
        for c in range(max(0, made - open_max), made):
            if used[c] + sizes[pod] > capacity:
                continue
            fits = True
            for t in range(slots):
                if load[c, t] + profile[pod, t] > limit:
                    fits = False
                    break
            if fits:
                found = c
                break
        if found == made:
            made += 1
        card[pod] = found
        used[found] += sizes[pod]
        for t in range(slots):
            load[found, t] += profile[pod, t]
    return card
