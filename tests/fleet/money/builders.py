"""A cluster of few cards over one day, hour by hour, to charge by hand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboards.money.charged_days import charged_day
from dashboards.money.hourly_usage import HourlyUsage
from fleet.inventory import Card, CardId, CardModelName, Grant, Inventory, Priority
from fleet.money.charged_day import ChargedDay, ServedUnit
from fleet.money.charges import BillingPeriod, Chargeback, Owner, chargeback
from fleet.money.prices import PriceBook
from fleet.money.tenancies import Tenancies, tenancies
from fleet.settings.settings import Settings
from fleet.units import GIB

DAY = datetime(2026, 1, 12, tzinfo=UTC)
END = DAY + timedelta(days=1)
BILLED = BillingPeriod(cluster="c", since=DAY, until=END, currency="USD")
SIZE = 24 * GIB


def a_card(number: int, *, model: str = "NVIDIA A10", node: str = "n-0", is_owned: bool | None = None) -> Card:
    return Card(
        card=CardId(f"GPU-{number}"), card_model=CardModelName(model), framebuffer_bytes=SIZE, node=node, cluster="c",
        is_owned=is_owned,
    )  # fmt: skip


def a_grant(card: int, pod: str, **changes: Any) -> Grant:
    share = changes.pop("share", 1.0)
    fields: dict[str, Any] = {
        "cluster": "c", "namespace": "team", "pod": pod, "container": "main", "workload": pod,
        "workload_kind": "Deployment", "node": "n-0", "card": CardId(f"GPU-{card}"),
        "card_model": CardModelName("NVIDIA A10"), "framebuffer_bytes": SIZE,
        "framebuffer_granted_bytes": int(SIZE * share), "compute_granted_ratio": share, "priority": Priority.NORMAL,
        "started_at": DAY,
    }  # fmt: skip
    return Grant(**{**fields, **changes})


def settled(cards: list[Card], grants: list[Grant], *, until: datetime = END) -> Tenancies:
    inventory = Inventory(cluster="c", as_of=until, cards=tuple(cards), grants=tuple(grants))
    return tenancies(inventory, {card.card: (DAY - timedelta(days=1), None) for card in cards}, until=until)


def measured(who: Tenancies, **grids: float | list[float]) -> HourlyUsage:
    """Every hour alike: one number per grant, pod or card, of units per second; what is not named was not measured."""
    pods = sorted({(grant.namespace, grant.pod) for grant in who.grants})
    lengths = {"compute": who.grants, "framebuffer_bytes": who.grants, "watts": who.cards, "activity": who.cards}

    def made(name: str, rows: Sequence[object]) -> NDArray[np.float64]:
        return np.repeat(np.array(np.broadcast_to(grids.get(name, np.nan), len(rows)), float)[:, None], 24, axis=1)

    return HourlyUsage(
        **{name: made(name, rows) for name, rows in lengths.items()},
        served={unit: made(unit.value.replace(" ", "_"), pods) for unit in ServedUnit},
        pods=tuple(pods),
        pod_of=np.array([pods.index((grant.namespace, grant.pod)) for grant in who.grants], np.int64),
    )


def some_settings(**prices: Any) -> Settings:
    return Settings.model_validate({"prices": {"overrides": {"A10": "0.9"}, **prices}})


def a_day(
    who: Tenancies,
    usage: HourlyUsage | None = None,
    settings: Settings | None = None,
    *,
    idle: tuple[int, ...] = (),
) -> ChargedDay:
    """One day; `idle` names the grants that are idle through it."""
    settings = settings if settings is not None else some_settings()
    is_idle = np.zeros((len(who.grants), 24), np.bool_)
    is_idle[list(idle)] = True
    return charged_day(
        usage if usage is not None else measured(who), who, PriceBook(settings), start=DAY, end=END, is_idle=is_idle,
        idle_held_bytes_min=settings.analyzer.idle_held_bytes_min,
    )  # fmt: skip


def charged(who: Tenancies, day: ChargedDay, by: Owner = Owner.POD) -> Chargeback:
    return chargeback([day], who, BILLED, by=by, team_labels=("gputide.io/team", "team"))
