"""Framebuffer that must stay free on a shared card, and who goes when it is not.

Under the watermark a card's low priority is evicted, one pod at a time, before high priority runs out: the one whose
leaving frees enough with the least left over, or the largest where none is enough. The next one goes only after the
first had time to leave. The card is closed to newcomers for a while, so that nobody comes back in the same place
(Kuaishou's framebuffer avoidance: evicted at once, not restarted in place). A pod that was evicted and stays (a
disruption budget, a long farewell) is passed over until all others were evicted. A card that nobody measures, on which
no low priority sits, or on which nobody above it does, is left alone. Pure; called by `node_agent`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from enforcer.agent.node_view import CardView, NodeView, SliceView
from fleet.inventory import Priority
from fleet.settings.agent import AgentSettings


class Shortage(StrEnum):
    """What runs out."""

    FRAMEBUFFER = "framebuffer"
    HOST_MEMORY = "host_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """One pod that goes.

    Attributes:
        frees_bytes: what it used there; of host memory the most that it can give back.
        closed_until: until when the card takes no newcomer, Unix seconds.
    """

    namespace: str
    pod: str
    card: str
    frees_bytes: int
    closed_until: float
    reason: str
    short_of: Shortage = Shortage.FRAMEBUFFER


class Watermark:
    """Remembers which pods were evicted; mutable: `evictions` moves it on."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings, self._free_ratio_min = settings, settings.framebuffer_free_ratio_min
        self._told_at: dict[str, float] = {}
        self._told: dict[str, frozenset[str]] = {}

    def short_cards(self, view: NodeView) -> frozenset[str]:
        """Cards below the watermark on which somebody is above low priority."""
        return frozenset(
            card.card for card in view.cards if self._missing(card) > 0 and _is_wanted(view.on_card(card.card))
        )

    def evictions(self, view: NodeView) -> tuple[Eviction, ...]:
        """Who goes now; at most one pod per card, and none while an earlier one may still be leaving."""
        found = []
        for card in view.cards:
            missing, slices = self._missing(card), view.on_card(card.card)
            if missing <= 0:
                self._told_at.pop(card.card, None)
                self._told.pop(card.card, None)
                continue
            told_at = self._told_at.get(card.card)
            # A clock that was set back must not make it wait for hours.
            if told_at is not None and 0 <= view.at_seconds - told_at < self._settings.settle_seconds:
                continue
            told = self._told.get(card.card, frozenset())
            victim = _victim(slices, missing, told) or _victim(slices, missing, frozenset())
            if victim is None or not _is_wanted(slices):
                continue
            self._told_at[card.card] = view.at_seconds
            self._told[card.card] = frozenset({victim.pod_id}) | (frozenset() if victim.pod_id in told else told)
            found.append(
                Eviction(
                    namespace=victim.namespace,
                    pod=victim.pod,
                    card=card.card,
                    frees_bytes=victim.framebuffer_used_bytes or 0,
                    closed_until=view.at_seconds + self._settings.closed_seconds,
                    reason=f"{card.framebuffer_free_bytes} bytes of framebuffer free on {card.card}, "
                    f"agent.framebuffer_free_ratio_min={self._free_ratio_min:g} wants {missing} more",
                )
            )
        return tuple(found)

    def _missing(self, card: CardView) -> int:
        if card.framebuffer_free_bytes is None:
            return 0
        return int(card.framebuffer_bytes * self._free_ratio_min) - card.framebuffer_free_bytes


def _is_wanted(slices: tuple[SliceView, ...]) -> bool:
    """Whether somebody is there for whom framebuffer must stay free: low priority among itself may fill a card."""
    return any(entry.priority is not Priority.LOW for entry in slices)


def _victim(slices: tuple[SliceView, ...], missing: int, passed_over: frozenset[str]) -> SliceView | None:
    used: dict[str, int] = {}
    for entry in slices:
        if entry.priority is Priority.LOW and entry.framebuffer_used_bytes and entry.pod_id not in passed_over:
            used[entry.pod_id] = used.get(entry.pod_id, 0) + entry.framebuffer_used_bytes
    if not used:
        return None
    enough = [pod for pod, amount in used.items() if amount >= missing]
    chosen = min(enough, key=lambda pod: (used[pod], pod)) if enough else max(used, key=lambda pod: (used[pod], pod))
    parts = [entry for entry in slices if entry.pod_id == chosen]
    return max(parts, key=lambda entry: (entry.framebuffer_used_bytes or 0, entry.container))
