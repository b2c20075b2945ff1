"""Who must sleep so that others need not wait: low priority gives way to high priority on the same card.

Three manners. `off`: nobody sleeps. `strict`: low priority sleeps whenever somebody above it works (mGPU's acceptance:
offline use is 0 whenever online runs). `pressure`: only while the card is full as well, so that idle compute is used.
Low priority wakes when it was not wanted asleep for a while, so that a request every second does not wake and stop it
all the time. A pod that is not measured counts as working: missing is not zero. Pure; called by `node_agent`, once per
look.
"""

from __future__ import annotations

from dataclasses import dataclass

from enforcer.agent.node_view import ContainerKey, NodeView, SliceView
from fleet.inventory import Priority
from fleet.settings.agent import GiveWayManner

_RANK = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveWayRules:
    """When low priority sleeps and wakes.

    Attributes:
        working_ratio: duty cycle above which somebody works, 0-1.
        full_ratio: duty cycle of the card from which it is full, 0-1.
        quiet_seconds: how long nobody may have wanted it asleep before low priority wakes.
    """

    manner: GiveWayManner = GiveWayManner.PRESSURE
    working_ratio: float = 0.01
    full_ratio: float = 0.97
    quiet_seconds: float = 5.0


class GiveWay:
    """Remembers who sleeps, and since when nobody wants it to; mutable: `wanted` moves it on."""

    def __init__(self, rules: GiveWayRules) -> None:
        self.rules = rules
        self._wanted_at: dict[ContainerKey, float] = {}

    def wanted(self, view: NodeView, short_cards: frozenset[str] = frozenset()) -> frozenset[ContainerKey]:
        """Containers that should sleep now.

        Args:
            short_cards: cards whose framebuffer runs out: there low priority stops growing whatever else is so.

        Returns:
            Containers of low priority; one without a UID can't be identified and is left awake.
        """
        there = {key for entry in view.slices if (key := entry.key) is not None}
        self._wanted_at = {key: at for key, at in self._wanted_at.items() if key in there}
        for card in view.cards:
            slices = view.on_card(card.card)
            must = card.card in short_cards or self._must(card.duty_cycle_ratio, slices)
            if must:
                for entry in slices:
                    if entry.priority is Priority.LOW and entry.key is not None:
                        self._wanted_at[entry.key] = view.at_seconds
        quiet = self.rules.quiet_seconds
        # A clock that was set back must not leave anybody asleep for hours.
        self._wanted_at = {key: at for key, at in self._wanted_at.items() if 0 <= view.at_seconds - at < quiet}
        return frozenset(self._wanted_at)

    def _must(self, card_duty: float | None, slices: tuple[SliceView, ...]) -> bool:
        rules = self.rules
        if rules.manner is GiveWayManner.OFF or not slices:
            return False
        above = [entry for entry in slices if _RANK[entry.priority] < _RANK[Priority.LOW]]
        works = any(entry.duty_cycle_ratio is None or entry.duty_cycle_ratio > rules.working_ratio for entry in above)
        if rules.manner is GiveWayManner.STRICT:
            return works
        return works and (card_duty is None or card_duty >= rules.full_ratio)
