"""Framebuffer that pods of one card lend each other: what stays on the card, what moves, and how long that takes.

Each pod keeps a part of its grant on the card for good. The rest of what it holds is there while it works, and gives
way to pods that work while it rests: the pod that has rested longest goes first, as CUDA's driver evicts (CUDA C++
Programming Guide, unified memory: least recently used), and with all that it lends, because the driver doesn't know
what it will ask for. A pod that works again waits until its own part is back and room is made for it. Used by the
planner's forecast on past days and by whatever plays coming ones. Needs numpy.
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
        measured: what a probe measured, bytes per second; it counts instead.
    """
    return PAGED_RATIO * link_bytes_per_second(card_model) if measured is None else measured


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
        waits_bytes: bytes that move while a row waits, (rows,); 0 for those that do not wait.
        out_bytes: framebuffer in host memory afterwards, of all rows of each card, (cards,).
    """

    came_back: NDArray[np.bool_]
    waits_bytes: NDArray[np.float64]
    out_bytes: NDArray[np.float64]


class Residency:
    """Whose lent framebuffer is on the card and whose in host memory; mutable: `turn` moves it on."""

    def __init__(self, rows: int) -> None:
        self._is_out = np.zeros(rows, bool)
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
        came_back = works & self._is_out
        self._is_out &= ~works & (lent > 0)
        self._worked_at[works] = now
        waits, out = np.zeros(len(card)), np.zeros(len(capacity_bytes))
        for number in np.unique(card[np.isfinite(kept_bytes)]):
            rows = np.flatnonzero(card == number)
            moved = float(lent[rows[came_back[rows]]].sum())
            moved += self._make_room(rows, works, held_bytes, lent, float(capacity_bytes[number]))
            waiting = rows[came_back[rows]] if came_back[rows].any() else rows[works[rows]]
            waits[waiting] = moved
            out[number] = lent[rows[self._is_out[rows]]].sum()
        return Turn(came_back=came_back, waits_bytes=waits, out_bytes=out)

    def anew(self, rows: NDArray[np.int64]) -> None:
        """Rows that were started anew elsewhere, with everything on the card."""
        self._is_out[rows] = False

    def _make_room(
        self,
        rows: NDArray[np.int64],
        works: NDArray[np.bool_],
        held: NDArray[np.float64],
        lent: NDArray[np.float64],
        capacity: float,
    ) -> float:
        """Sends out what resting rows lend until the card holds the rest; returns the bytes that move."""
        moved = 0.0
        on_card = float(held[rows].sum() - lent[rows[self._is_out[rows]]].sum())
        while on_card > capacity + _SLACK_BYTES:
            able = rows[~works[rows] & ~self._is_out[rows] & (lent[rows] > 0)]
            if not len(able):
                break
            first = able[np.argmin(self._worked_at[able])]
            self._is_out[first] = True
            moved += float(lent[first])
            on_card -= float(lent[first])
        return moved
