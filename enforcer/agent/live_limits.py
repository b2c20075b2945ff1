"""Framebuffer limits of running containers: which may be set, and which are refused.

What others hold is what the scheduler's books say, for regions are their tenants' to write. A limit grows only within
what the card has left beside the others; on a card that the scheduler has granted more than once it can only shrink.
Never below what the container uses now, for its next allocation would fail. Shrinking goes before growing, so that no
moment sees more than the card has. Pure; called by `node_agent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from enforcer.agent.node_view import ContainerKey, NodeView, SliceView


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedLimit:
    """A limit that the control plane wants.

    Attributes:
        framebuffer_bytes: limit, whole MiB.
    """

    container: ContainerKey
    card: str
    framebuffer_bytes: int

    @property
    def place(self) -> tuple[ContainerKey, str]:
        """Which container on which card."""
        return self.container, self.card


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitDecision:
    """What becomes of wanted limits.

    Attributes:
        to_write: those that may be set, in the order in which they must be.
    """

    to_write: tuple[WantedLimit, ...]
    refused: tuple[tuple[WantedLimit, str], ...]


def decide_limits(
    wanted: Sequence[WantedLimit], view: NodeView, done: AbstractSet[WantedLimit] = frozenset()
) -> LimitDecision:
    """Decide which wanted limits may be set.

    Args:
        wanted: what the control plane wants; of several for one container and card the last counts.
        done: limits that were set and reported to the scheduler; its answer may still be on its way.

    Returns:
        What to write; a limit that stands in the region and is done is left out.
    """
    slices = {(entry.key, entry.card): entry for entry in view.slices if entry.key is not None}
    cards = {card.card: card for card in view.cards}
    held = {place: entry.framebuffer_granted_bytes for place, entry in slices.items()}
    held |= {entry.place: entry.framebuffer_bytes for entry in done if entry.place in held}
    newest = {entry.place: entry for entry in wanted}
    to_write: list[WantedLimit] = []
    refused: list[tuple[WantedLimit, str]] = []
    # What shrinks makes the room in which others grow.
    for entry in sorted(newest.values(), key=lambda entry: entry.framebuffer_bytes - held.get(entry.place, 0)):
        seat, card = slices.get(entry.place), cards.get(entry.card)
        if seat is None or card is None:
            refused.append((entry, "no such container on this card"))
            continue
        if seat.framebuffer_limit_bytes == entry.framebuffer_bytes and (
            entry in done or seat.framebuffer_granted_bytes == entry.framebuffer_bytes
        ):
            continue
        others = sum(amount for place, amount in held.items() if place[1] == entry.card and place != entry.place)
        why = _refusal(entry.framebuffer_bytes, seat, card.framebuffer_bytes, others)
        if why is not None:
            refused.append((entry, why))
            continue
        held[entry.place] = entry.framebuffer_bytes
        to_write.append(entry)
    return LimitDecision(to_write=tuple(to_write), refused=tuple(refused))


def _refusal(new: int, seat: SliceView, card_bytes: int, others: int) -> str | None:
    used, granted = seat.framebuffer_used_bytes, seat.framebuffer_granted_bytes
    if new > card_bytes:
        return f"{new} bytes is more than the card's {card_bytes}"
    if new > granted and others + new > card_bytes:
        return f"the card's {card_bytes} bytes hold {others} of others already"
    if new < granted and used is None:
        return "how much it uses is not known, so its limit can't be lowered"
    if used is not None and new < used:
        return f"it uses {used} bytes, more than {new}"
    return None
