"""What each team holds and uses: cards granted, in use and idle, counted so that the teams' parts sum to the cards.

A card that several workloads share is split among them in equal parts: what each was granted of it is not known for
every way of sharing, and a part must never be counted twice. Pure; called by the tenants page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from dashboards.shown.rows import price_per_week
from fleet.inventory import CardId
from fleet.money.book import Prices
from fleet.profiles import CardProfile, CardState, Profile, Profiles, WorkloadState

IDLE_STATES = frozenset({WorkloadState.IDLE, WorkloadState.IDLE_HELD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One team (a namespace).

    Attributes:
        name: namespace.
        workloads: how many it has.
        cards: cards granted to it, shared ones in parts.
        cards_used: of these, what was typically in use: each workload's median compute, once per card part; None where
            nothing was measured.
        cards_measured: cards that this is known of.
        cards_idle: cards of workloads that are idle, of pods that are idle in workloads of several, and of none else.
        cost_per_week: price of its cards; None where none has a price.
        idle_per_week: price of the idle ones; None where none of them has a price.
        distrusted: workloads whose counters free nothing.
    """

    name: str
    workloads: int
    cards: float
    cards_used: float | None
    cards_measured: float
    cards_idle: float
    cost_per_week: Decimal | None
    idle_per_week: Decimal | None
    distrusted: int

    @property
    def idle_ratio(self) -> float:
        """Idle cards / granted cards, 0-1."""
        return self.cards_idle / self.cards if self.cards else 0.0


def tenants(profiles: Profiles, prices: Prices) -> tuple[Tenant, ...]:
    """Every team, the most wasteful first: by the price of what stands idle, then by its cards."""
    by_team: dict[str, list[Profile]] = defaultdict(list)
    for profile in profiles.workloads:
        by_team[profile.namespace].append(profile)
    cards = {card.card: card for card in profiles.cards}
    week = {name: price_per_week(card, profiles, prices) for name, card in cards.items()}
    found = [_tenant(name, by_team[name], cards, week) for name in by_team]
    return tuple(sorted(found, key=lambda team: (-(team.idle_per_week or 0), -team.cards_idle, team.name)))


def _tenant(
    name: str, own: list[Profile], cards: Mapping[CardId, CardProfile], week: Mapping[CardId, Decimal | None]
) -> Tenant:
    granted = used = measured = idle = 0.0
    cost, idle_cost = [], []
    for profile in own:
        parts = [(cards[card], 1 / max(1, len(cards[card].workloads))) for card in profile.cards if card in cards]
        share = _idle_share(profile)
        for card, part in parts:
            granted += part
            if profile.compute.p50 is not None and profile.is_trusted:
                measured += part
                used += part * min(1.0, profile.compute.p50)
            # A card that is busy is not idle, whichever of its pods is.
            is_idle = share > 0 and (share == 1 or card.state is CardState.IDLE_HELD)
            idle += part if is_idle else 0.0
            price = week[card.card]
            if price is not None:
                cost.append(price * Decimal(str(part)))
                if is_idle:
                    idle_cost.append(cost[-1])
    return Tenant(
        name=name,
        workloads=len(own),
        cards=granted,
        cards_used=used if measured else None,
        cards_measured=measured,
        cards_idle=idle,
        cost_per_week=sum(cost, Decimal(0)) if cost else None,
        idle_per_week=sum(idle_cost, Decimal(0)) if idle_cost else None,
        distrusted=sum(not profile.is_trusted for profile in own),
    )


def _idle_share(profile: Profile) -> float:
    """Share of a workload's pods that are idle: 1 for a workload that is idle as a whole."""
    if profile.state in IDLE_STATES:
        return 1.0
    return len(profile.idle_pods) / max(1, len(profile.pods)) if profile.state is WorkloadState.PARTLY_IDLE else 0.0
