"""Who was granted what of which card in which steps: the rows along which a plan's harm and lending are judged.

Called by `verify` and `lent_turns`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.inventory import CardId, Grant, Priority, WorkloadId
from fleet.usage import History


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRows:
    """One row per slice and grant of it: what the arrays below run along.

    Attributes:
        preallocates: its server takes framebuffer ahead of need.
        lives: steps in which the grant lasted, shape (rows, steps).
    """

    row: NDArray[np.int64]
    workload: tuple[WorkloadId, ...]
    pod: NDArray[np.int64]
    card: NDArray[np.int64]
    granted_bytes: NDArray[np.float64]
    card_bytes: NDArray[np.float64]
    is_low: NDArray[np.bool_]
    preallocates: NDArray[np.bool_]
    lives: NDArray[np.bool_]


def judged_rows(history: History, equals: frozenset[WorkloadId] = frozenset()) -> JudgedRows:
    """The rows of a history.

    Args:
        equals: workloads whose low priority nothing holds, so that they count as equals.
    """
    grants: dict[tuple[str, str, str], list[Grant]] = {}
    for grant in history.inventory.grants:
        grants.setdefault((grant.pod_id, grant.container, grant.card), []).append(grant)
    grid = history.slices
    ends_ms = grid.step_ends_ms()
    cards: dict[CardId, int] = {}
    pods: dict[str, int] = {}
    row, workload, pod, card, granted, size, low, pre, lives = [], [], [], [], [], [], [], [], []
    for number, key in enumerate(grid.keys):
        own = sorted(grants.get((key.pod_id, key.container, key.card), ()), key=lambda grant: grant.started_at)
        for place, grant in enumerate(own):
            start = grant.started_at.timestamp() * 1000
            end = np.inf if grant.ended_at is None else grant.ended_at.timestamp() * 1000
            # A slice has one grant at a time: where the end of one was lost, the next one ends it.
            end = min([end, *(later.started_at.timestamp() * 1000 for later in own[place + 1 : place + 2])])
            alive = (ends_ms - 1 >= start) & (ends_ms - 1 < end)
            if not alive.any():
                continue
            row.append(number)
            workload.append(grant.workload_id)
            pod.append(pods.setdefault(key.pod_id, len(pods)))
            card.append(cards.setdefault(key.card, len(cards)))
            granted.append(float(grant.framebuffer_granted_bytes))
            size.append(float(grant.framebuffer_bytes))
            low.append(grant.priority is Priority.LOW and grant.workload_id not in equals)
            pre.append(grant.kv_cache_pool_bytes is not None)
            lives.append(alive)
    return JudgedRows(
        row=np.array(row, np.int64),
        workload=tuple(workload),
        pod=np.array(pod, np.int64),
        card=np.array(card, np.int64),
        granted_bytes=np.array(granted),
        card_bytes=np.array(size),
        is_low=np.array(low, bool),
        preallocates=np.array(pre, bool),
        lives=np.array(lives, bool).reshape(len(row), grid.steps),
    )
