"""How many slices meet on a card where the scheduler chooses the card of every slice of a node, by framebuffer alone.

Asked by the planner, which sizes slices so that the answer does not depend on that choice, and by the enforcer, which
says what a plan leaves to it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence


def slices_that_meet(sizes: Sequence[int], card_size: int) -> int | None:
    """Most slices of a node that meet on one of its cards, the same whichever the scheduler puts there.

    A scheduler that fills cards before it opens new ones then needs `len(sizes)` / that many cards, rounded up, in
    whatever order pods come.

    Args:
        sizes: framebuffer of every slice of the node, in one unit.
        card_size: framebuffer that pods can share of each of its cards, in that unit.

    Returns:
        None where some sets of so many fit a card and others do not.
    """
    ordered = sorted(sizes)
    most = next((count for count in range(len(ordered), 0, -1) if sum(ordered[-count:]) <= card_size), 0)
    return most if most == len(ordered) or sum(ordered[: most + 1]) > card_size else None
