"""KV caches whose bytes nobody says, estimated from the framebuffer that their servers hold; `fleet.kv_cache` has how.

Called where a history is read: only there stand grants beside what was measured.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fleet.inventory import Grant, Inventory
from fleet.kv_cache import estimated_pool
from fleet.schema import Measure
from fleet.units import epoch_ms
from fleet.usage import SliceGrid

STEPS_MIN = 12
"""Fewest steps in which framebuffer was held before what is held as a rule is known."""


def with_estimated_pools(inventory: Inventory, grid: SliceGrid) -> Inventory:
    """An inventory whose grants have the least and the most that such a KV cache can be."""
    used = grid.mean.get(Measure.FRAMEBUFFER_USED)
    if used is None or not any(grant.kv_cache for grant in inventory.grants):
        return inventory
    row_of = {(key.namespace, key.pod, key.container, key.card): row for row, key in enumerate(grid.keys)}

    def estimated(grant: Grant) -> Grant:
        row = row_of.get((grant.namespace, grant.pod, grant.container, grant.card))
        if grant.kv_cache is None or row is None:
            return grant
        began = max(0, (epoch_ms(grant.started_at) - epoch_ms(grid.since)) // (grid.step_seconds * 1000))
        held = used[row, began:]
        held = held[held > 0]
        # Half of the time asleep at most: then the median is what is held awake.
        found = estimated_pool(grant.kv_cache, float(np.median(held))) if len(held) >= STEPS_MIN else None
        if found is None or found[1] > grant.framebuffer_granted_bytes:
            return grant
        least, most = found
        return replace(grant, kv_cache_pool_bytes=least, kv_cache_pool_max_bytes=most if most > least else None)

    return replace(inventory, grants=tuple(map(estimated, inventory.grants)))
