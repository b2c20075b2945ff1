"""Histories that no healthy cluster writes, by name: one thing is wrong with each, and none of it may be believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np

from fleet.inventory import WARM_REPLICAS_LABEL, CardModelName, Grant
from fleet.schema import Measure
from fleet.units import GIB
from fleet.usage import History
from tests.recommender.builders import NOW, Service, cluster

IMPOSSIBLE = (np.inf, -np.inf, -1.0, 7.5, 1e30)
"""Values that no counter shows."""


def healthy(days: int = 3) -> History:
    """Three services of two replicas, every pod with a card of its own."""
    return cluster(*(Service(name=f"s{n}", level=0.3, used_gib=4, replicas=2) for n in range(3)), days=days)


def _with_grants(history: History, *grants: Grant) -> History:
    ordered = tuple(sorted(grants, key=lambda grant: (grant.pod_id, grant.card)))
    return replace(history, inventory=replace(history.inventory, grants=ordered))


def _first(**changes: Any) -> History:
    history = healthy()
    first, *rest = history.inventory.grants
    return _with_grants(history, replace(first, **changes), *rest)


def _all(**changes: Any) -> History:
    history = healthy()
    return _with_grants(history, *(replace(grant, **changes) for grant in history.inventory.grants))


def _more(**changes: Any) -> History:
    """The first pod a second time."""
    history = healthy()
    return _with_grants(history, *history.inventory.grants, replace(history.inventory.grants[0], **changes))


def _clock(ahead: timedelta) -> History:
    history = healthy()
    return replace(history, slices=replace(history.slices, since=history.slices.since + ahead))


def _measured(measure: Measure, value: float) -> History:
    history = healthy()
    values = history.slices.mean[measure].copy()
    values[0, ::3] = value
    measured = {**history.slices.mean, measure: values}
    return replace(history, slices=replace(history.slices, mean=measured, peak=measured))


def _without_rows() -> History:
    history = healthy()
    none = {measure: values[:0] for measure, values in history.slices.mean.items()}
    return replace(history, slices=replace(history.slices, keys=(), mean=none, peak=none))


def _without_inventory() -> History:
    history = healthy()
    return replace(history, inventory=replace(history.inventory, cards=(), nodes=()))


def _models_mixed() -> History:
    history = healthy()
    first, second, *rest = history.inventory.grants
    return _with_grants(
        history, first, replace(second, card=first.card, card_model=CardModelName("NVIDIA H100")), *rest
    )


HOSTILE: dict[str, Callable[[], History]] = {
    "begins in the future": lambda: _first(started_at=NOW + timedelta(hours=3)),
    "ended before it began": lambda: _first(ended_at=NOW - timedelta(days=40)),
    "will have ended": lambda: _first(ended_at=NOW + timedelta(days=4)),
    "usage from the future": lambda: _clock(timedelta(hours=5)),
    "usage of last month": lambda: _clock(-timedelta(days=30)),
    "pod twice": _more,
    "pod twice, on two nodes": lambda: _more(node="elsewhere"),
    "pod on another's card": lambda: _more(card=healthy().inventory.grants[3].card),
    "two models on one card": _models_mixed,
    "no card model": lambda: _first(card_model=CardModelName("")),
    "card without framebuffer": lambda: _first(framebuffer_bytes=0),
    "cards without framebuffer": lambda: _all(framebuffer_bytes=0),
    "card of negative framebuffer": lambda: _first(framebuffer_bytes=-5),
    "granted above the card": lambda: _first(framebuffer_granted_bytes=400 * GIB, compute_granted_ratio=9.0),
    "granted less than nothing": lambda: _first(framebuffer_granted_bytes=-1, compute_granted_ratio=-1.0),
    "cache larger than the card": lambda: _first(kv_cache_pool_bytes=400 * GIB),
    "cache of negative size": lambda: _first(kv_cache_pool_bytes=-400),
    "no owner": lambda: _first(workload="", workload_kind=""),
    "no owners": lambda: _all(workload="", workload_kind=""),
    "warm replicas in superscript": lambda: _first(labels=((WARM_REPLICAS_LABEL, "²"),)),
    "warm replicas without end": lambda: _first(labels=((WARM_REPLICAS_LABEL, "9" * 5000),)),
    "no rows of usage": _without_rows,
    "no measures": lambda: replace(healthy(), slices=replace(healthy().slices, mean={}, peak={})),
    "no cards and nodes": _without_inventory,
    "fleet of one card": lambda: cluster(Service(name="a"), days=3),
    "fleet of none": lambda: cluster(days=3),
    **{
        f"{measure.value} of {value:g}": lambda measure=measure, value=value: _measured(measure, value)  # type: ignore[misc]
        for measure in (Measure.SM_ACTIVE, Measure.FRAMEBUFFER_USED)
        for value in IMPOSSIBLE
    },
}


def sizes_mixed() -> History:
    """Cards of one name and two sizes: what nobody could name is not therefore alike."""
    history = cluster(*(Service(name=f"s{n}", level=0.05, used_gib=14) for n in range(8)), days=3)
    name = CardModelName("")
    large = {card.card for card in history.inventory.cards[:2]}

    def size(card: str) -> int:
        return (80 if card in large else 24) * GIB

    cards = tuple(replace(c, card_model=name, framebuffer_bytes=size(c.card)) for c in history.inventory.cards)
    grants = tuple(
        replace(g, card_model=name, framebuffer_bytes=size(g.card), framebuffer_granted_bytes=size(g.card))
        for g in history.inventory.grants
    )
    return replace(history, inventory=replace(history.inventory, cards=cards, grants=grants))


HOSTILE["cards of one name and two sizes"] = sizes_mixed
