"""Who stood where from when to when: cards and grants as columns, each moment of a slice counted once.

Called by `charged_days`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from fleet.catalogue import find_model
from fleet.inventory import Card, CardId, Grant, Inventory
from fleet.units import epoch_ms

Life = tuple[datetime, datetime | None]
"""From when to when a card stood in the cluster, UTC; None while it does."""
SILENT = timedelta(hours=2)
"""A card that was not seen for so long, while others were, is gone: cards are reported hourly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancies:
    """Cards and the periods in which slices of them were granted.

    Attributes:
        cards: every card, sorted by id.
        card_start_ms: when each card came, epoch milliseconds, int64, shape (cards,).
        card_end_ms: when it went; the horizon where it stands.
        grants: grants whose periods hold any time, in the inventory's order.
        card_of: place of each grant's card, int64, shape (grants,).
        start_ms: start of each period, int64, shape (grants,).
        end_ms: end of it; periods of one container on one card don't overlap.
        compute: share of the card's compute that was granted, 0-1, float64, shape (grants,).
        framebuffer: share of its framebuffer.
    """

    cards: tuple[Card, ...]
    card_start_ms: NDArray[np.int64]
    card_end_ms: NDArray[np.int64]
    grants: tuple[Grant, ...]
    card_of: NDArray[np.int64]
    start_ms: NDArray[np.int64]
    end_ms: NDArray[np.int64]
    compute: NDArray[np.float64]
    framebuffer: NDArray[np.float64]


def tenancies(inventory: Inventory, lives: Mapping[CardId, Life], *, until: datetime) -> Tenancies:
    """Cards and grants up to a moment.

    Args:
        lives: when each card was first and last seen; a card without one lives while it is granted.
        until: the horizon, UTC.
    """
    horizon = epoch_ms(until)
    periods = _periods(inventory.grants, horizon)
    cards = {card.card: card for card in inventory.cards}
    for grant, _, _ in periods:
        cards.setdefault(grant.card, _card_of(grant))
    names = sorted(cards)
    place = {name: number for number, name in enumerate(names)}
    card_of = np.array([place[grant.card] for grant, _, _ in periods], np.int64)
    start_ms = np.array([start for _, start, _ in periods], np.int64)
    end_ms = np.array([end for _, _, end in periods], np.int64)
    card_start = np.full(len(names), horizon, np.int64)
    card_end = np.zeros(len(names), np.int64)
    for name, (first, last) in lives.items():
        if name in place:
            card_start[place[name]] = epoch_ms(first)
            card_end[place[name]] = horizon if last is None else min(horizon, epoch_ms(last))
    # Who holds a slice of a card proves that the card is there, whatever was seen of the card itself.
    np.minimum.at(card_start, card_of, start_ms)
    np.maximum.at(card_end, card_of, end_ms)
    shares = [granted_shares(grant) for grant, _, _ in periods]
    return Tenancies(
        cards=tuple(cards[name] for name in names),
        card_start_ms=card_start,
        card_end_ms=card_end,
        grants=tuple(grant for grant, _, _ in periods),
        card_of=card_of,
        start_ms=start_ms,
        end_ms=end_ms,
        compute=np.array([share for share, _ in shares], np.float64),
        framebuffer=np.array([share for _, share in shares], np.float64),
    )


def lives_of(seen: Mapping[CardId, tuple[datetime, datetime]], *, until: datetime) -> dict[CardId, Life]:
    """From when to when each card stood there.

    Args:
        seen: when each card was first and last seen, UTC.
        until: the horizon; what came later is left out.
    """
    newest = min(until, max((last for _, last in seen.values()), default=until))
    return {
        card: (first, None if newest - last <= SILENT else last)
        for card, (first, last) in seen.items()
        if first < until
    }


def granted_shares(grant: Grant) -> tuple[float, float]:
    """Shares of a card's compute and framebuffer that a grant is, 0-1; of a MIG instance its slices of the card's."""
    model = find_model(grant.card_model)
    if grant.mig_profile is not None and model is not None and model.mig is not None:
        profile = next((item for item in model.mig.profiles if item.name == grant.mig_profile), None)
        if profile is not None:
            return (profile.compute_slices / model.mig.compute_slices, profile.memory_slices / model.mig.memory_slices)
    framebuffer = grant.framebuffer_granted_bytes / grant.framebuffer_bytes if grant.framebuffer_bytes > 0 else 1.0
    return min(1.0, max(0.0, grant.compute_granted_ratio)), min(1.0, framebuffer)


def slots_of(who: Tenancies) -> NDArray[np.int64]:
    """A number per container on a card, shape (grants,): periods of one container there have the same."""
    places: dict[tuple[str, str, str, str], int] = {}
    return np.array(
        [places.setdefault((g.namespace, g.pod, g.container, g.card), len(places)) for g in who.grants], np.int64
    )


def team_of(grant: Grant, team_labels: Sequence[str]) -> str:
    """The team that a pod belongs to: the first label that is set, else its namespace."""
    return next((value for name in team_labels if (value := grant.label(name))), grant.namespace)


def _periods(grants: Sequence[Grant], horizon: int) -> list[tuple[Grant, int, int]]:
    """Grants with their periods; a grant that changed is known by both its forms, and the later form counts."""
    slices: dict[tuple[str, str, str, str], list[tuple[int, int, int]]] = {}
    for number, grant in enumerate(grants):
        start = epoch_ms(grant.started_at)
        end = horizon if grant.ended_at is None else min(horizon, epoch_ms(grant.ended_at))
        slices.setdefault((grant.namespace, grant.pod, grant.container, grant.card), []).append((start, end, number))
    found: list[tuple[int, int, int]] = []
    for periods in slices.values():
        until = horizon
        for start, end, number in sorted(periods, reverse=True):
            if start < min(end, until):
                found.append((number, start, min(end, until)))
                until = start
    return [(grants[number], start, end) for number, start, end in sorted(found)]


def _card_of(grant: Grant) -> Card:
    return Card(
        card=grant.card,
        card_model=grant.card_model,
        framebuffer_bytes=grant.framebuffer_bytes,
        node=grant.node,
        cluster=grant.cluster,
    )
