"""Which cards of a node are in trouble: full while somebody above low priority works, or short of framebuffer.

Pure. The agent reports it at once to clients that wait; what follows from it is decided by `enforcer.relief`, which
judges anew from the view itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from enforcer.agent.node_view import NodeView
from fleet.inventory import Priority


def troubled_cards(view: NodeView, *, full_ratio: float, free_ratio_min: float) -> frozenset[str]:
    """Cards in trouble.

    Args:
        full_ratio: duty cycle from which a card is full, 0-1.
        free_ratio_min: free framebuffer / framebuffer below which it is short, 0-1.
    """
    wanted = {part.card for part in view.slices if part.priority is not Priority.LOW}
    found = set()
    for card in view.cards:
        free, duty = card.framebuffer_free_bytes, card.duty_cycle_ratio
        is_short = free is not None and free < free_ratio_min * card.framebuffer_bytes
        is_full = duty is not None and duty >= full_ratio
        if card.card in wanted and (is_short or is_full):
            found.add(card.card)
    return frozenset(found)


def trouble_digest(cards: Iterable[str]) -> str:
    """Sixteen letters that differ where the troubled cards do; empty for none."""
    names = sorted(cards)
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:16] if names else ""
