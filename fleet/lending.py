"""Framebuffer that pods of one card lend each other: what stays on the card, what moves, and how long that takes.

Each pod keeps a part of its grant on the card for good. The rest of what it holds is there while it works, and gives
way to pods that work while it rests, as far as the card can't hold both. CUDA's driver sends out what came to the card
longest ago and doesn't see what is read since (NVIDIA/open-gpu-kernel-modules:kernel-open/nvidia-uvm/uvm_pmm_gpu.c). So
a pod that works again, of which a part is missing, loses the rest as well before the others give way: all that it lends
comes back, and as much leaves for it. It waits for both. Used by the planner's forecast on past days and by the
back-test of coming ones. Needs numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.catalogue import find_model

PCIE_BYTES_PER_SECOND = {3: 15.75e9, 4: 31.5e9, 5: 63.0e9, 6: 121.0e9}
"""What 16 lanes of a PCI Express generation carry in one direction (PCI-SIG: 8, 16, 32 and 64 GT/s a lane, less
encoding)."""
PAGED_RATIO = 0.5
"""Share of it that pages reach which the driver moves as a kernel touches them: 8.2 of 15.75 GB/s were measured over
generation 3 (parallelArchitect/pascal-um-benchmark:README.md)."""
_SLACK_BYTES = 2**20


def paging_bytes_per_second(card_model: str, measured: float | None) -> float:
    """How fast framebuffer of a card moves to host memory or back.

    Args:
        measured: what a probe measured, bytes per second, on a card of any model; it counts where it is slower.
    """
    by_link = PAGED_RATIO * link_bytes_per_second(card_model)
    return by_link if measured is None else min(by_link, measured)


def link_bytes_per_second(card_model: str) -> float:
    """What the link of a card carries in one direction; that of the oldest generation where nobody knows it."""
    model = find_model(card_model)
    generation = None if model is None else model.pcie_generation
    return PCIE_BYTES_PER_SECOND[min(PCIE_BYTES_PER_SECOND) if generation is None else generation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one change of who works brings.

    Attributes:
        came_back: rows whose framebuffer came back, (rows,), bool: one switch each.
        waits_bytes: bytes that move in either direction while a row waits, (rows,); 0 for those that do not wait.
        out_bytes: framebuffer in host memory afterwards, of all rows of each card, (cards,).
    """

    came_back: NDArray[np.bool_]
    waits_bytes: NDArray[np.float64]
    out_bytes: NDArray[np.float64]


class Residency:
    """How much of each row's lent framebuffer is in host memory; mutable: `turn` moves it on."""

    def __init__(self, rows: int) -> None:
        self._out = np.zeros(rows)
        self._worked_at = np.full(rows, -np.inf)

    def turn(
        self,
        now: float,
        works: NDArray[np.bool_],
        held_bytes: NDArray[np.float64],
        kept_bytes: NDArray[np.float64],
        card: NDArray[np.int64],
        capacity_bytes: NDArray[np.float64],
    ) -> Turn:
        """Lets the driver answer to who works now.

        Args:
            now: time, in any unit, not before that of the last turn.
            works: (rows,).
            held_bytes: framebuffer that each row has allocated, (rows,).
            kept_bytes: what of it never leaves the card, (rows,); inf where a row lends nothing.
            card: card of each row, (rows,).
            capacity_bytes: framebuffer of each card, (cards,).
        """
        lent = np.maximum(0.0, held_bytes - kept_bytes)
        self._out = np.minimum(self._out, lent)
        came_back = works & (self._out > _SLACK_BYTES)
        self._worked_at[works] = now
        waits, out = np.zeros(len(card)), np.zeros(len(capacity_bytes))
        for number in np.unique(card[np.isfinite(kept_bytes)]):
            rows = np.flatnonzero(card == number)
            back = rows[came_back[rows]]
            on_card = float((held_bytes[rows] - self._out[rows]).sum())
            free = max(0.0, float(capacity_bytes[number]) - on_card)
            missing = float(self._out[back].sum())
            # What still lies on the card came before what the others brought, so it makes room first, and comes back.
            passing = missing if missing <= free + _SLACK_BYTES else float(lent[back].sum())
            self._out[back] = 0.0
            moved = self._make_room(rows, works, held_bytes, lent, float(capacity_bytes[number]))
            if len(back):
                waits[back] = passing + max(0.0, passing - free)
            else:
                waits[rows[works[rows]]] = moved
            out[number] = self._out[rows].sum()
        return Turn(came_back=came_back, waits_bytes=waits, out_bytes=out)

    def anew(self, rows: NDArray[np.int64]) -> None:
        """Rows that were started anew elsewhere, with everything on the card."""
        self._out[rows] = 0.0

    def _make_room(
        self,
        rows: NDArray[np.int64],
        works: NDArray[np.bool_],
        held: NDArray[np.float64],
        lent: NDArray[np.float64],
        capacity: float,
    ) -> float:
        """Sends out as much of what resting rows lend as the card can't hold, those first that rested longest.

        Returns:
            The bytes that leave.
        """
        before = float(self._out[rows].sum())
        over = float((held[rows] - self._out[rows]).sum()) - capacity
        resting = rows[~works[rows]]
        for row in resting[np.argsort(self._worked_at[resting], kind="stable")]:
            part = min(max(0.0, over), float(lent[row] - self._out[row]))
            self._out[row] += part
            over -= part
        return float(self._out[rows].sum()) - before
