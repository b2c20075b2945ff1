"""What every pod used on every card over the last day, as far as relief saw it: the past that a choice is made from.

One column a minute, the largest use seen in it; a minute in which a pod was not seen, or nobody knew its use, holds
nothing, and counts as no use. Mutable, bounded: pods that were not seen for as long as is remembered are forgotten.
Lost when relief ends: then it learns anew, and what it knows least of it judges by the present.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from enforcer.agent.node_view import NodeView
from fleet.inventory import Priority
from fleet.usage import Float32

STEP_SECONDS = 60
ROWS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SeatKey:
    """One pod on one card."""

    namespace: str
    pod: str
    card: str


def used(view: NodeView) -> dict[SeatKey, float | None]:
    """Compute that every pod uses of each of its cards, share of the card; None where nobody can tell.

    Of pods of which nobody says it, it is what their card uses beyond the others, by equal parts; low priority of which
    nobody says it counts as none, for it gets what the others leave.
    """
    found: dict[SeatKey, float | None] = {}
    for part in view.slices:
        key = SeatKey(namespace=part.namespace, pod=part.pod, card=part.card)
        ratio = 0.0 if part.duty_cycle_ratio is None and part.priority is Priority.LOW else part.duty_cycle_ratio
        known = found.get(key, 0.0)
        found[key] = None if known is None or ratio is None else known + ratio
    for card in view.cards:
        unknown = [key for key, ratio in found.items() if key.card == card.card and ratio is None]
        if unknown and card.duty_cycle_ratio is not None:
            rest = card.duty_cycle_ratio - sum(ratio or 0.0 for key, ratio in found.items() if key.card == card.card)
            found |= dict.fromkeys(unknown, max(0.0, rest) / len(unknown))
    return found


class DemandMemory:
    """Remembers use; not for several threads."""

    def __init__(self, steps: int = 1440) -> None:
        self._steps = steps
        self._rows: dict[SeatKey, int] = {}
        self._free: list[int] = list(range(63, -1, -1))
        self._load: Float32 = np.zeros((64, steps), np.float32)
        self._need: NDArray[np.float64] = np.zeros(64)
        self._seen_step: NDArray[np.int64] = np.full(64, -1, np.int64)
        self._step = self._first = -1
        self._view_at: dict[str, float] = {}

    def see(self, views: Mapping[str, NodeView]) -> None:
        """Take in what nodes report; a view that was seen before is passed over."""
        fresh = [view for node, view in views.items() if self._view_at.get(node) != view.at_seconds]
        self._view_at = {node: view.at_seconds for node, view in views.items()}
        if not fresh:
            return
        self._roll(int(max(view.at_seconds for view in fresh) // STEP_SECONDS))
        column = self._step % self._steps
        for view in fresh:
            sizes: dict[SeatKey, int] = {}
            for part in view.slices:
                key = SeatKey(namespace=part.namespace, pod=part.pod, card=part.card)
                sizes[key] = sizes.get(key, 0) + (part.framebuffer_used_bytes or 0)
            for key, ratio in used(view).items():
                row = self._row_of(key)
                if row is None:
                    continue
                self._load[row, column] = max(self._load[row, column], ratio or 0.0)
                self._need[row] = max(self._need[row], sizes[key])
                self._seen_step[row] = self._step

    def load(self, keys: Sequence[SeatKey], now: Mapping[SeatKey, float]) -> Float32:
        """Use of some pods, share of a card, (keys, steps), oldest first; the last column is the present."""
        steps = max(1, min(self._steps, self._known()))
        order = [(self._step - steps + 1 + number) % self._steps for number in range(steps)]
        found: Float32 = np.zeros((len(keys), steps), np.float32)
        for number, key in enumerate(keys):
            row = self._rows.get(key)
            if row is not None:
                found[number] = self._load[row, order]
            found[number, -1] = now.get(key, 0.0)
        return found

    def need_bytes(self, key: SeatKey) -> float:
        """Most framebuffer that a pod was seen to use; 0 where it was not seen."""
        row = self._rows.get(key)
        return 0.0 if row is None else float(self._need[row])

    def _known(self) -> int:
        """Minutes since it began to look."""
        return 0 if self._step < 0 else min(self._steps, self._step - self._first + 1)

    def _roll(self, step: int) -> None:
        if self._step < 0:
            self._first = step
        if step <= self._step:
            return
        for gone in range(max(self._step + 1, step - self._steps + 1), step + 1):
            self._load[:, gone % self._steps] = 0.0
        self._step = step
        for key, row in [(key, row) for key, row in self._rows.items() if step - self._seen_step[row] >= self._steps]:
            del self._rows[key]
            self._free.append(row)

    def _row_of(self, key: SeatKey) -> int | None:
        row = self._rows.get(key)
        if row is not None:
            return row
        if len(self._rows) >= ROWS_MAX:
            return None
        if not self._free:
            count = len(self._load)
            self._load = np.vstack([self._load, np.zeros((count, self._steps), np.float32)])
            self._need = np.concatenate([self._need, np.zeros(count)])
            self._seen_step = np.concatenate([self._seen_step, np.full(count, -1, np.int64)])
            self._free = list(range(2 * count - 1, count - 1, -1))
        row = self._free.pop()
        self._rows[key] = row
        self._load[row] = 0.0
        self._need[row] = 0.0
        return row
