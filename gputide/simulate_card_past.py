"""What was known of each card while days were played: the past of the pods that sit there now, wherever they sat then.

A card that got new pods yesterday has no past of its own that says anything. So its past is put together from its
pods', and changes when one comes, goes or ends. Called by `simulate_policies` for where low priority may start.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet.usage import Float32
from gputide.simulate import Played
from gputide.simulate_stage import Stage

GONE_SECONDS = 3600
"""A pod that was not seen for so long needs nothing any more; a shorter gap hides what it needs."""
_NOWHERE = -1


class CardPast:
    """Free framebuffer of cards as known in a step; steps must be asked for in order.

    Args:
        stage: pods and days.
        played: where they sat.
    """

    def __init__(self, stage: Stage, played: Played) -> None:
        self._need = _filled(stage.demand.need_bytes, stage.past)
        self._past, self._seat = stage.past, played.seat
        self._seen = np.isfinite(stage.demand.need_bytes)
        self._gone_steps = max(1, GONE_SECONDS // stage.step_seconds)
        self._capacity = np.maximum(1.0, played.capacity_bytes).astype(np.float32)
        self._card = np.full(stage.rows, _NOWHERE, np.int64)
        self._held = np.zeros((len(self._capacity), stage.demand.steps), np.float32)

    def __call__(self, step: int) -> Float32:
        """Share of each card's framebuffer that its pods of this step did not need, (cards, past steps and this)."""
        columns = self._past + step + 1
        lives = self._seen[:, max(0, columns - self._gone_steps) : columns].any(axis=1)
        now = np.where(lives, self._seat[:, step], _NOWHERE)
        for row in np.flatnonzero(now != self._card).tolist():
            if self._card[row] != _NOWHERE:
                self._held[self._card[row]] -= self._need[row]
            if now[row] != _NOWHERE:
                self._held[now[row]] += self._need[row]
        self._card = now
        free: Float32 = 1.0 - self._held[:, :columns] / self._capacity[:, None]
        return free


def _filled(need: Float32, past: int) -> Float32:
    """Need without gaps: where nothing was collected, the most that was ever seen of the pod until then.

    Before it was seen at all, a pod needs what it needed at most before the cut, for that much may come again.
    """
    known = np.nan_to_num(need)
    most = np.maximum.accumulate(known, axis=1)
    before = known[:, :past].max(axis=1, initial=0.0)
    filled: NDArray[np.float32] = np.where(np.isfinite(need), known, np.maximum(most, before[:, None]))
    return filled
