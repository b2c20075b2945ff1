"""A second fleet, made by other rules than every trace: what the planner claims must hold on it as well.

`second_fleet(seed, cards, days, kind)` is a pure function: the same arguments give the same arrays. Demand is an
autocorrelated walk around a rhythm of its kind; framebuffer follows demand with a power law and, in caching allocators,
is seldom given back. The whole horizon is in the history, so `recommender.backtest` can cut it anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from fleet.inventory import Card, CardId, CardModelName, Grant, Inventory, Node, Priority
from fleet.schema import Measure
from fleet.units import GIB
from fleet.usage import Float32, History, SliceKey, UsageGrid

SINCE = datetime(2026, 5, 4, tzinfo=UTC)
"""Start of every second fleet: a Monday."""
CARDS_PER_NODE = 8
MODELS = ((CardModelName("NVIDIA L40S"), 48 * GIB), (CardModelName("NVIDIA H100 80GB HBM3"), 80 * GIB))
TAKEN_RATIO = 0.9
"""Share of the card that a pre-allocating server takes."""


@dataclass(frozen=True, kw_only=True)
class _Clock:
    """The steps of the horizon: hours since its start, hour of the day 0-24, day number, weekday 0 = Monday."""

    hours: NDArray[np.float64]
    days: int

    @property
    def hour(self) -> NDArray[np.float64]:
        return self.hours % 24

    @property
    def day(self) -> NDArray[np.int64]:
        return (self.hours // 24).astype(np.int64)

    @property
    def weekday(self) -> NDArray[np.int64]:
        return self.day % 7


Shape = Callable[[_Clock, np.random.Generator], NDArray[np.float64]]
"""Demand of a service over the steps in units of its usual peak; NaN before it exists and where it isn't collected."""


def _daily(clock: _Clock, random: np.random.Generator) -> NDArray[np.float64]:
    """A plain bell once a day somewhere in the day, on a floor."""
    peak, width, floor = random.uniform(0, 24), random.uniform(3, 7), random.uniform(0.02, 0.4)
    away = np.abs((clock.hour - peak + 12) % 24 - 12)
    return np.asarray(floor + (1 - floor) * np.exp(-0.5 * (away / width) ** 2), np.float64)


def _weekly(clock: _Clock, random: np.random.Generator) -> NDArray[np.float64]:
    """Office hours, weekends at a fifth or so."""
    opens, closes = random.uniform(6, 10), random.uniform(16, 21)
    at_work = 1 / (1 + np.exp(-2 * (clock.hour - opens))) / (1 + np.exp(2 * (clock.hour - closes)))
    level = np.where(clock.weekday >= 5, random.uniform(0.05, 0.35), 1.0)
    return np.asarray(level * (0.05 + 0.95 * at_work), np.float64)


def _drifting(clock: _Clock, random: np.random.Generator) -> NDArray[np.float64]:
    """A day's rhythm that grows or shrinks by some percent a day."""
    grows = np.exp(random.normal(0.0, 0.05) * clock.hours / 24)
    return np.asarray(_daily(clock, random) * np.clip(grows, 0.3, 2.0), np.float64)


def _bursty(clock: _Clock, random: np.random.Generator) -> NDArray[np.float64]:
    """Nearly nothing, and now and then a burst of some minutes to hours."""
    demand = np.full(len(clock.hours), random.uniform(0.005, 0.1))
    for _ in range(random.poisson(random.uniform(0.3, 4.0) * clock.days)):
        start, length = random.uniform(0, clock.days * 24), random.exponential(1.2)
        inside = (clock.hours >= start) & (clock.hours < start + length)
        demand[inside] = np.maximum(demand[inside], min(1.6, 0.4 + 0.25 * random.pareto(2.5)))
    return demand


def _night_batch(clock: _Clock, random: np.random.Generator) -> NDArray[np.float64]:
    """Works flat out for some hours of most nights, and rests."""
    demand = np.full(len(clock.hours), 0.0005)
    begins, lasts = random.uniform(-2, 4), random.uniform(2, 6)
    for night in range(clock.days + 1):
        if random.random() < 0.1:
            continue
        start = night * 24 + begins + random.normal(0, 0.5)
        demand[(clock.hours >= start) & (clock.hours < start + lasts * random.uniform(0.8, 1.2))] = 1.0
    return demand


