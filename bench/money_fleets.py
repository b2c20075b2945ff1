"""Random fleets with prices, grants of every kind and holes in what was measured, to check sums of money on.

Called by the bar `money-sums` and by the tests of the chargeback. A fleet follows from its seed alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboards.money.charged_days import charged_day
from dashboards.money.hourly_usage import HourlyUsage
from fleet.inventory import Card, CardId, CardModelName, Grant, Inventory, Node, Priority
from fleet.money.charged_day import ChargedDay, ServedUnit
from fleet.money.prices import PriceBook
from fleet.money.tenancies import Tenancies, tenancies
from fleet.settings.settings import Settings
from fleet.units import GIB

BEGIN = datetime(2026, 1, 30, tzinfo=UTC)
"""A Friday, two days before a month ends."""
_MODELS = (
    ("NVIDIA A100-SXM4-80GB", 80 * GIB),
    ("NVIDIA A10", 24 * GIB),
    ("NVIDIA H100 80GB HBM3", 80 * GIB),
    ("Accelerator nobody knows", 32 * GIB),
)
_MIG = ("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb")
_NAMES = ("web", "=cmd|' /C calc'!A0", 'say "hi"', "two\nlines", "\u202egnp.exe", "@sum", "llm", "数据")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoneyFleet:
    """A fleet ready to be charged.

    Attributes:
        who: cards and grants.
        nodes: nodes.
        book: prices.
        usage: what was measured, per day.
        starts: start of each day.
        hours: hours of a day.
    """

    who: Tenancies
    nodes: tuple[Node, ...]
    book: PriceBook
    usage: tuple[HourlyUsage, ...]
    starts: tuple[datetime, ...]
    hours: int = 24

    @property
    def until(self) -> datetime:
        """End of the last day."""
        return self.starts[-1] + timedelta(hours=self.hours)

    def days(self) -> list[ChargedDay]:
        """Its days, charged."""
        return [
            charged_day(
                usage,
                self.who,
                self.book,
                start=start,
                end=start + timedelta(hours=self.hours),
                is_idle=np.zeros((len(self.who.grants), self.hours), np.bool_),
                idle_held_bytes_min=0,
            )
            for usage, start in zip(self.usage, self.starts, strict=True)
        ]


def money_fleet(seed: int, *, cards: int = 12, days: int = 3) -> MoneyFleet:
    """A random fleet.

    Args:
        seed: what it follows from.
        cards: number of cards.
        days: number of days.
    """
    random = np.random.default_rng(seed)
    models = [_MODELS[int(number)] for number in random.integers(0, len(_MODELS), cards)]
    nodes = tuple(
        Node(node=f"node-{number}", cluster="c", labels=(("pool", ("own", "rented", "spot")[number % 3]),))
        for number in range(max(1, cards // 4))
    )
    made = [
        Card(
            card=CardId(f"GPU-{number:06d}"),
            card_model=CardModelName(models[number][0]),
            framebuffer_bytes=models[number][1],
            node=nodes[number % len(nodes)].node,
            cluster="c",
            is_owned=(None, True, False)[int(random.integers(0, 3))],
        )
        for number in range(cards)
    ]
    end = BEGIN + timedelta(days=days)
    grants = [grant for card in made for grant in _grants(random, card, end)]
    lives = {
        card.card: (BEGIN - timedelta(days=1) + timedelta(hours=float(random.uniform(0, 40))), None) for card in made
    }
    inventory = Inventory(cluster="c", as_of=end, cards=tuple(made), nodes=nodes, grants=tuple(grants))
    who = tenancies(inventory, lives, until=end)
    return MoneyFleet(
        who=who,
        nodes=nodes,
        book=PriceBook(_settings(random), nodes),
        usage=tuple(_usage(random, who) for _ in range(days)),
        starts=tuple(BEGIN + timedelta(days=day) for day in range(days)),
    )


def _settings(random: np.random.Generator) -> Settings:
    def price() -> str:
        return str(Decimal(int(random.integers(1, 10**10))).scaleb(-9))

    rules: list[dict[str, Any]] = [
        {"card_model": "A10", "node_labels": {"pool": "own"}, "per_card_hour": price(), "basis": "owned"},
        {"node_labels": {"pool": "own"}, "on_premises": {"purchase": price(), "life_years": 3.7, "cards": 7}},
        {"card_model": "A10", "per_card_hour": price(), "currency": "CNY", "until": "2026-01-31"},
        {"card_model": "A10", "per_card_hour": price(), "basis": "committed", "contract": "EDP-1"},
    ]
    return Settings.model_validate(
        {
            "prices": {
                "rules": [{**rule, "source": "drawn", "date": "2026-01"} for rule in rules],
                "rates": [{"currency": "CNY", "into": "USD", "rate": "0.1387", "source": "drawn", "date": "2026-01"}],
                "power_per_kwh": "0.17",
                "compute_ratio": float(random.choice([0.0, 0.3, 0.5, 1.0])),
                "blended_use_ratio": float(random.uniform(0, 1)),
            },
            "energy": {"idle_watts_ratio": 0.15},
        }
    )


def _grants(random: np.random.Generator, card: Card, end: datetime) -> list[Grant]:
    found = []
    for number in range(int(random.choice([0, 1, 1, 2, 3, 7]))):
        start = BEGIN + timedelta(hours=float(random.uniform(-30, 60)))
        length = timedelta(hours=float(random.exponential(20)) + 0.001)
        ended = start + length if random.random() < 0.6 and start + length < end else None
        profile = str(random.choice(_MIG)) if "0GB" in card.card_model and random.random() < 0.3 else None
        share = float(random.choice([0.1, 0.25, 1 / 3, 0.5, 0.77, 1.0]))
        grant = Grant(
            cluster="c",
            namespace=f"team-{int(random.integers(0, 3))}",
            pod=f"{_NAMES[int(random.integers(0, len(_NAMES)))]}-{card.card}-{number}",
            container="main",
            workload=_NAMES[int(random.integers(0, len(_NAMES)))],
            workload_kind="Deployment",
            node=card.node,
            card=card.card,
            card_model=card.card_model,
            framebuffer_bytes=card.framebuffer_bytes,
            framebuffer_granted_bytes=int(card.framebuffer_bytes * share),
            compute_granted_ratio=float(random.choice([share, 1.0])),
            priority=Priority.NORMAL,
            mig_profile=profile,
            labels=(("team", str(random.choice(_NAMES))),) if random.random() < 0.5 else (),
            started_at=start,
            ended_at=ended,
        )
        found.append(grant)
    return found


def _usage(random: np.random.Generator, who: Tenancies) -> HourlyUsage:
    grants, cards = len(who.grants), len(who.cards)
    sizes = np.array([card.framebuffer_bytes for card in who.cards], float)[who.card_of]
    pods = sorted({(grant.namespace, grant.pod) for grant in who.grants})
    place = {pod: number for number, pod in enumerate(pods)}
    return HourlyUsage(
        compute=_with_holes(random, random.beta(0.5, 2.0, (grants, 24))),
        framebuffer_bytes=_with_holes(random, random.uniform(0, 1.02, (grants, 24)) * sizes[:, None]),
        pods=tuple(pods),
        pod_of=np.array([place[grant.namespace, grant.pod] for grant in who.grants], np.int64),
        served={unit: _with_holes(random, random.exponential(5.0, (len(pods), 24))) for unit in ServedUnit},
        watts=_with_holes(random, random.uniform(30, 400, (cards, 24))),
        activity=_with_holes(random, random.uniform(0, 1, (cards, 24))),
    )


def _with_holes(random: np.random.Generator, values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(random.random(values.shape) < 0.15, np.nan, values)