def _newcomer(clock: _Clock, random: np.random.Generator) -> NDArray[np.float64]:
    """Not there at first, then ramping up to its place within two days."""
    born = random.uniform(0, 0.9) * clock.days * 24
    ramp = np.clip((clock.hours - born) / random.uniform(6, 48), 0.02, 1.0)
    return np.where(clock.hours < born, np.nan, _daily(clock, random) * ramp)


def _with_gaps(clock: _Clock, random: np.random.Generator) -> NDArray[np.float64]:
    """A day's rhythm of which several spans of hours were not collected."""
    demand = _daily(clock, random)
    for _ in range(max(1, clock.days // 3)):
        start = random.uniform(0, clock.days * 24)
        demand[(clock.hours >= start) & (clock.hours < start + random.uniform(1, 9))] = np.nan
    return demand


def _shifting(clock: _Clock, random: np.random.Generator) -> NDArray[np.float64]:
    """A day's rhythm whose level changes for good at some moments."""
    demand = _daily(clock, random)
    for _ in range(1 + random.poisson(clock.days / 14)):
        demand[clock.hours >= random.uniform(0, clock.days * 24)] *= random.uniform(0.5, 1.9)
    return demand


def _noise(clock: _Clock, random: np.random.Generator) -> NDArray[np.float64]:
    """No rhythm at all."""
    return np.asarray(random.uniform(0.2, 1.0, len(clock.hours)), np.float64)


_SHAPES: dict[str, Shape] = {
    "weekly": _weekly,
    "drifting": _drifting,
    "bursty": _bursty,
    "night_batch": _night_batch,
    "newcomers": _newcomer,
    "gaps": _with_gaps,
    "shifting": _shifting,
    "noise": _noise,
}
_MIXED = ("weekly", "weekly", "drifting", "bursty", "night_batch", "newcomers", "gaps", "shifting")
KINDS = (*_SHAPES, "mixed")
"""What a second fleet can be made of; `mixed` holds some of each but noise."""


def second_fleet(seed: int, cards: int, days: int, kind: str = "mixed", *, step_seconds: int = 600) -> History:
    """Makes a fleet in which every pod has a card of its own, at first.

    Args:
        seed: another seed gives another fleet of the kind.
        cards: cards, one pod each, at least 1.
        days: length of the history, at least 1.
        kind: one of `KINDS`.
        step_seconds: length of a step, a divisor of a day.

    Returns:
        The history as known at its end.
    """
    random = np.random.default_rng([seed, cards, days, KINDS.index(kind)])
    steps = days * 86400 // step_seconds
    clock = _Clock(hours=(np.arange(steps) + 0.5) * step_seconds / 3600, days=days)
    compute = np.empty((cards, steps), np.float32)
    used = np.empty((cards, steps), np.float32)
    cache = np.full((cards, steps), np.nan, np.float32)
    inventory_cards: list[Card] = []
    grants: list[Grant] = []
    service = 0
    while len(grants) < cards:
        replicas = min(cards - len(grants), int(1 + random.geometric(0.25)))
        rows = slice(len(grants), len(grants) + replicas)
        model, capacity = MODELS[int(random.random() < 0.5)]
        shape = _SHAPES[kind if kind != "mixed" else _MIXED[int(random.integers(len(_MIXED)))]]
        per_replica = random.uniform(0.05, 0.8) * shape(clock, random)
        compute[rows] = _replicas(per_replica, replicas, random)
        pool = _fill(compute[rows], used[rows], cache[rows], capacity, random)
        born = int(np.isfinite(per_replica).argmax()) if np.isfinite(per_replica).any() else 0
        for replica in range(replicas):
            card = _card(len(inventory_cards), model, capacity)
            inventory_cards.append(card)
            grants.append(_grant(service, replica, card, pool, SINCE + timedelta(seconds=born * step_seconds)))
        service += 1
    return _history(inventory_cards, grants, compute, used, cache, days, step_seconds)


def _replicas(per_replica: NDArray[np.float64], replicas: int, random: np.random.Generator) -> Float32:
    """The replicas of one service: they share a slow walk of the whole service, and each jitters on its own."""
    steps = len(per_replica)
    shared = _walk(random.normal(0.0, 1.0, (1, steps)), 0.95) * random.uniform(0.02, 0.15)
    own = _walk(random.normal(0.0, 1.0, (replicas, steps)), 0.5) * random.uniform(0.03, 0.2)
    skew = np.exp(random.normal(0.0, 0.05, (replicas, 1)))
    return np.asarray(np.clip(per_replica * skew * np.exp(shared + own), 0.0, 1.0), np.float32)


def _walk(shocks: NDArray[np.float64], memory: float) -> NDArray[np.float64]:
    """First-order autoregression with unit variance, by rows."""
    walk = shocks.copy()
    scale = np.sqrt(1 - memory**2)
    for step in range(1, walk.shape[1]):
        walk[:, step] = memory * walk[:, step - 1] + scale * shocks[:, step]
    return walk


def _fill(compute: Float32, used: Float32, cache: Float32, capacity: int, random: np.random.Generator) -> int | None:
    """Writes framebuffer of one service's replicas in place; the size of its KV cache where it takes that ahead."""
    weights = capacity * random.uniform(0.04, 0.35)
    by_load = capacity * random.uniform(0.02, 0.3)
    need = weights + by_load * np.power(compute, random.uniform(0.5, 1.0))
    if random.random() < 0.4:
        pool = TAKEN_RATIO * capacity - weights
        used[:] = np.where(np.isfinite(compute), TAKEN_RATIO * capacity, np.nan)
        cache[:] = (need - weights) / pool
        return int(pool)
    if random.random() < 0.7:
        held = np.maximum.accumulate(np.nan_to_num(need), axis=1)
        need = np.where(np.isfinite(need), 0.3 * need + 0.7 * held, np.nan)
    used[:] = need
    return None


def _card(number: int, model: CardModelName, capacity: int) -> Card:
    return Card(
        card=CardId(f"GPU-{number:06d}"), card_model=model, framebuffer_bytes=capacity,
        node=f"node-{number // CARDS_PER_NODE:05d}", cluster="second",
    )  # fmt: skip


def _grant(service: int, replica: int, card: Card, pool: int | None, started_at: datetime) -> Grant:
    return Grant(
        cluster="second",
        namespace=f"team-{service % 7}",
        pod=f"svc-{service:05d}-{replica}",
        container="main",
        workload=f"svc-{service:05d}",
        workload_kind="Deployment",
        node=card.node,
        card=card.card,
        card_model=card.card_model,
        framebuffer_bytes=card.framebuffer_bytes,
        framebuffer_granted_bytes=card.framebuffer_bytes,
        compute_granted_ratio=1.0,
        priority=Priority.HIGH,
        server="triton" if pool is None else "vllm",
        kv_cache_pool_bytes=pool,
        started_at=started_at,
    )


def _history(
    cards: list[Card],
    grants: list[Grant],
    compute: Float32,
    used: Float32,
    cache: Float32,
    days: int,
    step_seconds: int,
) -> History:
    keys = tuple(
        SliceKey(
            cluster=grant.cluster, namespace=grant.namespace, pod=grant.pod, container=grant.container,
            node=grant.node, card=grant.card, card_model=grant.card_model,
        )
        for grant in grants
    )  # fmt: skip
    measured = {
        Measure.SM_ACTIVE: compute,
        Measure.DUTY_CYCLE: 1.0 - np.power(1.0 - compute, np.float32(3.0)),
        Measure.FRAMEBUFFER_USED: used,
        Measure.KV_CACHE_USAGE: cache,
    }
    inventory = Inventory(
        cluster="second",
        as_of=SINCE + timedelta(days=days),
        cards=tuple(cards),
        nodes=tuple(Node(node=name, cluster="second") for name in sorted({card.node for card in cards})),
        grants=tuple(sorted(grants, key=lambda grant: (grant.pod_id, grant.card))),
    )
    grid = UsageGrid(
        keys=keys, since=SINCE, step_seconds=step_seconds, steps=compute.shape[1], mean=measured, peak=measured
    )
    return History(inventory=inventory, slices=grid)
